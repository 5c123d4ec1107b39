"""Sums of padded pieces as concatenations: what the gradients of `chunk`, `split` and slices come to.

The planner computes the pieces of a concatenation in their place, where each pad is a tensor of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from compiler.ir import Apply, Const, Value
from compiler.ops import arithmetic, creation, movement
from compiler.passes.rewrite import on

# (start, stop, values) along an axis; zero elsewhere.
Pieces = list[tuple[int, int, Value]]


@on(arithmetic.add, over=(movement.pad, movement.concatenate))
def sum_of_pads(node: Apply, shared: Callable[[Value], bool]) -> Value | None:
    """pad(x) + pad(y) -> concatenate(x + 0, y + 0), zeros between, where they do not overlap along an axis"""
    if node.op is not arithmetic.add or any(x.shape != node.shape or shared(x) for x in node.inputs):
        return None
    one, two = (_pieces(x) for x in node.inputs)
    if one is None or two is None or one[0] != two[0]:
        return None
    axis, pieces = one[0], sorted((*one[1], *two[1]), key=lambda piece: piece[0])
    if any(stop > start for (_, stop, _), (start, _, _) in pairwise(pieces)):
        return None
    parts: list[Value] = []
    end = 0
    for start, stop, x in (*pieces, (node.shape[axis], 0, None)):
        if start > end:
            gap = tuple(start - end if a == axis else size for a, size in enumerate(node.shape))
            parts.append(creation.full.trace(shape=gap, value=0, dtype=node.dtype))
        if x is not None:
            parts.append(_plus_zero(x))
        end = stop
    return movement.concatenate.trace(*parts, axis=axis)


def _pieces(x: Value) -> tuple[int, Pieces] | None:
    """What a pad with zeros, or a concatenation, holds along its one axis."""
    if not isinstance(x, Apply):
        return None
    if x.op is movement.pad and is_zero(x.attrs["value"]):
        low, high = x.attrs["low"], x.attrs["high"]
        padded = [axis for axis in range(x.ndim) if low[axis] or high[axis]]
        if len(padded) != 1:
            return None
        (axis,) = padded
        return axis, [(low[axis], x.shape[axis] - high[axis], x.inputs[0])]
    if x.op is not movement.concatenate:
        return None
    axis, start, found = x.attrs["axis"], 0, []
    for part in x.inputs:
        stop = start + part.shape[axis]
        if not (isinstance(part, Apply) and part.op is creation.full and is_zero(part.attrs["value"])):
            found.append((start, stop, part))
        start = stop
    return axis, found


def _plus_zero(x: Value) -> Value:
    """x + 0, which a sum with zeros is to the bit: -0.0 becomes 0.0."""
    if isinstance(x, Apply) and x.op is arithmetic.add:
        added = x.inputs[1]
        if isinstance(added, Const) and added.ndim == 0 and is_zero(added.data.item()):
            return x
    return arithmetic.add.trace(x, 0.0) if x.dtype.is_floating_point else x


def is_zero(value: float) -> bool:
    """Whether a number is zero, and not -0.0."""
    return value == 0 and math.copysign(1.0, value) == 1.0
