"""Order and what is distinct: sort, topk, unique, nonzero.

The result's order or shape depends on values, so these read them: inside @compile the function then runs
eagerly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.indexing import gather, take_add
from compiler.ops.indexing import take as take_op
from framework.access import beside, host
from framework.apply import apply_op
from framework.elementwise import isnan, labelled, where
from framework.promotion import convert
from framework.reductions import Extremum
from framework.size import axis_index
from framework.tensor import Tensor, concrete, wrap
from framework.transfer import moved_to
from framework.views import movedim, reshape, sliced
from kernels import dtypes
from kernels.gpu import arrays, ordering

Array = np.ndarray[Any, Any]


class Sort(Extremum):
    """Result of sort."""


class Topk(Extremum):
    """Result of topk."""


class Kthvalue(Extremum):
    """Result of kthvalue."""


class Median(Extremum):
    """Result of median over a dimension."""


@arrays.located
def _order(data: Array, axis: int, descending: bool) -> Array:
    """Stable order along `axis`; nan counts as the largest value."""
    if arrays.is_device(data):
        return ordering.order(data, axis, descending)
    if not descending:
        return np.argsort(data, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
    return np.flip(data.shape[axis] - 1 - backwards, axis)


def _comparable(data: Array) -> Array:
    """The same numbers in a dtype that CuPy computes in."""
    return data.astype(dtypes.of_numpy(data.dtype).arithmetic.numpy) if arrays.is_device(data) else data


def _positions(data: Array) -> Tensor:
    """Positions as a tensor, where they are."""
    return wrap(arrays.row_major(data, np.int64))


def _sorted(x: Tensor, dim: int, descending: bool, kind: type[Extremum]) -> Extremum:
    if x.ndim == 0:
        axis_index(dim, 0)
        values, indices = _sorted(reshape(x, (1,)), 0, descending, kind)
        return kind(reshape(values, ()), reshape(indices, ()))
    axis = axis_index(dim, x.ndim)
    indices = _positions(_order(concrete(x), axis, descending))
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
    if input.ndim == 0:
        return Kthvalue(*(reshape(x, ()) for x in kthvalue(reshape(input, (1,)), k, dim)))
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
    if x.ndim == 0:
        return Median(*(reshape(y, ()) for y in _median(reshape(x, (1,)), dim, keepdim)))
    axis = axis_index(dim, x.ndim)
    return _picked(x, axis, _middle(concrete(x), axis), keepdim)


def _picked(x: Tensor, axis: int, place: Array, keepdim: bool) -> Extremum:
    """The elements of `x` at one place each along an axis."""
    indices = _positions(place)
    values = apply_op(gather, (x, indices), {"axis": axis})
    return Median(values, indices) if keepdim else Median(values.squeeze(axis), indices.squeeze(axis))


@arrays.located
def _middle(data: Array, axis: int) -> Array:
    """Where the middle element is along an axis, or the first nan."""
    data = _comparable(data)
    middle = np.take(_order(data, axis, False), [(data.shape[axis] - 1) // 2], axis)
    nans = data != data
    first = np.argmax(nans.astype(np.int8), axis, keepdims=True)
    return np.where(nans.any(axis, keepdims=True), first, middle)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle of the values that are not nan, the lower of two."""
    if dim is not None and input.ndim == 0:
        return Median(*(reshape(x, ()) for x in nanmedian(reshape(input, (1,)), dim)))
    x = reshape(input, (-1,)) if dim is None else input
    axis = axis_index(0 if dim is None else dim, x.ndim)
    found = _picked(x, axis, _middle_number(concrete(x), axis), keepdim or dim is None)
    return reshape(found.values, ()) if dim is None else found


@arrays.located
def _middle_number(data: Array, axis: int) -> Array:
    """Where the middle of the elements is that are not nan."""
    data = _comparable(data)
    count = (data == data).sum(axis, keepdims=True)
    return gather(arrays.row_major(_order(data, axis, False)), np.maximum((count - 1) // 2, 0), axis=axis)


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
    picked = low + (high - low) * beside(x, weight.reshape(shape).astype(x.dtype.numpy))
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
    return wrap(_counts(concrete(input), bins, min, max))


@arrays.located
def _counts(data: Array, bins: int, low: float, high: float) -> Array:
    """How many elements of a range are in each of its equal parts, in their dtype."""
    dtype, data = data.dtype, _comparable(data)
    low, high = (data.min(), data.max()) if low == high and data.size else (low, high)
    among = data[(data >= low) & (data <= high)]
    if not arrays.is_device(data):
        return np.histogram(among, bins, (low, high))[0].astype(dtype)
    ends = [end.get()[()] if arrays.is_device(end) else end for end in (low, high)]
    edges = np.histogram_bin_edges(np.zeros(0, data.dtype), bins, (ends[0], ends[1]))
    place = ordering.searched(arrays.put(edges, data.device.id), among, True) - 1
    return _occurrences(np.minimum(place, bins - 1), bins).astype(dtype)


def _occurrences(index: Array, size: int) -> Array:
    """How often each number below `size` occurs in a vector."""
    xp = arrays.namespace(index)
    return take_add(xp.zeros(size, np.int64), index, xp.ones(len(index), np.int64), axis=0)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices of `dim`) that differ from the one before; on request also run numbers and
    lengths."""
    kept, run, counts = _runs(concrete(input), dim)
    results = [wrap(kept)]
    if return_inverse:
        results.append(wrap(run.reshape(input.shape) if dim is None else run))
    if return_counts:
        results.append(wrap(counts))
    return results[0] if len(results) == 1 else tuple(results)


@arrays.located
def _runs(data: Array, dim: int | None) -> tuple[Array, Array, Array]:
    """The first of each run of equal elements (or slices), the number of every one's run, the lengths."""
    rows = data.reshape(-1) if dim is None else np.moveaxis(data, dim, 0)
    flat, xp = _comparable(rows).reshape(len(rows), math.prod(rows.shape[1:])), arrays.namespace(data)
    first = xp.ones(min(len(rows), 1), np.bool_)
    starts = np.concatenate([first, (flat[1:] != flat[:-1]).any(1)])
    kept = rows[starts]
    (begins,) = np.nonzero(starts)
    ends = np.concatenate([begins[1:], xp.full(len(first), len(rows), np.int64)])
    run = np.cumsum(starts.astype(np.int64), 0) - 1
    return arrays.row_major(kept if dim is None else np.moveaxis(kept, 0, dim)), run, ends - begins


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Positions of nonzero elements: a row each, or (`as_tuple`) one vector per dimension."""
    found = _nonzero(concrete(input))
    if as_tuple:
        return tuple(map(_positions, found))
    if input.ndim == 0:
        return beside(input, np.zeros((found[0].size, 0), np.int64))
    return _positions(_stacked(found[0], found))


@arrays.located
def _nonzero(data: Array) -> tuple[Array, ...]:
    """Positions of nonzero elements along each axis; of a number as if it had one."""
    return np.nonzero(_comparable(data if data.ndim else data.reshape(1)))


@arrays.located
def _stacked(first: Array, every: tuple[Array, ...]) -> Array:
    """Vectors as columns."""
    return np.stack(every, 1)


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
    if input.is_cuda:
        distinct = _distinct(concrete(input)) if dim is None else _distinct_slices(concrete(input), dim)
        values, inverse, counts = distinct
    else:
        values, inverse, counts = np.unique(host(input), return_inverse=True, return_counts=True, axis=dim)
    shape = input.shape if dim is None else (input.shape[dim],)
    results = [beside(input, values)]
    if return_inverse:
        results.append(beside(input, inverse.reshape(shape).astype(np.int64, copy=False)))
    if return_counts:
        results.append(beside(input, counts.astype(np.int64, copy=False)))
    return results[0] if len(results) == 1 else tuple(results)


@arrays.located
def _distinct(data: Array) -> tuple[Array, Array, Array]:
    """As np.unique, on a GPU: distinct elements, which one each element is, and how often each occurs."""
    flat = data.reshape(-1)
    found = ordering.order(flat, 0)
    starts = ordering.starts(ordering.keys(flat)[found])
    (begins,) = np.nonzero(starts)
    run = np.cumsum(starts.astype(np.int64), 0) - 1
    inverse = arrays.namespace(data).zeros(len(flat), np.int64)
    inverse[found] = run
    return flat[found[begins]], inverse, _occurrences(run, len(begins))


@arrays.located
def _distinct_slices(data: Array, dim: int) -> tuple[Array, Array, Array]:
    """As np.unique along an axis, on a GPU: nan is equal to nothing."""
    rows = np.moveaxis(data, dim, 0)
    flat = _comparable(rows).reshape(len(rows), math.prod(rows.shape[1:]))
    found = ordering.order_of_rows(flat)
    there = flat[found]
    first = arrays.namespace(data).ones(min(len(rows), 1), np.bool_)
    starts = np.concatenate([first, (there[1:] != there[:-1]).any(1)])
    (begins,) = np.nonzero(starts)
    run = np.cumsum(starts.astype(np.int64), 0) - 1
    inverse = arrays.namespace(data).zeros(len(rows), np.int64)
    inverse[found] = run
    kept = np.moveaxis(rows[found[begins]], 0, dim)
    return arrays.row_major(kept), inverse, _occurrences(run, len(begins))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each non-negative integer occurs, or the sum of its weights."""
    if input.is_cuda and input.ndim == 1:
        return wrap(_weighed(concrete(input), None if weights is None else concrete(weights), minlength))
    counts = np.bincount(host(input), None if weights is None else host(weights), minlength)
    return beside(
        input,
        counts.astype(np.int64)
        if weights is None
        else counts.astype(np.result_type(host(weights), np.float32)),
    )


@arrays.located
def _weighed(data: Array, weights: Array | None, minlength: int) -> Array:
    """As np.bincount, on a GPU."""
    if data.size and int(data.min()) < 0:
        raise ValueError("'list' argument must have no negative elements")
    index = data.astype(np.int64)
    size = max(int(index.max()) + 1 if data.size else 0, minlength)
    if weights is None:
        return _occurrences(index, size)
    if weights.shape != data.shape:
        raise ValueError("The weights and list don't have the same length.")
    zeros = arrays.namespace(data).zeros(size, np.float64)
    counts = take_add(zeros, index, weights.astype(np.float64), axis=0)
    return counts.astype(np.result_type(weights.dtype, np.float32))


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
    if sorted_sequence.is_cuda:
        values = concrete(moved_to(input, sorted_sequence)) if isinstance(input, Tensor) else input
        ordered = sorted_sequence if sorter is None else _in_order(sorted_sequence, sorter)
        after = side == "right" or (side is None and right)
        return wrap(_searched(concrete(ordered), values, after, np.int32 if out_int32 else np.int64))
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


def _in_order(x: Tensor, sorter: Tensor) -> Tensor:
    """The elements of the innermost dimension at positions."""
    return apply_op(gather, (x, convert(sorter, dtypes.int64)), {"axis": x.ndim - 1})


@arrays.located
def _searched(edges: Array, values: Any, right: bool, dtype: Any) -> Array:
    """As np.searchsorted in every row, on a GPU."""
    if not arrays.is_device(values):
        values = arrays.put(np.asarray(values), edges.device.id)
    if edges.ndim == 1:
        return ordering.searched(edges, values, right).astype(dtype, copy=False)
    rows = math.prod(edges.shape[:-1])
    found = ordering.searched(edges.reshape(rows, -1), values.reshape(rows, -1), right)
    return found.reshape(values.shape).astype(dtype, copy=False)


def bucketize(input: Any, boundaries: Tensor, *, right: bool = False, out_int32: bool = False) -> Tensor:
    """The bucket between `boundaries` each element falls in."""
    return searchsorted(boundaries, input, right=right, out_int32=out_int32)
