"""Apply local rules to a graph until nothing changes.

A rule looks at one application, whose inputs are already rewritten, and returns an equal value or None. Knows
no rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from compiler.ir import Apply, Graph, Value
from compiler.where import made_at

Rule = Callable[[Apply], Value | None]
# Also given: whether another node than this one reads a value.
SharingRule = Callable[[Apply, Callable[[Value], bool]], Value | None]
# Rules applied per node of a graph, on average, before they are taken to undo each other: a view over a chain
# of n ops takes n.
_MOST_STEPS = 1000


def rewrite(
    graph: Graph,
    rules: tuple[Rule, ...],
    sharing_rules: tuple[SharingRule, ...] = (),
    settled: set[Value] | None = None,
) -> Graph:
    """Every node replaced by what the rules make of it, inputs first, and so on for what they make; the same
    graph when no rule applied.

    `settled` collects nodes that no rule applies to, which another round need not ask again. Raises
    AssertionError when rules undo each other.
    """
    settled = set() if settled is None else settled
    # What a value becomes: known, or whatever another value becomes.
    new: dict[Value, Value] = {}
    instead: dict[Value, Value] = {}
    uses: dict[Value, int] = {}
    returned = Counter(graph.outputs)
    steps = _MOST_STEPS * (len(graph.nodes) + 1)

    def shared(value: Value) -> bool:
        return uses.get(value, 1) > 1

    def better(node: Apply) -> Value | None:
        if node not in settled:
            for rule in rules:
                if (value := rule(node)) is not None:
                    return value
            settled.add(node)
        for sharing_rule in sharing_rules:
            if (value := sharing_rule(node, shared)) is not None:
                return value
        return None

    def settle(goal: Value) -> None:
        nonlocal steps
        waiting = [goal]
        while waiting:
            value = waiting[-1]
            following = instead.get(value)
            inputs = value.inputs if isinstance(value, Apply) else ()
            missing = [x for x in inputs if x not in new] if following is None else []
            if value in new:
                waiting.pop()
            elif following is not None:
                if following in new:
                    new[value] = new[following]
                else:
                    waiting.append(following)
            elif missing:
                waiting += missing
            elif not isinstance(value, Apply):
                new[value] = value
            else:
                node = value.with_inputs(tuple([new[x] for x in inputs]))
                with made_at(node.where):
                    made = better(node)
                if made is None:
                    new[value] = new[node] = node
                else:
                    instead[value] = made
                    steps -= 1
                    assert steps, "rewriting does not settle: two rules undo each other"

    for node in graph.nodes:
        settle(node)
        made = new[node]
        uses[made] = uses.get(made, 0) + len(graph.users[node]) + returned[node]
    outputs = tuple(new[v] for v in graph.outputs)
    if all(x is y for x, y in zip(outputs, graph.outputs, strict=True)):
        return graph
    return Graph(graph.inputs, outputs)


def fixpoint(
    graph: Graph, rules: tuple[Rule, ...], sharing_rules: tuple[SharingRule, ...] = (), rounds: int = 32
) -> Graph:
    """`rewrite` until it returns the same graph. Raises AssertionError when rules undo each other."""
    settled: set[Value] = set()
    for _ in range(rounds):
        new = rewrite(graph, rules, sharing_rules, settled)
        if new is graph:
            return graph
        graph = new
    raise AssertionError(f"rewriting did not settle in {rounds} rounds: two rules undo each other")


def substitute(graph: Graph, values: Mapping[Value, Value]) -> Graph:
    """The graph with nodes replaced by values, which may be computed from nodes that are replaced too."""
    if not values:
        return graph
    new: dict[Value, Value] = {}

    def rebuild(goal: Value) -> None:
        waiting = [goal]
        while waiting:
            node = waiting[-1]
            meant = values.get(node, node)
            inputs = meant.inputs if isinstance(meant, Apply) else ()
            missing = [x for x in inputs if x not in new]
            if not missing:
                waiting.pop()
                new[node] = (
                    meant.with_inputs(tuple(new[x] for x in inputs)) if isinstance(meant, Apply) else meant
                )
            waiting += missing

    for node in graph.nodes:
        rebuild(node)
    return Graph(graph.inputs, tuple(new[v] for v in graph.outputs))
