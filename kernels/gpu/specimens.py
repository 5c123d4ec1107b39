"""Block specs such as programs have, for reports and measurements: a softmax between two products, and its
gradient.

What programs have is made of their plans by `compiler.gpu.assembly`; these are by hand, of given sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from kernels import dtypes
from kernels.blocks import BlockSpec, BlockStep, BlockWork, Dot, Total
from kernels.dtypes import DType
from kernels.recorder import Recorder, Register
from kernels.spec import Load, Operand, Reduce, Store, pattern

# Heads, rows and columns; and the numbers of a head's rows.
SIZES, WIDTHS = (8, 1024, 1024), (32, 64, 128)
# The short axis, after those of heads, of the program's own block and of what it walks.
SHORT = 3


@dataclass
class _Specimen:
    """Collects operands and steps; `own` and `walked` are sizes."""

    dtype: DType
    sizes: tuple[int, int, int]
    width: int
    k: Recorder = field(default_factory=Recorder)
    operands: list[tuple[DType, tuple[int, ...]]] = field(default_factory=list)

    @property
    def steps(self) -> list[BlockStep]:
        """All steps: calls are recorded between the others."""
        return cast(list[BlockStep], self.k.steps)

    def tile(self, own: bool) -> int:
        """An operand along the program's axis, or the walked one, and the short one."""
        _, rows, columns = self.sizes
        across = (rows * self.width, self.width, 0, 1) if own else (columns * self.width, 0, self.width, 1)
        self.operands.append((self.dtype, across))
        return len(self.operands) - 1

    def line(self, own: bool) -> int:
        """An operand with a number for each index of the program's axis, or of the walked one."""
        _, rows, columns = self.sizes
        self.operands.append((dtypes.float32, (rows, 1, 0, 0) if own else (columns, 0, 1, 0)))
        return len(self.operands) - 1

    def dot(self, own: int, walked: int) -> Register:
        """A product over the short axis."""
        out = self.k.fresh(dtypes.float32)
        self.steps.append(Dot(out.name, own, walked, SHORT, dtypes.float32))
        return out

    def load(self, operand: int) -> Register:
        """A number for each row, or column."""
        out = self.k.fresh(dtypes.float32)
        self.steps.append(Load(out.name, operand))
        return out

    def reduce(self, value: Register, combine: str) -> Register:
        """A number for each index of the program's axis."""
        out = self.k.fresh(dtypes.float32)
        self.steps.append(Reduce(out.name, value.name, combine, dtypes.float32))
        return out

    def total(self, value: Register, operand: int) -> None:
        """A product over the walked axis, which is stored."""
        out = self.k.fresh(dtypes.float32)
        value = self.k.cast(value, self.dtype)
        self.steps.append(Total(out.name, value.name, operand, SHORT, self.dtype, dtypes.float32))
        rounded = self.k.cast(out, self.dtype)
        self.steps.append(Store(rounded.name, self.tile(own=True)))

    def keep(self, value: Register) -> None:
        """Store a number for each index of the program's axis."""
        self.steps.append(Store(value.name, self.line(own=True)))

    def work(self, name: str) -> BlockWork:
        """All of it."""
        operands = tuple(Operand(d, tuple(pattern(s) for s in own)) for d, own in self.operands)
        spec = BlockSpec(name, 1, 1, operands, tuple(self.steps))
        return BlockWork(spec, (*self.sizes, self.width), tuple(own for _, own in self.operands))


def forward(dtype: DType, width: int, sizes: tuple[int, int, int] = SIZES) -> BlockWork:
    """softmax(Q K^T / 8) V."""
    made = _Specimen(dtype, sizes, width)
    k = made.k
    scores = k.mul(made.dot(made.tile(own=True), made.tile(own=False)), 0.125)
    weights = k.exp(k.sub(scores, made.reduce(scores, "max")))
    made.total(k.div(weights, made.reduce(weights, "add")), made.tile(own=False))
    return made.work("forward")


def of_rows(dtype: DType, width: int, sizes: tuple[int, int, int] = SIZES) -> BlockWork:
    """The gradient of Q, and of each row the number that the columns' kernel needs."""
    made = _Specimen(dtype, sizes, width)
    k, key = made.k, 1
    scores = k.mul(made.dot(made.tile(own=True), made.tile(own=False)), 0.125)
    above = made.dot(made.tile(own=True), made.tile(own=False))
    most, total = made.load(made.line(own=True)), made.load(made.line(own=True))
    weights = k.div(k.exp(k.sub(scores, most)), total)
    sums = made.reduce(k.mul(weights, above), "add")
    made.total(k.mul(k.mul(weights, k.sub(above, sums)), 0.125), key)
    made.keep(sums)
    return made.work("of_rows")


def of_columns(dtype: DType, width: int, sizes: tuple[int, int, int] = SIZES) -> BlockWork:
    """The gradients of K and V."""
    heads, rows, columns = sizes
    made = _Specimen(dtype, (heads, columns, rows), width)
    k, query, gradient = made.k, 1, 3
    scores = k.mul(made.dot(made.tile(own=True), made.tile(own=False)), 0.125)
    above = made.dot(made.tile(own=True), made.tile(own=False))
    most, total, sums = (made.load(made.line(own=False)) for _ in range(3))
    weights = k.div(k.exp(k.sub(scores, most)), total)
    made.total(weights, gradient)
    made.total(k.mul(k.mul(weights, k.sub(above, sums)), 0.125), query)
    return made.work("of_columns")


def all_of(sizes: tuple[int, int, int] = SIZES) -> list[tuple[str, BlockWork]]:
    """Every kind in float32 and float16 for heads of usual widths, with names."""
    return [
        (f"{make.__name__} {dtype.name} {width}", make(dtype, width, sizes))
        for make in (forward, of_rows, of_columns)
        for dtype in (dtypes.float32, dtypes.float16)
        for width in WIDTHS
    ]
