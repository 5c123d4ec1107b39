"""Reductions over axes, and the first position of an extremum.

Every reduction keeps its axes with size 1; dropping them is a reshape. Averages and norms are composites
above.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ops.arithmetic import div, mul
from compiler.ops.bits import bitwise_or
from compiler.ops.compare import cast, eq, ne, where
from compiler.ops.creation import created, iota
from compiler.ops.movement import expand, flip, pad, permute, reshape, slice
from compiler.ops.op import Op, Reduction, Sample, dtype_of
from compiler.sizes import known_equal, same_shape
from compiler.types import TensorType, type_of_array
from kernels import dtypes
from kernels.dtypes import OF_NUMPY, DType
from kernels.gpu import arrays

Ints = tuple[int, ...]
Array = np.ndarray[Any, Any]

_SAMPLES = (
    Sample(((3, 4),), {"axes": (1,)}),
    Sample(((3, 4),), {"axes": (0,)}),
    Sample(((2, 3, 4),), {"axes": (0, 2)}),
    Sample(((3, 4),), {"axes": ()}),
)


def kept_shape(shape: Ints, axes: Ints) -> Ints:
    """`shape` with size 1 along `axes`."""
    return tuple(1 if a in axes else size for a, size in enumerate(shape))


def sum_to(gradient: Any, shape: Ints) -> Any:
    """`gradient` summed down to a `shape` that broadcasts to its own. The one place where that happens."""
    have = tuple(gradient.shape)
    if same_shape(have, tuple(shape)):
        return gradient
    added = len(have) - len(shape)
    axes = tuple(
        a
        for a, size in enumerate(have)
        if a < added or (not known_equal(size, shape[a - added]) and shape[a - added] == 1)
    )
    summed = sum(gradient, axes=axes) if axes else gradient
    return reshape(summed, shape=tuple(shape)) if added else summed


def lowest(dtype: DType) -> float | int | bool:
    """The identity of max: no value of `dtype` is below it."""
    if dtype.category == dtypes.FLOATING:
        return -math.inf
    return False if dtype is dtypes.bool_ else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int | bool:
    """The identity of min: no value of `dtype` is above it."""
    if dtype.category == dtypes.FLOATING:
        return math.inf
    return True if dtype is dtypes.bool_ else int(np.iinfo(dtype.numpy).max)


def _widened(x: Array) -> Array:
    return x.astype(np.float32) if x.itemsize == 2 and dtypes.of_numpy(x.dtype).compute is not None else x


def _sum(x: Array, *, axes: Ints) -> Array:
    last = axes == _LAST[x.ndim][len(axes)]
    if last and type(x) is np.ndarray and x.dtype.char in "fd" and x.flags.c_contiguous:
        return np.asarray(np.add.reduce(x, axes, None, keepdims=True))  # as below, half a µs sooner
    wide = _widened(x)
    accumulator = wide.dtype
    if OF_NUMPY[accumulator] is dtypes.float32 and not (last and x.flags.c_contiguous):
        # NumPy adds pairwise only along the innermost axis; elsewhere 1e6 float32 rows of 0.1 come out 1e-3
        # off.
        accumulator = np.dtype(np.float64)
    return _rounded(_folded(np.add, wide, axes, accumulator), x)


# By rank and count, the last axes.
_LAST = [[tuple(range(rank - count, rank)) for count in range(rank + 1)] for rank in range(65)]


def _rounded(out: Any, x: Array) -> Array:
    if type(out) is np.ndarray and out.dtype is x.dtype and out.flags.c_contiguous:
        return out
    if arrays.is_device(out):
        return arrays.row_major(out, x.dtype)
    return np.asarray(out).astype(x.dtype, order="C", copy=False)


def _folded(ufunc: np.ufunc, x: Array, axes: Ints, dtype: np.dtype[Any] | None = None) -> Any:
    """`ufunc.reduce`, which NumPy does not hand on to device arrays."""
    if type(x) is np.ndarray or not arrays.is_device(x):
        return ufunc.reduce(x, axes, dtype, keepdims=True)
    if not axes:
        return x.astype(dtype or x.dtype)
    options = {} if dtype is None else {"dtype": dtype}
    return getattr(arrays.engine().xp, _FOLDS[ufunc])(x, axis=axes, keepdims=True, **options)


_FOLDS = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "amax",
    np.minimum: "amin",
    np.logical_or: "any",
    np.logical_and: "all",
}


def _extremum(ufunc: np.ufunc) -> Callable[..., Array]:
    def eager(x: Array, *, axes: Ints) -> Array:
        if x.size == 0:
            require_elements(type_of_array(x), axes)
        return _rounded(_folded(ufunc, _widened(x), axes), x)

    return eager


def _reduced_type(x: TensorType, *, axes: Ints) -> TensorType:
    return TensorType(kept_shape(x.shape, axes), x.dtype)


def require_elements(x: TensorType, axes: Ints) -> None:
    """Raise IndexError where an extremum over `axes` would be one of nothing; a program gives the
    identity."""
    for axis in axes:
        if x.shape[axis] == 0:
            raise IndexError(
                f"amax/amin: expected reduction dim {axis} to have non-zero size, got {x}; an empty "
                f"maximum has no value"
            )


def _bool_type(x: TensorType, *, axes: Ints) -> TensorType:
    if x.dtype is not dtypes.bool_:
        raise TypeError(f"any/all need a bool operand, got {x}; compare with zero first")
    return _reduced_type(x, axes=axes)


def _with_axes(g: Any, shape: Ints, axes: Ints) -> Any:
    """`g` with size 1 along `axes`, which it may have lost; of one element as it is."""
    have = g.shape
    return g if not have or len(have) == len(shape) else reshape(g, shape=kept_shape(shape, axes))


sum: Reduction = Reduction(
    "sum",
    _sum,
    _reduced_type,
    # Of a sum without its axes, too.
    (lambda g, out, x, axes: expand(_with_axes(g, x.shape, axes), shape=tuple(x.shape)),),
    combine="add",
    identity=lambda dtype: 0,
    samples=_SAMPLES,
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


def _products_before(x: Any) -> Any:
    """Along the last axis, at each position the product of everything before it (1 at the first)."""
    shape = tuple(x.shape)
    rank, size = len(shape), shape[-1]
    step = 1
    shifted = _shifted(x, rank, size, 1)
    # Hillis and Steele 1986: log2(size) doubling steps, each differentiable, where out / x would be 0 / 0 at
    # a zero.
    while step < size:
        shifted = mul(shifted, _shifted(shifted, rank, size, step))
        step *= 2
    return shifted


def _shifted(x: Any, rank: int, size: int, step: int) -> Any:
    """`x` moved `step` up along its last axis, ones moving in."""
    before = (0,) * (rank - 1)
    stops = (*x.shape[:-1], size - step)
    part = slice(x, starts=(0,) * rank, stops=tuple(stops), steps=(1,) * rank)
    return pad(part, low=(*before, step), high=(0,) * rank, value=1)


def _prod_gradient(g: Any, out: Any, x: Any, axes: Ints) -> Any:
    """Each element's gradient is the product of all the others, so zeros need no special case, twice over."""
    shape = tuple(x.shape)
    if 0 in shape or not axes:
        return expand(g, shape=shape)
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    order = (*kept, *axes)
    rows = permute(x, axes=order)
    moved = tuple(rows.shape)
    rows = reshape(rows, shape=(*(shape[a] for a in kept), math.prod(shape[a] for a in axes)))
    last = (len(kept),)
    others = mul(_products_before(rows), flip(_products_before(flip(rows, axes=last)), axes=last))
    others = permute(reshape(others, shape=moved), axes=tuple(order.index(i) for i in range(len(order))))
    return mul(g, others)


prod: Reduction = Reduction(
    "prod",
    lambda x, *, axes: _rounded(_folded(np.multiply, _widened(x), axes, dtype=_widened(x).dtype), x),
    _reduced_type,
    (_prod_gradient,),
    combine="mul",
    identity=lambda dtype: 1,
    samples=_SAMPLES,
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


def _share(g: Any, out: Any, x: Any, axes: Ints) -> Any:
    """Ties share the gradient equally."""
    winners = eq(x, out)
    count = sum(cast(winners, dtype=dtype_of(g)), axes=axes)
    return where(winners, div(g, count), 0.0)


amax: Reduction = Reduction(
    "amax",
    _extremum(np.maximum),
    _reduced_type,
    (_share,),
    combine="max",
    identity=lowest,
    samples=_SAMPLES,
)
amin: Reduction = Reduction(
    "amin",
    _extremum(np.minimum),
    _reduced_type,
    (_share,),
    combine="min",
    identity=highest,
    samples=_SAMPLES,
)
any: Reduction = Reduction(
    "any",
    lambda x, *, axes: _rounded(_folded(np.logical_or, x, axes), x),
    _bool_type,
    combine="max",
    identity=lambda dtype: False,
    samples=_SAMPLES,
    categories=(dtypes.BOOL,),
)
all: Reduction = Reduction(
    "all",
    lambda x, *, axes: _rounded(_folded(np.logical_and, x, axes), x),
    _bool_type,
    combine="min",
    identity=lambda dtype: True,
    samples=_SAMPLES,
    categories=(dtypes.BOOL,),
)


def _position_type(x: TensorType, *, axis: int, keepdim: bool) -> TensorType:
    if x.shape[axis] == 0:
        raise IndexError(f"argmax/argmin: expected reduction dim {axis} to have non-zero size, got {x}")
    kept = (1,) if keepdim else ()
    return TensorType((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), dtypes.int64)


def _position(name: str, find: Callable[..., Any], extremum: Reduction) -> Op:
    def eager(x: Array, *, axis: int, keepdim: bool) -> Array:
        if x.size == 0:
            _position_type(type_of_array(x), axis=axis, keepdim=keepdim)
        return arrays.row_major(find(_widened(x), axis=axis, keepdims=True), np.int64).reshape(
            _position_type(type_of_array(x), axis=axis, keepdim=keepdim).shape
        )

    def decompose(x: Any, *, axis: int, keepdim: bool) -> Any:
        shape = tuple(x.shape)
        hit = eq(x, extremum(x, axes=(axis,)))
        if dtype_of(x).is_floating_point:  # type: ignore[union-attr]
            hit = bitwise_or(hit, ne(x, x))
        index = created(x, iota, shape=shape, axis=axis, dtype=dtypes.int64)
        first = amin(where(hit, index, shape[axis]), axes=(axis,))
        return first if keepdim else reshape(first, shape=(*shape[:axis], *shape[axis + 1 :]))

    samples = (
        Sample(((3, 4),), {"axis": 1, "keepdim": True}),
        Sample(((3, 4),), {"axis": 0, "keepdim": False}),
    )
    return Op(name, eager, _position_type, decompose=decompose, samples=samples)


# argmax(axis=, keepdim=): int64 position of the first extremum; a NaN counts as the extremum.
argmax: Op = _position("argmax", np.argmax, amax)
argmin: Op = _position("argmin", np.argmin, amin)
