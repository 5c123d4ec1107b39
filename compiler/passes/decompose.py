"""Ops that have no kernel of their own, written in ops that have.

What an op decomposes into is a fact of the op; this pass only asks.
"""

from __future__ import annotations

from compiler.ir import Apply, Graph, Value
from compiler.passes.rewrite import fixpoint


def decomposed(node: Apply) -> Value | None:
    """op(...) -> its own decomposition"""
    return None if node.op.decompose is None else node.op.decompose(*node.inputs, **node.attrs)


def decompose(graph: Graph) -> Graph:
    """Replace every op that names a decomposition."""
    return fixpoint(graph, (decomposed,))
