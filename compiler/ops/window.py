"""Convolution: a window that slides over the input's last axes, times the kernel, summed.

Padding, bias and transposed convolution are composites above. The window is a view, so that nothing is copied
before the products are summed.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from compiler.ops.arithmetic import add, mul
from compiler.ops.compare import cast
from compiler.ops.contraction import contract
from compiler.ops.movement import (
    Ints,
    flip,
    inverse_permutation,
    pad,
    permute,
    reshape,
    slice,
    slice_update,
    spread,
)
from compiler.ops.op import Elementwise, Geometry, Movement, Op, Sample, element_type, elementwise
from compiler.ops.reduction import sum
from compiler.sizes import any_symbolic
from compiler.types import TensorType
from kernels import dtypes
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]

# Terms summed in one run, about: the sums of longer runs (a weight gradient's, over a batch of images) are
# cut into parts that go to different threads and stay in the cache.
_RUN = 4096
# A group that gives so few channels is a sum of shifted images: a product would leave most lanes empty.
_FEW_CHANNELS = 2


def positions(size: int, window: int, step: int, dilation: int) -> int:
    """How many places a window has along an axis."""
    return (size - dilation * (window - 1) - 1) // step + 1


def _windows_view(
    shape: Ints, strides: Ints, offset: int, /, *, axes: Ints, sizes: Ints, steps: Ints, dilations: Ints
) -> Geometry:
    new_shape, new_strides = list(shape), list(strides)
    for axis, size, step, dilation in zip(axes, sizes, steps, dilations, strict=True):
        new_shape[axis] = positions(shape[axis], size, step, dilation)
        new_strides[axis] = strides[axis] * step
        new_shape.append(size)
        new_strides.append(strides[axis] * dilation)
    return tuple(new_shape), tuple(new_strides), offset


def _windows(x: Array, **attrs: Ints) -> Array:
    shape, strides, _ = _windows_view(x.shape, x.strides, 0, **attrs)
    return arrays.strided(x, shape, strides)


def _windows_type(x: TensorType, **attrs: Ints) -> TensorType:
    for axis, size, dilation in zip(attrs["axes"], attrs["sizes"], attrs["dilations"], strict=True):
        if not any_symbolic((x.shape[axis],)) and dilation * (size - 1) + 1 > x.shape[axis]:
            raise RuntimeError(
                f"maximum size for tensor at dimension {axis} is {x.shape[axis]} but size is "
                f"{dilation * (size - 1) + 1}"
            )
    return TensorType(_windows_view(x.shape, (0,) * len(x.shape), 0, **attrs)[0], x.dtype)


def _taps(rank: int, axes: Ints, sizes: Ints, steps: Ints, dilations: Ints, shape: Ints) -> Any:
    """For every element of the window its index, and the slice of the input that it meets."""
    for tap in itertools.product(*map(range, sizes)):
        starts, strides = [0] * rank, [1] * rank
        stops = list(shape[:rank])
        for axis, at, step, dilation in zip(axes, tap, steps, dilations, strict=True):
            starts[axis], strides[axis] = at * dilation, step
            stops[axis] = at * dilation + (shape[axis] - 1) * step + 1
        yield tap, {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(strides)}


def _part(x: Any, rank: int, tap: Ints) -> Any:
    """What one element of the window holds at every position."""
    shape = tuple(x.shape)
    starts, stops = (*(0,) * rank, *tap), (*shape[:rank], *(t + 1 for t in tap))
    return reshape(slice(x, starts=starts, stops=stops, steps=(1,) * len(shape)), shape=shape[:rank])


def _windows_gradient(g: Any, out: Any, x: Any, axes: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> Any:
    total, rank = None, len(x.shape)
    for tap, region in _taps(rank, axes, sizes, steps, dilations, g.shape):
        back = spread(_part(g, rank, tap), x.shape, region["starts"], region["steps"])
        total = back if total is None else add(total, back)
    return total


def _windows_unview(base: Any, new: Any, *, axes: Ints, sizes: Ints, steps: Ints, dilations: Ints) -> Any:
    rank = len(base.shape)
    for size, step, dilation in zip(sizes, steps, dilations, strict=True):
        if size > 1 and dilation * (size - 1) >= step:
            raise RuntimeError(
                "unsupported operation: in a view of overlapping windows several elements are one memory "
                "location; clone() the tensor before writing to it"
            )
    for tap, region in _taps(rank, axes, sizes, steps, dilations, new.shape):
        base = slice_update(base, _part(new, rank, tap), **region)
    return base


# windows(axes=, sizes=, steps=, dilations=): along each of `axes` the positions of a window of that many
# elements, `dilations` apart; the elements of the windows are new axes at the end.
windows: Movement = Movement(
    "windows",
    _windows,
    _windows_type,
    (_windows_gradient,),
    view=_windows_view,
    unview=_windows_unview,
    rises=False,
    samples=(
        Sample(((2, 7),), {"axes": (1,), "sizes": (3,), "steps": (2,), "dilations": (1,)}),
        Sample(((5, 2, 6),), {"axes": (0, 2), "sizes": (2, 3), "steps": (1, 1), "dilations": (2, 1)}),
        Sample(((2, 8),), {"axes": (1,), "sizes": (2,), "steps": (3,), "dilations": (1,)}),
    ),
)

# channels_first(axes=): a permutation of a result, which travels down where `permute` travels up: what is
# computed from a convolution's result is laid out as that is, channels last.
channels_first: Movement = Movement(
    "channels_first",
    permute.eager,
    permute.infer,
    (lambda g, out, x, axes: permute(g, axes=inverse_permutation(axes)),),
    view=permute.view,
    unview=permute.unview,
    rises=False,
    samples=(Sample(((2, 3, 4),), {"axes": (2, 0, 1)}),),
)

# stored(x): x in memory, row-major.
stored: Elementwise = elementwise("stored", body=lambda k, x: x, grads=(lambda g, out, x: g,))


def _grouped(x: Any, groups: int, axis: int) -> Any:
    """`x` with `axis` split into groups and what is inside each."""
    shape = tuple(x.shape)
    return reshape(x, shape=(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]))


def _arranged(x: Any, labels: list[str], wanted: list[str]) -> Any:
    """The axes of `x` in the order `wanted`; one of size 1 for a label that `x` has not."""
    moved = permute(x, axes=tuple(labels.index(label) for label in wanted if label in labels))
    if len(labels) == len(wanted):
        return moved
    sizes = iter(moved.shape)
    return reshape(moved, shape=tuple(next(sizes) if label in labels else 1 for label in wanted))


def _as_product(x: Any, w: Any, *, stride: Ints, dilation: Ints, groups: int) -> Any:
    dtype = element_type(x.dtype)
    if dtype.compute is not None:  # summed in float32, rounded once
        wide = [cast(v, dtype=dtype.compute) for v in (x, w)]
        return cast(_as_product(*wide, stride=stride, dilation=dilation, groups=groups), dtype=dtype)
    if groups > 1 and w.shape[1] == 1 and w.shape[0] // groups <= _FEW_CHANNELS:
        return _depthwise(x, w, stride, dilation, groups)
    rank = len(stride)
    sizes, places, taps = tuple(w.shape[2:]), *([f"{kind}{i}" for i in range(rank)] for kind in "pk")
    group = ["group"] if groups > 1 else []
    left, right = ["batch", *group, "channel", *places], [*group, "out", "channel", *taps]
    if group:
        x, w = _grouped(x, groups, 1), _grouped(w, groups, 0)
    # A kernel that covers more than it has places is a weight gradient's: images stand for channels, and
    # what counts as the images here (the channels) are the rows of the product. Else the last places are.
    turned = math.prod(sizes) > math.prod(map(positions, x.shape[-rank:], sizes, stride, dilation))
    rows = "batch" if turned else places[-1]
    # Either way channels last in memory: neighbours in a sum, or in a row, are neighbours there.
    if turned:
        last = [*group, "channel", *places, "batch"], [*group, "channel", *taps, "out"]
    else:
        last = [*group, "batch", *places, "channel"], [*group, *taps, "channel", "out"]
    x, w = stored(_arranged(x, left, last[0])), stored(_arranged(w, right, last[1]))
    first = len(group) + 1
    x = windows(x, axes=tuple(range(first, first + rank)), sizes=sizes, steps=stride, dilations=dilation)
    left, right = [*last[0], *taps], last[1]
    channels = w.shape[last[1].index("channel")]
    parts = _divisor(channels, math.prod(sizes) * channels // _RUN)
    part = ["part"] if parts > 1 else []
    if part:
        x, w = _grouped(x, parts, left.index("channel")), _grouped(w, parts, right.index("channel"))
        left.insert(left.index("channel"), "part")
        right.insert(right.index("channel"), "part")
    around = [*part, *group, *(label for label in ("batch", *places) if label != rows)]
    a = _arranged(x, left, [*around, rows, *taps, "channel"])
    b = _arranged(w, right, [*around, *taps, "channel", "out"])
    out = contract(a, b, depth=rank + 1)
    labels = [*around, rows, "out"]
    if part:
        out = reshape(sum(out, axes=(0,)), shape=tuple(out.shape[1:]))
        labels.remove("part")
    wanted = ["batch", *group, "out", *places]
    out = channels_first(out, axes=tuple(labels.index(label) for label in wanted))
    if group:
        shape = tuple(out.shape)
        out = reshape(out, shape=(shape[0], shape[1] * shape[2], *shape[3:]))
    return out


def _convolution(x: Array, w: Array, **attrs: Any) -> Array:
    return arrays.row_major(_as_product(x, w, **attrs))


def _depthwise(x: Any, w: Any, stride: Ints, dilation: Ints, groups: int) -> Any:
    """Each channel by its own kernels: a sum of shifted images."""
    rank, each = len(stride), w.shape[0] // groups
    axes, sizes = tuple(range(2, 2 + rank)), tuple(w.shape[2:])
    places = tuple(map(positions, x.shape[2:], sizes, stride, dilation))
    kernel = reshape(w, shape=(groups, each, *sizes))
    total = None
    for tap, region in _taps(2 + rank, axes, sizes, stride, dilation, (*x.shape[:2], *places)):
        image = slice(x, **region)
        image = reshape(image, shape=(*image.shape[:2], 1, *places))
        term = mul(image, reshape(_part(kernel, 2, tap), shape=(groups, each, *(1,) * rank)))
        total = term if total is None else add(total, term)
    assert total is not None, "a kernel has elements"
    return reshape(total, shape=(x.shape[0], w.shape[0], *places))


def _divisor(n: int, near: int) -> int:
    """The largest divisor of `n` up to `near`, at least 1."""
    return next((d for d in range(min(near, n), 0, -1) if n % d == 0), 1)


def _convolution_type(
    x: TensorType, w: TensorType, *, stride: Ints, dilation: Ints, groups: int
) -> TensorType:
    rank = len(stride)
    if len(x.shape) != rank + 2 or len(w.shape) != rank + 2:
        raise RuntimeError(
            f"a {rank}-d convolution needs an input and a weight of rank {rank + 2}, got {x} and {w}"
        )
    if x.dtype is not w.dtype:
        raise RuntimeError(f"input {x} and weight {w} need one dtype; cast one first")
    if w.shape[0] % groups or x.shape[1] != w.shape[1] * groups:
        raise RuntimeError(
            f"{groups} groups of {w.shape[1]} channels each, and as many outputs in each, do not fit input "
            f"{x} and weight {w}"
        )
    axes = tuple(range(2, 2 + rank))
    placed = _windows_type(x, axes=axes, sizes=w.shape[2:], steps=stride, dilations=dilation)
    return TensorType((x.shape[0], w.shape[0], *placed.shape[2 : 2 + rank]), x.dtype)


def _exchanged(x: Any, groups: int, axis: int) -> Any:
    """The first two axes exchanged; of groups on `axis` 0 inside each, those on 1 stay there."""
    behind = range(2, len(x.shape))
    if groups == 1:
        return permute(x, axes=(1, 0, *behind))
    split = _grouped(x, groups, axis)
    axes = (0, 2, 1) if axis == 0 else (2, 1, 0)
    moved = permute(split, axes=(*axes, *(a + 1 for a in behind)))
    shape = tuple(moved.shape)
    first = (shape[0] * shape[1], shape[2]) if axis == 0 else (shape[0], shape[1] * shape[2])
    return reshape(moved, shape=(*first, *shape[3:]))


def _input_gradient(g: Any, out: Any, x: Any, w: Any, *, stride: Ints, dilation: Ints, groups: int) -> Any:
    """Every gradient spread over the positions its window had: a convolution with the kernel turned round."""
    rank = len(stride)
    spatial = tuple(range(2, 2 + rank))
    margin = (0, 0, *(d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)))
    shape = (*g.shape[:2], *(s - d for s, d in zip(x.shape[2:], margin[2:], strict=True)))
    g = spread(g, shape, (0,) * len(shape), (1, 1, *stride))
    g = pad(g, low=margin, high=margin, value=0)
    kernel = _exchanged(flip(w, axes=spatial), groups, 0)
    return convolution(g, kernel, stride=(1,) * rank, dilation=dilation, groups=groups)


def _weight_gradient(g: Any, out: Any, x: Any, w: Any, *, stride: Ints, dilation: Ints, groups: int) -> Any:
    """The input's windows, of the size of `g`, weighted by it: images take the place of channels."""
    rank = len(stride)
    images, weights = _exchanged(x, groups, 1), _exchanged(g, 1, 0)
    made = convolution(images, weights, stride=dilation, dilation=stride, groups=groups)
    # A window that does not reach the input's end leaves further positions, that it never took.
    stops = (w.shape[1], w.shape[0], *w.shape[2:])
    return _exchanged(slice(made, starts=(0,) * (2 + rank), stops=stops, steps=(1,) * (2 + rank)), 1, 0)


_PLAIN = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}
_STRIDED = {"stride": (2, 3), "dilation": (2, 1), "groups": 2}

# convolution(x (batch, channels, *size), w (out, channels / groups, *kernel), stride=, dilation=, groups=):
# cross-correlation without padding. 16-bit floats are summed in float32 and rounded once.
convolution: Op = Op(
    "convolution",
    _convolution,
    _convolution_type,
    (_input_gradient, _weight_gradient),
    decompose=_as_product,
    samples=(
        Sample(((2, 3, 5, 6), (4, 3, 2, 1)), _PLAIN),
        Sample(((2, 4, 7, 8), (6, 2, 2, 3)), _STRIDED),
        Sample(((9, 3, 4, 3), (2, 3, 1, 1)), _PLAIN),
        Sample(((2, 3, 5), (6, 1, 2)), {"stride": (2,), "dilation": (1,), "groups": 3}),
    ),
    categories=(dtypes.FLOATING,),
)
