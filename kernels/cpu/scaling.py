"""Float lanes taken apart and put together at the exponent: multiplication by powers of two, mantissas.

The lanes may be float32 or float64. Where the CPU has no instruction for scaling there are two products.
"""

from __future__ import annotations

from kernels.cpu.lanes import F32, I32, Lanes
from kernels.cpu.tables import FLOAT32, FLOAT64, Tables

ROUNDER_BITS = 0x4338000000000000  # of FLOAT64.rounder


def tables(x: Lanes) -> Tables:
    """The constants for the type of `x`."""
    return FLOAT32 if x.element == F32 else FLOAT64


def rounded(x: Lanes) -> tuple[Lanes, Lanes]:
    """(shifted, n): n is the integer nearest to x, for |x| < 2**22; `shifted` has it in its low bits."""
    shifted = x + tables(x).rounder
    return shifted, shifted - tables(x).rounder


def power_of_two(shifted: Lanes) -> Lanes:
    """2**n for `shifted` of n, where 2**n is a normal float."""
    t = tables(shifted)
    return ((shifted.bits() << t.places) + t.one).floats()


def scaled(y: Lanes, shifted: Lanes) -> Lanes:
    """y * 2**n for `shifted` of n; 2**n itself need not be a float."""
    t = tables(y)
    if y.scales:
        return y.scaled(shifted - t.rounder)
    n = shifted.bits()
    half = n >> 1
    # Two factors: neither 2**128 nor 2**-150 is a float32. Only the second product rounds.
    first, second = (((part << t.places) + t.one).floats() for part in (half, n - half))
    return y * first * second


def as_float(n: Lanes) -> Lanes:
    """Integers below 2**22 in size as floats of the same width."""
    if n.element == I32:
        return n.as_float()
    # AVX2 has no conversion of 64-bit integers: put them into the low bits of `rounder` instead.
    return (n + ROUNDER_BITS).floats() - FLOAT64.rounder


def mantissa(x: Lanes) -> tuple[Lanes, Lanes]:
    """(e as integers, m) with x = 2**e m and sqrt(1/2) <= m < sqrt(2), for positive normal x."""
    t = tables(x)
    bits = x.bits()
    offset = bits - t.half_root
    return offset >> t.places, (bits - (offset & (-1 << t.places))).floats()


def any_mantissa(x: Lanes) -> tuple[Lanes, Lanes]:
    """`mantissa` of positive finite x, with e as floats; subnormals are first multiplied up."""
    t = tables(x)
    small = x < t.smallest_normal
    exponent, m = mantissa(small.select(x * 2.0**t.places, x))
    return as_float(exponent) - small.select(x.full(t.places), 0.0), m
