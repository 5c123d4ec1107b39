"""Ops that have no kernel of their own, written in ops that have.

What an op decomposes into is a fact of the op; this pass only asks.
"""

from __future__ import annotations

from compiler.ir import Apply, Graph, Value
from compiler.ops import compare, creation, indexing, reduction
from compiler.ops.op import Elementwise
from compiler.passes.rewrite import fixpoint
from kernels import dtypes


def decomposed(node: Apply) -> Value | None:
    """op(...) -> its own decomposition"""
    return None if node.op.decompose is None else node.op.decompose(*node.inputs, **node.attrs)


def picked(node: Apply) -> Value | None:
    """gather(computed x, one index a row) -> sum(where(position == index, x, 0)): it fuses where a gather needs memory"""
    if node.op is not indexing.gather or not isinstance(node.inputs[0], Apply):
        return None
    x, index = node.inputs
    axis = node.attrs["axis"]
    if not isinstance(x.op, Elementwise) or node.shape != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):  # type: ignore[union-attr]
        return None
    position = creation.iota.trace(shape=x.shape, axis=axis, dtype=dtypes.int64)
    # x + 0 is x, to the bit but for the sign of a zero.
    return reduction.sum.trace(compare.where.trace(compare.eq.trace(position, index), x, 0), axes=(axis,))


def decompose(graph: Graph) -> Graph:
    """Replace every op that names a decomposition."""
    return fixpoint(graph, (decomposed, picked))
