"""Reading and writing by named functions of positions and masks: gather, scatter, index_add, masked_fill.

Positions are in [0, size): negative ones raise IndexError, unlike in `x[...]` (indexing.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops import compare, indexing, movement
from framework.access import beside, host
from framework.apply import apply_op, require_one_device
from framework.autograd import Function
from framework.elementwise import labelled, largest_finite, where
from framework.indexing import getitem, put, setitem, wrapped
from framework.promotion import as_operand, convert, scalar
from framework.size import axis_index
from framework.tensor import Tensor, concrete, wrap
from framework.transfer import moved_to
from framework.views import expand, reshape, unsqueeze
from kernels import dtypes
from kernels.gpu import arrays, ordering

Array = Any  # of NumPy or of CuPy


def _index(index: Tensor, name: str) -> Tensor:
    if index.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(
            f"{name}(): Expected dtype int32/int64 for index, got {index.dtype.name}; convert with long()"
        )
    return convert(index, dtypes.int64)


def _with_a_dimension(x: Tensor) -> Tensor:
    return unsqueeze(x, 0) if x.ndim == 0 else x


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """out[i][j] = input[index[i][j]][j] for dim 0: one element for each index, along `dim`."""
    index = _index(index, "gather")
    axis = axis_index(dim, input.ndim)
    if input.ndim == 0 and index.ndim == 0:
        return reshape(gather(unsqueeze(input, 0), 0, unsqueeze(index, 0)), ())
    if index.ndim != input.ndim:
        raise RuntimeError(
            f"Index tensor must have the same number of dimensions as input tensor, got {index.ndim} and "
            f"{input.ndim}"
        )
    return apply_op(indexing.gather, (input, index), {"axis": axis})


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """As `gather`, the other dimensions broadcast; over all elements when `dim` is None. Negative indices
    count from the end.
    """
    if dim is None:
        return take_along_dim(reshape(input, (-1,)), reshape(indices, (-1,)), 0)
    axis = axis_index(dim, input.ndim)
    indices = where(indices < 0, indices + input.shape[axis], indices)
    shape = [
        max(a, b) if k != axis else b for k, (a, b) in enumerate(zip(input.shape, indices.shape, strict=True))
    ]
    source = [n if k != axis else input.shape[axis] for k, n in enumerate(shape)]
    return gather(expand(input, source), axis, expand(indices, shape))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of `dim` that a vector of positions names."""
    if index.ndim > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector, got {index.ndim} dimensions")
    axis = axis_index(dim, input.ndim)
    if input.ndim == 0:
        return reshape(index_select(unsqueeze(input, 0), 0, index), ())
    taken = apply_op(indexing.take, (input, _with_a_dimension(_index(index, "index_select"))), {"axis": axis})
    return labelled("IndexSelectBackward0", taken)


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements at positions in row-major order."""
    flat = reshape(input, (-1,))
    return labelled(
        "TakeBackward0",
        apply_op(indexing.take, (flat, wrapped(_index(index, "take"), flat.shape[0])), {"axis": 0}),
    )


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """`input` with slices of `source` added at positions along `dim`; repeated ones accumulate."""
    if input.ndim == 0:
        added = index_add(unsqueeze(input, 0), dim, index, _with_a_dimension(source), alpha=alpha)
        return reshape(added, ())
    axis = axis_index(dim, input.ndim)
    source = source if alpha == 1 else source * alpha
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"index_add_(): self ({input.dtype.name}) and source ({source.dtype.name}) must have one dtype"
        )
    where = _with_a_dimension(_index(index, "index_add_"))
    return labelled("IndexAddBackward0", apply_op(indexing.take_add, (input, where, source), {"axis": axis}))


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with slices replaced by those of `source` at positions along `dim`."""
    if input.ndim == 0:
        return reshape(index_copy(unsqueeze(input, 0), dim, index, _with_a_dimension(source)), ())
    axis = axis_index(dim, input.ndim)
    where = _with_a_dimension(_index(index, "index_copy_"))
    _require_nonnegative(where, input.shape[axis])
    out = input.clone()
    put(out, [where if k == axis else None for k in range(input.ndim)], source, accumulate=False)
    return out


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """`input` with slices filled with one number at positions along `dim`."""
    if input.ndim == 0:
        return reshape(index_fill(unsqueeze(input, 0), dim, index, value), ())
    out = input.clone()
    picks = [
        _with_a_dimension(index) if k == axis_index(dim, input.ndim) else None for k in range(input.ndim)
    ]
    put(out, picks, as_operand(value), accumulate=False)
    return out


def _require_nonnegative(index: Tensor, size: int) -> None:
    bad = _outside(concrete(index), size)
    if len(bad):
        raise IndexError(
            f"index {int(bad[0])} is out of range for a dimension of size {size}; indices must be in [0, "
            f"{size})"
        )


@arrays.located
def _outside(index: Array, size: int) -> Array:
    """Those positions that are none in [0, size)."""
    return index[(index < 0) | (index >= size)]


def _scatter_source(input: Tensor, index: Tensor, src: Any, name: str) -> Tensor:
    if not isinstance(src, Tensor):
        return expand(moved_to(scalar(src, input.dtype), input), index.shape)
    if src.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): Expected self.dtype to be equal to src.dtype, got {input.dtype.name} and "
            f"{src.dtype.name}"
        )
    if src.ndim != index.ndim or any(i > s for i, s in zip(index.shape, src.shape, strict=True)):
        raise RuntimeError(
            f"{name}(): Expected index {list(index.shape)} to be no larger than src {list(src.shape)}"
        )
    if src.shape == index.shape:
        return src
    n = index.ndim
    return apply_op(
        movement.slice, (src,), {"starts": (0,) * n, "stops": tuple(index.shape), "steps": (1,) * n}
    )


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with every src[i][j] added to out[index[i][j]][j] (dim 0)."""
    axis = axis_index(dim, input.ndim)
    if input.ndim == 0:
        return reshape(
            scatter_add(unsqueeze(input, 0), 0, _with_a_dimension(index), _with_a_dimension(src)), ()
        )
    source = _scatter_source(input, index, src, "scatter_add").contiguous()
    return apply_op(indexing.scatter_add, (input, _index(index, "scatter_add"), source), {"axis": axis})


class _Scatter(Function):
    """`x` with elements replaced along one axis; of elements named twice the last stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, source: Tensor, axis: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.axis = axis
        require_one_device((x, index, source))
        return wrap(_replaced(concrete(x), concrete(index), concrete(source), axis))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        zero = expand(g.new_zeros(()), index.shape)
        return _Scatter.apply(g, index, zero, ctx.axis), None, gather(g, ctx.axis, index), None


@arrays.located
def _replaced(x: Array, index: Array, source: Array, axis: int) -> Array:
    """A copy of `x` with elements at positions along an axis replaced, the last of several staying."""
    out = arrays.copied(x)
    if arrays.is_device(out):
        positions = indexing.elementwise_positions(out.shape, index, axis)
        ordering.replace_rows(out.reshape(-1), positions.reshape(-1), arrays.row_major(source).reshape(-1))
        return out
    region = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(index.shape))
    np.put_along_axis(out[region], index, source, axis)
    return out


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """`input` with out[index[i][j]][j] replaced by src[i][j] (dim 0), or by one number; `reduce` adds or
    multiplies."""
    src = value if src is None else src
    if reduce == "add":
        source = _scatter_source(input, index, src, "scatter")
        return scatter_add(input, dim, index, source)
    if reduce is not None:
        return _scatter_multiply(input, dim, index, src, reduce)
    axis = axis_index(dim, input.ndim)
    if index.numel() == 0:
        return input.clone()
    source = _scatter_source(input, index, src, "scatter")
    if input.ndim == 0:
        return reshape(
            scatter(unsqueeze(input, 0), 0, _with_a_dimension(index), _with_a_dimension(source)), ()
        )
    where = _index(index, "scatter")
    _require_nonnegative(where, input.shape[axis])
    _require_inside(input, where, axis)
    return labelled("ScatterBackward0", _Scatter.apply(input, where, source, axis))


def _scatter_multiply(input: Tensor, dim: int, index: Tensor, src: Any, reduce: str) -> Tensor:
    if reduce != "multiply":
        raise RuntimeError(f"reduce argument must be either add or multiply, got {reduce!r}")
    axis = axis_index(dim, input.ndim)
    x, where = _with_a_dimension(input), _with_a_dimension(_index(index, "scatter"))
    source = reshape(_scatter_source(input, index, src, "scatter"), tuple(where.shape))
    _require_nonnegative(where, x.shape[axis])
    require_one_device((x, where, source))
    return reshape(wrap(_multiplied(*map(concrete, (x, where, source)), axis)), tuple(input.shape))


@arrays.located
def _multiplied(x: Array, index: Array, source: Array, axis: int) -> Array:
    """A copy of `x` with elements at positions along an axis multiplied; 16-bit products on a GPU are rounded
    at the end."""
    if arrays.is_device(x):
        wide = dtypes.of_numpy(x.dtype).arithmetic.numpy
        out = arrays.copied(x).astype(wide, copy=False)
        positions = indexing.elementwise_positions(x.shape, index, axis).reshape(-1)
        ordering.multiply_at(out.reshape(-1), positions, arrays.row_major(source, wide).reshape(-1))
        return out.astype(x.dtype, copy=False)
    out, grid = x.copy(), list(np.indices(index.shape, sparse=True))
    grid[axis] = index
    with np.errstate(all="ignore"):
        np.multiply.at(out, tuple(grid), source)
    return out


def _require_inside(input: Tensor, index: Tensor, axis: int) -> None:
    if index.ndim != input.ndim or any(
        i > n for k, (i, n) in enumerate(zip(index.shape, input.shape, strict=True)) if k != axis
    ):
        raise RuntimeError(
            f"Expected index {list(index.shape)} to be no larger than self {list(input.shape)} apart from "
            f"dimension {axis}"
        )


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`input` with one number wherever the broadcast `mask` holds."""
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype.name}"
        )
    value = as_operand(value)
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} "
                "dimensions."
            )
        value = convert(value, input.dtype)
    else:
        _require_representable(value, input.dtype)
        value = int(value) if isinstance(value, float) and input.dtype.category == dtypes.INTEGER else value
    return labelled("MaskedFillBackward0", apply_op(compare.where, (mask, value, input), {}))


def _require_representable(value: Any, dtype: dtypes.DType) -> None:
    """Raise RuntimeError for a number beyond the range of `dtype`; infinities are no overflow of a float."""
    if not isinstance(value, int | float) or dtype in (dtypes.bool_, dtypes.float64):
        return
    # Comparisons only: a number that varies between replays becomes conditions by them, no constant.
    if dtype.is_floating_point:
        most = largest_finite(dtype)
        fits = -most <= value <= most or value != value or value in (math.inf, -math.inf)
    else:
        info = np.iinfo(dtype.numpy)
        # A small negative number wraps in an unsigned dtype, as in PyTorch.
        fits = (info.min or -info.max) - 1 < value < info.max + 1
    if not fits:
        raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow")


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the broadcast `mask` holds, as a vector."""
    shape = movement.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return labelled("MaskedSelectBackward0", getitem(expand(input, shape), expand(mask, shape)))


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with successive elements of `source` where the broadcast `mask` holds."""
    out = expand(input, movement.broadcast_shapes(tuple(input.shape), tuple(mask.shape))).clone()
    mask = expand(mask, out.shape)
    count = int(mask.sum())
    setitem(out, mask, reshape(source, (-1,))[:count])
    return out


def repeat_interleave(
    input: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element (or slice of `dim`) repeated in place."""
    if dim is None:
        input, dim = reshape(input, (-1,)), 0
    axis = axis_index(dim, input.ndim)
    size = input.shape[axis]
    if isinstance(repeats, Tensor) and repeats.is_cuda and repeats.numel() == size > 1:
        position = wrap(_repeated(concrete(convert(repeats.reshape(-1), dtypes.int64))))
    else:
        counts = host(repeats) if isinstance(repeats, Tensor) else np.asarray(repeats)
        counts = counts if counts.ndim == 0 or counts.size > 1 else counts.reshape(())
        position = beside(input, np.repeat(np.arange(size), counts).astype(np.int64))
    return apply_op(indexing.take, (input, position), {"axis": axis})


@arrays.located
def _repeated(counts: Array) -> Array:
    """Each number below the length of `counts` as often as that says, on a GPU."""
    if int(counts.min()) < 0:
        raise RuntimeError("repeats can not be negative")
    ends = ordering.running("add", counts, 0)
    return ordering.searched(ends, arrays.namespace(counts).arange(int(ends[-1])), True)
