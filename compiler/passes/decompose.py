"""Ops that have no kernel of their own, written in ops that have.

What an op decomposes into is a fact of the op; this pass only asks.
"""

from __future__ import annotations

from compiler.ir import Apply, Graph, Value
from compiler.ops import compare, creation, indexing, reduction
from compiler.ops.op import Elementwise, Op
from compiler.passes.rewrite import fixpoint, on
from kernels import dtypes


def _has_decomposition(op: Op) -> bool:
    return op.decompose is not None


@on(_has_decomposition)
def decomposed(node: Apply) -> Value | None:
    """op(...) -> its own decomposition"""
    return None if node.op.decompose is None else node.op.decompose(*node.inputs, **node.attrs)


@on(indexing.gather)
def picked(node: Apply) -> Value | None:
    """gather(computed x, one index a row) -> sum(where(position == index, x, 0)): it fuses where a gather
    needs memory
    """
    if node.op is not indexing.gather or not isinstance(node.inputs[0], Apply):
        return None
    x, index = node.inputs
    axis = node.attrs["axis"]
    if not isinstance(x.op, Elementwise) or node.shape != (*x.shape[:axis], 1, *x.shape[axis + 1 :]):  # type: ignore[union-attr]
        return None
    position = creation.iota.trace(shape=x.shape, axis=axis, dtype=dtypes.int64)
    # x + 0 is x, to the bit but for the sign of a zero.
    return reduction.sum.trace(compare.where.trace(compare.eq.trace(position, index), x, 0), axes=(axis,))


@on(indexing.scatter_add, indexing.take_add)
def wide_scatter(node: Apply) -> Value | None:
    """scatter(16-bit x) -> cast(scatter(cast(x))): sums in float32, rounded once"""
    if node.op not in (indexing.scatter_add, indexing.take_add) or node.dtype.compute is None:
        return None
    x, index, source = node.inputs
    wide = [compare.cast.trace(v, dtype=node.dtype.compute) for v in (x, source)]
    return compare.cast.trace(node.op.trace(wide[0], index, wide[1], **node.attrs), dtype=node.dtype)


def decompose(graph: Graph) -> Graph:
    """Replace every op that names a decomposition."""
    return fixpoint(graph, (decomposed, picked, wide_scatter))
