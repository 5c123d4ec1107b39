"""What a back end is asked to build: a loop nest over strided memory, written in the scalar vocabulary.

A spec names no sizes and no addresses: they arrive at run time in a table of 64-bit integers, so one kernel
serves every shape of the same structure. Knows nothing of graphs or of any back end's syntax.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from kernels import dtypes
from kernels.dtypes import DType
from kernels.errors import SpecError
from kernels.scalar import EXPENSIVE as EXPENSIVE

# Levels: where in the nest a value lives.
KERNEL, ROW, ELEMENT = 0, 1, 2
# A stride known when the kernel is built is 0 or 1; every other one is read from the table.
RUNTIME = "s"
Stride = int | str


def pattern(stride: int) -> Stride:
    """The part of a stride that a kernel is built for."""
    return stride if stride in (0, 1) else RUNTIME


@dataclass(frozen=True)
class Operand:
    """One pointer of the table. `strides` has one entry per loop axis; the same operand may be loaded and
    stored.
    """

    dtype: DType
    strides: tuple[Stride, ...]


@dataclass(frozen=True)
class Load:
    """`out` = the element of `operand` at the loop's indices, plus `index` (an int64 value) times a runtime
    stride.
    """

    out: str
    operand: int
    index: str | None = None


@dataclass(frozen=True)
class Literal:
    """`out` = a number."""

    out: str
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True)
class Index:
    """`out` = the address an int64 `operand` has here: its table entry plus strides times indices; no memory
    is read.
    """

    out: str
    operand: int


@dataclass(frozen=True)
class Call:
    """`out` = a function of the scalar vocabulary; `dtype` is the result's."""

    out: str
    function: str
    inputs: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True)
class Reduce:
    """`out` = `value` combined over the inner axes (a row-level value).

    With `outer`, it is combined over the row axes instead and written to `operand`, one slice per part of the
    loop.
    """

    out: str
    value: str
    combine: str
    dtype: DType
    outer: bool = False
    operand: int = -1


@dataclass(frozen=True)
class Scan:
    """`out` = `value` combined with all before it along the one inner axis, in order.

    With `factor`, what came before is multiplied by it first: factor * before + value, which is `value` where
    nothing or zero came before.
    """

    out: str
    value: str
    combine: str
    dtype: DType
    factor: str | None = None


@dataclass(frozen=True)
class Store:
    """Write `value` to `operand`; with `index`, add it there, in loop order, at `index` times a runtime
    stride: elements along axes in which `operand` has a stride are then different ones, whatever the index.
    """

    value: str
    operand: int
    index: str | None = None


Named = Load | Literal | Index | Call | Reduce | Scan
Step = Named | Store
COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def used(step: Step) -> tuple[str, ...]:
    """The values that a step uses."""
    match step:
        case Call(inputs=inputs):
            return inputs
        case Load(index=index):
            return (index,) if index else ()
        case Reduce(value=value):
            return (value,)
        case Scan(value=value, factor=factor):
            return (value, factor) if factor else (value,)
        case Store(value, _, index):
            return (value, index) if index else (value,)
    return ()


def identity(combine: str, dtype: DType) -> float | int:
    """What a reduction of no elements gives: nothing changes when it is combined with it."""
    if combine in ("add", "mul"):
        number = float(combine == "mul")
        return number if dtype.is_floating_point else int(number)
    if dtype.is_floating_point:
        return -math.inf if combine == "max" else math.inf
    if dtype is dtypes.bool_:
        return int(combine == "min")
    bits = 8 * dtype.itemsize
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.is_signed else (0, 2**bits - 1)
    return low if combine == "max" else high


def before_all(scan: Scan) -> float | int:
    """What a scan starts from: combined with it, nothing changes, not even the sign of a zero."""
    if scan.combine == "add" and scan.dtype.is_floating_point:
        return -0.0
    return identity(scan.combine, scan.dtype)


@dataclass(frozen=True)
class LoopSpec:
    """A loop nest: `rows` leading axes (divided among threads) and `inner` axes below them, over `steps` in
    SSA order.

    `vector` says which axis the lanes of a vector run along: "inner" (the last inner axis) or "rows" (the
    last row axis; the inner axes are then walked one element at a time). Table: pointers, extents of all
    axes, runtime strides.
    """

    name: str
    rows: int
    inner: int
    vector: str
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if self.vector not in ("inner", "rows") or (self.vector == "inner" and not self.inner):
            raise SpecError(
                f"{self.name}: vector axis {self.vector!r} of {self.rows} row and {self.inner} inner axes"
            )
        for operand in self.operands:
            if len(operand.strides) != self.axes:
                raise SpecError(f"{self.name}: {operand} needs {self.axes} strides, one per axis")
        if self.inner != 1 and any(isinstance(s, Scan) for s in self.steps):
            raise SpecError(f"{self.name}: a scan has one inner axis, not {self.inner}")

    @property
    def axes(self) -> int:
        """Number of loop axes."""
        return self.rows + self.inner

    @cached_property
    def levels(self) -> dict[str, int]:
        """Level of every value: KERNEL (the same everywhere), ROW (one per row) or ELEMENT."""
        levels: dict[str, int] = {}
        for step in self.steps:
            match step:
                case Load(out, operand, index):
                    levels[out] = max(self.operand_level(operand), levels[index] if index else KERNEL)
                case Literal(out):
                    levels[out] = KERNEL
                case Index(out, operand):
                    levels[out] = self.operand_level(operand)
                case Call(out, _, inputs):
                    levels[out] = max((levels[x] for x in inputs), default=KERNEL)
                case Reduce(out, outer=False):
                    levels[out] = ROW
                case Scan(out):
                    levels[out] = ELEMENT
        return levels

    def operand_level(self, operand: int) -> int:
        """The innermost level an operand's address depends on."""
        strides = self.operands[operand].strides
        if any(s != 0 for s in strides[self.rows :]):
            return ELEMENT
        return ROW if any(s != 0 for s in strides) else KERNEL

    @cached_property
    def stride_slots(self) -> dict[tuple[int, int], int]:
        """(operand, axis) -> table slot of each runtime stride; axis -1 is the stride of an `index`, or of a
        part.
        """
        slots: dict[tuple[int, int], int] = {}
        next_slot = len(self.operands) + self.axes
        indexed = {s.operand for s in self.steps if isinstance(s, Load | Store) and s.index is not None}
        indexed |= {s.operand for s in self.steps if isinstance(s, Reduce) and s.outer}
        for number, operand in enumerate(self.operands):
            for axis in [a for a, s in enumerate(operand.strides) if s == RUNTIME] + [-1] * (
                number in indexed
            ):
                slots[number, axis] = next_slot
                next_slot += 1
        return slots

    @property
    def table_size(self) -> int:
        """Number of 64-bit entries of the run-time table."""
        return len(self.operands) + self.axes + len(self.stride_slots)

    @cached_property
    def written(self) -> frozenset[int]:
        """Operands the loop writes."""
        return _written(self.steps)

    @cached_property
    def read(self) -> frozenset[int]:
        """Operands the loop reads."""
        return frozenset(s.operand for s in self.steps if isinstance(s, Load)) | _accumulated(self.steps)

    @cached_property
    def digest(self) -> str:
        """Hash of the structure; two specs that differ only in `name` share a kernel."""
        text = repr((self.rows, self.inner, self.vector, self.operands, self.steps))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        axes = ", ".join([f"row{i}" for i in range(self.rows)] + [f"inner{i}" for i in range(self.inner)])
        head = f"loop {self.name}({axes}) vector {self.vector}"
        operands = [f"  p{i}: {o.dtype.name}{list(o.strides)}" for i, o in enumerate(self.operands)]
        return "\n".join([head, *operands, *(f"  {text_of(s)}" for s in self.steps)])


def _written(steps: tuple[Step, ...]) -> frozenset[int]:
    stores = {s.operand for s in steps if isinstance(s, Store)}
    return frozenset(stores | {s.operand for s in steps if isinstance(s, Reduce) and s.outer})


def _accumulated(steps: tuple[Step, ...]) -> frozenset[int]:
    """Operands that are added to."""
    return frozenset(s.operand for s in steps if isinstance(s, Store) and s.index is not None)


def text_of(step: Step) -> str:
    """A step as a line."""
    match step:
        case Load(out, operand, index):
            return f"{out} = load p{operand}" + (f"[{index}]" if index else "")
        case Literal(out, value, dtype):
            return f"{out} = {value!r}: {dtype.name}"
        case Index(out, operand):
            return f"{out} = index p{operand}"
        case Call(out, function, inputs, dtype):
            return f"{out} = {function}({', '.join(inputs)}): {dtype.name}"
        case Reduce(out, value, combine, dtype, outer, operand):
            over = f"rows of {value} into p{operand}" if outer else f"inner of {value}"
            return f"{out} = {combine} over {over}: {dtype.name}"
        case Scan(out, value, combine, dtype, factor):
            by = f" by {factor}" if factor else ""
            return f"{out} = scan {combine} of {value}{by}: {dtype.name}"
        case Store(value, operand, index):
            return f"store p{operand} {'+' if index else ''}= {value}" + (f" at [{index}]" if index else "")


# How a product is walked: block by block, B packed where that pays, or always; few rows by whole lines of B;
# in slices of k.
BLOCKS, PACKED, LINES, SLICES = "blocks", "packed", "lines", "slices"

# The name under which a product's epilogue finds the element of the product.
PRODUCT = "product"


@dataclass(frozen=True)
class MatmulSpec:
    """C[batch.., m, n] = A[batch.., m, k..] @ B[batch.., k.., n], each element then passed through `steps`.

    `depth` axes k are summed over: one in a matrix product; a convolution's taps and channels are several.
    Operand 0 is A with strides (batch.., m, k..), operand 1 is B with strides (batch.., k.., n); the others
    belong to the epilogue and have strides (batch.., m, n). `steps` starts from the value named PRODUCT,
    which is float32 or float64 (`dtype`), and has no reductions. `rows` by `vectors` is the register block:
    rows of C by vectors of columns; `walk` is BLOCKS, PACKED, LINES or SLICES. Neither changes the result.
    Table: pointers, extents (batch.., m, n, k..), then runtime strides as in `LoopSpec.stride_slots`.
    """

    name: str
    batch: int
    dtype: DType
    rows: int
    vectors: int
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...] = field(repr=False)
    depth: int = 1
    walk: str = BLOCKS

    def __post_init__(self) -> None:
        if self.walk not in (BLOCKS, PACKED, LINES, SLICES):
            raise SpecError(f"{self.name}: walk {self.walk!r}")
        halves = any(o.dtype.compute for o in self.operands[:2])
        if self.walk in (LINES, SLICES) and (self.depth > 1 or halves):
            raise SpecError(
                f"{self.name}: walked by {self.walk}, a product has one k axis and no 16-bit factor"
            )
        if self.walk == LINES and self.operands[1].strides[-1] != 1:
            raise SpecError(f"{self.name}: to walk it by lines takes a B of contiguous rows")
        if self.depth > 1 and halves:
            raise SpecError(f"{self.name}: 16-bit factors are summed over one axis, not {self.depth}")

    @property
    def axes(self) -> int:
        """Number of extents."""
        return self.batch + 2 + self.depth

    @cached_property
    def stride_slots(self) -> dict[tuple[int, int], int]:
        """(operand, axis) -> table slot of each runtime stride."""
        slots: dict[tuple[int, int], int] = {}
        for number, operand in enumerate(self.operands):
            for axis, stride in enumerate(operand.strides):
                if stride == RUNTIME:
                    slots[number, axis] = len(self.operands) + self.axes + len(slots)
        return slots

    @cached_property
    def factors(self) -> tuple[Operand, Operand]:
        """A and B as the innermost of the axes summed over sees them: strides (batch.., m, k), (batch.., k,
        n).
        """
        a, b = self.operands[:2]
        outer = self.depth - 1
        return (
            replace(a, strides=(*a.strides[: self.batch + 1], *a.strides[-1:])),
            replace(b, strides=(*b.strides[: self.batch], *b.strides[self.batch + outer :])),
        )

    @cached_property
    def epilogue(self) -> LoopSpec:
        """The loop over (batch.., m, n) that the product goes through; the product is its last, extra
        operand.
        """
        product = Operand(self.dtype, (0,) * self.batch + (RUNTIME, 1))
        steps = (Load(PRODUCT, len(self.operands)), *self.steps)
        operands = (*self.factors, *self.operands[2:], product)
        return LoopSpec(self.name, self.batch + 2, 0, "rows", operands, steps)

    @property
    def table_size(self) -> int:
        """Number of 64-bit entries of the run-time table."""
        return len(self.operands) + self.axes + len(self.stride_slots)

    @cached_property
    def written(self) -> frozenset[int]:
        """Operands the epilogue writes."""
        return _written(self.steps)

    @cached_property
    def read(self) -> frozenset[int]:
        """Operands the product and its epilogue read."""
        return frozenset({0, 1} | {s.operand for s in self.steps if isinstance(s, Load)})

    @cached_property
    def digest(self) -> str:
        """Hash of the structure; two specs that differ only in `name` share a kernel."""
        sizes = self.batch, self.depth, self.rows, self.vectors, self.walk
        text = repr((self.dtype, sizes, self.operands, self.steps))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        block = f"block {self.rows}x{self.vectors} vectors by {self.walk}"
        head = f"matmul {self.name} batch {self.batch} depth {self.depth} {self.dtype.name} {block}"
        operands = [f"  p{i}: {o.dtype.name}{list(o.strides)}" for i, o in enumerate(self.operands)]
        return "\n".join([head, *operands, *(f"  {text_of(s)}" for s in self.steps)])
