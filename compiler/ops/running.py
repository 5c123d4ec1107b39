"""Running totals: each element combined with all before it along one axis.

Sums and products come in order, as NumPy adds; on a GPU in steps that double. Logarithms of running sums
are composites above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ops.arithmetic import mul
from compiler.ops.bits import bitwise_or
from compiler.ops.compare import eq, ne, where
from compiler.ops.creation import created, iota, zeros
from compiler.ops.indexing import scatter_add
from compiler.ops.movement import flip, pad, slice
from compiler.ops.op import Op, Sample, Scan, dtype_of
from compiler.types import TensorType
from kernels import dtypes
from kernels.gpu import arrays, ordering

Array = np.ndarray[Any, Any]

_SAMPLES = (
    Sample(((3, 4),), {"axis": 1}),
    Sample(((2, 3, 4),), {"axis": 1}),
    Sample(((5,),), {"axis": 0}),
    Sample(((3, 1),), {"axis": 1}),
    Sample(((3, 0),), {"axis": 1}),
)
# Positions that are gone through one after the other, at some microseconds each; more of them in steps that
# double, whose products of factors may overflow where one after the other nothing does.
ONE_BY_ONE = 2048


def _type(x: TensorType, *, axis: int) -> TensorType:
    if not 0 <= axis < len(x.shape):
        raise IndexError(f"axis {axis} of {x} is out of range: it has {len(x.shape)}")
    return x


def _wide(x: Array) -> Array:
    return x.astype(dtypes.of_numpy(x.dtype).arithmetic.numpy, copy=False)


def _running(ufunc: np.ufunc) -> Callable[..., Array]:
    def eager(x: Array, *, axis: int) -> Array:
        wide = _wide(x)
        if arrays.is_device(x):
            return arrays.row_major(ordering.running(ufunc.__name__, wide, axis), x.dtype)
        return np.asarray(ufunc.accumulate(wide, axis, dtype=wide.dtype)).astype(x.dtype, "C", copy=False)

    return eager


def _backwards(op: Op, *inputs: Any, axis: int) -> Any:
    """An op that runs along an axis, from the other end."""
    return flip(op(*(flip(x, axes=(axis,)) for x in inputs), axis=axis), axes=(axis,))


def before(x: Any, axis: int, first: float) -> Any:
    """At each position what `x` has at the one before it along an axis, and `first` at the first."""
    shape, rank = tuple(x.shape), len(x.shape)
    if 0 in shape:
        return x
    stops = tuple(size - (a == axis) for a, size in enumerate(shape))
    part = slice(x, starts=(0,) * rank, stops=stops, steps=(1,) * rank)
    low = tuple(int(a == axis) for a in range(rank))
    return pad(part, low=low, high=(0,) * rank, value=first)


# cumsum(x, axis=)
cumsum: Scan = Scan(
    "cumsum",
    _running(np.add),
    _type,
    (lambda g, out, x, axis: _backwards(cumsum, g, axis=axis),),
    combine="add",
    samples=_SAMPLES,
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


def _product_gradient(g: Any, out: Any, x: Any, axis: int) -> Any:
    """The product of all before an element, times what comes after it: g here, plus the next element times
    that of the next. Nothing is divided, so that zeros need no special case, twice over.
    """
    following = flip(before(flip(x, axes=(axis,)), axis, 0.0), axes=(axis,))
    return mul(before(out, axis, 1.0), _backwards(recurrence, following, g, axis=axis))


# cumprod(x, axis=)
cumprod: Scan = Scan(
    "cumprod",
    _running(np.multiply),
    _type,
    (_product_gradient,),
    combine="mul",
    samples=_SAMPLES,
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


def positions(x: Any, out: Any, axis: int) -> Any:
    """Where each running extremum `out` of `x` was met last; nan, once met, meets itself."""
    place = created(x, iota, shape=tuple(x.shape), axis=axis, dtype=dtypes.int64)
    met = eq(x, out)
    if dtype_of(x).is_floating_point:  # type: ignore[union-attr]
        met = bitwise_or(met, ne(x, x))
    return cummax(where(met, place, 0), axis=axis)


def _extremum_gradient(g: Any, out: Any, x: Any, axis: int) -> Any:
    return scatter_add(zeros(g, tuple(g.shape)), positions(x, out, axis), g, axis=axis)


# cummax(x, axis=), cummin(x, axis=): the largest and the smallest so far.
cummax: Scan = Scan(
    "cummax", _running(np.maximum), _type, (_extremum_gradient,), combine="max", samples=_SAMPLES
)
cummin: Scan = Scan(
    "cummin", _running(np.minimum), _type, (_extremum_gradient,), combine="min", samples=_SAMPLES
)


def _recurrence(factor: Array, x: Array, *, axis: int) -> Array:
    y, f = (np.moveaxis(_wide(v), axis, 0).copy() for v in (x, factor))
    if len(y) <= ONE_BY_ONE and not arrays.is_device(x):
        for i in range(1, len(y)):
            y[i] = _next(y[i - 1], f[i], y[i])
    else:
        step = 1
        while step < len(y):
            y = np.concatenate([y[:step], _next(y[:-step], f[step:], y[step:])])
            f = np.concatenate([f[:step], f[:-step] * f[step:]])
            step *= 2
    return arrays.row_major(np.moveaxis(y, 0, axis), x.dtype)


def _next(before: Array, factor: Array, value: Array) -> Array:
    return np.where(before == 0, value, factor * before + value)


def _recurrence_type(factor: TensorType, x: TensorType, *, axis: int) -> TensorType:
    if factor != x or not x.dtype.is_floating_point:
        raise TypeError(
            f"recurrence needs factors and values of one shape and floating dtype, got {factor} and {x}"
        )
    return _type(x, axis=axis)


def _value_gradient(g: Any, out: Any, factor: Any, x: Any, axis: int) -> Any:
    following = flip(before(flip(factor, axes=(axis,)), axis, 0.0), axes=(axis,))
    return _backwards(recurrence, following, g, axis=axis)


def _factor_gradient(g: Any, out: Any, factor: Any, x: Any, axis: int) -> Any:
    return mul(_value_gradient(g, out, factor, x, axis), before(out, axis, 0.0))


# recurrence(factor, x, axis=): y = factor * (the y before) + x along an axis, and x where that is 0.
recurrence: Scan = Scan(
    "recurrence",
    _recurrence,
    _recurrence_type,
    (_factor_gradient, _value_gradient),
    combine="add",
    samples=tuple(Sample(s.inputs * 2, s.attrs) for s in _SAMPLES),
    categories=(dtypes.FLOATING,),
)
