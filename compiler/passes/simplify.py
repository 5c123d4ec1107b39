"""Exact algebra: rules that change no bit of any result, and constants known now.

Each rule states its identity as its docstring.
"""

from __future__ import annotations

import numpy as np

from compiler.ir import Apply, Const, Graph, Value, constant
from compiler.ops import compare, creation, movement
from compiler.ops.op import Elementwise, Op, Reduction
from compiler.passes.rewrite import fixpoint, on

_SHAPES = (movement.reshape, movement.expand, movement.slice, movement.pad)
_FILLED = (movement.reshape, movement.permute, movement.expand, movement.slice, movement.flip)


def _has_unit(op: Op) -> bool:
    return isinstance(op, Elementwise) and op.unit is not None


@on(Elementwise, over=(Const,))
def fold_scalars(node: Apply) -> Value | None:
    """op(constants without axes) -> constant"""
    if not isinstance(node.op, Elementwise) or not all(
        isinstance(x, Const) and x.ndim == 0 for x in node.inputs
    ):
        return None
    return constant(
        node.op.compute(*(x.data for x in node.inputs if isinstance(x, Const)), **node.attrs), node.where
    )


@on(Elementwise, over=(creation.full,))
def full_is_scalar(node: Apply) -> Value | None:
    """op(x, full(shape, c)) -> op(x, c), where x has that shape anyway"""
    if not isinstance(node.op, Elementwise):
        return None
    inputs = [_scalar(x) for x in node.inputs]
    if all(x is y for x, y in zip(inputs, node.inputs, strict=True)):
        return None
    shapes = [x.shape for x in inputs]
    return node.with_inputs(tuple(inputs)) if np.broadcast_shapes(*shapes) == node.shape else None


def _scalar(x: Value) -> Value:
    if isinstance(x, Apply) and x.op is creation.full and x.shape:
        return constant(x.op.compute(**{**x.attrs, "shape": ()}), x.where)
    return x


@on(creation.full)
@on(*_FILLED, over=(Const, creation.full))
def filled(node: Apply) -> Value | None:
    """view(full(c)) -> full(c) of the view's shape; full without axes -> constant"""
    if node.op is creation.full and not node.shape:
        return constant(node.op.compute(**node.attrs), node.where)
    source = node.inputs[0] if node.inputs else None
    if node.op in _FILLED:
        if isinstance(source, Const) and source.ndim == 0:
            return creation.full.trace(shape=node.shape, value=source.data.item(), dtype=source.dtype)
        if isinstance(source, Apply) and source.op is creation.full:
            return creation.full.trace(**{**source.attrs, "shape": node.shape})
    return None


@on(_has_unit, over=(Const,))
def unit(node: Apply) -> Value | None:
    """x * 1 -> x, x / 1 -> x, x + -0.0 -> x, and likewise for every op with a unit, to the sign of zero"""
    if not isinstance(node.op, Elementwise) or node.op.unit is None or len(node.inputs) != 2:
        return None
    unit = node.op.unit if node.dtype.is_floating_point else abs(node.op.unit)
    x, y = node.inputs
    for kept, other in ((x, y), (y, x)) if node.op.commutative else ((x, y),):
        if (
            isinstance(other, Const)
            and other.ndim == 0
            and _same_number(other, unit)
            and kept.type == node.type
        ):
            return kept
    return None


def _same_number(x: Const, number: float) -> bool:
    return x.data == number and np.signbit(float(x.data)) == np.signbit(number)


@on(compare.cast)
def same_cast(node: Apply) -> Value | None:
    """cast(x, dtype of x) -> x"""
    return node.inputs[0] if node.op is compare.cast and node.inputs[0].dtype is node.dtype else None


@on(*_SHAPES, movement.permute)
def same_shape(node: Apply) -> Value | None:
    """reshape, expand, slice or pad to the shape x has -> x; permute(x, identity) -> x"""
    if node.op in _SHAPES and node.inputs[0].shape == node.shape:
        return node.inputs[0]
    if node.op is movement.permute and node.attrs["axes"] == tuple(range(node.ndim)):
        return node.inputs[0]
    return None


@on(movement.reshape, over=(movement.reshape,))
@on(movement.expand, over=(movement.expand,))
@on(movement.permute, over=(movement.permute,))
def two_views(node: Apply) -> Value | None:
    """reshape(reshape(x)) -> reshape(x); permute(permute(x)) -> permute(x); expand(expand(x)) -> expand(x)"""
    x = node.inputs[0] if node.inputs else None
    if not isinstance(x, Apply) or x.op is not node.op:
        return None
    if node.op in (movement.reshape, movement.expand):
        return node.op.trace(x.inputs[0], shape=node.shape)
    if node.op is movement.permute:
        return node.op.trace(x.inputs[0], axes=tuple(x.attrs["axes"][a] for a in node.attrs["axes"]))
    return None


@on(Reduction)
def nothing_reduced(node: Apply) -> Value | None:
    """reduce(x, axes of size 1) -> x; axes of size 1 need no reducing"""
    if not isinstance(node.op, Reduction):
        return None
    axes = tuple(a for a in node.attrs["axes"] if node.inputs[0].shape[a] != 1)
    if not axes:
        return node.inputs[0]
    return None if axes == node.attrs["axes"] else node.op.trace(node.inputs[0], axes=axes)


RULES = (
    fold_scalars,
    full_is_scalar,
    filled,
    unit,
    same_cast,
    same_shape,
    two_views,
    nothing_reduced,
)


def simplify(graph: Graph) -> Graph:
    """Apply every exact rule until none applies."""
    return fixpoint(graph, RULES)
