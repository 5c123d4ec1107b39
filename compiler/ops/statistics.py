"""Values made comparable over axes: mean 0 and variance 1, or shares of 1.

Others can express these ops; their gradient rules read less than those of what they are made of would. Knows
no weights, no running statistics and no temperature; normalisations are composites above.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from compiler.ir import Apply
from compiler.ops.arithmetic import add, div, maximum, mul, square, sub
from compiler.ops.compare import cast
from compiler.ops.math import exp, log, rsqrt
from compiler.ops.op import Op, Sample, broadcast_shapes, dtype_of
from compiler.ops.reduction import amax, sum
from compiler.types import TensorType
from kernels import dtypes, memory
from kernels.dtypes import OF_NUMPY
from kernels.memory import in_order

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


def _standardized_array(x: Any, eps: Any, *, axes: Ints) -> Any:
    """`_standardized` of an array: the same steps, right in NumPy, which take a third of the time."""
    if not _is_plain(x):
        return _standardized(x, eps, axes=axes)
    x, count = np.asarray(x, order="C"), math.prod(x.shape[a] for a in axes)
    total, empty = sum.eager, partial(memory.empty, x.shape, x.dtype)
    average = total(x, axes=axes)
    shifted = np.subtract(x, np.true_divide(average, count, average), empty())
    rest = total(shifted, axes=axes)
    np.true_divide(rest, count, rest)
    out = np.multiply(shifted, shifted, empty())
    scale = total(out, axes=axes)
    np.subtract(np.true_divide(scale, count, scale), np.multiply(rest, rest), scale)
    np.sqrt(np.add(np.maximum(scale, 0.0, out=scale), eps, scale), scale)
    np.subtract(shifted, rest, out)
    return np.multiply(out, np.true_divide(1, scale, scale), out)


def _is_plain(x: Any) -> bool:
    """Whether `x` is an array in memory, of a dtype that NumPy computes in."""
    return type(x) is np.ndarray and OF_NUMPY[x.dtype].compute is None and in_order(x) is x


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
    _standardized_array,
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


def _softmax_array(x: Any, *, axes: Ints) -> Any:
    """`_softmax` of an array: the same steps, right in NumPy."""
    if not _is_plain(x):
        return _softmax(x, axes=axes)
    e = np.subtract(x, amax.eager(x, axes=axes), memory.empty(x.shape, x.dtype))
    total = sum.eager(np.exp(e, e), axes=axes)
    return np.multiply(e, np.true_divide(1, total, total), e)


def _softmax_gradient(g: Any, out: Any, x: Any, axes: Ints) -> Any:
    """Of the forward it reads the result alone: neither the exponentials nor their sum are kept."""
    return mul(out, sub(g, sum(mul(g, out), axes=axes)))


def _softmax_type(x: TensorType, *, axes: Ints) -> TensorType:
    if not x.dtype.is_floating_point:
        raise TypeError(f"softmax and its logarithm need floating values, got {x}")
    return x


# exp(x) / sum(exp(x)) over `axes`, of which none may be empty; nan where every x is -inf.
softmax: Op = Op(
    "softmax",
    _softmax_array,
    _softmax_type,
    (_softmax_gradient,),
    decompose=_softmax,
    samples=(
        Sample(((3, 4),), {"axes": (1,)}),
        Sample(((2, 3, 4),), {"axes": (0, 2)}),
    ),
    categories=(dtypes.FLOATING,),
)


def _log_softmax(x: Any, *, axes: Ints) -> Any:
    shifted = sub(x, amax(x, axes=axes))
    return sub(shifted, log(sum(exp(shifted), axes=axes)))


def _log_softmax_array(x: Any, *, axes: Ints) -> Any:
    """`_log_softmax` of an array: the same steps, right in NumPy."""
    if not _is_plain(x):
        return _log_softmax(x, axes=axes)
    shifted = np.subtract(x, amax.eager(x, axes=axes), memory.empty(x.shape, x.dtype))
    total = sum.eager(np.exp(shifted, memory.empty(x.shape, x.dtype)), axes=axes)
    return np.subtract(shifted, np.log(total, total), shifted)


def _shares(x: Any, total: Any) -> Any:
    """exp(x) * total. Of x = a - log(b), as a logarithm of softmax is, exp(a) * (total / b): these are there
    already, and computed again they would make a cross entropy with its gradient half as long again.
    """
    if isinstance(x, Apply) and x.op is sub and isinstance(of := x.inputs[1], Apply) and of.op is log:
        return mul(exp(x.inputs[0]), div(total, of.inputs[0]))
    return mul(exp(x), total)


def _shares_array(x: Any, total: Any) -> Any:
    """`_shares` of arrays."""
    if not _is_plain(x):
        return _shares(x, total)
    e = np.exp(x, memory.empty(x.shape, x.dtype))
    return np.multiply(e, total, e)


def _shares_type(x: TensorType, total: TensorType) -> TensorType:
    if x.dtype is not total.dtype or broadcast_shapes(x.shape, total.shape) != x.shape:
        raise TypeError(f"shares needs a total that broadcasts to what it is shared by, got {x} and {total}")
    return x


# exp(x) * total, x being logarithms of shares.
shares: Op = Op(
    "shares",
    _shares_array,
    _shares_type,
    (lambda g, out, x, total: mul(g, out), lambda g, out, x, total: shares(x, g)),
    decompose=_shares,
    samples=(Sample(((3, 4), (3, 1))),),
    categories=(dtypes.FLOATING,),
)


def _log_softmax_gradient(g: Any, out: Any, x: Any, axes: Ints) -> Any:
    """As softmax's it reads the result alone."""
    return sub(g, shares(out, sum(g, axes=axes)))


# x - log(sum(exp(x))) over `axes`, of which none may be empty.
log_softmax: Op = Op(
    "log_softmax",
    _log_softmax_array,
    _softmax_type,
    (_log_softmax_gradient,),
    decompose=_log_softmax,
    samples=(
        Sample(((3, 4),), {"axes": (1,)}),
        Sample(((2, 3, 4),), {"axes": (0, 2)}),
    ),
    categories=(dtypes.FLOATING,),
)
