"""`kernels.cpu.lanes.Lanes` on NumPy arrays: the same operators and intrinsics, with the same bits.

Knows the CPU's arithmetic only as IEEE 754 has it; no function is known here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.cpu.lanes import F32, F64, I32, I64

Array = np.ndarray[Any, Any]
_ELEMENT = {np.dtype(np.float32): F32, np.dtype(np.float64): F64, np.dtype(np.int32): I32}
_FLOAT_OF = {np.dtype(np.int32): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.float64)}
_INTEGER_OF = {floating: integer for integer, floating in _FLOAT_OF.items()}


class NumpyLanes:
    """An array with the interface of `Lanes`. A number stands for all lanes."""

    __slots__ = ("value",)
    # No instruction multiplies by 2**n: `scaling.scaled` then takes two products, of the same bits.
    scales = False

    def __init__(self, value: Array) -> None:
        self.value = value

    @property
    def element(self) -> Any:
        """The LLVM type of one lane."""
        return _ELEMENT.get(self.value.dtype, I64)

    @property
    def element_bits(self) -> int:
        """How many bits one float lane has."""
        return 8 * self.value.itemsize

    def full(self, number: float) -> NumpyLanes:
        """A constant of this type in every lane."""
        return NumpyLanes(np.full(self.value.shape, number, self.value.dtype))

    def like(self, value: Array) -> NumpyLanes:
        """`value` as lanes."""
        return NumpyLanes(value)

    def operand(self, x: Any) -> Array:
        """The array of lanes, or of a number taken at this type."""
        return x.value if isinstance(x, NumpyLanes) else self.full(x).value

    def intrinsic(self, name: str, *others: Any) -> NumpyLanes:
        """LLVM's function `name` of this and `others`."""
        return NumpyLanes(_INTRINSICS[name](self.value, *map(self.operand, others)))

    def __add__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value + self.operand(other))

    def __sub__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value - self.operand(other))

    def __rsub__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.operand(other) - self.value)

    def __mul__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value * self.operand(other))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value / self.operand(other))

    def __rtruediv__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.operand(other) / self.value)

    def __neg__(self) -> NumpyLanes:
        return NumpyLanes(-self.value)

    def __abs__(self) -> NumpyLanes:
        return NumpyLanes(np.abs(self.value))

    def __and__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value & self.operand(other))

    def __or__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value | self.operand(other))

    def __xor__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value ^ self.operand(other))

    def __lshift__(self, places: int) -> NumpyLanes:
        return NumpyLanes(self.value << self.operand(places))

    def __rshift__(self, places: int) -> NumpyLanes:
        return NumpyLanes(self.value >> self.operand(places))

    def __lt__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value < self.operand(other))

    def __le__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value <= self.operand(other))

    def __gt__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value > self.operand(other))

    def __ge__(self, other: Any) -> NumpyLanes:
        return NumpyLanes(self.value >= self.operand(other))

    def equals(self, other: Any) -> NumpyLanes:
        """Where this == other."""
        return NumpyLanes(self.value == self.operand(other))

    def differs(self, other: Any) -> NumpyLanes:
        """Where this != other, and where either is NaN."""
        return NumpyLanes(self.value != self.operand(other))

    def select(self, yes: Any, no: Any) -> NumpyLanes:
        """`yes` in the lanes where this mask is set, else `no`; one of the two may be a number."""
        kind = yes if isinstance(yes, NumpyLanes) else no
        return NumpyLanes(np.where(self.value, kind.operand(yes), kind.operand(no)))

    def bits(self) -> NumpyLanes:
        """The same bits as integers."""
        return NumpyLanes(self.value.view(_INTEGER_OF[self.value.dtype]))

    def floats(self) -> NumpyLanes:
        """The same bits as floats."""
        return NumpyLanes(self.value.view(_FLOAT_OF[self.value.dtype]))

    def widened(self) -> NumpyLanes:
        """float32 lanes as float64."""
        return NumpyLanes(self.value.astype(np.float64))

    def narrowed(self) -> NumpyLanes:
        """float64 lanes rounded to float32."""
        return NumpyLanes(self.value.astype(np.float32))

    def as_float(self) -> NumpyLanes:
        """Integers as floats of the same width."""
        return NumpyLanes(self.value.astype(_FLOAT_OF[self.value.dtype]))

    def copysign(self, sign: NumpyLanes) -> NumpyLanes:
        """This magnitude with the sign of `sign`."""
        return NumpyLanes(np.copysign(self.value, sign.value))

    def remainder(self, divisor: NumpyLanes) -> NumpyLanes:
        """C's fmod."""
        return NumpyLanes(np.fmod(self.value, divisor.value))

    def at_most(self, bound: float) -> NumpyLanes:
        """min(this, bound); NaN stays."""
        return (self > bound).select(self.full(bound), self)

    def at_least(self, bound: float) -> NumpyLanes:
        """max(this, bound); NaN stays."""
        return (self < bound).select(self.full(bound), self)

    def rarely(
        self, compute: Callable[[], tuple[NumpyLanes, ...]], usual: tuple[NumpyLanes, ...]
    ) -> tuple[NumpyLanes, ...]:
        """`usual`, with what `compute` gives where this mask is set."""
        if not self.value.any():
            return usual
        return tuple(self.select(new, old) for new, old in zip(compute(), usual, strict=True))


def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once."""
    if x.dtype != np.float32:
        return np.asarray(_FMA(x, y, z), np.float64)
    # Exact products, and sums rounded to odd: to round those again to float32 gives the nearest (Boldo and
    # Melquiond, Emulation of FMA and correctly rounded sums, 2008).
    product, addend = x.astype(np.float64) * y, np.asarray(z, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (lost != 0) & (bits & 1 == 0)
    outwards = np.where((lost > 0) == (total > 0), 1, -1)
    return (bits + np.where(inexact, outwards, 0)).view(np.float64).astype(np.float32)


def _c_fma() -> Any:
    """The C library's fma of float64, for arrays: an array of objects."""
    function = ctypes.CDLL("libm.dylib" if sys.platform == "darwin" else "libm.so.6").fma
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double] * 3
    return np.frompyfunc(function, 3, 1)


def _c(name: str) -> Callable[[Array], Array]:
    """A float64 function of the C library, which NumPy's own may differ from."""
    function = getattr(ctypes.CDLL("libm.dylib" if sys.platform == "darwin" else "libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    each = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(each(x), np.float64)


_FMA = _c_fma()
_INTRINSICS: dict[str, Callable[..., Array]] = {
    "fma": fma,
    "fabs": np.abs,
    "sqrt": np.sqrt,
    "copysign": np.copysign,
    "rint": np.rint,
    "roundeven": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "sin": _c("sin"),
    "cos": _c("cos"),
}
