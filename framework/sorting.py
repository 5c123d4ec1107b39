"""Order and running totals: sort, topk, cumsum, unique, nonzero.

The result's order or shape depends on values, so these read them: inside @compile the function then runs
eagerly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.indexing import gather
from compiler.ops.indexing import take as take_op
from framework.access import beside, host
from framework.apply import apply_op
from framework.autograd import Function
from framework.elementwise import isnan, labelled, logaddexp, where
from framework.joining import flip
from framework.promotion import FLOATING, convert
from framework.reductions import Extremum
from framework.size import axis_index
from framework.tensor import Tensor
from framework.views import cat, movedim, reshape, sliced
from kernels import dtypes
from kernels.dtypes import DType

Array = np.ndarray[Any, Any]


class Sort(Extremum):
    """Result of sort."""


class Topk(Extremum):
    """Result of topk."""


class Kthvalue(Extremum):
    """Result of kthvalue."""


class Median(Extremum):
    """Result of median over a dimension."""


def _order(x: Tensor, axis: int, descending: bool) -> Array:
    """Stable order along `axis`; nan counts as the largest value."""
    data = host(x)
    if not descending:
        return np.argsort(data, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
    return np.flip(data.shape[axis] - 1 - backwards, axis)


def _sorted(x: Tensor, dim: int, descending: bool, kind: type[Extremum]) -> Extremum:
    if x.ndim == 0:
        axis_index(dim, 0)
        values, indices = _sorted(reshape(x, (1,)), 0, descending, kind)
        return kind(reshape(values, ()), reshape(indices, ()))
    axis = axis_index(dim, x.ndim)
    indices = beside(x, np.ascontiguousarray(_order(x, axis, descending), dtype=np.int64))
    values = labelled(f"{kind.__name__}Backward0", apply_op(gather, (x, indices), {"axis": axis}))
    return kind(values, indices)


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Extremum:
    """Values in order along `dim` and where each was; equal ones keep their order, nan comes last (first
    descending)."""
    return _sorted(input, dim, descending, Sort)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """Positions that put `input` in order along `dim`."""
    return sort(input.detach(), dim, descending, stable).indices


def msort(input: Tensor) -> Tensor:
    """Values in order along dimension 0."""
    return sort(input, 0).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extremum:
    """The `k` largest (or smallest) values along `dim`, in order, and their positions."""
    axis = axis_index(dim, input.ndim)
    if input.dtype is dtypes.bool_:
        raise RuntimeError("topk does not support bool dtypes on CPU")
    size = input.shape[axis] if input.ndim else 1
    if not 0 <= k <= size:
        raise RuntimeError(f"selected index k out of range: k={k} for a dimension of size {size}")
    values, indices = _sorted(input, dim, largest, Topk)
    if input.ndim == 0:
        return Topk(values, indices)
    first = sliced(indices, axis, 0, k).contiguous()
    return Topk(labelled("TopkBackward0", apply_op(gather, (input, first), {"axis": axis})), first)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Extremum:
    """The k-th smallest value along `dim` (1 is the smallest), and its position."""
    axis = axis_index(dim, input.ndim)
    if not 1 <= k <= input.shape[axis]:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}: k={k}")
    values, indices = _sorted(input, axis, False, Kthvalue)
    values, indices = sliced(values, axis, k - 1, k), sliced(indices, axis, k - 1, k)
    return Kthvalue(values, indices) if keepdim else Kthvalue(values.squeeze(axis), indices.squeeze(axis))


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle value, the lower of two; nan if there is any. With `dim` also its position."""
    if dim is None:
        flat = reshape(input, (-1,))
        return _median(flat, 0, False).values
    return _median(input, dim, keepdim)


def _median(x: Tensor, dim: int, keepdim: bool) -> Extremum:
    axis = axis_index(dim, x.ndim)
    order = _order(x, axis, False)
    data = host(x)
    middle = np.take(order, [(data.shape[axis] - 1) // 2], axis)
    if data.dtype.kind == "f":
        nans = np.isnan(data)
        middle = np.where(nans.any(axis, keepdims=True), nans.argmax(axis, keepdims=True), middle)
    indices = beside(x, np.ascontiguousarray(middle, np.int64))
    values = apply_op(gather, (x, indices), {"axis": axis})
    return Median(values, indices) if keepdim else Median(values.squeeze(axis), indices.squeeze(axis))


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle of the values that are not nan, the lower of two."""
    x = reshape(input, (-1,)) if dim is None or input.ndim == 0 else input
    axis = axis_index(0 if dim is None else dim, x.ndim)
    order, data = _order(x, axis, False), host(x)
    count = np.sum(~np.isnan(data), axis, keepdims=True) if data.dtype.kind == "f" else data.shape[axis]
    middle = np.take_along_axis(
        order, np.maximum((np.asarray(count) - 1) // 2, 0).reshape(_kept(data, axis)), axis
    )
    indices = beside(input, np.ascontiguousarray(middle, np.int64))
    values = apply_op(gather, (x, indices), {"axis": axis})
    if dim is None:
        return reshape(values, ())
    return Median(values, indices) if keepdim else Median(values.squeeze(axis), indices.squeeze(axis))


def _kept(data: Array, axis: int) -> tuple[int, ...]:
    return tuple(1 if k == axis else n for k, n in enumerate(data.shape))


def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The values below which fractions `q` of the elements lie."""
    x = reshape(input, (-1,)) if dim is None or input.ndim == 0 else input
    axis = axis_index(0 if dim is None else dim, x.ndim)
    values = sort(x, axis).values
    fractions = host(q).astype(np.float64) if isinstance(q, Tensor) else np.asarray(q, np.float64)
    if np.any((fractions < 0) | (fractions > 1)):
        raise RuntimeError("quantile() q values must be in the range [0, 1]")
    places = fractions.reshape(-1) * (x.shape[axis] - 1)
    lower, upper = np.floor(places), np.ceil(places)
    weight = {
        "linear": places - lower,
        "lower": places * 0,
        "higher": places * 0 + 1,
        "midpoint": places * 0 + 0.5,
    }.get(interpolation, np.round(places) - lower)
    low, high = (_taken(values, axis, beside(x, p.astype(np.int64))) for p in (lower, upper))
    shape = tuple(len(places) if k == axis else 1 for k in range(x.ndim))
    picked = low + (high - low) * beside(x, weight.reshape(shape).astype(host(x).dtype))
    picked = where(isnan(x).any(axis, True), float("nan"), picked)
    moved = movedim(picked, axis, 0)
    if input.ndim == 0:
        kept = reshape(moved, (-1,))
    elif dim is None:
        kept = reshape(moved, (-1, *(1,) * input.ndim)) if keepdim else moved
    else:
        kept = moved.unsqueeze(axis + 1) if keepdim else moved
    return kept if fractions.ndim else kept[0]


def _taken(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """Slices of `axis` at a vector of positions."""
    return apply_op(take_op, (x, index), {"axis": axis})


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall in each of `bins` equal intervals; the range is the data's when min equals
    max."""
    data = host(input)
    low, high = (data.min(), data.max()) if min == max and data.size else (min, max)
    counts, _ = np.histogram(data[(data >= low) & (data <= high)], bins, (low, high))
    return beside(input, counts.astype(data.dtype))


class Cummax(Extremum):
    """Result of cummax."""


class Cummin(Extremum):
    """Result of cummin."""


def _running(x: Tensor, dim: int, accumulate: Any, kind: type[Extremum]) -> Extremum:
    axis = axis_index(dim, x.ndim)
    if x.ndim == 0:
        return kind(x + 0, beside(x, np.zeros((), np.int64)))
    data = host(x)
    best = accumulate(data, axis)
    # The last position so far at which the running extremum was met; nan, once met, meets itself.
    met = (data == best) | (np.isnan(data) if data.dtype.kind == "f" else False)
    place = np.where(
        met, np.arange(data.shape[axis]).reshape([-1 if k == axis else 1 for k in range(data.ndim)]), 0
    )
    indices = beside(x, np.ascontiguousarray(np.maximum.accumulate(place, axis), np.int64))
    return kind(
        labelled(f"{kind.__name__}Backward0", apply_op(gather, (x, indices), {"axis": axis})), indices
    )


def cummax(input: Tensor, dim: int) -> Extremum:
    """The largest value so far along `dim`, and where it was."""
    return _running(input, dim, np.maximum.accumulate, Cummax)


def cummin(input: Tensor, dim: int) -> Extremum:
    """The smallest value so far along `dim`, and where it was."""
    return _running(input, dim, np.minimum.accumulate, Cummin)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of running sums of exp along `dim`, without overflow."""
    if input.ndim == 0:
        return input + 0
    axis = axis_index(dim, input.ndim)
    step, size, x = 1, input.shape[axis], input
    while step < size:
        head, tail = sliced(x, axis, 0, step), sliced(x, axis, step, size)
        x = cat([head, logaddexp(tail, sliced(x, axis, 0, size - step))], axis)
        step *= 2
    return labelled("LogcumsumexpBackward0", x + 0)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices of `dim`) that differ from the one before; on request also run numbers and
    lengths."""
    data = host(input)
    rows = data.reshape(-1) if dim is None else np.moveaxis(data, dim, 0)
    flat = rows.reshape(len(rows), -1)
    starts = np.concatenate([np.ones(min(len(rows), 1), bool), (flat[1:] != flat[:-1]).any(1)])
    kept = rows[starts]
    results = [beside(input, np.ascontiguousarray(kept if dim is None else np.moveaxis(kept, 0, dim)))]
    run = np.cumsum(starts) - 1
    if return_inverse:
        results.append(beside(input, (run.reshape(data.shape) if dim is None else run).astype(np.int64)))
    if return_counts:
        results.append(beside(input, np.bincount(run, minlength=len(kept)).astype(np.int64)))
    return results[0] if len(results) == 1 else tuple(results)


class _CumulativeSum(Function):
    """Running sums; the gradient is the running sum from the other end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:
        ctx.axis = axis
        data = host(x)
        wide = data.astype(np.float32) if data.dtype.itemsize == 2 and x.dtype.category == FLOATING else data
        return beside(x, np.cumsum(wide, axis, dtype=wide.dtype).astype(data.dtype, copy=False))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return flip(_CumulativeSum.apply(flip(g, ctx.axis), ctx.axis), ctx.axis), None


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running sums along `dim`; bool and integers give int64."""
    x = _accumulable(input, dtype)
    if x.ndim == 0:
        axis_index(dim, 0)
        return x + 0
    return labelled("CumsumBackward0", _CumulativeSum.apply(x, axis_index(dim, x.ndim)))


def _accumulable(input: Tensor, dtype: DType | None) -> Tensor:
    if dtype is None and input.dtype.category != FLOATING:
        dtype = dtypes.int64
    return input if dtype is None else convert(input, dtype)


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running products along `dim`; bool and integers give int64."""
    x = _accumulable(input, dtype)
    if x.ndim == 0:
        axis_index(dim, 0)
        return x + 0
    axis = axis_index(dim, x.ndim)
    if not x.requires_grad:
        return beside(input, np.ascontiguousarray(np.cumprod(host(x), axis, dtype=host(x).dtype)))
    # Doubling steps (Hillis and Steele 1986), each differentiable, also where an element is 0.
    step, size = 1, x.shape[axis]
    while step < size:
        head, tail = sliced(x, axis, 0, step), sliced(x, axis, step, size)
        joined = tail * sliced(x, axis, 0, size - step)
        x = cat([head, joined], axis)
        step *= 2
    return labelled("CumprodBackward0", x + 0)


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Positions of nonzero elements: a row each, or (`as_tuple`) one vector per dimension."""
    found = np.nonzero(host(input)) if input.ndim else np.nonzero(host(input).reshape(1))
    if as_tuple:
        return tuple(beside(input, np.ascontiguousarray(i, np.int64)) for i in found)
    if input.ndim == 0:
        return beside(input, np.zeros((found[0].size, 0), np.int64))
    return beside(input, np.ascontiguousarray(np.stack(found, 1), np.int64))


def argwhere(input: Tensor) -> Tensor:
    """Positions of nonzero elements, a row each."""
    return nonzero(input)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Distinct elements in order; on request also which one each element is, and how often each occurs."""
    values, inverse, counts = np.unique(host(input), return_inverse=True, return_counts=True, axis=dim)
    shape = input.shape if dim is None else (input.shape[dim],)
    results = [beside(input, values)]
    if return_inverse:
        results.append(beside(input, inverse.reshape(shape).astype(np.int64)))
    if return_counts:
        results.append(beside(input, counts.astype(np.int64)))
    return results[0] if len(results) == 1 else tuple(results)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each non-negative integer occurs, or the sum of its weights."""
    counts = np.bincount(host(input), None if weights is None else host(weights), minlength)
    return beside(
        input,
        counts.astype(np.int64)
        if weights is None
        else counts.astype(np.result_type(host(weights), np.float32)),
    )


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
    out_int32: bool = False,
) -> Tensor:
    """Where elements would be inserted in the ordered innermost dimension of `sorted_sequence`."""
    values = host(input) if isinstance(input, Tensor) else np.asarray(input)
    edges = host(sorted_sequence)
    end: Any = side or ("right" if right else "left")
    if sorter is not None:
        edges = np.take_along_axis(edges, host(sorter), -1)
    if edges.ndim == 1:
        found = np.searchsorted(edges, values, end)
    else:
        rows = zip(
            edges.reshape(-1, edges.shape[-1]), values.reshape(math.prod(edges.shape[:-1]), -1), strict=True
        )
        found = np.asarray([np.searchsorted(e, v, end) for e, v in rows]).reshape(values.shape)
    return beside(sorted_sequence, np.asarray(found, np.int32 if out_int32 else np.int64))


def bucketize(input: Any, boundaries: Tensor, *, right: bool = False, out_int32: bool = False) -> Tensor:
    """The bucket between `boundaries` each element falls in."""
    return searchsorted(boundaries, input, right=right, out_int32=out_int32)
