"""Reading and writing by position: `x[...]`, gather and scatter, masks.

Only `x[index]` wraps negative positions; the named functions reject them, as PyTorch's do.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from compiler.dims import is_symbolic
from compiler.ops import compare, indexing, movement
from compiler.sizes import any_symbolic, largest, same_shape, smallest
from framework.access import beside, keep_in_step, known_values
from framework.apply import apply_movements, apply_op, moved_to_array, require_one_device
from framework.autograd import Function
from framework.elementwise import labelled
from framework.graph import shape_of
from framework.inplace import copy_, update
from framework.layout import Step
from framework.promotion import as_operand, convert, scalar
from framework.sorting import nonzero
from framework.state import ambient, is_recording, unusual
from framework.tensor import Tensor, concrete, wrap
from framework.transfer import moved_to
from framework.views import expand, permute, reshape
from kernels import dtypes
from kernels.gpu import arrays, ordering

_INDEX_DTYPES = (dtypes.int64, dtypes.int32, dtypes.int16, dtypes.int8, dtypes.uint8)


def getitem(input: Tensor, index: Any) -> Tensor:
    """`input[index]`: numbers, slices, None and ... give views; index tensors and masks give copies."""
    shape = shape_of(input)
    if not any_symbolic(shape):
        key = _plain_key(index if type(index) is tuple else (index,))
        way = None if key is None else _way(shape, key)
        if way is not None:
            return _gone(input, way)
    elif type(index) is int and input.ndim:
        return _row(input, index)
    elif type(index) is slice and input.ndim:
        return _rows(input, index)
    rows = _rows_named(index)
    if rows is not None and input._data is not None and input.ndim:
        return _picked(input, [moved_to(rows, input), *[None] * (input.ndim - 1)])
    viewed, picks = _basic(input, index)
    if not any(p is not None for p in picks):
        return viewed
    taken = _picked(viewed, picks)
    if is_recording() and all(p is None or p.ndim == 0 for p in picks):
        ambient.tracer.pick(taken, viewed)
    return taken


def _rows_named(index: Any) -> Tensor | None:
    """An index that is positions along the first dimension, in memory and ready to be taken; else None."""
    if type(index) is not Tensor or index._data is None or not index.ndim or index.dtype is not dtypes.int64:
        return None
    return index


class _Way:
    """Where an index leads: movements, the shape that each is given, the name of their gradient, and how
    NumPy gets there.
    """

    __slots__ = ("index", "name", "shape", "shapes", "steps")

    # Written out: a recording takes what dataclasses and named tuples generate for code of the user's.
    def __init__(
        self,
        steps: tuple[Step, ...],
        shapes: tuple[tuple[int, ...], ...],
        name: str,
        index: tuple[Any, ...],
        shape: tuple[int, ...] | None,
    ) -> None:
        self.steps, self.shapes, self.name, self.index, self.shape = steps, shapes, name, index, shape


def _plain_key(index: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """An index of numbers, slices of numbers, None and `...` as a key; None for any other."""
    key: list[Any] = []
    for item in index:
        kind = type(item)
        if kind is slice:
            start, stop, step = item.start, item.stop, item.step
            if (
                (start is not None and type(start) is not int)
                or (stop is not None and type(stop) is not int)
                or (step is not None and (type(step) is not int or step <= 0))
            ):
                return None
            key.append((start, stop, step))
        elif kind is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


@lru_cache(4096)
def _way(shape: tuple[int, ...], key: tuple[Any, ...]) -> _Way | None:
    """Where the index of a key leads in memory of `shape`; None where it is wrong."""
    bounds: list[tuple[int, int, int]] = []
    kept: list[int] = []
    rank, wholes = len(shape), len(shape) - sum(item is not None and item is not Ellipsis for item in key)
    if wholes < 0 or key.count(Ellipsis) > 1:
        return None
    for item in key if Ellipsis in key else (*key, Ellipsis):
        axis = len(bounds)
        if item is None:
            kept.append(1)
        elif item is Ellipsis:
            sizes = shape[axis : axis + wholes]
            bounds += [(0, n, 1) for n in sizes]
            kept += sizes
        elif type(item) is tuple:
            start, stop, step = slice(*item).indices(shape[axis])
            bounds.append((start, max(start, stop), step))
            kept.append(-((start - max(start, stop)) // step))
        elif -shape[axis] <= item < shape[axis]:
            bounds.append((item % shape[axis], item % shape[axis] + 1, 1))
        else:
            return None
    assert len(bounds) == rank, "every dimension has bounds"
    return _way_between(shape, bounds, tuple(kept))


def _way_between(shape: tuple[int, ...], bounds: list[tuple[int, int, int]], kept: tuple[int, ...]) -> _Way:
    """The way to what lies in `bounds` in memory of `shape`, in the shape `kept`."""
    steps: list[Step] = []
    shapes, name, index, moved = [], "SliceBackward0", [*(slice(*b) for b in bounds), ...], shape
    if any(b != (0, n, 1) for b, n in zip(bounds, shape, strict=True)):
        starts, stops, paces = zip(*bounds, strict=True)
        steps.append((movement.slice, {"starts": starts, "stops": stops, "steps": paces}))
        shapes.append(shape)
        moved = tuple(-((start - stop) // step) for start, stop, step in bounds)
    reshaped = not steps or moved != kept
    if reshaped:
        steps.append((movement.reshape, {"shape": kept}))
        shapes.append(moved)
        name = "ViewBackward0"
    if len(kept) != len(shape):
        name = "SelectBackward0" if len(kept) < len(shape) else "UnsqueezeBackward0"
    return _Way(tuple(steps), tuple(shapes), name, tuple(index), kept if reshaped else None)


def _gone(input: Tensor, way: _Way) -> Tensor:
    """What a way leads to: a third of the time of the general one."""
    data = input._data
    if type(data) is not np.ndarray or (unusual.threads and ambient.detour is not None):
        return apply_movements(input, way.steps, way.name)
    made = data[way.index]
    made = made if way.shape is None else made.reshape(way.shape)
    return moved_to_array(input, made, way.steps, way.shapes, way.name)


def _row(input: Tensor, index: int) -> Tensor:
    """`input[index]` of a number, which programs that walk over rows use: half the time of the general
    way."""
    size, *rest = shape_of(input)
    start, stop, step = _one(index, size, 0)
    starts, stops, steps = (start, *[0] * len(rest)), (stop, *rest), (step, *[1] * len(rest))
    row = apply_op(movement.slice, (input,), {"starts": starts, "stops": stops, "steps": steps})
    return labelled("SelectBackward0", apply_op(movement.reshape, (row,), {"shape": tuple(rest)}))


def _rows(input: Tensor, index: slice) -> Tensor:
    """`input[index]` of one slice, as frequent: a third of the time of the general way."""
    shape = shape_of(input)
    size, *rest = shape
    start, stop, step = bounds = _slice_bounds(index, size)
    if same_shape(bounds, (0, size, 1)):
        return reshape(input, shape)
    starts, stops, steps = (start, *[0] * len(rest)), (stop, *rest), (step, *[1] * len(rest))
    return apply_op(movement.slice, (input,), {"starts": starts, "stops": stops, "steps": steps})


def setitem(input: Tensor, index: Any, value: Any) -> None:
    """`input[index] = value`, with broadcasting."""
    value = as_operand(value)
    if (
        isinstance(index, Tensor)
        and index.dtype is dtypes.bool_
        and index.ndim == input.ndim
        and _is_scalar(value)
    ):
        # A mask and one number: no positions are needed, so this also compiles.
        _require_mask(input, index)
        update(input, _masked_value, (index, value), {}, "__setitem__")
        return
    viewed, picks = _basic(input, index)
    if not any(p is not None for p in picks):
        copy_(viewed, value)
    else:
        put(viewed, picks, value, accumulate=False)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.numel() == 1


def _masked_value(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        value = convert(reshape(value, ()), input.dtype)
    elif not isinstance(value, bool | int | float):
        raise TypeError(f"a masked value must be a number, got {type(value).__name__}")
    else:
        value = scalar(value, input.dtype)
    return apply_op(compare.where, (mask, value, input), {})


def _require_mask(input: Tensor, mask: Tensor) -> None:
    for axis, (n, m) in enumerate(zip(input.shape, mask.shape, strict=True)):
        if n != m:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {axis} does not match the shape of the "
                "indexed tensor "
                f"{list(input.shape)} at index {axis}"
            )


def _items(index: Any) -> list[Any]:
    if isinstance(index, tuple):
        return list(index)
    return [index]


def _is_advanced(item: Any) -> bool:
    return isinstance(item, list | np.ndarray) or (isinstance(item, Tensor) and not _is_position(item))


def _is_position(item: Tensor) -> bool:
    return item.ndim == 0 and item.dtype.category == dtypes.INTEGER and item._node is None and _is_known(item)


def _is_known(item: Tensor) -> bool:
    # A traced 0-d index stays a tensor, so that reading one row compiles; what is picked is a copy there, and
    # the recording sees to it that nobody can tell (`Tracer.pick`).
    return known_values(item) is not None


def _width(item: Any) -> int:
    """How many dimensions of the input an item uses up."""
    if item is None or item is Ellipsis or isinstance(item, bool | np.bool_):
        return 0
    if isinstance(item, Tensor | np.ndarray) and str(item.dtype).endswith("bool"):
        return item.ndim
    if isinstance(item, list):
        array = np.asarray([0] if any(isinstance(x, Tensor) for x in item) else item)
        return array.ndim if array.dtype == np.bool_ else 1
    return 1


def _expanded(items: list[Any], rank: int) -> list[Any]:
    """Items with `...` replaced by the whole slices it stands for, and those that were left out added."""
    used = sum(_width(item) for item in items)
    if used > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    dots = [k for k, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    whole = [slice(None)] * (rank - used)
    return items[: dots[0]] + whole + items[dots[0] + 1 :] if dots else items + whole


def _basic(input: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """Apply numbers, slices and None as one slice and one reshape; index tensors remain, aligned with the
    dimensions."""
    items = _expanded(_items(index), input.ndim)
    bounds: list[tuple[int, int, int]] = []
    shape: list[int] = []
    picks: list[Tensor | None] = []
    for item in items:
        axis = len(bounds)
        if item is None:
            shape.append(1)
            picks.append(None)
        elif isinstance(item, bool | np.bool_) or (isinstance(item, Tensor) and _width(item) == 0):
            shape.append(1)
            picks.append(beside(input, np.zeros(1 if item else 0, np.int64)))
        elif isinstance(item, slice):
            start, stop, step = _slice_bounds(item, input.shape[axis])
            bounds.append((start, stop, step))
            shape.append(-((start - stop) // step))
            picks.append(None)
        elif _is_advanced(item):
            for position in _positions(item, input, axis):
                size = input.shape[len(bounds)]
                bounds.append((0, size, 1))
                shape.append(size)
                picks.append(position)
        else:
            bounds.append(_one(item, input.shape[axis], axis))
    viewed = _sliced(input, bounds)
    whole = viewed is input and all(p is None for p in picks)
    if whole or not same_shape(tuple(viewed.shape), tuple(shape)):
        viewed = reshape(viewed, tuple(shape))
    if viewed is not input and len(shape) != input.ndim:
        labelled("SelectBackward0" if len(shape) < input.ndim else "UnsqueezeBackward0", viewed)
    return viewed, picks


def _sliced(input: Tensor, bounds: list[tuple[int, int, int]]) -> Tensor:
    whole = all(same_shape(b, (0, n, 1)) for b, n in zip(bounds, input.shape, strict=True))
    if whole:
        return input
    starts, stops, steps = (tuple(b[k] for b in bounds) for k in range(3))
    return apply_op(movement.slice, (input,), {"starts": starts, "stops": stops, "steps": steps})


def _slice_bounds(item: slice, size: int) -> tuple[int, int, int]:
    if item.step is not None and int(item.step) <= 0:
        raise ValueError("step must be greater than zero; use flip for the reverse order")
    if is_symbolic(size) or is_symbolic(item.start) or is_symbolic(item.stop):
        start = _bound(item.start, size, 0)
        stop = size if item.stop is None else largest(start, _bound(item.stop, size, size))
        return start, stop, 1 if item.step is None else item.step.__index__()
    start, stop, step = item.indices(size)
    return start, max(start, stop), step


def _bound(position: Any, size: int, default: int) -> int:
    """A bound of a slice within [0, size], counted from the end when it is negative."""
    if position is None:
        return default
    position = position if is_symbolic(position) else position.__index__()
    return largest(position + size, 0) if position < 0 else smallest(position, size)


def _one(item: Any, size: int, axis: int) -> tuple[int, int, int]:
    try:
        position = item if is_symbolic(item) else item.__index__()
    except (AttributeError, TypeError):
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid "
            "indices "
            f"(got {type(item).__name__})"
        ) from None
    if not -size <= position < size:
        raise IndexError(f"index {position} is out of bounds for dimension {axis} with size {size}")
    position = position + size if position < 0 else position
    return position, position + 1, 1


def _positions(item: Any, input: Tensor, axis: int) -> tuple[Tensor, ...]:
    """Index tensors of an item: one per dimension of a mask."""
    if isinstance(item, list):
        item = beside(
            input,
            np.asarray([int(x) if isinstance(x, Tensor) else x for x in item])
            if item
            else np.zeros(0, np.int64),
        )
    elif isinstance(item, np.ndarray):
        item = keep_in_step(beside(input, item))
    if isinstance(item, Tensor):
        item = moved_to(item, input)
    if item.dtype is dtypes.bool_:
        for k, n in enumerate(item.shape):
            if n != input.shape[axis + k]:
                raise IndexError(
                    f"The shape of the mask {list(item.shape)} at index {k} does not match the shape of the "
                    "indexed tensor "
                    f"{list(input.shape)} at index {axis + k}"
                )
        return nonzero(item, as_tuple=True)
    if item.dtype not in _INDEX_DTYPES:
        raise IndexError(
            f"tensors used as indices must be long, int, byte or bool tensors, got {item.dtype.name}"
        )
    return (convert(item, dtypes.int64),)


def wrapped(index: Tensor, size: int) -> Tensor:
    """Negative positions counted from the end. What is still outside raises in the op."""
    negative = apply_op(compare.lt, (index, 0), {})
    return apply_op(compare.where, (negative, index + size, index), {})


def _front(viewed: Tensor, picks: list[Tensor | None]) -> tuple[Tensor, Tensor, list[int], int]:
    """`viewed` with the picked dimensions first and merged, the flat position picked, the order used and
    where the result's index dimensions belong."""
    axes = [k for k, p in enumerate(picks) if p is not None]
    chosen = [p for p in picks if p is not None]
    try:
        shape = movement.broadcast_shapes(*(tuple(p.shape) for p in chosen))
    except RuntimeError:
        listed = ", ".join(str(list(p.shape)) for p in chosen)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {listed}"
        ) from None
    sizes = [viewed.shape[a] for a in axes]
    flat = None
    for position, size in zip(chosen, sizes, strict=True):
        _require_in_range(position, size)
        position = wrapped(expand(position, shape), size)
        flat = position if flat is None else flat * size + position
    assert flat is not None, "at least one dimension is picked"
    rest = [a for a in range(viewed.ndim) if a not in axes]
    order = axes + rest
    front = permute(viewed, order) if order != list(range(viewed.ndim)) else viewed
    front = reshape(front, (math.prod(sizes), *(viewed.shape[a] for a in rest)))
    # Index dimensions stay in place when the picked ones adjoin, and come first otherwise.
    adjoining = axes == list(range(axes[0], axes[-1] + 1))
    return front, flat, order, axes[0] if adjoining else 0


def _require_in_range(position: Tensor, size: int) -> None:
    data = known_values(position)
    if data is not None and data.size and (data.min() < -size or data.max() >= size):
        bad = data[(data < -size) | (data >= size)]
        raise IndexError(f"index {int(bad.reshape(-1)[0])} is out of bounds for dimension 0 with size {size}")


def _is_inside(position: Tensor, size: int) -> bool:
    """Whether positions are in memory, and none is negative or too large. A program cannot ask that."""
    data = position._data
    if type(data) is not np.ndarray or (unusual.threads and ambient.detour is not None):
        return False
    # As unsigned what is negative is large.
    return not np.greater_equal(data.view(np.uint64), size).any()


def _picked(viewed: Tensor, picks: list[Tensor | None]) -> Tensor:
    axes = [k for k, p in enumerate(picks) if p is not None]
    if len(axes) == 1:
        position = picks[axes[0]]
        assert position is not None, "the only picked dimension"
        size = viewed.shape[axes[0]]
        if not _is_inside(position, size):
            _require_in_range(position, size)
            position = wrapped(position, size)
        taken = apply_op(indexing.take, (viewed, position), {"axis": axes[0]})
        return labelled("IndexBackward0", taken)
    front, flat, _, place = _front(viewed, picks)
    taken = apply_op(indexing.take, (front, flat), {"axis": 0})
    return labelled("IndexBackward0", _moved_back(taken, flat.ndim, place))


def _moved_back(taken: Tensor, count: int, place: int) -> Tensor:
    """The `count` leading index dimensions moved behind `place` others."""
    if place == 0:
        return taken
    order = [*range(count, count + place), *range(count), *range(count + place, taken.ndim)]
    return permute(taken, order).contiguous()


class _PutRows(Function):
    """`x` with rows of the leading dimension replaced; of rows named twice the last stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flat: Tensor, source: Tensor) -> Tensor:
        ctx.save_for_backward(flat)
        require_one_device((x, flat, source))
        with arrays.there(arrays.number_of(x._data)):
            out = arrays.copied(concrete(x))
            rows = np.broadcast_to(concrete(source), (*flat.shape, *out.shape[1:]))
            if arrays.is_device(out):
                index = concrete(flat).reshape(-1)
                ordering.replace_rows(out, index, rows.reshape(len(index), *out.shape[1:]))
            else:
                out[concrete(flat)] = rows
        return wrap(out)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (flat,) = ctx.saved_tensors
        rest = _PutRows.apply(g, flat, g.new_zeros(1))
        return rest, None, apply_op(indexing.take, (g, flat), {"axis": 0})


def put(viewed: Tensor, picks: list[Tensor | None], value: Any, accumulate: bool) -> None:
    """Write (or add) `value` where `picks`, one index or None per dimension, say."""
    front, flat, order, place = _front(viewed, picks)
    rest = tuple(front.shape[1:])
    target = (*rest[:place], *flat.shape, *rest[place:])
    value = value if isinstance(value, Tensor) else scalar(value, viewed.dtype)
    if len(value.shape) > len(target) or not _broadcasts(tuple(value.shape), target):
        value = _without_leading_ones(value, target)
    source = expand(convert(value, viewed.dtype), target)
    if place:
        count = flat.ndim
        source = permute(
            source, [*range(place, place + count), *range(place), *range(place + count, len(target))]
        )

    def compute(view: Tensor) -> Tensor:
        rows = permute(view, order)
        merged = reshape(rows, tuple(front.shape))
        if accumulate:
            changed = apply_op(indexing.take_add, (merged, flat, source.contiguous()), {"axis": 0})
        else:
            changed = _PutRows.apply(merged, flat, source)
        back = reshape(changed, tuple(rows.shape))
        return permute(back, [order.index(k) for k in range(len(order))])

    update(viewed, compute, (), {}, "index_put_")


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False))


def _without_leading_ones(value: Tensor, target: tuple[int, ...]) -> Tensor:
    shape = tuple(value.shape)
    extra = max(len(shape) - len(target), 0)
    if any(n != 1 for n in shape[:extra]) or not _broadcasts(shape[extra:], target):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(shape)} cannot be broadcast to indexing result of "
            f"shape {list(target)}"
        )
    return reshape(value, shape[extra:])


def index_put_(input: Tensor, indices: tuple[Any, ...], values: Any, accumulate: bool = False) -> Tensor:
    """`input[indices] = values`, or += with every repetition counted."""
    viewed, picks = _basic(input, tuple(indices))
    put(viewed, picks, as_operand(values), accumulate)
    return input


def index_put(input: Tensor, indices: tuple[Any, ...], values: Any, accumulate: bool = False) -> Tensor:
    """A copy of `input` with `values` put (or added) at `indices`."""
    return index_put_(input.clone(), indices, values, accumulate)
