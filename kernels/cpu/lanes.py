"""An LLVM vector with Python's operators: the notation in which vector_math is written.

Each operator emits one instruction (or one intrinsic that the CPU has as one); no function is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.target import features

I32, I64 = ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()


class Lanes:
    """A vector value and the builder that emits what is done to it. A number stands for all lanes."""

    __slots__ = ("builder", "value")

    # Any: llvmlite has no annotations, and what a checker infers of its builder is wrong.
    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def element(self) -> Any:
        """The LLVM type of one lane."""
        return self.value.type.element

    @property
    def count(self) -> int:
        """How many lanes."""
        return self.value.type.count

    @property
    def element_bits(self) -> int:
        """How many bits one float lane has."""
        return 32 if self.element == F32 else 64

    def full(self, number: float) -> Lanes:
        """A constant of this type in every lane; float32 constants are rounded to nearest."""
        if self.element == F32:
            number = float(np.float32(number))
        number = int(number) if isinstance(self.element, ir.IntType) else float(number)
        return self.like(ir.Constant(self.value.type, [number] * self.count))

    def like(self, value: Any) -> Lanes:
        """`value` as Lanes of the same builder."""
        return Lanes(self.builder, value)

    def operand(self, x: Any) -> Any:
        """The LLVM value of Lanes or of a number taken at this type."""
        return x.value if isinstance(x, Lanes) else self.full(x).value

    def intrinsic(self, name: str, *others: Any) -> Lanes:
        """Call llvm.`name` on this and `others`, all of this type."""
        full = f"llvm.{name}.v{self.count}{_suffix(self.element)}"
        module, kind = self.builder.module, self.value.type
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * (1 + len(others))), full)
        return self.like(self.builder.call(function, [self.value, *map(self.operand, others)]))

    def _binary(self, floating: str, integer: str, x: Any, y: Any) -> Lanes:
        name = integer if isinstance(self.element, ir.IntType) else floating
        return self.like(getattr(self.builder, name)(self.operand(x), self.operand(y)))

    def __add__(self, other: Any) -> Lanes:
        return self._binary("fadd", "add", self, other)

    def __radd__(self, other: Any) -> Lanes:
        return self._binary("fadd", "add", other, self)

    def __sub__(self, other: Any) -> Lanes:
        return self._binary("fsub", "sub", self, other)

    def __rsub__(self, other: Any) -> Lanes:
        return self._binary("fsub", "sub", other, self)

    def __mul__(self, other: Any) -> Lanes:
        return self._binary("fmul", "mul", self, other)

    def __rmul__(self, other: Any) -> Lanes:
        return self._binary("fmul", "mul", other, self)

    def __truediv__(self, other: Any) -> Lanes:
        return self.like(self.builder.fdiv(self.value, self.operand(other)))

    def __rtruediv__(self, other: Any) -> Lanes:
        return self.like(self.builder.fdiv(self.operand(other), self.value))

    def __neg__(self) -> Lanes:
        negate = self.builder.neg if isinstance(self.element, ir.IntType) else self.builder.fneg
        return self.like(negate(self.value))

    def __and__(self, other: Any) -> Lanes:
        return self.like(self.builder.and_(self.value, self.operand(other)))

    def __or__(self, other: Any) -> Lanes:
        return self.like(self.builder.or_(self.value, self.operand(other)))

    def __xor__(self, other: Any) -> Lanes:
        return self.like(self.builder.xor(self.value, self.operand(other)))

    def __lshift__(self, places: int) -> Lanes:
        return self.like(self.builder.shl(self.value, self.operand(places)))

    def __rshift__(self, places: int) -> Lanes:
        """The arithmetic shift: the sign comes in from the left."""
        return self.like(self.builder.ashr(self.value, self.operand(places)))

    # Comparisons give i1 lanes. As in Python, NaN compares false, and `differs` (!=) true.
    def _compare(self, operator: str, other: Any) -> Lanes:
        if isinstance(self.element, ir.IntType):
            return self.like(self.builder.icmp_signed(operator, self.value, self.operand(other)))
        compare = self.builder.fcmp_unordered if operator == "!=" else self.builder.fcmp_ordered
        return self.like(compare(operator, self.value, self.operand(other)))

    def __lt__(self, other: Any) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: Any) -> Lanes:
        """Where this == other."""
        return self._compare("==", other)

    def differs(self, other: Any) -> Lanes:
        """Where this != other, and where either is NaN."""
        return self._compare("!=", other)

    def select(self, yes: Any, no: Any) -> Lanes:
        """`yes` in the lanes where this mask is set, else `no`; one of the two may be a number."""
        if not isinstance(yes, Lanes):
            yes = no.full(yes)
        return yes.like(self.builder.select(self.value, yes.value, yes.operand(no)))

    def any(self) -> Any:
        """Whether any lane of this mask is set, as one i1."""
        bits = self.builder.bitcast(self.value, ir.IntType(self.count))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def split(self, count: int) -> list[Any]:
        """This vector in pieces of `count` lanes."""
        if count == self.count:
            return [self.value]
        lane, shuffle = ir.VectorType(I32, count), self.builder.shuffle_vector
        return [
            shuffle(self.value, self.value, ir.Constant(lane, list(range(start, start + count))))
            for start in range(0, self.count, count)
        ]

    def bits(self) -> Lanes:
        """The same bits as integers."""
        kind = I32 if self.element == F32 else I64
        return self.like(self.builder.bitcast(self.value, ir.VectorType(kind, self.count)))

    def floats(self) -> Lanes:
        """The same bits as floats."""
        kind = F32 if self.element == I32 else F64
        return self.like(self.builder.bitcast(self.value, ir.VectorType(kind, self.count)))

    def widened(self) -> Lanes:
        """float32 lanes as float64."""
        return self.like(self.builder.fpext(self.value, ir.VectorType(F64, self.count)))

    def narrowed(self) -> Lanes:
        """float64 lanes rounded to float32."""
        return self.like(self.builder.fptrunc(self.value, ir.VectorType(F32, self.count)))

    def as_float(self) -> Lanes:
        """Integers as floats of the same width."""
        kind = F32 if self.element == I32 else F64
        return self.like(self.builder.sitofp(self.value, ir.VectorType(kind, self.count)))

    def remainder(self, divisor: Lanes) -> Lanes:
        """C's fmod, of the C library."""
        return self.like(self.builder.frem(self.value, divisor.value))

    @property
    def scales(self) -> bool:
        """Whether the CPU has instructions for `scaled` and `taken_apart` of such vectors."""
        return "avx512f" in features() and self.count * self.element_bits % 512 == 0

    def scaled(self, n: Lanes) -> Lanes:
        """This times 2**n by VSCALEF: one instruction in place of eight for each register."""
        return self._by_registers("scalef", n)

    def taken_apart(self) -> tuple[Lanes, Lanes]:
        """(e, m) with this = 2**e m and 1 <= m < 2, by VGETEXP and VGETMANT; subnormals are no exception.

        0 gives (-inf, 1), inf (inf, 1), NaN and what is below 0 a NaN for m.
        """
        negative_is_nan = ir.Constant(I32, 0b1000)
        return self._by_registers("getexp"), self._by_registers("getmant", negative_is_nan)

    def _by_registers(self, name: str, *others: Any) -> Lanes:
        """An instruction of AVX-512 on each register; `others` are lanes, or constants of the instruction."""
        builder = self.builder
        count = 512 // self.element_bits
        register, mask = ir.VectorType(self.element, count), ir.IntType(count)
        kinds = [register if isinstance(x, Lanes) else I32 for x in others]
        kind = ir.FunctionType(register, [register, *kinds, register, mask, I32])
        name = f"llvm.x86.avx512.mask.{name}.{'ps' if self.element == F32 else 'pd'}.512"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        every, current_rounding = ir.Constant(mask, -1), ir.Constant(I32, 4)
        parts = self.split(count)
        rest = [x.split(count) if isinstance(x, Lanes) else [x] * len(parts) for x in others]
        called = [
            builder.call(function, [part, *operands, part, every, current_rounding])
            for part, *operands in zip(parts, *rest, strict=True)
        ]
        return self.like(joined(builder, called))

    def rarely(self, compute: Callable[[], tuple[Lanes, ...]], usual: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
        """`usual`, with what `compute` gives where this mask is set."""
        builder = self.builder
        before = builder.block
        with builder.if_then(self.any(), likely=False):
            computed = [self.select(new, old) for new, old in zip(compute(), usual, strict=True)]
            rare = builder.block
        results = []
        for new, old in zip(computed, usual, strict=True):
            phi = builder.phi(old.value.type)
            phi.add_incoming(old.value, before)
            phi.add_incoming(new.value, rare)
            results.append(old.like(phi))
        return tuple(results)

    def copysign(self, sign: Lanes) -> Lanes:
        """This magnitude with the sign of `sign`."""
        return self.intrinsic("copysign", sign)

    def __abs__(self) -> Lanes:
        return self.intrinsic("fabs")

    def at_most(self, bound: float) -> Lanes:
        """min(this, bound), one instruction; NaN stays."""
        return (self > bound).select(self.full(bound), self)

    def at_least(self, bound: float) -> Lanes:
        """max(this, bound), one instruction; NaN stays."""
        return (self < bound).select(self.full(bound), self)


def fma(x: Lanes, y: Any, z: Any) -> Lanes:
    """x * y + z rounded once; y and z may be numbers."""
    return x.intrinsic("fma", y, z)


def polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Sum of coefficients[k] * x**k by Horner's rule: fewest instructions; other vectors fill the latency."""
    total: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = fma(x, total, coefficient)
    return total


def joined(builder: Any, parts: list[Any]) -> Any:
    """Vectors of one type, as many as a power of two, end to end."""
    while len(parts) > 1:
        lane = ir.VectorType(I32, 2 * parts[0].type.count)
        order = ir.Constant(lane, list(range(lane.count)))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.shuffle_vector(low, high, order) for low, high in pairs]
    return parts[0]


def rarely(
    needed: Lanes, compute: Callable[[], tuple[Lanes, ...]], usual: tuple[Lanes, ...]
) -> tuple[Lanes, ...]:
    """`usual`, but what `compute` gives in the lanes where `needed` is set; it runs only when some lane is.

    A lane's result never depends on its neighbours.
    """
    return needed.rarely(compute, usual)


def _suffix(kind: ir.Type) -> str:
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return "f32" if kind == F32 else "f64"
