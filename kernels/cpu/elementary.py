"""Elementary functions of float32 and float64 lanes. Takes and gives Lanes; knows no ops.

Method: reduce the argument to a small interval with fused multiply-adds, evaluate a polynomial there
(tables.py), put the pieces together so that only the last operation rounds at full weight. Of a function in
two pieces both are computed and one is selected. Error bounds stand in vector_math.ULP_BOUNDS.
"""

from __future__ import annotations

from kernels.cpu.lanes import F32, Lanes, fma, polynomial, rarely
from kernels.cpu.scaling import any_mantissa, as_float, mantissa, power_of_two, rounded, scaled, tables
from kernels.cpu.tables import LOG2_E, TWO_OVER_PI, TWO_OVER_PI_PIECES

INFINITY, NAN = float("inf"), float("nan")
# sigmoid of it is 1 in float32 and in float64. 2**-64 does not count beside 1 either.
SIGMOID_ONE = 64.0


def reduced(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(shifted of n, r, what r lost by rounding) with x = n ln 2 + r and |r| < ln(2) / 2, for |x| < 1000."""
    t = tables(x)
    shifted = fma(x, LOG2_E, t.rounder)
    n = shifted - t.rounder
    high, low = t.ln2
    exact = fma(n, -high, x)
    r = fma(n, -low, exact)
    return shifted, r, fma(n, -low, exact - r)


def exp_minus_one(r: Lanes) -> Lanes:
    """e**r - 1 for |r| < ln(2) / 2."""
    return fma(r * r, polynomial(r, tables(r).exp), r)


def exp(x: Lanes) -> Lanes:
    """e**x, gradual underflow included."""
    low, high = tables(x).exp_bounds
    shifted, r, _ = reduced(x.at_most(high).at_least(low))
    return scaled(exp_minus_one(r) + 1.0, shifted)


def expm1(x: Lanes) -> Lanes:
    """e**x - 1 as 2**n (e**r - 1) + (2**n - 1), with half of 2**n so that n may be that of an infinity."""
    t = tables(x)
    shifted, r, lost = reduced(x.at_most(t.exp_bounds[1]).at_least(t.expm1_low))
    tail = fma(r * r, polynomial(r, t.exp), lost)
    scale = power_of_two(shifted - 1.0)
    y = fma(scale, tail, fma(scale, r, scale - 0.5))
    # Below, e**x - 1 rounds to x; halving would lose the last bit of a subnormal.
    return (abs(x) < t.negligible).select(x, y + y)


def _log_assembled(exponent: Lanes, f: Lanes) -> Lanes:
    """exponent ln 2 + log(1 + f) for sqrt(1/2) < 1 + f < sqrt(2)."""
    t = tables(f)
    high, low = t.ln2
    square = f * f
    if f.element == F32:
        tail = fma(square * f, polynomial(f, t.log), exponent * low)
        return fma(exponent, high, f + fma(square, -0.5, tail))
    # With s = f / (2 + f), log(1 + f) = f - (f**2 / 2 - s (f**2 / 2 + s**2 P)): half as many terms as in f.
    s = f / (f + 2.0)
    z, half = s * s, square * 0.5
    tail = fma(s, fma(z, polynomial(z, t.log), half), exponent * low)
    return fma(exponent, high, f - (half - tail))


def log(x: Lanes) -> Lanes:
    """Natural logarithm."""
    if x.scales:
        exponent, m = x.taken_apart()
        large = m >= 2.0 * tables(x).root_half
        # What is infinite or NaN in the two is so in the result.
        return _log_assembled(large.select(exponent + 1.0, exponent), large.select(m * 0.5, m) - 1.0)
    exponent, m = any_mantissa(x)
    y = _log_assembled(exponent, m - 1.0)
    # inf and NaN give themselves.
    y = (x < INFINITY).select(y, x)
    return (x < 0.0).select(NAN, x.equals(0.0).select(-INFINITY, y))


def log1p(x: Lanes) -> Lanes:
    """log(1 + x); the fraction is formed from x itself, 2**-e x + (2**-e - 1), not from the rounded sum."""
    t = tables(x)
    exponent, m = mantissa(x + 1.0)
    scale = (-(exponent << t.places) + t.one).floats()
    # Where the 1 no longer counts, m is exact, and 2**-e may be no normal float.
    f = (x * t.negligible < 1.0).select(fma(scale, x, scale - 1.0), m - 1.0)
    y = _log_assembled(as_float(exponent), f)
    # inf, NaN and what log1p rounds to itself, -0 among them.
    keep = (x < INFINITY) & (abs(x) > t.negligible)
    y = keep.select(y, x)
    return (x < -1.0).select(NAN, x.equals(-1.0).select(-INFINITY, y))


def tanh(x: Lanes) -> Lanes:
    """x + x**3 P(x**2) / Q(x**2) below 0.625; 1 - 2 / (e**2|x| + 1) above. One division serves both."""
    t = tables(x)
    size = abs(x)
    bounded = size.at_most(t.tanh_high)
    shifted, r, _ = reduced(bounded + bounded)
    divisor = (exp_minus_one(r) + 1.0) * power_of_two(shifted) + 1.0
    small, z = size < 0.625, x * x
    numerator = z * polynomial(z, t.tanh)
    if t.tanh_divisor:
        ratio = small.select(numerator, -2.0) / small.select(polynomial(z, t.tanh_divisor), divisor)
        base = small.select(size, 1.0)
        return fma(base, ratio, base).copysign(x)
    return small.select(fma(size, numerator, size), 1.0 - 2.0 / divisor).copysign(x)


def sigmoid(x: Lanes) -> Lanes:
    """1 / (1 + 2**n (1 + t)), with e**-x = 2**n (1 + t); for n > 0 both sides are multiplied by 2**-n.
    Nothing overflows, and results go down to the subnormals.

    Within 2.5 ulp, as PyTorch's and JAX's are. Without the 1.4 ulp that carrying what is lost would save it
    takes 4.9 ns for 16 numbers instead of 7.4.
    """
    rounder = tables(x).rounder
    shifted, r, _ = reduced((-x).at_most(-tables(x).exp_bounds[0]).at_least(-SIGMOID_ONE))
    down = (2.0 * rounder - shifted).at_most(rounder)
    scale = power_of_two(shifted.at_most(rounder))
    one = power_of_two(down.at_least(rounder - SIGMOID_ONE))
    return scaled(1.0 / fma(scale, exp_minus_one(r), scale + one), down)


def erf(x: Lanes) -> Lanes:
    """x + x P(x**2) below about 1; 1 - 2**P(|x|) above."""
    t = tables(x)
    size = abs(x)
    exponent = polynomial(size.at_most(t.erf_bounds[1]), t.erfc_log2)
    shifted, n = rounded(exponent)
    r, scale = exponent - n, power_of_two(shifted)
    large = 1.0 - fma(r * scale, polynomial(r, t.exp2), scale)
    small = fma(x, polynomial(x * x, t.erf), x)
    return (size < t.erf_bounds[0]).select(small, large.copysign(x))


Quadrant = tuple[Lanes, Lanes, Lanes]


def _quadrant(x: Lanes) -> Quadrant:
    """(n in the low two bits, r, what r lost by rounding): x = n pi/2 + r, |r| < pi/4, to `large_angle`."""
    t = tables(x)
    shifted = fma(x, TWO_OVER_PI, t.rounder)
    n = shifted - t.rounder
    first, second, third = t.half_pi
    exact = fma(n, -first, x)
    step = n * second
    r = exact - step
    lost = (exact - r - step) - fma(n, third, fma(n, second, -step))
    return shifted.bits(), r, lost


def _large_quadrant(x: Lanes) -> Quadrant:
    """`_quadrant` of any float32: products with 28-bit pieces of 2/pi are exact in float64; turns go."""
    wide = x.widened()
    quarters, fraction = wide.full(0.0), wide.full(0.0)
    for piece in TWO_OVER_PI_PIECES:
        turns = wide * piece
        fraction = fraction + fma((turns * 0.25).intrinsic("rint"), -4.0, turns)
        whole = fraction.intrinsic("rint")
        fraction, quarters = fraction - whole, quarters + whole
    angle = fraction * tables(wide).half_pi[0]
    r = angle.narrowed()
    shifted, _ = rounded(quarters.narrowed())
    return shifted.bits(), r, (angle - r.widened()).narrowed()


def _sin_cos(x: Lanes, shift: int) -> Lanes:
    """sin(x + shift pi/2); large angles by `_large_quadrant`, of float64 one by one in the C library."""
    t = tables(x)
    large = abs(x) > t.large_angle
    usual = _quadrant(x)
    n, r, lost = rarely(large, lambda: _large_quadrant(x), usual) if x.element == F32 else usual
    n, square = n + shift, r * r
    sine = r + fma(square * r, polynomial(square, t.sin), lost)
    most = fma(square, -0.5, 1.0)
    cosine = most + fma(square * square, polynomial(square, t.cos), fma(square, -0.5, 1.0 - most))
    y = (n & 1).equals(0).select(sine, cosine)
    y = (y.bits() ^ ((n & 2) << (x.element_bits - 2))).floats()
    if x.element == F32:
        return y
    return rarely(large, lambda: (x.intrinsic("cos" if shift else "sin"),), (y,))[0]


def sin(x: Lanes) -> Lanes:
    """Sine of any angle."""
    return _sin_cos(x, 0)


def cos(x: Lanes) -> Lanes:
    """Cosine of any angle."""
    return _sin_cos(x, 1)
