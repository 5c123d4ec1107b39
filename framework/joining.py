"""New arrangements of elements: repeats, reversals, triangles, grids, stacks along fixed dimensions.

Everything here gives new memory; views, `cat` and `stack` are in views.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compiler.ops import compare, movement
from compiler.ops.creation import iota
from framework.apply import apply_op, create_op
from framework.elementwise import labelled
from framework.promotion import convert
from framework.size import axis_index, axis_indices, shape_argument
from framework.tensor import Tensor
from framework.views import (
    cat,
    contiguous_copy,
    expand,
    movedim,
    ravel,
    reshape,
    sliced,
    stack,
    tensor_split,
    transpose,
    unsqueeze,
)
from kernels import dtypes


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` along `dimension`, as a new last dimension (a copy, not a view)."""
    if input.ndim == 0:
        return reshape(unfold(reshape(input, (1,)), dimension, size, step), (size,))
    axis = axis_index(dimension, input.ndim)
    extent = input.shape[axis]
    if size > extent:
        raise RuntimeError(f"maximum size for tensor at dimension {axis} is {extent} but size is {size}")
    starts = range(0, extent - size + 1, step)
    return stack([movedim(sliced(input, axis, at, at + size), axis, -1) for at in starts], axis)


def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Order reversed along `dims`, copied."""
    order = shape_argument(args if dims is None else (dims,))
    axes = axis_indices(order, input.ndim) if order else ()
    return labelled("FlipBackward0", contiguous_copy(apply_op(movement.flip, (input,), {"axes": axes})))


def fliplr(input: Tensor) -> Tensor:
    """Order reversed along dimension 1."""
    return flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """Order reversed along dimension 0."""
    return flip(input, 0)


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved `shifts` on along `dims`, those that leave coming back at the start."""
    if dims is None:
        return reshape(roll(ravel(input), shifts, 0), input.shape)
    shifts = shifts if isinstance(shifts, tuple | list) else (shifts,)
    dims = dims if isinstance(dims, tuple | list) else (dims,)
    if len(shifts) != len(dims):
        raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_index(dim, input.ndim)
        size = input.shape[axis]
        cut = size - shift % size if size else 0
        input = cat([sliced(input, axis, cut, size), sliced(input, axis, 0, cut)], axis)
    return input


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned `k` quarter turns in the plane of `dims`."""
    a, b = dims
    turns = k % 4
    if turns == 2:
        return flip(flip(input, a), b)
    turned = transpose(input, a, b) if turns else input
    return flip(turned, a) if turns == 1 else flip(turned, b) if turns == 3 else contiguous_copy(input)


def _at_least(x: Tensor, rank: int) -> Tensor:
    return reshape(x, (*(1,) * (rank - x.ndim), *x.shape)) if x.ndim < rank else x


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 1 (0 for vectors)."""
    tensors = [_at_least(x, 1) for x in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 0, vectors as rows."""
    return cat([_at_least(x, 2) for x in tensors], 0)


def repeat(input: Tensor, *args: Any, repeats: Any = None) -> Tensor:
    """Copies of the tensor along each dimension."""
    counts = shape_argument(args if repeats is None else (repeats,))
    if len(counts) < input.ndim:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: "
            f"got {list(counts)} for {list(input.shape)}"
        )
    shape = (*(1,) * (len(counts) - input.ndim), *input.shape)
    paired = tuple(n for size in shape for n in (1, size))
    grown = tuple(n for count, size in zip(counts, shape, strict=True) for n in (count, size))
    wide = apply_op(movement.expand, (reshape(input, paired),), {"shape": grown})
    result = reshape(wide, tuple(count * size for count, size in zip(counts, shape, strict=True)))
    # A view where nothing repeats: the result must be new memory.
    return labelled("RepeatBackward0", contiguous_copy(result) if result._base is not None else result)


def tile(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """As `repeat`; missing counts are 1."""
    counts = shape_argument(args if dims is None else (dims,))
    return repeat(input, (*(1,) * (input.ndim - len(counts)), *counts))


def _triangle(input: Tensor, diagonal: int, below: bool) -> Tensor:
    if input.ndim < 2:
        raise RuntimeError(f"tril/triu: input tensor must have at least 2 dimensions, got {input.ndim}")
    shape = tuple(input.shape[-2:])
    row = create_op(input, iota, {"shape": shape, "axis": 0, "dtype": dtypes.int64})
    column = create_op(input, iota, {"shape": shape, "axis": 1, "dtype": dtypes.int64})
    limit = row + diagonal
    kept = column <= limit if below else column >= limit
    zero = False if input.dtype is dtypes.bool_ else 0
    return apply_op(compare.where, (kept, input, zero), {})


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part of each matrix on and below a diagonal, zeros above."""
    return labelled("TrilBackward0", _triangle(input, diagonal, below=True))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part of each matrix on and above a diagonal, zeros below."""
    return labelled("TriuBackward0", _triangle(input, diagonal, below=False))


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid, one tensor per axis; `indexing` "xy" exchanges the first two axes."""
    axes = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else list(tensors)
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    swap = indexing == "xy" and len(axes) > 1
    if swap:
        axes[0], axes[1] = axes[1], axes[0]
    shape = tuple(x.numel() for x in axes)
    grids = [
        expand(reshape(x, tuple(-1 if i == k else 1 for i in range(len(axes)))), shape)
        for k, x in enumerate(axes)
    ]
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def _each(tensors: tuple[Any, ...], rank: int) -> Any:
    """One tensor for one, a tuple for several or for a sequence."""
    return _mapped(lambda x: _at_least(x, rank), tensors)


def _mapped(function: Callable[[Any], Tensor], tensors: tuple[Any, ...]) -> Any:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    made = [function(x) for x in given]
    return tuple(made) if len(made) > 1 or given is not tensors else made[0]


def atleast_1d(*tensors: Any) -> Any:
    """Tensors, scalars as vectors."""
    return _each(tensors, 1)


def atleast_2d(*tensors: Any) -> Any:
    """Tensors, those of fewer dimensions as one row."""
    return _each(tensors, 2)


def atleast_3d(*tensors: Any) -> Any:
    """Tensors with three dimensions at least: a vector becomes (1, n, 1), a matrix (m, n, 1)."""
    return _mapped(lambda x: x if x.ndim > 2 else unsqueeze(_at_least(x, 2), -1), tensors)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along dimension 2."""
    return cat([atleast_3d(x) for x in tensors], 2)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` with `src` in place of one slice of `dim`."""
    axis = axis_index(dim, input.ndim)
    if not -input.shape[axis] <= index < input.shape[axis]:
        raise IndexError(
            f"select_scatter(): index {index} out of range for dimension {axis} of size {input.shape[axis]}"
        )
    start = index % input.shape[axis]
    return _overwritten(input, unsqueeze(src, axis), axis, start, start + 1, 1)


def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy of `input` with `src` in place of a slice of `dim`."""
    axis = axis_index(dim, input.ndim)
    first, last, step = slice(start, end, step).indices(input.shape[axis])
    return _overwritten(input, src, axis, first, max(first, last), step)


def _overwritten(input: Tensor, src: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    region = {
        "starts": tuple(start if k == axis else 0 for k in range(input.ndim)),
        "stops": tuple(stop if k == axis else n for k, n in enumerate(input.shape)),
        "steps": tuple(step if k == axis else 1 for k in range(input.ndim)),
    }
    return apply_op(movement.slice_update, (input, convert(src, input.dtype)), region)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` along dimension 1 (0 of a vector)."""
    return _split_evenly(input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` along dimension 0."""
    return _split_evenly(input, indices_or_sections, 0)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """`tensor_split` along dimension 2."""
    return _split_evenly(input, indices_or_sections, 2)


def _split_evenly(input: Tensor, sections: Any, dim: int) -> tuple[Tensor, ...]:
    if input.ndim <= dim:
        raise RuntimeError(f"splitting along dimension {dim} needs more dimensions than {input.ndim}")
    if isinstance(sections, int) and input.shape[dim] % sections:
        raise RuntimeError(
            f"dimension {dim} of size {input.shape[dim]} is not divisible into {sections} equal sections"
        )
    return tensor_split(input, sections, dim)
