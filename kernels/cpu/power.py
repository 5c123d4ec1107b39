"""x**y of float32 and float64 lanes: a logarithm of twice the operand's precision, times y, exponentiated.

Takes and gives Lanes; the exponential is elementary.py's.
"""

from __future__ import annotations

from kernels.cpu.elementary import INFINITY, NAN, exp_minus_one, reduced
from kernels.cpu.lanes import F32, Lanes, fma, polynomial
from kernels.cpu.scaling import any_mantissa, as_float, mantissa, power_of_two, rounded, scaled, tables
from kernels.cpu.tables import EXP2_WIDE, LOG2, LOG_TAIL, TWO_THIRDS


def pow(x: Lanes, y: Lanes) -> Lanes:
    """x**y; special values as C99 has them."""
    magnitude = _pow_float32(abs(x), y) if x.element == F32 else _pow_float64(abs(x), y)
    return _with_special_values(x, y, magnitude)


def _pow_float32(x: Lanes, y: Lanes) -> Lanes:
    """x**y through float64: log2 to 2**-37.8, so rounding to float32 at the end is nearly the only error."""
    exponent, m = mantissa(x.widened())
    f = m - 1.0
    s = f / (f + 2.0)
    logarithm = fma(s, polynomial(s * s, LOG2), as_float(exponent))
    product = (y.widened() * logarithm).at_most(200.0).at_least(-200.0)
    shifted, n = rounded(product)
    r, scale = product - n, power_of_two(shifted)
    return fma(r * scale, polynomial(r, EXP2_WIDE), scale).narrowed()


def _pow_float64(x: Lanes, y: Lanes) -> Lanes:
    """x**y by a logarithm in two parts, 2**-66 off, because its product with y may reach 745."""
    high, low = _log_two_parts(x)
    product = y * high
    # An overflowing product has a NaN for its rounding error.
    lost = (abs(product) < 1000.0).select(fma(y, low, fma(y, high, -product)), 0.0)
    shifted, r, _ = reduced(product.at_most(800.0).at_least(-800.0))
    return scaled(exp_minus_one(r + lost) + 1.0, shifted)


def _log_two_parts(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) of positive finite x as high + low, with |low| below half an ulp of high."""
    exponent, m = any_mantissa(x)
    ln2_high, ln2_low = tables(x).ln2
    # s = f / (2 + f) in two parts: `reciprocal` is off by an ulp, and the remainders make up for it.
    f = m - 1.0
    divisor = f + 2.0
    reciprocal = 1.0 / divisor
    s = f * reciprocal
    s_low = fma(-s, f - (divisor - 2.0), fma(-s, divisor, f)) * reciprocal
    # z = s**2, then c = 2/3 + z P(z), then t = s z c, each in two parts.
    z = s * s
    z_low = fma(s + s, s_low, fma(s, s, -z))
    step = z * polynomial(z, LOG_TAIL)
    c = step + TWO_THIRDS[0]
    c_low = (TWO_THIRDS[0] - c + step) + TWO_THIRDS[1]
    cube = s * z
    cube_low = fma(s, z_low, fma(s_low, z, fma(s, z, -cube)))
    t = cube * c
    t_low = fma(cube, c_low, fma(cube_low, c, fma(cube, c, -t)))
    # exponent ln 2 + 2 s + t, largest first; the first product is exact.
    whole = exponent * ln2_high
    first = whole + (s + s)
    second = first + t
    low = ((whole - first) + (s + s)) + ((first - second) + t)
    low = low + (fma(exponent, ln2_low, s_low + s_low) + t_low)
    high = second + low
    return high, (second - high) + low


def _with_special_values(x: Lanes, y: Lanes, magnitude: Lanes) -> Lanes:
    """x**y given |x|**y for positive finite |x| and finite y; signs, zeros, infinities, NaN as in C99."""
    size = abs(x)
    # |x|**y is 0 or inf when x is, and when y is infinite unless |x| is 1.
    grows = (size > 1.0) ^ (y < 0.0)
    edge = size.equals(0.0) | size.equals(INFINITY) | abs(y).equals(INFINITY)
    limit = size.equals(1.0).select(x.full(1.0), grows.select(x.full(INFINITY), 0.0))
    result = edge.select(limit, magnitude)
    broken, half = y.intrinsic("rint").differs(y), y * 0.5
    # Half an odd integer is no integer; floats from 2**53 on are all even.
    signed = half.intrinsic("rint").differs(half).select(result.copysign(x), result)
    undefined = broken & (x < 0.0) & (x > -INFINITY)
    result = broken.select(undefined.select(NAN, result), signed)
    result = (x.differs(x) | y.differs(y)).select(x + y, result)
    return (y.equals(0.0) | x.equals(1.0)).select(1.0, result)
