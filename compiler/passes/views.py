"""Views out of the way of fusion: movements travel up through elementwise ops to the memory they re-address.

Dropped axes of size 1 travel the other way, down to the outputs, so that the nodes of one kernel share a rank.
"""

from __future__ import annotations

from compiler.ir import Apply, Graph, Value
from compiler.ops import movement
from compiler.ops.op import Elementwise, Movement, Reduction, broadcast_shapes
from compiler.passes.rewrite import fixpoint
from compiler.passes.simplify import RULES
from compiler.types import contiguous_strides

# A value that several consumers read is computed again behind a view only when it is this small a tree of elementwise ops.
_AGAIN = 4


def implicit_expand(node: Apply) -> Value | None:
    """op(expand(x), y) -> op(x, y), where y gives the shape"""
    if not isinstance(node.op, Elementwise):
        return None
    inputs = list(node.inputs)
    for i, x in enumerate(inputs):
        if isinstance(x, Apply) and x.op is movement.expand:
            shorter = [*inputs[:i], x.inputs[0], *inputs[i + 1 :]]
            if broadcast_shapes(*(v.shape for v in shorter)) == node.shape:
                inputs = shorter
    return None if all(x is y for x, y in zip(inputs, node.inputs, strict=True)) else node.with_inputs(tuple(inputs))


def is_squeeze(node: Value) -> bool:
    """Whether a node only drops axes of size 1."""
    if not isinstance(node, Apply) or node.op is not movement.reshape:
        return False
    old = node.inputs[0].shape
    return len(node.shape) < len(old) and [s for s in old if s != 1] == [s for s in node.shape if s != 1]


def kept_axes(node: Apply) -> tuple[int, ...]:
    """For each axis of a squeeze's result, the axis of its input it was."""
    old, axes, position = node.inputs[0].shape, [], 0
    for remaining, size in zip(range(len(node.shape), 0, -1), node.shape, strict=True):
        # Skip size-1 axes of the input, as long as enough are left for the rest of the result.
        while old[position] != size or (size == 1 and _droppable(old, position, node.shape, remaining)):
            position += 1
        axes.append(position)
        position += 1
    return tuple(axes)


def _droppable(old: tuple[int, ...], position: int, shape: tuple[int, ...], remaining: int) -> bool:
    rest = shape[len(shape) - remaining :]
    later = old[position + 1 :]
    return sum(s == 1 for s in later) >= sum(s == 1 for s in rest) and len(later) >= remaining


def squeeze_last(node: Apply) -> Value | None:
    """op(squeeze(x), y) -> squeeze(op(x, unsqueeze(y))); reduce(squeeze(x)) -> squeeze(reduce(x))"""
    if isinstance(node.op, Reduction) and is_squeeze(node.inputs[0]):
        squeeze = node.inputs[0]
        assert isinstance(squeeze, Apply)
        kept = kept_axes(squeeze)
        reduced = node.op.trace(squeeze.inputs[0], axes=tuple(kept[a] for a in node.attrs["axes"]))
        return movement.reshape.trace(reduced, shape=node.shape)
    if not isinstance(node.op, Elementwise):
        return None
    squeeze = next((x for x in node.inputs if is_squeeze(x) and x.shape == node.shape), None)
    if squeeze is None:
        return None
    assert isinstance(squeeze, Apply)
    full, kept = squeeze.inputs[0].shape, kept_axes(squeeze)

    def unsqueezed(x: Value) -> Value:
        if x.ndim == 0 and not is_squeeze(x):
            return x
        padded = (1,) * (len(node.shape) - x.ndim) + x.shape
        shape = [1] * len(full)
        for axis, size in zip(kept, padded, strict=True):
            shape[axis] = size
        return movement.reshape.trace(x, shape=tuple(shape))

    wide = node.op.trace(*(unsqueezed(x) for x in node.inputs), **node.attrs)
    return movement.reshape.trace(wide, shape=node.shape)


def hoist_views(graph: Graph) -> Graph:
    """Move views to the memory they re-address. Valid graph in, valid graph out; values unchanged."""
    users = graph.users
    outputs = set(graph.outputs)

    def up(node: Apply) -> Value | None:
        """view(op(x, y)) -> op(view(x), view(y))"""
        if not isinstance(node.op, Movement) or is_squeeze(node):
            return None
        x = node.inputs[0]
        if not isinstance(x, Apply) or not isinstance(x.op, Elementwise):
            return None
        shared = len(users.get(x, ())) > 1 or x in outputs
        if x.ndim == 0 or (shared and (x.op.expensive or not _is_small(x))):
            return None
        if all(v.ndim == 0 for v in x.inputs) or not all(_viewable(node, v, x.shape) for v in x.inputs):
            return None
        if node.op is movement.expand:
            return x.op.trace(*(_expanded(v, node.shape) for v in x.inputs), **x.attrs)
        operands = [_expanded(v, x.shape) for v in x.inputs]
        return x.op.trace(*(v if v.ndim == 0 else node.op.trace(v, **node.attrs) for v in operands), **x.attrs)

    return fixpoint(graph, (up, implicit_expand, squeeze_last, *RULES))


def _expanded(x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.ndim == 0 or x.shape == shape else movement.expand.trace(x, shape=shape)


def _viewable(view: Apply, x: Value, shape: tuple[int, ...]) -> bool:
    """Whether the view of `x`, expanded to `shape` without copying, needs no copy either."""
    assert isinstance(view.op, Movement)
    if x.ndim == 0 or x.shape == shape:
        return True
    _, strides, _ = movement.expand.view(x.shape, contiguous_strides(x.shape), 0, shape=shape) or ((), (), 0)
    return view.op.view(shape, strides, 0, **view.attrs) is not None


def _is_small(node: Value) -> bool:
    """Whether the tree of elementwise ops above a value has at most `_AGAIN` nodes, none of them expensive."""
    count, stack = 0, [node]
    while stack:
        x = stack.pop()
        if isinstance(x, Apply) and isinstance(x.op, Elementwise):
            count += 1
            if count > _AGAIN or x.op.expensive:
                return False
            stack += x.inputs
    return True

