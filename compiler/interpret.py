"""Run a graph node by node on NumPy arrays: the reference every compiled program is compared with.

Knows nothing of kernels, memory plans or speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir import Apply, Const, Graph, Value


def evaluate(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The outputs of `graph` for one array per input, in order. Raises what a node's op raises on such
    arrays.
    """
    known = values_of(graph, arrays)
    return [known[value] for value in graph.outputs]


def values_of(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> dict[Value, np.ndarray[Any, Any]]:
    """The value of every node of `graph`, likewise."""
    known: dict[Value, np.ndarray[Any, Any]] = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        if isinstance(node, Const):
            known[node] = node.data
        elif isinstance(node, Apply):
            known[node] = node.op(*(known[x] for x in node.inputs), **node.attrs)
    return known
