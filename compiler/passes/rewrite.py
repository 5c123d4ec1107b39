"""Apply local rules to a graph until nothing changes.

A rule looks at one application, whose inputs are already rewritten, and returns an equal value or None. Knows no rules.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import Apply, Graph, Value

Rule = Callable[[Apply], Value | None]


def rewrite(graph: Graph, rules: tuple[Rule, ...]) -> Graph:
    """Every node replaced by what the rules make of it, inputs first; the same graph when no rule applied."""
    new: dict[Value, Value] = {}

    def apply(node: Apply) -> Value:
        value: Value = node
        while isinstance(value, Apply):
            better = next((v for rule in rules if (v := rule(value)) is not None), None)
            if better is None:
                return value
            value = better
        return value

    for node in graph.nodes:
        new[node] = apply(node.with_inputs(tuple(new[x] for x in node.inputs))) if isinstance(node, Apply) else node
    outputs = tuple(new[v] for v in graph.outputs)
    if all(x is y for x, y in zip(outputs, graph.outputs, strict=True)):
        return graph
    return Graph(graph.inputs, outputs)


def fixpoint(graph: Graph, rules: tuple[Rule, ...], rounds: int = 32) -> Graph:
    """`rewrite` until it returns the same graph. Raises AssertionError when rules undo each other."""
    for _ in range(rounds):
        new = rewrite(graph, rules)
        if new is graph:
            return graph
        graph = new
    raise AssertionError(f"rewriting did not settle in {rounds} rounds: two rules undo each other")
