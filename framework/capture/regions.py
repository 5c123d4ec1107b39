"""Parts of our own Python that a driven call need not run again: an optimizer's step, a backward pass.

What such a part records depends on the nodes it starts from; where those are the ones of an earlier call,
so is the outcome. Knows drivers and the gradient graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir import Value
from framework.capture.known import CallNode
from framework.capture.observe import is_own_class
from framework.deferred import Deferred
from framework.graph import Edge, Node, OpNode, Saved, TypeOnly, shape_of
from framework.optim.optimizer import Optimizer
from framework.storage import root_of
from framework.tensor import Tensor, edge_of
from kernels.memory import is_own

if TYPE_CHECKING:
    from framework.capture.driver import Driver

TENSOR, GRADIENT, SCALAR = range(3)
# Outcomes kept for one stretch: with gradients or without, warm-up or not.
MOST_OUTCOMES = 8


class Outcome:
    """What one run of a stretch read and did; `valid` while that is all known."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        # (kind, tensor, leaf or read function, the node it had), in the order met.
        self.reads: list[tuple[int, Any, Value]] = []
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        # (a leaf's new gradient | a write to a leaf's gradient | a write to a tensor, leaf or tensor, node).
        self.effects: list[tuple[str, Tensor, Value]] = []
        gradients = [t._grad for t in leaves if t._grad is not None]
        self.leaf_of = {id(t._grad): t for t in leaves if t._grad is not None}
        # What is read or written, and must not share memory: (TENSOR or GRADIENT, tensor or leaf).
        self.met: list[tuple[int, Tensor]] = []
        self.seen: set[int] = set()
        self.made: dict[int, Tensor] = {}
        # Two leaves with one gradient are told apart by it.
        self.valid = len(self.leaf_of) == len(gradients)

    def finish(self) -> None:
        """Let go of what only recording needs."""
        met = {(kind, id(thing)): thing for kind, thing, _ in self.reads if kind != SCALAR}
        kinds = {"write": TENSOR, "accumulate": GRADIENT}
        met.update({(kinds[e], id(t)): t for e, t, _ in self.effects if e in kinds})
        self.met = [(kind, t) for (kind, _), t in met.items()]
        self.valid = self.valid and self._is_apart()
        self.leaf_of, self.made = {}, {}
        self.seen = set()

    def read(self, t: Tensor, value: Deferred) -> None:
        """Note that `t` was looked at; `value` is what it had before the stretch."""
        if id(t) in self.seen or id(t) in self.made:
            return
        self.seen.add(id(t))
        leaf = self.leaf_of.get(id(t))
        if leaf is not None:
            self.reads.append((GRADIENT, leaf, value.node))
        elif t._data is not None:
            self.reads.append((TENSOR, t, value.node))
        else:
            self.valid = False

    def scalar(self, t: Tensor, read: Callable[[], float], node: Value) -> None:
        """Note a number that every call reads anew."""
        self.seen.add(id(t))
        self.made[id(t)] = t
        self.reads.append((SCALAR, read, node))

    def write(self, t: Tensor, node: Value) -> None:
        """Note that `t`, no view, was overwritten."""
        leaf = self.leaf_of.get(id(t))
        if leaf is not None:
            self.effects.append(("accumulate", leaf, node))
        elif t._data is not None and id(t) not in self.made:
            self.effects.append(("write", t, node))
        elif id(t) not in self.made:
            self.valid = False

    def _is_apart(self) -> bool:
        """Whether no two tensors that are read or written share memory: nodes do not tell."""
        memory = [_memory(t if kind == TENSOR else t._grad) for kind, t in self.met]
        return len(set(memory)) == len(memory)

    def happens_again(self, driver: Driver) -> bool:
        """Whether this call meets the same nodes; then the effects are carried out."""
        for read, value in self.guards:
            if read() != value:
                return False
        for kind, thing, node in self.reads:
            if kind == SCALAR:
                found = driver.number(thing)
            else:
                t = thing if kind == TENSOR else thing._grad
                if t is None:
                    return False
                found = driver.node_in(t)
            if found is not node:
                return False
        if not self._is_apart():
            return False
        for effect, t, _ in self.effects:
            if effect != "gradient" and not _is_alone(t if effect == "write" else t._grad):
                return False
        for effect, t, node in self.effects:
            value = driver.value(node)
            if effect == "gradient":
                driver.set_grad(t, driver.tensor(value))
            else:
                target = t if effect == "write" else t._grad
                assert target is not None, "its gradient was read"
                driver.overwrite(target, value)
        return True


def _is_alone(t: Tensor | None) -> bool:
    """Whether a write to `t` can wait: nobody views its memory unknown to us."""
    return t is not None and (t._data is None or is_own(t._data))


def _memory(t: Tensor | None) -> int:
    """Identity of the memory that `t` is or views."""
    assert t is not None, "a gradient that was read is there"
    while t._base is not None:
        t = t._base
    data = t._data
    if data is None:
        return id(t)
    return id(data if data.base is None else root_of(data))


def again(driver: Driver, key: Any, leaves: Callable[[], Sequence[Tensor]], body: Callable[[], Any]) -> bool:
    """Do what `body` did when it was run under this key before; else run it. Whether it was not run."""
    driver.depth += 1
    try:
        return _again(driver, driver.book.outcomes.setdefault(key, []), leaves, body)
    finally:
        driver.depth -= 1
        driver.settle()


def _again(
    driver: Driver, known: list[Outcome], leaves: Callable[[], Sequence[Tensor]], body: Callable[[], Any]
) -> bool:
    if any(outcome.happens_again(driver) for outcome in known):
        return True
    if driver.outcome is not None or len(known) >= MOST_OUTCOMES:
        body()
        return False
    driver.outcome = outcome = Outcome(leaves())
    stretch = driver.stretch
    try:
        body()
    finally:
        driver.outcome = None
    outcome.finish()
    if outcome.valid and driver.stretch is stretch:
        known.append(outcome)
    return False


def optimizer_step(driver: Driver, optimizer: Optimizer, body: Callable[[], Any]) -> None:
    """An optimizer's update; a user's own is Python of which nothing is known."""
    if not is_own_class(type(optimizer)):
        body()
        return
    key: list[Any] = [optimizer]
    for group in optimizer.param_groups:
        key.append(id(group))
        for p in group["params"]:
            key += (id(p), p._grad is None)
            held = optimizer.state.get(p)
            if held is not None:
                key += [id(v) if isinstance(v, Tensor) else repr(v) for v in held.values()]
    again(driver, tuple(key), lambda: [p for g in optimizer.param_groups for p in g["params"]], body)


def backward(
    driver: Driver, roots: list[Tensor], gradients: list[Any], keep: bool, body: Callable[[], Any]
) -> None:
    """A backward pass that adds to `.grad`."""
    nodes: dict[Node | Tensor, int] = {}
    key = _signature([edge_of(root) for root in roots], nodes)
    seeds = [g.node for g in gradients if type(g) is Deferred and g.stretch is driver.stretch]
    if key is None or len(seeds) < len(gradients):
        body()
        return
    leaves = [n for n in nodes if isinstance(n, Tensor)]
    if again(driver, (*seeds, *key), lambda: leaves, body) and not keep:
        for node in nodes:
            if isinstance(node, Node):
                node.release()


def _signature(roots: list[Edge | None], nodes: dict[Node | Tensor, int]) -> list[Any] | None:
    """What a backward pass from `roots` depends on; None where that is more than ops and fresh values. Fills
    `nodes`.
    """
    key: list[Any] = []
    stack: list[Node | Tensor] = []

    def number(edge: Edge | None) -> Any:
        if edge is None:
            return None
        node = edge[0]
        known = nodes.get(node)
        if known is None:
            known = nodes[node] = len(nodes)
            stack.append(node)
        return known, edge[1]

    key.append(tuple([number(edge) for edge in roots]))
    while stack:
        node = stack.pop()
        if type(node) is CallNode:
            if node.hooks or node.retained or not node.call.unchanged():
                return None
            key.append(node.call.known)
            key += map(number, node.call.edges)
        elif type(node) is OpNode:
            if node.hooks or node.retained or node.saved is None:
                return None
            entries = [_entry(entry) for entry in node.saved]
            if None in entries:
                return None
            key += (node.op, exact_key(node.attrs), node.positions, node.shapes, *entries)
            key += map(number, node.edges)
        elif isinstance(node, Tensor):
            if node._hooks or node._post_accumulate_hooks:
                return None
            key += (id(node), shape_of(node), node._grad is None)
        else:
            return None
    return key


def exact_key(attrs: Mapping[str, Any]) -> Any:
    """Attributes as a key that tells 1, 1.0 and True, and 0.0 and -0.0, apart."""
    return tuple([(k, type(v), v.hex()) if type(v) is float else (k, type(v), v) for k, v in attrs.items()])


def _entry(entry: Any) -> Any:
    """A saved value as part of a key; None where it is not of this stretch."""
    kind = type(entry)
    if kind is Saved:
        data, storage = entry.data, entry.storage
        if type(data) is not Deferred or not data.stretch.open:
            return None
        if storage is None or storage.version != entry.version:  # written since, or kept as it was before
            return None
        return data.node
    if kind is TypeOnly:
        return entry.shape, entry.dtype
    if entry is None:
        return ()
    if isinstance(entry, np.ndarray) and entry.ndim == 0:
        return entry.dtype, entry.tobytes()
    return None
