"""Apply local rules to a graph until nothing changes.

A rule looks at one application, whose inputs are already rewritten, and returns an equal value or None. Knows
no rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from compiler.ir import Apply, Graph, Value, graph_among
from compiler.ops.op import Op
from compiler.where import made_at

Rule = Callable[[Apply], Value | None]
# Also given: whether another node than this one reads a value.
SharingRule = Callable[[Apply, Callable[[Value], bool]], Value | None]
AnyRule = TypeVar("AnyRule", bound=Callable[..., Value | None])
# An op, a class of ops, or a question about an op.
Kind = Op | type[Op] | Callable[[Op], bool]
# Rules applied per node of a graph, on average, before they are taken to undo each other: a view over a chain
# of n ops takes n.
_MOST_STEPS = 1000


def on(*heads: Kind, over: tuple[Kind | type[Value], ...] = ()) -> Callable[[AnyRule], AnyRule]:
    """Say of a rule that it returns None for other nodes than those of one of these ops with, where given, an
    input of one `over`: an op that it applies, or a kind of value. Several such lines are alternatives.
    """

    def marked(rule: AnyRule) -> AnyRule:
        patterns: Any = rule
        patterns.patterns = (*getattr(rule, "patterns", ()), (heads, over))
        return rule

    return marked


# Rules, and sharing rules, that may apply to a node, each in their order.
_Candidates = tuple[tuple[Rule, ...], tuple[SharingRule, ...]]


class _Dispatch(dict[object, _Candidates]):
    """The rules that may apply to a node, by its op and what its inputs are: most nodes have none."""

    def __init__(self, rules: tuple[Rule, ...], sharing_rules: tuple[SharingRule, ...]) -> None:
        self.rules, self.sharing_rules = rules, sharing_rules

    def __missing__(self, key: tuple[Op, Any]) -> _Candidates:
        op, kinds = key[0], key[1] if isinstance(key[1], frozenset) else key[1:]
        plain = tuple([r for r in self.rules if _may_apply(r, op, kinds)])
        sharing = tuple([r for r in self.sharing_rules if _may_apply(r, op, kinds)])
        self[key] = plain, sharing
        return plain, sharing


_dispatch = cache(_Dispatch)


def _pattern(node: Apply) -> tuple[Any, ...]:
    """What rules are chosen by: the op of a node, and those of its inputs, or their classes."""
    inputs = node.inputs
    if len(inputs) == 1:
        (x,) = inputs
        return node.op, x.op if type(x) is Apply else type(x)
    if len(inputs) == 2:
        x, y = inputs
        return node.op, x.op if type(x) is Apply else type(x), y.op if type(y) is Apply else type(y)
    return node.op, frozenset([x.op if type(x) is Apply else type(x) for x in inputs])


def _may_apply(rule: Callable[..., Any], op: Op, kinds: Iterable[Any]) -> bool:
    patterns = getattr(rule, "patterns", None)
    if patterns is None:
        return True
    return any(
        any(_is_kind(op, head) for head in heads)
        and (not over or any(_is_kind(x, kind) for x in kinds for kind in over))
        for heads, over in patterns
    )


def _is_kind(x: Any, kind: Any) -> bool:
    """Whether an op, or the class of a value that is no application, is of a kind."""
    if isinstance(kind, Op):
        return x is kind
    if not isinstance(kind, type):
        return isinstance(x, Op) and kind(x)
    return issubclass(x, kind) if isinstance(x, type) else isinstance(x, kind)


def rewrite(
    graph: Graph,
    rules: tuple[Rule, ...],
    sharing_rules: tuple[SharingRule, ...] = (),
    settled: dict[Value, tuple[SharingRule, ...]] | None = None,
) -> Graph:
    """Every node replaced by what the rules make of it, inputs first, and so on for what they make; the same
    graph when no rule applied.

    `settled` collects nodes to which no rule without sharing applies, which another round need not ask again,
    each with the sharing rules that may. Raises AssertionError when rules undo each other.
    """
    settled = {} if settled is None else settled
    # What a value becomes: known, or whatever another value becomes.
    new: dict[Value, Value] = {}
    instead: dict[Value, Value] = {}
    uses: dict[Value, int] = {}
    returned = Counter(graph.outputs)
    steps = _MOST_STEPS * (len(graph.nodes) + 1)
    candidates = _dispatch(rules, sharing_rules)
    known = new.__getitem__

    def shared(value: Value) -> bool:
        return uses.get(value, 1) > 1

    def better(node: Apply) -> Value | None:
        sharing = settled.get(node)
        if sharing is None:
            plain, sharing = candidates[_pattern(node)]
            if plain:
                place.move(node.where)
                for rule in plain:
                    if (value := rule(node)) is not None:
                        return value
            settled[node] = sharing
        if sharing:
            place.move(node.where)
            for sharing_rule in sharing:
                if (value := sharing_rule(node, shared)) is not None:
                    return value
        return None

    def step(value: Apply) -> bool:
        """One step of a value whose inputs are known: whether that was the last."""
        nonlocal steps
        node = value.with_inputs(tuple(map(known, value.inputs)))
        made = better(node)
        if made is None:
            new[value] = new[node] = node
            return True
        instead[value] = made
        steps -= 1
        assert steps, "rewriting does not settle: two rules undo each other"
        return False

    def settle(goal: Value) -> None:
        waiting = [goal]
        while waiting:
            value = waiting[-1]
            if value in new:
                waiting.pop()
                continue
            following = instead.get(value)
            if following is not None:
                if following in new:
                    new[value] = new[following]
                    waiting.pop()
                    continue
                waiting.append(following)
                value = following
            if not isinstance(value, Apply):
                new[value] = value
                waiting.pop()
                continue
            missing = [x for x in value.inputs if x not in new]
            if missing:
                waiting += missing
            elif step(value):
                waiting.pop()

    reads = graph.reads if sharing_rules else Counter[Value]()
    with made_at("") as place:
        for node in graph.nodes:
            # Inputs come first: only what rules made of a node may still have some that are not known.
            if node not in new and (not isinstance(node, Apply) or not step(node)):
                settle(node)
            if sharing_rules:
                made = new[node]
                uses[made] = uses.get(made, 0) + reads[node] + returned[node]
    outputs = tuple(map(known, graph.outputs))
    return graph if outputs == graph.outputs else graph_among(graph.inputs, outputs, new.values())


def _is_open(graph: Graph, settled: Mapping[Value, tuple[SharingRule, ...]]) -> bool:
    """Whether a sharing rule applies to a node of a graph whose nodes are settled."""
    returned = Counter(graph.outputs)

    def shared(value: Value) -> bool:
        return graph.reads[value] + returned[value] > 1

    with made_at("") as place:
        for node in graph.nodes:
            for rule in settled.get(node, ()):
                assert isinstance(node, Apply), "rules are asked about applications"
                place.move(node.where)
                if rule(node, shared) is not None:
                    return True
    return False


def fixpoint(
    graph: Graph, rules: tuple[Rule, ...], sharing_rules: tuple[SharingRule, ...] = (), rounds: int = 32
) -> Graph:
    """`rewrite` until it returns the same graph. Raises AssertionError when rules undo each other."""
    settled: dict[Value, tuple[SharingRule, ...]] = {}
    for _ in range(rounds):
        new = rewrite(graph, rules, sharing_rules, settled)
        # Rules without sharing look at no more than a node and what is above it.
        if new is graph or not sharing_rules or not _is_open(new, settled):
            return new
        graph = new
    raise AssertionError(f"rewriting did not settle in {rounds} rounds: two rules undo each other")


def substitute(graph: Graph, values: Mapping[Value, Value]) -> Graph:
    """The graph with nodes replaced by values, which may be computed from nodes that are replaced too."""
    if not values:
        return graph
    new: dict[Value, Value] = {}
    known = new.__getitem__

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
                    meant.with_inputs(tuple(map(known, inputs))) if isinstance(meant, Apply) else meant
                )
            waiting += missing

    for node in graph.nodes:
        if node in values:
            rebuild(node)
        else:
            new[node] = node.with_inputs(tuple(map(known, node.inputs))) if isinstance(node, Apply) else node
    return graph_among(graph.inputs, tuple(map(known, graph.outputs)), new.values())
