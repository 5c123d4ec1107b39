"""Random numbers: one counter-based op, and the distributions made from it.

Distributions use only exactly rounded operations, so that every back end gives the same bits for the same
seed. Which
stream is next is the framework's business.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.arithmetic import abs, add, div, mul, neg, sub
from compiler.ops.bits import bitwise_and, bitwise_or, shift_left, shift_right
from compiler.ops.compare import cast, eq, le, lt, where
from compiler.ops.creation import created, iota
from compiler.ops.facts import Index, Sample
from compiler.ops.math import sqrt
from compiler.ops.movement import reshape, slice
from compiler.ops.op import Elementwise, Op, elementwise
from compiler.types import TensorType
from kernels import dtypes, philox
from kernels.dtypes import DType
from kernels.gpu import arrays, streams

Ints = tuple[int, ...]

# random_word(seed, offset, i): 32 bits of element `i` of a stream, as int64 in [0, 2**32).
random_word: Elementwise = elementwise(
    "random_word",
    body=lambda k, seed, offset, i: k.random_bits(seed, offset, i),
    result=dtypes.int64,
    categories=(dtypes.INTEGER,),
)


def _random_bits(seed: Any, offset: Any, *, shape: Ints) -> np.ndarray[Any, Any]:
    if arrays.is_device(seed):  # which is not read back
        return streams.stream(seed, offset, math.prod(shape), arrays.engine().xp).reshape(shape)
    return philox.stream(int(seed), int(offset), math.prod(shape)).reshape(shape)


def _random_bits_type(seed: TensorType, offset: TensorType, *, shape: Ints) -> TensorType:
    if not seed == offset == TensorType((), dtypes.int64):
        raise TypeError(f"random_bits needs an int64 seed and offset without axes, got {seed} and {offset}")
    return TensorType(shape, dtypes.int64)


def _random_words(seed: Any, offset: Any, *, shape: Ints) -> Any:
    size = math.prod(shape)
    return random_word(
        seed, offset, reshape(created(seed, iota, shape=(size,), axis=0, dtype=dtypes.int64), shape=shape)
    )


# random_bits(seed, offset, shape=): 32 bits an element, as int64 in [0, 2**32); seed and offset are int64
# without axes.
random_bits: Op = Op(
    "random_bits",
    _random_bits,
    _random_bits_type,
    decompose=_random_words,
    samples=(Sample((Index((), 2**40), Index((), 9)), {"shape": (3, 5)}),),
    categories=(dtypes.INTEGER,),
)

# Bits a uniform draw keeps: as many as every multiple of 2**-bits below 1 is exact with.
_UNIFORM_BITS = {dtypes.float32: 24, dtypes.float16: 11, dtypes.bfloat16: 8}


def uniform(seed: Any, offset: Any, *, shape: Ints, dtype: DType) -> Any:
    """Uniform on [0, 1) from stream (seed, offset): multiples of 2**-24 in float32, of 2**-53 in float64."""
    if dtype is dtypes.float64:
        high, low = _two_words(seed, offset, shape)
        bits = bitwise_or(shift_left(shift_right(high, 5), 26), shift_right(low, 6))
        return mul(cast(bits, dtype=dtype), 2.0**-53)
    kept = _UNIFORM_BITS[dtype]
    bits = random_bits(seed, offset, shape=shape)
    if type(bits) is np.ndarray and bits.ndim and dtype is dtypes.float32:
        return np.multiply((bits >> 32 - kept).astype(np.float32), np.float32(2.0**-kept))  # the same steps
    return mul(cast(shift_right(bits, 32 - kept), dtype=dtype), 2.0**-kept)


def _two_words(seed: Any, offset: Any, shape: Ints) -> tuple[Any, Any]:
    bits = random_bits(seed, offset, shape=(*shape, 2))
    zeros, ones = (0,) * len(shape), (1,) * (len(shape) + 1)
    first = slice(bits, starts=(*zeros, 0), stops=(*shape, 1), steps=ones)
    second = slice(bits, starts=(*zeros, 1), stops=(*shape, 2), steps=ones)
    return reshape(first, shape=shape), reshape(second, shape=shape)


class _Rational:
    """numerator(x) / denominator(x), coefficients from the constant term up; the denominator's first is 1."""

    def __init__(self, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> None:
        self.numerator = numerator
        self.denominator = denominator

    def __call__(self, x: Any) -> Any:
        return div(_polynomial(self.numerator, x), _polynomial((1.0, *self.denominator), x))


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    *lower, last = coefficients
    if not lower:
        return last
    value = add(mul(x, last), lower[-1])
    for coefficient in reversed(lower[:-1]):
        value = add(mul(value, x), coefficient)
    return value


class _Quantile:
    """Wichura's algorithm AS 241 (Applied Statistics 37, 1988) for one precision."""

    def __init__(
        self,
        centre: _Rational,
        tail: _Rational,
        far_tail: _Rational,
        logarithm: tuple[float, ...],
        doublings: tuple[int, ...],
    ) -> None:
        self.centre = centre
        self.tail = tail
        self.far_tail = far_tail
        self.logarithm = logarithm
        self.doublings = doublings


# Routine PPND7, about 7 figures, and the logarithm of FreeBSD's e_logf.c.
_SINGLE = _Quantile(
    centre=_Rational(
        (3.3871327179e00, 5.0434271938e01, 1.5929113202e02, 5.9109374720e01),
        (1.7895169469e01, 7.8757757664e01, 6.7187563600e01),
    ),
    tail=_Rational(
        (1.4234372777e00, 2.7568153900e00, 1.3067284816e00, 1.7023821103e-01),
        (7.3700164250e-01, 1.2021132975e-01),
    ),
    far_tail=_Rational(
        (6.6579051150e00, 3.0812263860e00, 4.2868294337e-01, 1.7337203997e-02),
        (2.4197894225e-01, 1.2258202635e-02),
    ),
    logarithm=(0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841),
    doublings=(32, 16, 8, 4, 2, 1),
)
# Routine PPND16, about 16 figures, and the logarithm of FreeBSD's e_log.c.
_DOUBLE = _Quantile(
    centre=_Rational(
        (
            3.3871328727963666080e0,
            1.3314166789178437745e2,
            1.9715909503065514427e3,
            1.3731693765509461125e4,
            4.5921953931549871457e4,
            6.7265770927008700853e4,
            3.3430575583588128105e4,
            2.5090809287301226727e3,
        ),
        (
            4.2313330701600911252e1,
            6.8718700749205790830e2,
            5.3941960214247511077e3,
            2.1213794301586595867e4,
            3.9307895800092710610e4,
            2.8729085735721942674e4,
            5.2264952788528545610e3,
        ),
    ),
    tail=_Rational(
        (
            1.42343711074968357734e0,
            4.63033784615654529590e0,
            5.76949722146069140550e0,
            3.64784832476320460504e0,
            1.27045825245236838258e0,
            2.41780725177450611770e-1,
            2.27238449892691845833e-2,
            7.74545014278341407640e-4,
        ),
        (
            2.05319162663775882187e0,
            1.67638483018380384940e0,
            6.89767334985100004550e-1,
            1.48103976427480074590e-1,
            1.51986665636164571966e-2,
            5.47593808499534494600e-4,
            1.05075007164441684324e-9,
        ),
    ),
    far_tail=_Rational(
        (
            6.65790464350110377720e0,
            5.46378491116411436990e0,
            1.78482653991729133580e0,
            2.96560571828504891230e-1,
            2.65321895265761230930e-2,
            1.24266094738807843860e-3,
            2.71155556874348757815e-5,
            2.01033439929228813265e-7,
        ),
        (
            5.99832206555887937690e-1,
            1.36929880922735805310e-1,
            1.48753612908506148525e-2,
            7.86869131145613259100e-4,
            1.84631831751005468180e-5,
            1.42151175831644588870e-7,
            2.04426310338993978564e-15,
        ),
    ),
    logarithm=(
        6.666666666666735130e-01,
        3.999999999940941908e-01,
        2.857142874366239149e-01,
        2.222219843214978396e-01,
        1.818357216161805012e-01,
        1.531383769920937332e-01,
        1.479819860511658591e-01,
    ),
    doublings=(32, 16, 8, 4, 2, 1),
)


def _log(p: Any, quantile: _Quantile) -> Any:
    """Natural logarithm of 2**-64 < p < 1 from exactly rounded operations; error about 2 ulp."""
    exponent = mul(p, 0.0)
    for doubling in quantile.doublings:
        small = lt(p, 2.0**-doubling)
        p = where(small, mul(p, 2.0**doubling), p)
        exponent = where(small, sub(exponent, doubling), exponent)
    # p is in [1/2, 1); around 1 the series needs it in [sqrt(1/2), sqrt(2)).
    small = lt(p, math.sqrt(0.5))
    p = where(small, mul(p, 2.0), p)
    exponent = where(small, sub(exponent, 1.0), exponent)
    f = sub(p, 1.0)
    s = div(f, add(f, 2.0))
    z = mul(s, s)
    remainder = mul(z, _polynomial(quantile.logarithm, z))
    half = mul(mul(f, f), 0.5)
    # log(1 + f) = f - (f²/2 - s (f²/2 + R)): the small terms are added first.
    return add(mul(exponent, math.log(2.0)), sub(f, sub(half, mul(s, add(half, remainder)))))


def _normal_quantile(p: Any, q: Any, quantile: _Quantile) -> Any:
    """The standard normal's value with probability `p` <= 1/2 below it; `q` is p - 1/2 without its
    rounding."""
    centre = mul(q, quantile.centre(sub(0.180625, mul(q, q))))
    r = sqrt(neg(_log(p, quantile)))
    tail = where(le(r, 5.0), quantile.tail(sub(r, 1.6)), quantile.far_tail(sub(r, 5.0)))
    return where(le(abs(q), 0.425), centre, neg(tail))


def normal(seed: Any, offset: Any, *, shape: Ints, dtype: DType) -> Any:
    """Standard normal from stream (seed, offset), by inverting the distribution; reaches 6.3 (float64: 8.2)
    deviations."""
    if dtype is dtypes.float64:
        high, low = _two_words(seed, offset, shape)
        bits = bitwise_or(shift_left(high, 21), shift_right(low, 11))
        return _signed_quantile(bits, 52, dtype, _DOUBLE)
    bits = random_bits(seed, offset, shape=shape)
    return cast(_signed_quantile(bits, 31, dtypes.float32, _SINGLE), dtype=dtype)


def _signed_quantile(bits: Any, width: int, dtype: DType, quantile: _Quantile) -> Any:
    """One bit gives the sign, the `width` others the probability of a larger deviation."""
    n = shift_right(bits, 1)
    scale = 2.0 ** -(width + 1)
    p = mul(add(cast(n, dtype=dtype), 0.5), scale)
    q = mul(add(cast(sub(n, 2**width), dtype=dtype), 0.5), scale)
    z = _normal_quantile(p, q, quantile)
    return where(eq(bitwise_and(bits, 1), 0), z, neg(z))
