"""Rounding, extrema and remainders of float lanes: functions whose result is exact or correctly rounded.

The lanes may be float32 or float64. Takes and gives Lanes; knows no ops.
"""

from __future__ import annotations

import operator
from typing import Any

from kernels.cpu.lanes import F32, Lanes, fma, rarely
from kernels.scalar import float_floor_div, float_remainder


def maximum(x: Lanes, y: Lanes) -> Lanes:
    """The larger; NaN from either operand wins; of equal ones (0 and -0) y, as NumPy's vector loop does."""
    # The inner select is one instruction, which gives y when either is NaN.
    return x.differs(x).select(x, (x > y).select(x, y))


def minimum(x: Lanes, y: Lanes) -> Lanes:
    """The smaller; NaN from either operand wins; of equal ones (0 and -0) y, as NumPy's vector loop does."""
    return x.differs(x).select(x, (x < y).select(x, y))


def rsqrt(x: Lanes) -> Lanes:
    """1 / sqrt(x) by the two correctly rounded operations, bit for bit what eager computes."""
    return 1.0 / x.intrinsic("sqrt")


def fmod(x: Lanes, y: Lanes) -> Lanes:
    """C's fmod, exact: x - trunc(x / y) y while every digit of the quotient fits, else the C library's."""
    size, divisor = abs(x), abs(y)
    quotient = (size / divisor).intrinsic("floor")
    rest = fma(-quotient, divisor, size)
    # The division may have rounded up to the next integer; the difference is exact all the same.
    rest = (rest < 0.0).select(rest + divisor, rest)
    # 0 * inf is NaN, but x is its own remainder by inf.
    rest = (divisor > size).select(size, rest)
    limit = 2.0**23 if x.element == F32 else 2.0**52
    fast = rest.copysign(x)
    return rarely(quotient > limit, lambda: (x.remainder(y),), (fast,))[0]


class _Words:
    """The words of the scalar vocabulary that its composite definitions use, on Lanes."""

    add, sub = staticmethod(operator.add), staticmethod(operator.sub)
    mul, div = staticmethod(operator.mul), staticmethod(operator.truediv)
    lt, gt = staticmethod(operator.lt), staticmethod(operator.gt)
    and_, xor = staticmethod(operator.and_), staticmethod(operator.xor)
    fmod = staticmethod(fmod)

    @staticmethod
    def eq(x: Lanes, y: Any) -> Lanes:
        return x.equals(y)

    @staticmethod
    def ne(x: Lanes, y: Any) -> Lanes:
        return x.differs(y)

    @staticmethod
    def where(condition: Lanes, x: Any, y: Any) -> Lanes:
        return condition.select(x, y)

    @staticmethod
    def floor(x: Lanes) -> Lanes:
        return x.intrinsic("floor")


def remainder(x: Lanes, y: Lanes) -> Lanes:
    """The remainder with the sign of y, from the one definition in kernels/scalar.py."""
    return float_remainder(_Words, x, y)


def floor_div(x: Lanes, y: Lanes) -> Lanes:
    """The quotient rounded to minus infinity, from the one definition in kernels/scalar.py."""
    return float_floor_div(_Words, x, y)
