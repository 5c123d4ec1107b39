"""Movement of elements: views (reshape, transpose, expand, slices, …), joins and splits.

A view shares memory and history with its base; see tensor.py. Reading by position is indexing.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from compiler.dims import is_symbolic
from compiler.ops import compare, movement
from compiler.sizes import any_symbolic, known_equal
from framework.access import keep_in_step
from framework.apply import apply_movements, apply_op
from framework.elementwise import labelled
from framework.graph import shape_of
from framework.layout import Step
from framework.promotion import convert, result_type
from framework.size import Size, axis_index, axis_indices, shape_argument
from framework.storage import placement, root_of
from framework.tensor import Tensor, ask_geometry, concrete
from kernels import dtypes
from kernels.gpu import arrays


def _reshaped(input: Tensor, shape: tuple[int, ...], name: str = "ViewBackward0") -> Tensor:
    return apply_movements(input, ((movement.reshape, {"shape": shape}),), name)


def _resolved(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with its -1, if any, worked out. Raises RuntimeError when `count` elements do not fit."""
    for n in shape:
        if type(n) is not int or n < 0:
            break
    else:
        if math.prod(shape) == count:
            return shape
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count}")
    unknown = [i for i, n in enumerate(shape) if n == -1]
    if len(unknown) > 1:
        raise RuntimeError("only one dimension can be inferred")
    if any(n < -1 for n in shape):
        raise RuntimeError(f"invalid shape dimension {min(shape)}")
    if unknown:
        rest = math.prod(n for n in shape if n != -1)
        if rest == 0 and count == 0:
            raise RuntimeError(
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified "
                "dimension size -1 "
                "can be any value and is ambiguous"
            )
        if rest == 0 or count % rest:
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count}")
        return tuple(count // rest if n == -1 else n for n in shape)
    if math.prod(shape) != count:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count}")
    return shape


def reshape(input: Tensor, *args: Any, shape: Any = None) -> Tensor:
    """The elements in row-major order in another shape; a view where strides allow, a copy otherwise."""
    return _reshaped(input, _resolved(shape_argument(args if shape is None else (shape,)), input.numel()))


def view(input: Tensor, *shape: Any) -> Tensor:
    """As `reshape`, never a copy. Raises RuntimeError when strides do not allow that. A dtype argument
    converts nothing: it must have the tensor's element size."""
    if len(shape) == 1 and isinstance(shape[0], dtypes.DType):
        return _view_dtype(input, shape[0])
    target = _resolved(shape_argument(shape), input.numel())
    data = input._data
    if (data is None or not data.flags.c_contiguous) and not ask_geometry(
        "it can be viewed", _is_viewable, input, target
    ):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two "
            "contiguous subspaces). Use .reshape(...) instead."
        )
    return _reshaped(input, target)


def _view_dtype(input: Tensor, dtype: dtypes.DType) -> Tensor:
    if dtype is input.dtype:
        return alias(input)
    if dtype.itemsize != input.dtype.itemsize:
        raise RuntimeError(
            f"view as {dtype} needs elements of {dtype.itemsize} bytes, {input.dtype} has {input.itemsize}"
        )
    viewed = input.detach()
    viewed._data = concrete(keep_in_step(viewed)).view(dtype.numpy)
    viewed._storage.exposed = True  # no movements lead from the memory to this view of it
    return viewed


def alias(input: Tensor) -> Tensor:
    """A view of all of `input`."""
    return _reshaped(input, tuple(input.shape))


def _is_viewable(shape: Any, strides: Any, offset: int, target: tuple[int, ...]) -> bool:
    return movement.reshape.view(shape, strides, offset, shape=target) is not None


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`input` viewed in the shape of `other`."""
    return view(input, other.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`input` reshaped to the shape of `other`."""
    return reshape(input, other.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions `start_dim` to `end_dim` merged into one."""
    if input.ndim == 0:
        return _reshaped(input, (1,))
    start, end = axis_index(start_dim, input.ndim), axis_index(end_dim, input.ndim)
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    shape = tuple(input.shape)
    return _reshaped(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def ravel(input: Tensor) -> Tensor:
    """All elements in one dimension."""
    return _reshaped(input, (input.numel(),))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Dimension `dim` split into `sizes`, one of which may be -1."""
    dim = axis_index(dim, input.ndim)
    shape = tuple(input.shape)
    return _reshaped(
        input, (*shape[:dim], *_resolved(shape_argument((sizes,)), shape[dim]), *shape[dim + 1 :])
    )


def squeeze(input: Tensor, dim: Any = None) -> Tensor:
    """Without the dimensions of size 1: all, or those of `dim` that are."""
    shape = shape_of(input)
    if type(dim) is int and shape:
        axis = axis_index(dim, len(shape))
        kept = (*shape[:axis], *shape[axis + 1 :]) if shape[axis] == 1 else shape
        return _reshaped(input, kept, "SqueezeBackward1")
    axes = axis_indices(dim, len(shape)) if dim is None or dim != () else ()
    kept = tuple([n for i, n in enumerate(shape) if i not in axes or n != 1])
    return _reshaped(input, kept, "SqueezeBackward0" if dim is None else "SqueezeBackward1")


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a dimension of size 1 before `dim`."""
    shape = shape_of(input)
    dim = axis_index(dim, len(shape) + 1)
    return _reshaped(input, (*shape[:dim], 1, *shape[dim:]), "UnsqueezeBackward0")


def permute(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Dimensions in another order."""
    order = tuple(axis_index(d, input.ndim) for d in shape_argument(args if dims is None else (dims,)))
    if len(order) != input.ndim or len(set(order)) != len(order):
        raise RuntimeError(
            f"permute of a tensor of {input.ndim} dimensions needs each of them once, got {list(order)}"
        )
    return apply_movements(input, ((movement.permute, {"axes": order}),), "PermuteBackward0")


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    rank = input.ndim
    a, b = axis_index(dim0, rank), axis_index(dim1, rank)
    order = list(range(rank))
    if order:
        order[a], order[b] = b, a
    return apply_movements(input, ((movement.permute, {"axes": tuple(order)}),), "TransposeBackward0")


swapaxes = swapdims = transpose


def t(input: Tensor) -> Tensor:
    """A matrix transposed; tensors of fewer dimensions unchanged."""
    rank = input.ndim
    if rank > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {rank}D; use transpose or mT"
        )
    axes = (1, 0) if rank == 2 else tuple(range(rank))
    return apply_movements(input, ((movement.permute, {"axes": axes}),), "TBackward0")


def adjoint(input: Tensor) -> Tensor:
    """The last two dimensions exchanged."""
    if input.ndim < 2:
        raise RuntimeError(
            f"tensor.mT is only supported on matrices or batches of matrices. Got {input.ndim}-D tensor."
        )
    return transpose(input, -2, -1)


def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Dimensions moved from `source` to `destination`, the others in their order."""
    sources = [axis_index(d, input.ndim) for d in (source if isinstance(source, tuple | list) else (source,))]
    targets = [
        axis_index(d, input.ndim)
        for d in (destination if isinstance(destination, tuple | list) else (destination,))
    ]
    order = [d for d in range(input.ndim) if d not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute(input, order)


moveaxis = movedim


def expand(input: Tensor, *args: Any, size: Any = None) -> Tensor:
    """Dimensions of size 1 repeated without copying; -1 keeps a size."""
    shape = shape_argument(args if size is None else (size,))
    added = len(shape) - input.ndim
    if added < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(shape)}) must be greater or equal to the number of "
            "dimensions in "
            f"the tensor ({input.ndim})"
        )
    have = (*(None,) * added, *input.shape)
    for i, (n, old) in enumerate(zip(shape, have, strict=True)):
        if (n == -1 and old is None) or n < -1 or not _grows(old, n):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size ({old}) at "
                "non-singleton dimension "
                f"{i}. Target sizes: {list(shape)}. Tensor sizes: {list(input.shape)}"
            )
    target = tuple(old if n == -1 and old is not None else n for n, old in zip(shape, have, strict=True))
    return apply_movements(input, ((movement.expand, {"shape": target}),), "ExpandBackward0")


def _grows(old: int | None, new: int) -> bool:
    return old is None or known_equal(old, new) or new == -1 or old == new or old == 1


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`input` expanded to the shape of `other`."""
    return expand(input, other.shape)


broadcast_to = expand


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors expanded to their common shape."""
    shape = broadcast_shapes(*(x.shape for x in tensors))
    return tuple(expand(x, shape) for x in tensors)


def broadcast_shapes(*shapes: Any) -> Any:
    """The shape that tensors of `shapes` broadcast to."""
    return Size(
        movement.broadcast_shapes(*(tuple(s) if isinstance(s, tuple | list) else (s,) for s in shapes))
    )


def sliced(input: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """`input[start:stop:step]` along `axis`, with bounds already inside."""
    return apply_movements(input, (_slice_step(shape_of(input), axis, start, stop, step),), "SliceBackward0")


def _slice_step(shape: tuple[int, ...], axis: int, start: int, stop: int, step: int = 1) -> Step:
    """The movement to a slice along one axis of a tensor of `shape`."""
    starts, stops, steps = [0] * len(shape), [*shape], [1] * len(shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return movement.slice, {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}


def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """Elements `start` to `start + length` along `dim`."""
    axis = axis_index(dim, input.ndim)
    size = input.shape[axis]
    first: Any = start if is_symbolic(start) else int(start)
    if not -size <= first <= size:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-size}, {size}], but got {first})"
        )
    first = first + size if first < 0 else first
    if length < 0 or first + length > size:
        raise RuntimeError(f"start ({first}) + length ({length}) exceeds dimension size ({size}).")
    return sliced(input, axis, first, first + length)


def select(input: Tensor, dim: int, index: int | Tensor) -> Tensor:
    """The slice at `index` along `dim`, without that dimension."""
    if input.ndim == 0:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    axis = axis_index(dim, input.ndim)
    position: Any = index if is_symbolic(index) else int(index)
    size = input.shape[axis]
    if not -size <= position < size:
        raise IndexError(
            f"select(): index {position} out of range for tensor of size {list(input.shape)} at dimension "
            f"{axis}"
        )
    position = position + size if position < 0 else position
    shape = shape_of(input)
    dropped = {"shape": (*shape[:axis], *shape[axis + 1 :])}
    steps = _slice_step(shape, axis, position, position + 1), (movement.reshape, dropped)
    return apply_movements(input, steps, "SelectBackward0")


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every slice along `dim`."""
    axis = axis_index(dim, input.ndim)
    if input.ndim == 0:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    return tuple(labelled("UnbindBackward0", select(input, axis, i)) for i in range(input.shape[axis]))


def split(
    input: Tensor,
    split_size_or_sections: int | Sequence[int] | None = None,
    dim: int = 0,
    *,
    split_size: int | Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    """Pieces along `dim`: of one size (the last may be smaller), or of the sizes given.

    PyTorch's method names the sizes `split_size`.
    """
    if split_size_or_sections is None:
        if split_size is None:
            raise TypeError("split() needs the size of the pieces, or a list of sizes")
        split_size_or_sections = split_size
    if input.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    axis = axis_index(dim, input.ndim)
    size = input.shape[axis]
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and size):
            raise RuntimeError(
                f"split expects split_size be positive for a dimension of size {size}, but got {step}"
            )
        sections = [min(step, size - at) for at in range(0, size, step or 1)] or [0]
    else:
        sections = list(split_size_or_sections)
        if sum(sections) != size or any(n < 0 for n in sections):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at "
                f"dimension {axis}), "
                f"but got split_sizes={sections}"
            )
    pieces, at = [], 0
    for n in sections:
        pieces.append(labelled("SplitBackward0", sliced(input, axis, at, at + n)))
        at += n
    return tuple(pieces)


def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of the sizes given along `dim`."""
    return split(input, split_sizes, dim)


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size along `dim`; the last may be smaller."""
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    if input.ndim == 0:
        raise RuntimeError("chunk expects at least a 1-dimensional tensor")
    size = input.shape[axis_index(dim, input.ndim)]
    return split(input, max(-(-size // chunks), 1) if size else [0] * chunks, dim)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along `dim`: a number of nearly equal ones, or cut at the indices given."""
    size = input.shape[axis_index(dim, input.ndim)]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        base, extra = divmod(size, indices_or_sections)
        return split(input, [base + (i < extra) for i in range(indices_or_sections)], dim)
    cuts = [0, *(slice(0, i).indices(size)[1] for i in indices_or_sections), size]
    pieces = []
    for start, stop in itertools.pairwise(cuts):
        pieces.append(sliced(input, axis_index(dim, input.ndim), start, max(start, stop)))
    return tuple(pieces)


def contiguous_copy(input: Tensor) -> Tensor:
    """A row-major copy that gradients flow through."""
    return apply_op(compare.cast, (input,), {"dtype": input.dtype})


def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Tensors joined along an existing dimension, in their common dtype."""
    tensors = list(tensors)
    dim = dim if axis is None else axis
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    _require_tensors(tensors)
    fast = _joined(tensors, dim)
    if fast is not None:
        return fast
    if any(x.ndim == 0 for x in tensors):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated; stack them, or unsqueeze first")
    dtype = result_type(*tensors)
    # PyTorch lets a tensor of shape (0,) join anything.
    joined = [x for x in tensors if any_symbolic(x.shape) or tuple(x.shape) != (0,)] or tensors[:1]
    where = axis_index(dim, joined[0].ndim)
    _require_joinable(joined, where)
    joined = [convert(x, dtype) for x in joined]
    return labelled("CatBackward0", apply_op(movement.concatenate, tuple(joined), {"axis": where}))


def _joined(tensors: list[Tensor], dim: int) -> Tensor | None:
    """`cat` of what is in memory, of one dtype and of shapes that need no second look; else None."""
    first = tensors[0]._data
    if first is None or not first.ndim or first.shape == (0,):
        return None
    axis = axis_index(dim, first.ndim)
    before, after, rank = first.shape[:axis], first.shape[axis + 1 :], first.ndim
    for x in tensors:
        data = x._data
        if data is None or data.dtype is not first.dtype or data.ndim != rank:
            return None
        shape = data.shape
        if shape[:axis] != before or shape[axis + 1 :] != after or shape == (0,):
            return None
    return labelled("CatBackward0", apply_op(movement.concatenate, tuple(tensors), {"axis": axis}))


def _require_tensors(tensors: list[Any]) -> None:
    for i, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {type(x).__name__}")


def _require_joinable(tensors: list[Tensor], axis: int) -> None:
    first = tuple(tensors[0].shape)
    for i, x in enumerate(tensors):
        shape = tuple(x.shape)
        if len(shape) != len(first):
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)}"
            )
        if (*shape[:axis], *shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {axis}. Expected {list(first)} but got "
                f"{list(shape)} for "
                f"tensor number {i} in the list."
            )


concat = concatenate = cat


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dimension."""
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    _require_tensors(tensors)
    first = tensors[0].shape
    for i, x in enumerate(tensors):
        if x.shape != first:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    axis = axis_index(dim, len(first) + 1)
    return labelled("StackBackward0", cat([unsqueeze(x, axis) for x in tensors], axis))


def strided_array(data: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int | None) -> Any:
    """Elements of the memory `data` is a view of, at `offset` (that of `data`) and `strides`, counted in
    elements."""
    root, size = root_of(data), data.itemsize
    start = placement(data)[1] if offset is None else offset
    last = start + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 not in shape and (min(strides, default=0) < 0 or last >= root.size):
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, and storage offset {start} are out "
            "of bounds for "
            f"storage of {root.size} elements"
        )
    flat = root.reshape(-1)
    return arrays.strided(flat[start:], shape, tuple(s * size for s in strides))


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements of the same memory at any stride, outside the graph: gradients do not flow through it."""
    viewed = input.detach()
    viewed._data = strided_array(concrete(keep_in_step(input)), tuple(size), tuple(stride), storage_offset)
    viewed._storage.exposed = True  # no movements lead from the memory to this view of it
    return viewed
