"""Views out of the way of fusion: movements travel up through elementwise ops to the memory they re-address.

Dropped axes of size 1 travel the other way, down to the outputs, so that the nodes of one kernel share a
rank.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import Apply, Graph, Value
from compiler.ops import contraction, movement
from compiler.ops.op import Elementwise, Movement, Reduction, broadcast_shapes
from compiler.ops.window import stored
from compiler.passes.layout import LAYOUT_RULES
from compiler.passes.pads import sum_of_pads
from compiler.passes.rewrite import fixpoint, on
from compiler.passes.simplify import RULES
from compiler.types import contiguous_strides

# A value that several consumers read is computed again behind a view only when it is this small a tree of
# elementwise ops.
_AGAIN = 4
# Pointwise ops that are looked through for a product before them: without an end, n ops under n views take
# n^3 steps.
_LITTLE = 64
# Lines that lie so many bytes apart fall into the same few sets of a cache: a product that walks down so many
# of them, for every panel of so many columns, runs at half (2048 x 2048 x 2048: 277 ms, 162 after a copy; of
# 256 lines nothing is lost).
_PAGE, _MANY_LINES, _MANY_COLUMNS = 4096, 1024, 512


@on(Elementwise, over=(movement.expand,))
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
    return (
        None
        if all(x is y for x, y in zip(inputs, node.inputs, strict=True))
        else node.with_inputs(tuple(inputs))
    )


@on(Elementwise, movement.reshape, over=(movement.expand,))
def sink_expand(node: Apply) -> Value | None:
    """op(expand(x), y) -> expand(op(x, y)), where nothing else gives the shape; unsqueeze(expand(x)) ->
    expand(unsqueeze(x))
    """
    if isinstance(node.op, Elementwise):
        narrow = [x.inputs[0] if isinstance(x, Apply) and x.op is movement.expand else x for x in node.inputs]
        if all(x is y for x, y in zip(narrow, node.inputs, strict=True)):
            return None
        return movement.expand.trace(node.op.trace(*narrow, **node.attrs), shape=node.shape)
    x = node.inputs[0] if node.inputs else None
    if node.op is not movement.reshape or not isinstance(x, Apply) or x.op is not movement.expand:
        return None
    if [s for s in x.shape if s != 1] != [s for s in node.shape if s != 1] or 0 in node.shape:
        return None
    source = (1,) * (x.ndim - x.inputs[0].ndim) + x.inputs[0].shape
    sizes = iter([size for size, full in zip(source, x.shape, strict=True) if full != 1])
    narrow_shape = tuple(1 if size == 1 else next(sizes) for size in node.shape)
    return movement.expand.trace(movement.reshape.trace(x.inputs[0], shape=narrow_shape), shape=node.shape)


def kept_axes(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axis of `old` each axis of `new` was, when `new` only drops axes of size 1; else None."""
    kept: list[int] = []
    for axis, size in enumerate(old):
        if len(kept) < len(new) and size == new[len(kept)]:
            kept.append(axis)
        elif size != 1:
            return None
    return tuple(kept) if len(kept) == len(new) < len(old) else None


def is_squeeze(node: Value) -> bool:
    """Whether a node only drops axes of size 1."""
    if not isinstance(node, Apply) or node.op is not movement.reshape:
        return False
    return kept_axes(node.inputs[0].shape, node.shape) is not None


@on(Elementwise, Reduction, over=(movement.reshape,))
def squeeze_last(node: Apply) -> Value | None:
    """op(squeeze(x), y) -> squeeze(op(x, unsqueeze(y))); reduce(squeeze(x)) -> squeeze(reduce(x))"""
    if isinstance(node.op, Reduction) and is_squeeze(node.inputs[0]):
        squeeze = node.inputs[0]
        assert isinstance(squeeze, Apply)
        kept = kept_axes(squeeze.inputs[0].shape, squeeze.shape)
        assert kept is not None, "is_squeeze said so"
        reduced = node.op.trace(squeeze.inputs[0], axes=tuple(kept[a] for a in node.attrs["axes"]))
        return movement.reshape.trace(reduced, shape=node.shape)
    if not isinstance(node.op, Elementwise):
        return None
    squeeze = next((x for x in node.inputs if is_squeeze(x) and x.shape == node.shape), None)
    if squeeze is None:
        return None
    assert isinstance(squeeze, Apply)
    full = squeeze.inputs[0].shape
    kept = kept_axes(full, squeeze.shape)
    assert kept is not None, "is_squeeze said so"

    def unsqueezed(x: Value) -> Value:
        if x.ndim == 0 and not is_squeeze(x):
            return x
        padded = (1,) * (len(node.shape) - x.ndim) + x.shape
        shape = [1] * len(full)
        for axis, size in zip(kept, padded, strict=True):
            shape[axis] = size
        # What two rules would do one after the other, for every other node of a chain.
        if isinstance(x, Apply) and x.op is movement.reshape:
            (x,) = x.inputs
        return x if x.shape == tuple(shape) else movement.reshape.trace(x, shape=tuple(shape))

    wide = node.op.trace(*(unsqueezed(x) for x in node.inputs), **node.attrs)
    return movement.reshape.trace(wide, shape=node.shape)


@on(Movement, over=(Elementwise,))
def up(node: Apply, shared: Callable[[Value], bool]) -> Value | None:
    """view(op(x, y)) -> op(view(x), view(y)), unless op finishes a product's tiles, which are stored then"""
    if not isinstance(node.op, Movement) or not node.op.rises or is_squeeze(node):
        return None
    x = node.inputs[0]
    if not isinstance(x, Apply) or not isinstance(x.op, Elementwise) or x.ndim == 0 or x.op is stored:
        return None
    if _finishes_product(x, shared):
        return None
    if shared(x) and not _is_small(x):
        return None
    if all(v.ndim == 0 for v in x.inputs) or not all(_viewable(node, v, x.shape) for v in x.inputs):
        return None
    # One view of each operand, so that it stays one value.
    views = {
        v: v if v.ndim == 0 else node.op.trace(_expanded(v, x.shape), **node.attrs)
        for v in dict.fromkeys(x.inputs)
    }
    return x.op.trace(*(views[v] for v in x.inputs), **x.attrs)


@on(movement.permute, over=(contraction.matmul,))
def transposed_product(node: Apply, shared: Callable[[Value], bool]) -> Value | None:
    """swap_last(matmul(a, b)) -> matmul(swap_last(b), swap_last(a))"""
    product = node.inputs[0] if node.inputs else None
    if (
        node.op is not movement.permute
        or not isinstance(product, Apply)
        or product.op is not contraction.matmul
    ):
        return None
    n = node.ndim
    if shared(product) or node.attrs["axes"] != (*range(n - 2), n - 1, n - 2):
        return None
    a, b = product.inputs
    return contraction.matmul.trace(movement.swap_last(b), movement.swap_last(a))


@on(movement.reshape, over=(contraction.matmul,))
def split_rows(node: Apply, shared: Callable[[Value], bool]) -> Value | None:
    """reshape(matmul(a, b)), where it splits rows -> matmul(reshape(a), b), which what follows can finish"""
    product = node.inputs[0] if node.op is movement.reshape else None
    if not isinstance(product, Apply) or product.op is not contraction.matmul or shared(product):
        return None
    a, b = product.inputs
    splits = node.ndim > a.ndim == b.ndim == 2 and node.shape[-1] == product.shape[-1]
    if not splits or not node.type.size:
        return None
    return contraction.matmul.trace(movement.reshape.trace(a, shape=(*node.shape[:-1], a.shape[-1])), b)


@on(contraction.matmul, over=(movement.permute,))
def spread_lines(node: Apply) -> Value | None:
    """matmul(permute(x), b) -> matmul(stored(permute(x)), b), where columns of x share a few cache sets"""
    if node.op is not contraction.matmul or node.ndim != 2:
        return None
    a, b = node.inputs
    turned = isinstance(a, Apply) and a.op is movement.permute
    apart = a.shape[0] * a.dtype.itemsize % _PAGE == 0
    if not turned or not apart or a.shape[1] < _MANY_LINES or b.ndim != 2 or node.shape[1] < _MANY_COLUMNS:
        return None
    return contraction.matmul.trace(stored.trace(a), b)


def hoist_views(graph: Graph) -> Graph:
    """Move views to the memory they re-address. Valid graph in, valid graph out; values unchanged."""
    return fixpoint(graph, _RULES, (up, transposed_product, sum_of_pads))


def settle_views(graph: Graph) -> Graph:
    """`hoist_views` when no products are left to join, so that their rows may be split."""
    return fixpoint(graph, _RULES, (up, transposed_product, sum_of_pads, split_rows))


_RULES = (*LAYOUT_RULES, implicit_expand, sink_expand, squeeze_last, spread_lines, *RULES)


def _expanded(x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.ndim == 0 or x.shape == shape else movement.expand.trace(x, shape=shape)


def _viewable(view: Apply, x: Value, shape: tuple[int, ...]) -> bool:
    """Whether the view of `x`, expanded to `shape` without copying, needs no copy either."""
    assert isinstance(view.op, Movement)
    if x.ndim == 0 or x.shape == shape:
        return True
    _, strides, _ = movement.expand.view(x.shape, contiguous_strides(x.shape), 0, shape=shape) or ((), (), 0)
    return view.op.view(shape, strides, 0, **view.attrs) is not None


def _finishes_product(x: Apply, shared: Callable[[Value], bool]) -> bool:
    """Whether an elementwise value is a product and a little pointwise work that only it needs."""
    found = [x]
    for value in found:
        for y in value.inputs if len(found) < _LITTLE else ():
            if isinstance(y, Apply) and y.shape == x.shape and not shared(y):
                if isinstance(y.op, contraction.Product):
                    return True
                if isinstance(y.op, Elementwise):
                    found.append(y)
    return False


def _is_small(node: Value) -> bool:
    """Whether a value is at most `_AGAIN` cheap elementwise ops away from memory that exists anyway."""
    count, stack = 0, [node]
    while stack:
        x = stack.pop()
        while isinstance(x, Apply) and isinstance(x.op, Movement):
            x = x.inputs[0]
        if isinstance(x, Apply) and x.inputs:
            count += 1
            if count > _AGAIN or not isinstance(x.op, Elementwise) or x.op.expensive:
                return False
            stack += x.inputs
    return True
