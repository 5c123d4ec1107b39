"""Shrink a wrong graph while it stays wrong: fewer outputs and nodes, smaller sizes, simpler numbers.

Knows graphs and arrays; what "wrong" means is the caller's predicate, and code for people is the framework's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from compiler.compare import Case
from compiler.interpret import values_of
from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.types import type_of_array
from compiler.where import made_at

Array = np.ndarray[Any, Any]
Fails = Callable[[Case], bool]


def minify(case: Case, fails: Fails, seconds: float = 60.0) -> Case:
    """The smallest case found in about so long that still `fails`, by steps each of which does."""
    end = time.monotonic() + seconds
    for steps in (_fewer, _smaller, _simpler):
        shrunk = True
        while shrunk and time.monotonic() < end:
            shrunk = False
            for candidate in steps(case):
                if time.monotonic() > end:
                    break
                if fails(candidate):
                    case, shrunk = candidate, True
                    break
    return case


# Fewer nodes


def _fewer(case: Case) -> Iterator[Case]:
    """Less of the graph, most first."""
    graph = case.graph
    if len(graph.outputs) > 1:
        for value in graph.outputs:
            yield pruned(Graph(graph.inputs, (value,)), case)
    known = values_of(graph, case.arrays)
    nodes = [n for n in graph.nodes if isinstance(n, Apply)]
    for node in nodes:
        if node not in graph.outputs:
            yield pruned(Graph(graph.inputs, (node,)), case)
    for node in reversed(nodes):
        if node not in graph.outputs:
            yield _cut(case, node, known[node])
    for node in nodes:
        for x in node.inputs:
            if x.type == node.type and not (node in graph.outputs and not isinstance(x, Apply)):
                yield pruned(rebuilt(graph, {node: x}), case)


def _cut(case: Case, node: Value, value: Array) -> Case:
    """`node` as an input that holds its value."""
    given = Input(node.type, name=f"t{len(case.graph.inputs)}", where=node.where)
    graph = rebuilt(case.graph, {node: given})
    arrays = (*case.arrays, np.ascontiguousarray(np.broadcast_to(value, node.shape)))
    return pruned(Graph((*graph.inputs, given), graph.outputs), Case(graph, arrays))


def rebuilt(graph: Graph, instead: Mapping[Value, Value]) -> Graph:
    """The graph with other values in place of some."""
    new: dict[Value, Value] = dict(instead)
    for node in graph.nodes:
        if node not in new:
            new[node] = (
                node.with_inputs(tuple(new[x] for x in node.inputs)) if isinstance(node, Apply) else node
            )
    return Graph(graph.inputs, tuple(new[v] for v in graph.outputs))


def pruned(graph: Graph, case: Case) -> Case:
    """`graph` without the inputs that it does not read; `case` has the arrays of all."""
    read = {x for n in graph.nodes if isinstance(n, Apply) for x in n.inputs} | set(graph.outputs)
    kept = [(x, a) for x, a in zip(graph.inputs, case.arrays, strict=True) if x in read]
    return Case(Graph(tuple(x for x, _ in kept), graph.outputs), tuple(a for _, a in kept))


# Smaller sizes


def _smaller(case: Case) -> Iterator[Case]:
    """Every axis of one size cut to a smaller one, wherever that size is met."""
    sizes = {n for v in case.graph.nodes for n in v.shape if n > 1}
    for size in sorted(sizes, reverse=True):
        for less in sorted({1, 2, 3, size // 2} - {0}):
            if less < size and (made := _resized(case, size, less)) is not None:
                yield made


def _resized(case: Case, size: int, less: int) -> Case | None:
    """The case with `less` in place of `size`; None where an op does not take that."""

    def number(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(number, x))
        return less if x == size and type(x) is int else x

    def part(array: Array) -> Array:
        kept = array[tuple(slice(0, number(n)) for n in array.shape)]
        if array.dtype.kind in "iu" and kept.size and int(kept.max()) >= less and int(array.max()) < size:
            kept = kept % less  # indices into an axis of that size
        return np.ascontiguousarray(kept)

    new: dict[Value, Value] = {}
    arrays = [part(a) for a in case.arrays]
    try:
        for node, array in zip(case.graph.inputs, arrays, strict=True):
            new[node] = Input(type_of_array(array), name=node.name, where=node.where)
        for node in case.graph.nodes:
            if isinstance(node, Const) and node.ndim:
                data = part(node.data)
                new[node] = Const(type_of_array(data), data=data, where=node.where)
            elif isinstance(node, Apply):
                attrs = {name: number(x) for name, x in node.attrs.items()}
                with made_at(node.where):
                    new[node] = node.op.trace(*(new[x] for x in node.inputs), **attrs)
            else:
                new.setdefault(node, node)
        inputs = tuple(new[x] for x in case.graph.inputs)
        graph = Graph(inputs, tuple(new[v] for v in case.graph.outputs))  # type: ignore[arg-type]
        smaller = Case(graph, tuple(arrays))
        values_of(graph, smaller.arrays)
    except Exception:  # noqa: BLE001 -- whatever an op says of sizes that do not fit
        return None
    return smaller


# Simpler numbers


def _simpler(case: Case) -> Iterator[Case]:
    """One input with numbers that are written in a word."""
    for number, array in enumerate(case.arrays):
        for _, simple in simple_arrays(array):
            if simple.tobytes() == array.tobytes():
                break
            yield Case(case.graph, (*case.arrays[:number], simple, *case.arrays[number + 1 :]))


def simple_arrays(like: Array) -> list[tuple[str, Array]]:
    """Arrays of a shape and dtype that code can name, simplest first."""
    shape, dtype, size = like.shape, like.dtype, max(math.prod(like.shape), 1)
    steps = np.arange(like.size).reshape(shape)
    if dtype.kind == "b":
        return [("ones", np.ones(shape, bool)), ("zeros", np.zeros(shape, bool)), ("odd", steps % 2 == 1)]
    ones, zeros = ("ones", np.ones(shape, dtype)), ("zeros", np.zeros(shape, dtype))
    if dtype.kind in "iu":
        return [zeros, ones, ("arange", steps.astype(dtype))]
    with np.errstate(all="ignore"):
        ramp = (np.arange(like.size, dtype=np.float32) / np.float32(size)).reshape(shape).astype(dtype)
    return [ones, ("ramp", ramp), ("centred ramp", (ramp - ramp.dtype.type(0.5)).astype(dtype)), zeros]
