"""Values computed straight into the tensor they are joined to: a concatenation or a pad copies nothing.

Knows geometry and buffers; what is in memory otherwise is the plan's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compiler.errors import LoweringError
from compiler.ir import Apply, Graph, Value
from compiler.lower import Buffer, Geometry, resolve
from compiler.ops import movement
from compiler.ops.op import Movement, Reduction
from compiler.schedule import Group
from compiler.types import contiguous_strides

Spot = tuple[Buffer, Geometry]
JOINS = (movement.concatenate, movement.pad)


def region_of(whole: Geometry, **region: tuple[int, ...]) -> Geometry:
    """Geometry of a slice (starts, stops, steps) of memory."""
    view = movement.slice.view(*whole, **region)
    assert view is not None, "a slice is always a view"
    return view


def block_of(whole: Geometry, starts: tuple[int, ...], shape: tuple[int, ...]) -> Geometry:
    """Geometry of the block of `shape` at `starts`."""
    stops = tuple(s + size for s, size in zip(starts, shape, strict=True))
    return region_of(whole, starts=starts, stops=stops, steps=(1,) * len(shape))


def pieces(node: Apply, whole: Geometry) -> Iterator[tuple[Value, Geometry]]:
    """What a concatenation or a pad is joined from, each with its block of `whole`."""
    if node.op is movement.pad:
        yield node.inputs[0], block_of(whole, node.attrs["low"], node.inputs[0].shape)
        return
    axis, start = node.attrs["axis"], 0
    for x in node.inputs:
        yield x, block_of(whole, tuple(start if a == axis else 0 for a in range(node.ndim)), x.shape)
        start += x.shape[axis]


def edges(node: Apply, whole: Geometry) -> Iterator[Geometry]:
    """The blocks of `whole` that a pad adds: two for each axis, none overlapping."""
    low, inner, shape = node.attrs["low"], node.inputs[0].shape, node.shape
    for axis, size in enumerate(shape):
        for start, stop in ((0, low[axis]), (low[axis] + inner[axis], size)):
            starts = (*low[:axis], start, *(0,) * (node.ndim - axis - 1))
            block = (*inner[:axis], stop - start, *shape[axis + 1 :])
            if all(block):
                yield block_of(whole, starts, block)


def joined(graph: Graph, groups: Collection[Group], elsewhere: Collection[Value]) -> dict[Value, Spot]:
    """Where values lie that are computed in their place in a concatenation or a pad, those joins, and what is
    permuted and then reshaped.

    Values in `elsewhere`, and those the program returns, have memory of their own.
    """
    kinds = {n: g.kind for g in groups for n in g.nodes}
    kept = {*graph.outputs, *elsewhere}
    found: dict[Value, Spot] = {}

    def place(x: Value, buffer: Buffer, geometry: Geometry | None) -> bool:
        """Let a value lie there, if it is computed, and all that reads it can do so."""
        if geometry is None or not isinstance(x, Apply) or x in found or x in kept:
            return False
        computed = kinds[x] in ("loop", "product") and not isinstance(x.op, Reduction)
        if not computed and x.op not in JOINS:
            return False
        if not all(_is_readable(user, geometry) for user in graph.users[x]):
            return False
        found[x] = buffer, geometry
        return True

    for node in reversed(graph.nodes):
        if not isinstance(node, Apply) or node.op not in JOINS:
            continue
        buffer, whole = found.get(node) or (
            Buffer(node.type, node.op.name),
            (node.shape, contiguous_strides(node.shape), 0),
        )
        for piece, block in pieces(node, whole):
            x, geometry = behind(piece, block)
            if place(x, Buffer(x.type, node.op.name, whole=buffer), geometry):
                found[node] = buffer, whole
    for node in graph.nodes:
        if isinstance(node, Apply) and node.op is movement.reshape:
            x, geometry = behind(node, (node.shape, contiguous_strides(node.shape), 0))
            if isinstance(x, Apply) and geometry is not None and _is_copied(node, x):
                place(x, Buffer(x.type, x.op.name), geometry)
    return found


def _is_copied(node: Apply, x: Apply) -> bool:
    """Whether reshapes and permutations of `x` that end in `node` need a copy where `x` is row-major."""
    try:
        resolve(node, lambda v: (x.shape, contiguous_strides(x.shape), 0) if v is x else None)
    except LoweringError:
        return True
    return False


def behind(value: Value, block: Geometry) -> tuple[Value, Geometry | None]:
    """The value behind reshapes and permutations, and where it must lie for `value` to lie in `block`."""
    geometry: Geometry | None = block
    while isinstance(value, Apply) and geometry is not None:
        if value.op is movement.reshape:
            geometry = movement.reshape.view(*geometry, shape=value.inputs[0].shape)
        elif value.op is movement.permute:
            axes = movement.inverse_permutation(value.attrs["axes"])
            geometry = movement.permute.view(*geometry, axes=axes)
        else:
            break
        value = value.inputs[0]
    return value, geometry


def _is_readable(user: Apply, geometry: Geometry) -> bool:
    """Whether what reads a value can do so where it lies: a view of it needs no copy there."""
    return not isinstance(user.op, Movement) or user.op.view(*geometry, **user.attrs) is not None
