"""Values made comparable over axes: mean 0 and variance 1, or shares of 1.

Others can express these ops; their gradient rules read less than those of what they are made of would. Knows
no weights, no running statistics and no temperature; normalisations are composites above.
"""

from __future__ import annotations

import math
from typing import Any

from compiler.ops.arithmetic import add, div, maximum, mul, square, sub
from compiler.ops.compare import cast
from compiler.ops.math import exp, rsqrt
from compiler.ops.op import Op, Sample, dtype_of
from compiler.ops.reduction import amax, sum
from compiler.types import TensorType
from kernels import dtypes

Ints = tuple[int, ...]


def _statistics(x: Any, eps: Any, axes: Ints) -> tuple[Any, Any, Any, Any]:
    """`x` less its mean, the mean of that, 1 / sqrt(variance + eps), and the number of values.

    The float32 mean of equal values can be a few ulps off (0.06 at 1e6), which 1 / sqrt(eps) blows up: the
    mean of what is left is a small multiple of an ulp, and comes out exact. The corrected two-pass algorithm
    of Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
    """
    count = math.prod(x.shape[a] for a in axes)
    shifted = sub(x, div(sum(x, axes=axes), count))
    rest = div(sum(shifted, axes=axes), count)
    variance = sub(div(sum(square(shifted), axes=axes), count), square(rest))
    return shifted, rest, rsqrt(add(maximum(variance, 0.0), eps)), count


def _standardized(x: Any, eps: Any, *, axes: Ints) -> Any:
    dtype = dtype_of(x)
    assert dtype is not None, "an operand with a shape has a dtype"
    wide, small = (cast(v, dtype=dtype.arithmetic) for v in (x, eps))
    shifted, rest, scale, _ = _statistics(wide, small, axes)
    return cast(mul(sub(shifted, rest), scale), dtype=dtype)


def _gradient(g: Any, out: Any, x: Any, eps: Any, axes: Ints) -> Any:
    """(g - mean(g) - out * mean(g * out)) * scale, the last mean from sums that need not wait for `scale`."""
    shifted, rest, scale, count = _statistics(x, eps, axes)
    total = sum(g, axes=axes)
    along = mul(sub(sum(mul(g, shifted), axes=axes), mul(rest, total)), scale)
    return mul(sub(sub(g, div(total, count)), mul(out, div(along, count))), scale)


def _type(x: TensorType, eps: TensorType, *, axes: Ints) -> TensorType:
    if not x.dtype.is_floating_point or eps.shape:
        raise TypeError(f"standardize needs floating values and a number, got {x} and {eps}")
    return x


# (x - mean) / sqrt(variance + eps) over `axes`, the variance biased.
standardize: Op = Op(
    "standardize",
    _standardized,
    _type,
    (_gradient, None),
    decompose=_standardized,
    samples=(
        Sample(((3, 4), ()), {"axes": (1,)}),
        Sample(((2, 3, 4), ()), {"axes": (0, 2)}),
    ),
    categories=(dtypes.FLOATING,),
)


def _softmax(x: Any, *, axes: Ints) -> Any:
    """One division a row: dividing 1024 values by their sum takes 0.16 of softmax's time."""
    e = exp(sub(x, amax(x, axes=axes)))
    return mul(e, div(1.0, sum(e, axes=axes)))


def _softmax_gradient(g: Any, out: Any, x: Any, axes: Ints) -> Any:
    """Of the forward it reads the result alone: neither the exponentials nor their sum are kept."""
    return mul(out, sub(g, sum(mul(g, out), axes=axes)))


def _softmax_type(x: TensorType, *, axes: Ints) -> TensorType:
    if not x.dtype.is_floating_point:
        raise TypeError(f"softmax needs floating values, got {x}")
    return x


# exp(x) / sum(exp(x)) over `axes`, of which none may be empty; nan where every x is -inf.
softmax: Op = Op(
    "softmax",
    _softmax,
    _softmax_type,
    (_softmax_gradient,),
    decompose=_softmax,
    samples=(
        Sample(((3, 4),), {"axes": (1,)}),
        Sample(((2, 3, 4),), {"axes": (0, 2)}),
    ),
    categories=(dtypes.FLOATING,),
)
