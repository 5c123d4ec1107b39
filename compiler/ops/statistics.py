"""Values made comparable over axes: mean 0 and variance 1, or shares of 1.

Others can express these ops; their gradient rules read less than those of what they are made of would. Knows
no weights, no running statistics and no temperature; normalisations are composites above.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ir import Apply
from compiler.ops.arithmetic import add, div, maximum, mul, square, sub
from compiler.ops.compare import cast
from compiler.ops.math import exp, log, rsqrt
from compiler.ops.op import Op, Sample, broadcast_shapes, dtype_of
from compiler.ops.quiet import run_quietly
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
    shifted, rest, scale, _ = _statistics_array(np.asarray(x, order="C"), eps, axes)
    np.subtract(shifted, rest, shifted)
    return np.multiply(shifted, scale, shifted)


def _statistics_array(x: Any, eps: Any, axes: Ints) -> tuple[Any, Any, Any, int]:
    """`_statistics` of an array."""
    count, total = math.prod([x.shape[a] for a in axes]), sum.eager
    average = total(x, axes=axes)
    shifted = np.subtract(x, np.true_divide(average, count, average), memory.empty(x.shape, x.dtype))
    rest = total(shifted, axes=axes)
    np.true_divide(rest, count, rest)
    scale = total(np.multiply(shifted, shifted, memory.empty(x.shape, x.dtype)), axes=axes)
    np.subtract(np.true_divide(scale, count, scale), np.multiply(rest, rest), scale)
    np.sqrt(np.add(np.maximum(scale, 0.0, out=scale), eps, scale), scale)
    return shifted, rest, np.true_divide(1, scale, scale), count


def _is_plain(*xs: Any) -> bool:
    """Whether these are arrays in memory, in order, of one dtype that NumPy computes in."""
    for x in xs:
        if type(x) is not np.ndarray or OF_NUMPY[x.dtype].compute is not None or in_order(x) is not x:
            return False
        if x.dtype is not xs[0].dtype:
            return False
    return True


def _gradient(g: Any, out: Any, x: Any, eps: Any, axes: Ints) -> Any:
    """(g - mean(g) - out * mean(g * out)) * scale, the last mean from sums that need not wait for `scale`."""
    if _is_plain(g, out, x):
        return run_quietly(_gradient_array, g, out, x, eps, axes)
    shifted, rest, scale, count = _statistics(x, eps, axes)
    total = sum(g, axes=axes)
    along = mul(sub(sum(mul(g, shifted), axes=axes), mul(rest, total)), scale)
    return mul(sub(sub(g, div(total, count)), mul(out, div(along, count))), scale)


def _gradient_array(g: Any, out: Any, x: Any, eps: Any, axes: Ints) -> Any:
    """`_gradient` of arrays."""
    shifted, rest, scale, count = _statistics_array(x, eps, axes)
    total = sum.eager(g, axes=axes)
    along = sum.eager(np.multiply(g, shifted, shifted), axes=axes)
    np.multiply(np.subtract(along, np.multiply(rest, total, rest), along), scale, along)
    np.multiply(out, np.true_divide(along, count, along), shifted)
    made = np.subtract(g, np.true_divide(total, count, total), memory.empty(x.shape, x.dtype))
    return np.multiply(np.subtract(made, shifted, made), scale, made)


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
    if _is_plain(g, out):
        return run_quietly(_softmax_gradient_array, g, out, axes)
    return mul(out, sub(g, sum(mul(g, out), axes=axes)))


def _softmax_gradient_array(g: Any, out: Any, axes: Ints) -> Any:
    """`_softmax_gradient` of arrays."""
    made = np.multiply(g, out, memory.empty(out.shape, out.dtype))
    np.subtract(g, sum.eager(made, axes=axes), made)
    return np.multiply(out, made, made)


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
