"""The layout of what convolutions compute: `channels_first` travels down, so that what follows a convolution
is stored channels last as its result is, and is undone where the next convolution asks for channels last.

Only an end of the program, or an op that needs row-major memory, pays for a transpose.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from compiler.ir import Apply, Value
from compiler.ops import movement, window
from compiler.ops.movement import inverse_permutation, permute
from compiler.ops.op import Elementwise, Reduction
from compiler.ops.window import channels_first
from compiler.passes.rewrite import on
from compiler.types import contiguous_strides

Axes = tuple[int, ...]
Shape = tuple[int, ...]


def _axes(x: Value) -> Axes | None:
    """The permutation of a `channels_first`; None for anything else."""
    return x.attrs["axes"] if isinstance(x, Apply) and x.op is channels_first else None


def _moved_to(values: Axes, axes: Axes) -> Axes:
    """One entry per axis of a permuted tensor, put where the axis was before."""
    return tuple(values[i] for i in inverse_permutation(axes))


@on(channels_first)
def in_place(node: Apply) -> Value | None:
    """channels_first(x), where no axis moves -> x: what has lost its axes on the way down"""
    axes = _axes(node)
    return node.inputs[0] if axes is not None and axes == tuple(range(len(axes))) else None


@on(permute, channels_first, over=(permute, channels_first))
def permuted_twice(node: Apply) -> Value | None:
    """permute(channels_first(x)) -> channels_first(x), or x where one undoes the other"""
    if node.op not in (permute, channels_first):
        return None
    inner = node.inputs[0]
    if not isinstance(inner, Apply) or inner.op not in (permute, channels_first):
        return None
    if inner.op is node.op is permute:  # `simplify` merges those
        return None
    axes = tuple(inner.attrs["axes"][a] for a in node.attrs["axes"])
    if axes == tuple(range(len(axes))):
        return inner.inputs[0]
    return None if inner.op is permute else channels_first.trace(inner.inputs[0], axes=axes)


@on(Elementwise, over=(channels_first,))
def below_elementwise(node: Apply) -> Value | None:
    """op(channels_first(x), y) -> channels_first(op(x, permute(y)))"""
    if not isinstance(node.op, Elementwise) or node.op is window.stored:
        return None
    largest = max(x.type.size for x in node.inputs)
    found = (_axes(x) for x in node.inputs if x.type.size == largest and x.ndim == node.ndim)
    axes = next((axes for axes in found if axes is not None), None)
    if axes is None:
        return None
    back = inverse_permutation(axes)

    def put_back(x: Value) -> Value:
        if x.ndim == 0:
            return x
        if x.ndim < len(axes):
            x = movement.reshape.trace(x, shape=(1,) * (len(axes) - x.ndim) + x.shape)
        if isinstance(x, Apply) and _axes(x) == axes:
            return x.inputs[0]
        return permute.trace(x, axes=back)

    made = node.op.trace(*map(put_back, node.inputs), **node.attrs)
    return channels_first.trace(made, axes=axes)


@on(Reduction, over=(channels_first,))
def below_reduction(node: Apply) -> Value | None:
    """reduce(channels_first(x)) -> channels_first(reduce(x))"""
    axes = _axes(node.inputs[0]) if isinstance(node.op, Reduction) else None
    if axes is None:
        return None
    (inner,) = node.inputs
    assert isinstance(inner, Apply)
    reduced = node.op.trace(inner.inputs[0], axes=tuple(sorted(axes[a] for a in node.attrs["axes"])))
    return channels_first.trace(reduced, axes=axes)


@on(
    movement.slice,
    movement.pad,
    movement.flip,
    window.windows,
    movement.concatenate,
    over=(channels_first,),
)
def below_movement(node: Apply) -> Value | None:
    """slice, pad, flip, concatenate or windows of channels_first(x) -> channels_first of theirs of x"""
    axes = _axes(node.inputs[0]) if node.inputs else None
    if axes is None or any(_axes(x) != axes for x in node.inputs):
        return None
    sources = tuple(x.inputs[0] for x in node.inputs if isinstance(x, Apply))
    attrs = dict(node.attrs)
    if node.op is movement.slice:
        attrs |= {name: _moved_to(attrs[name], axes) for name in ("starts", "stops", "steps")}
    elif node.op is movement.pad:
        attrs |= {name: _moved_to(attrs[name], axes) for name in ("low", "high")}
    elif node.op in (movement.flip, window.windows):
        attrs["axes"] = tuple(axes[a] for a in attrs["axes"])
    elif node.op is movement.concatenate:
        attrs["axis"] = axes[attrs["axis"]]
    else:
        return None
    made = node.op.trace(*sources, **attrs)
    return channels_first.trace(made, axes=(*axes, *range(len(axes), node.ndim)))


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Neighbouring axes of two shapes that hold the same elements, as few at a time as there are."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1:
            groups.append(([i], []))
            i += 1
        elif j < len(new) and new[j] == 1:
            groups.append(([], [j]))
            j += 1
        else:
            a, b = i + 1, j + 1
            while math.prod(old[i:a]) != math.prod(new[j:b]):
                if math.prod(old[i:a]) < math.prod(new[j:b]):
                    a += 1
                else:
                    b += 1
            groups.append((list(range(i, a)), list(range(j, b))))
            i, j = a, b
    return groups


@on(movement.reshape, over=(channels_first,))
def below_reshape(node: Apply) -> Value | None:
    """reshape(channels_first(x)) -> channels_first(reshape(x)), where it joins or splits neighbours only"""
    axes = _axes(node.inputs[0]) if node.op is movement.reshape else None
    if axes is None or 0 in node.shape:
        return None
    (inner,) = node.inputs
    assert isinstance(inner, Apply)
    # New axes in the order of the old ones' memory; one of size 1 goes behind what is before it.
    placed: list[tuple[int, int]] = []
    before = -1
    for old, new in _groups(inner.shape, node.shape):
        places = [axes[a] for a in old]
        if places and places != list(range(places[0], places[0] + len(places))):
            return None
        before = places[-1] if places else before
        placed += [(before, axis) for axis in new]
    order = [axis for _, axis in sorted(placed, key=lambda x: x[0])]
    made = movement.reshape.trace(inner.inputs[0], shape=tuple(node.shape[a] for a in order))
    return channels_first.trace(made, axes=inverse_permutation(tuple(order)))


def _is_pad(x: Value) -> TypeGuard[Apply]:
    return isinstance(x, Apply) and x.op is movement.pad


@on(window.stored)
def already_stored(node: Apply) -> Value | None:
    """stored(x) -> x, where x is computed and not a view, or a view that has the layout anyway;
    stored(permute(pad(x))) -> pad(permute(x))
    """
    if node.op is not window.stored:
        return None
    x = node.inputs[0]
    if isinstance(x, Apply) and x.op is permute and _is_pad(padded := x.inputs[0]):
        axes, attrs = x.attrs["axes"], padded.attrs
        sides = {name: tuple(attrs[name][a] for a in axes) for name in ("low", "high")}
        return movement.pad.trace(permute.trace(padded.inputs[0], axes=axes), **{**attrs, **sides})
    if not isinstance(x, Apply):
        return x
    if x.op in (movement.expand, movement.flip):
        return None
    if x.op not in (permute, channels_first):
        return x
    source = x.inputs[0].shape
    strides = [contiguous_strides(source)[a] for a in x.attrs["axes"]]
    plain = contiguous_strides(x.shape)
    return x if all(n == 1 or s == p for n, s, p in zip(x.shape, strides, plain, strict=True)) else None


LAYOUT_RULES = (
    in_place,
    permuted_twice,
    below_elementwise,
    below_reduction,
    below_movement,
    below_reshape,
    already_stored,
)
