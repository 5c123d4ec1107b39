"""Ops that re-address, join or overwrite parts of tensors.

Geometry is in elements; memory is the planner's. Axes are non-negative and slices explicit when they arrive
here.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.ops.op import Geometry, Movement, Op, Sample, broadcast_shapes
from compiler.sizes import any_symbolic, largest, same_shape
from compiler.types import TensorType
from kernels import dtypes
from kernels.gpu import arrays

Ints = tuple[int, ...]
Array = np.ndarray[Any, Any]


def reshape_strides(old_shape: Ints, old_strides: Ints, shape: Ints) -> Ints | None:
    """Strides that show a strided array in another `shape`, None when only a copy can have it."""
    if math.prod(shape) == 0:
        return (1,) * len(shape)
    old = [(size, stride) for size, stride in zip(old_shape, old_strides, strict=True) if size != 1]
    strides: list[int] = []
    sizes = list(shape)
    # From the right: take old axes until they hold the new axis, splitting the merged run over the new axes.
    run, step = 1, 1
    for size in reversed(sizes):
        if size == 1:
            strides.append(step)
            continue
        if run == 1:
            run, step = old.pop()
        while run % size and old and old[-1][1] == step * run:
            run *= old.pop()[0]
        if run % size:
            return None
        strides.append(step)
        run, step = run // size, step * size
    return tuple(reversed(strides))


def _reshape_view(old_shape: Ints, strides: Ints, offset: int, /, *, shape: Ints) -> Geometry | None:
    new = reshape_strides(old_shape, strides, shape)
    return None if new is None else (shape, new, offset)


def _reshape_type(x: TensorType, *, shape: Ints) -> TensorType:
    if math.prod(shape) != x.size:
        raise RuntimeError(
            f"shape {list(shape)} is invalid for input of size {x.size}: {x} can only take shapes "
            f"of {x.size} elements"
        )
    return TensorType(shape, x.dtype)


reshape: Movement = Movement(
    "reshape",
    lambda x, *, shape: x.reshape(shape),
    _reshape_type,
    (lambda g, out, x, shape: reshape(g, shape=tuple(x.shape)),),
    view=_reshape_view,
    unview=lambda base, new, *, shape: reshape(new, shape=tuple(base.shape)),
    samples=(
        Sample(((2, 6),), {"shape": (3, 4)}),
        Sample(((2, 6),), {"shape": (2, 1, 3, 2)}),
        Sample(((),), {"shape": (1,)}),
    ),
)


def inverse_permutation(axes: Ints) -> Ints:
    """The permutation that undoes `axes`."""
    return tuple(axes.index(i) for i in range(len(axes)))


permute: Movement = Movement(
    "permute",
    lambda x, *, axes: x.transpose(axes),
    lambda x, *, axes: TensorType(tuple([x.shape[a] for a in axes]), x.dtype),
    (lambda g, out, x, axes: permute(g, axes=inverse_permutation(axes)),),
    view=lambda shape, strides, offset, /, *, axes: (
        tuple(shape[a] for a in axes),
        tuple(strides[a] for a in axes),
        offset,
    ),
    unview=lambda base, new, *, axes: permute(new, axes=inverse_permutation(axes)),
    samples=(Sample(((2, 3, 4),), {"axes": (2, 0, 1)}),),
)


def swap_last(x: Any) -> Any:
    """`x` with its last two axes exchanged."""
    if type(x) is np.ndarray:
        return x.swapaxes(-1, -2)
    n = len(x.shape)
    return permute(x, axes=(*range(n - 2), n - 1, n - 2))


def _expand_type(x: TensorType, *, shape: Ints) -> TensorType:
    if not same_shape(x.shape, shape) and broadcast_shapes(x.shape, shape) != shape:
        raise RuntimeError(
            f"cannot expand {x} to shape {list(shape)}: only axes of size 1 grow; reshape first"
        )
    return TensorType(shape, x.dtype)


def _expand_view(old_shape: Ints, strides: Ints, offset: int, /, *, shape: Ints) -> Geometry:
    new = len(shape) - len(old_shape)
    kept = (
        0 if old != size else stride
        for old, stride, size in zip(old_shape, strides, shape[new:], strict=True)
    )
    return shape, (0,) * new + tuple(kept), offset


def _expand_unview(base: Any, new: Any, *, shape: Ints) -> Any:
    if math.prod(shape) != math.prod(base.shape):
        raise RuntimeError(
            f"unsupported operation: in shape {list(shape)}, expanded from {list(base.shape)}, several "
            "elements are one memory location; clone() the tensor before writing to it"
        )
    return reshape(new, shape=tuple(base.shape))


def _expand(x: Array, *, shape: Ints) -> Array:
    if x.shape == shape:
        return x.view()  # writable, where a broadcast array is not
    if not x.ndim and type(x) is np.ndarray and x.itemsize != 2:
        return np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))
    new = len(shape) - x.ndim
    if new < 0 or any(old not in (1, n) for old, n in zip(x.shape, shape[new:], strict=True)):
        raise ValueError("only axes of size 1 grow")  # `infer` says it better
    strides = _expand_view(x.shape, x.strides, 0, shape=shape)[1]
    if type(x) is np.ndarray and x.size and x.flags.c_contiguous and x.itemsize != 2:
        # A tenth of the time; 16-bit dtypes of ml_dtypes export no buffer.
        return np.ndarray(shape, x.dtype, x, 0, strides)
    return arrays.strided(x, shape, strides)


# The gradient keeps the expanded shape: who asks sums it down, as for every broadcast input.
expand: Movement = Movement(
    "expand",
    _expand,
    _expand_type,
    (lambda g, out, x, shape: g,),
    view=_expand_view,
    unview=_expand_unview,
    rises=False,
    samples=(Sample(((3, 1),), {"shape": (2, 3, 4)}), Sample(((3, 2),), {"shape": (1, 3, 2)})),
)


def _slices(starts: Ints, stops: Ints, steps: Ints) -> tuple[builtins.slice, ...]:
    return tuple(map(builtins.slice, starts, stops, steps))


def _sliced(starts: Ints, stops: Ints, steps: Ints) -> Ints:
    return tuple([-((start - stop) // step) for start, stop, step in zip(starts, stops, steps, strict=True)])


def _slice_type(x: TensorType, *, starts: Ints, stops: Ints, steps: Ints) -> TensorType:
    for start, stop, step, size in zip(starts, stops, steps, x.shape, strict=True):
        if not (0 <= start <= stop <= size and step > 0):
            raise ValueError(
                f"slice {starts}:{stops}:{steps} does not lie in {x}; normalise it to 0 <= start <= stop <= "
                "size"
            )
    return TensorType(_sliced(starts, stops, steps), x.dtype)


def _slice_view(
    shape: Ints, strides: Ints, offset: int, /, *, starts: Ints, stops: Ints, steps: Ints
) -> Geometry:
    shift = builtins.sum([start * stride for start, stride in zip(starts, strides, strict=True)])
    stepped = tuple([stride * step for stride, step in zip(strides, steps, strict=True)])
    return _sliced(starts, stops, steps), stepped, offset + shift


def _slice_gradient(g: Any, out: Any, x: Any, starts: Ints, stops: Ints, steps: Ints) -> Any:
    return spread(g, x.shape, starts, steps)


def spread(g: Any, shape: Ints, starts: Ints, steps: Ints) -> Any:
    """Zeros of `shape` with the elements of `g` from `starts` on, `steps` apart."""
    for axis, step in enumerate(steps):
        g = g if step == 1 else _dilate(g, axis, step)
    ends = tuple(start + size for start, size in zip(starts, g.shape, strict=True))
    # The zeros behind the last element of a step may reach past the input.
    kept = tuple(
        size if step == 1 else size - largest(end - full, 0)
        for size, end, full, step in zip(g.shape, ends, shape, steps, strict=True)
    )
    if not same_shape(kept, tuple(g.shape)):
        g = slice(g, starts=(0,) * len(kept), stops=kept, steps=(1,) * len(kept))
    high = tuple(full - start - size for full, start, size in zip(shape, starts, g.shape, strict=True))
    return pad(g, low=starts, high=high, value=0)


def _dilate(x: Any, axis: int, step: int) -> Any:
    """`step - 1` zeros behind every element along `axis`."""
    shape = tuple(x.shape)
    high = tuple(step - 1 if i == axis + 1 else 0 for i in range(len(shape) + 1))
    spread = reshape(x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    spread = pad(spread, low=(0,) * len(high), high=high, value=0)
    return reshape(spread, shape=(*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))


_STEPPED = {"starts": (1, 0), "stops": (4, 6), "steps": (1, 2)}
_LATE = {"starts": (0, 1), "stops": (5, 6), "steps": (2, 4)}

# slice(starts=, stops=, steps=): one of each per axis, 0 <= start <= stop <= size, step > 0 (flip for
# others).
slice: Movement = Movement(
    "slice",
    lambda x, *, starts, stops, steps: x[(*_slices(starts, stops, steps), ...)],
    _slice_type,
    (_slice_gradient,),
    view=_slice_view,
    unview=lambda base, new, **region: slice_update(base, new, **region),
    samples=(Sample(((5, 6),), _STEPPED), Sample(((5, 7),), _LATE)),
)


def _flip_view(shape: Ints, strides: Ints, offset: int, /, *, axes: Ints) -> Geometry:
    shift = builtins.sum((shape[a] - 1) * strides[a] for a in axes if shape[a])
    return shape, tuple(-s if a in axes else s for a, s in enumerate(strides)), offset + shift


flip: Movement = Movement(
    "flip",
    lambda x, *, axes: np.flip(x, axes),
    lambda x, *, axes: x,
    (lambda g, out, x, axes: flip(g, axes=axes),),
    view=_flip_view,
    unview=lambda base, new, *, axes: flip(new, axes=axes),
    samples=(Sample(((3, 4),), {"axes": (1,)}), Sample(((3, 4),), {"axes": (0, 1)})),
)


Steps = tuple[tuple[Any, Mapping[str, Any]], ...]


def to_write_through(steps: Steps, shape: Ints) -> Steps:
    """The same view of a tensor of `shape` with slices and permutations before the expansions they follow, so
    that `unview` takes it wherever slices leave no element in it twice.
    """
    if any_symbolic(shape):
        return steps
    made: list[tuple[Any, Mapping[str, Any]]] = []
    small = wide = shape  # before and after expansions that are not in `made` yet
    for op, attrs in steps:
        if op is expand:
            wide = attrs["shape"]
            continue
        if small != wide and op in (slice, permute):
            small = _padded(small, len(wide))
            made.append((reshape, {"shape": small}))
            made.append((op, attrs if op is permute else _within(small, wide, attrs)))
            small = op.infer(TensorType(small, dtypes.bool_), **made[-1][1]).shape
        else:
            if small != wide:
                made.append((expand, {"shape": wide}))
            made.append((op, attrs))
            small = op.infer(TensorType(wide, dtypes.bool_), **attrs).shape
        wide = op.infer(TensorType(wide, dtypes.bool_), **attrs).shape
    return (*made, (expand, {"shape": wide})) if small != wide else tuple(made)


def _within(small: Ints, wide: Ints, region: Mapping[str, Ints]) -> Mapping[str, Ints]:
    """What of a tensor a slice of its expansion shows."""
    whole = {"starts": 0, "stops": 1, "steps": 1}
    repeated = [old != new for old, new in zip(small, wide, strict=True)]
    return {
        name: tuple(whole[name] if again else n for again, n in zip(repeated, numbers, strict=True))
        for name, numbers in region.items()
    }


def _padded(shape: Ints, rank: int) -> Ints:
    return (1,) * (rank - len(shape)) + shape


def _pad(x: Array, *, low: Ints, high: Ints, value: float) -> Array:
    shape = tuple(map(builtins.sum, zip(low, x.shape, high, strict=True)))
    out = arrays.namespace(x).full(shape, value, x.dtype)
    out[tuple(builtins.slice(start, start + size) for start, size in zip(low, x.shape, strict=True))] = x
    return out


def _pad_gradient(g: Any, out: Any, x: Any, low: Ints, high: Ints, value: float) -> Any:
    stops = tuple(start + size for start, size in zip(low, x.shape, strict=True))
    return slice(g, starts=low, stops=stops, steps=(1,) * len(low))


# pad(low=, high=, value=a Python number): non-negative amounts per axis.
pad: Op = Op(
    "pad",
    _pad,
    lambda x, *, low, high, value: TensorType(
        tuple(map(builtins.sum, zip(low, x.shape, high, strict=True))), x.dtype
    ),
    (_pad_gradient,),
    samples=(Sample(((2, 3),), {"low": (1, 0), "high": (0, 2), "value": 1}),),
)


def _concatenate_type(*xs: TensorType, axis: int) -> TensorType:
    first = xs[0]
    around = (*first.shape[:axis], *first.shape[axis + 1 :])
    if not builtins.all(
        x.dtype is first.dtype and (*x.shape[:axis], *x.shape[axis + 1 :]) == around for x in xs
    ):
        raise RuntimeError(
            f"concatenate along axis {axis} needs one dtype and equal sizes on the other axes, got "
            f"{', '.join(map(str, xs))}"
        )
    size = builtins.sum(x.shape[axis] for x in xs)
    return TensorType((*first.shape[:axis], size, *first.shape[axis + 1 :]), first.dtype)


def _concatenate_gradient(g: Any, out: Any, *xs: Any, axis: int, position: int) -> Any:
    start = builtins.sum(x.shape[axis] for x in xs[:position])
    n = len(g.shape)
    starts = tuple(start if a == axis else 0 for a in range(n))
    stops = tuple(s + size for s, size in zip(starts, xs[position].shape, strict=True))
    return slice(g, starts=starts, stops=stops, steps=(1,) * n)


def _concatenate(*xs: Array, axis: int) -> Array:
    if len({x.dtype for x in xs}) != 1:
        raise TypeError("mixed dtypes")  # `infer` says it better
    return arrays.row_major(np.concatenate(xs, axis))


# concatenate(*xs, axis=).
concatenate: Op = Op(
    "concatenate",
    _concatenate,
    _concatenate_type,
    (_concatenate_gradient,),
    variadic=True,
    samples=(Sample(((2, 3), (2, 1), (2, 2)), {"axis": 1}), Sample(((2, 3),), {"axis": 0})),
)


def _slice_update(base: Array, new: Array, *, starts: Ints, stops: Ints, steps: Ints) -> Array:
    out = arrays.copied(base)
    out[_slices(starts, stops, steps)] = new
    return out


def _slice_update_type(base: TensorType, new: TensorType, **region: Ints) -> TensorType:
    part = _slice_type(base, **region)
    if new.dtype is not base.dtype or broadcast_shapes(part.shape, new.shape) != part.shape:
        raise RuntimeError(
            f"cannot write {new} over a slice of {base}, which is {part}; cast or expand it first"
        )
    return base


# slice_update(base, new, starts=, stops=, steps=): `base` with `new`, broadcast, in place of that slice.
slice_update: Op = Op(
    "slice_update",
    _slice_update,
    _slice_update_type,
    (
        lambda g, out, base, new, **region: slice_update(g, 0, **region),
        lambda g, out, base, new, **region: slice(g, **region),
    ),
    samples=(Sample(((5, 6), (3, 3)), _STEPPED), Sample(((5, 7), (2,)), _LATE)),
)
