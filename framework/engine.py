"""The engine of backward passes: walks the gradient graph from roots to leaves, hooks included.

Knows nodes, gradients and accumulation; what a user calls is autograd.py.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.ops.arithmetic import add
from compiler.ops.op import run_quietly
from framework.deferred import Deferred, is_pending, known
from framework.graph import AccumulateGrad, Edge, Node, OpNode, Saved, TypeOnly
from framework.state import GradMode, ambient
from framework.tensor import Tensor, edge_of, payload, set_grad, wrap, write
from kernels.memory import is_own


def as_tensor(g: Any) -> Tensor:
    """A gradient as a Tensor, whether it is one or a payload."""
    return g if isinstance(g, Tensor) else wrap(g)


def _unpack_payload(entry: Any) -> Any:
    kind = type(entry)
    if kind is Saved:
        tracer = ambient.tracer
        if tracer is None:
            return known(entry.data)
        if isinstance(entry.data, np.ndarray):
            # Recorded before this capture: the program must read it anew at each run.
            return payload(entry.tensor if entry.tensor is not None else alias_of(entry))
        if tracer.unversioned and entry.storage is not None and entry.tensor is not None:
            return payload(entry.tensor)  # what is in memory now
        return entry.data
    if kind is TypeOnly:
        return entry.array()
    return payload(entry) if isinstance(entry, Tensor) else entry


def alias_of(entry: Saved) -> Tensor:
    """A tensor of a saved value, which shares its version."""
    alias = object.__new__(Tensor)
    alias._data = known(entry.data)
    if entry.storage is not None:
        alias._storage = entry.storage
    return alias


class _Buffer:
    """Gradients that have arrived at one node, one per output, and whether the engine alone holds each."""

    __slots__ = ("fresh", "grads")

    def __init__(self, count: int) -> None:
        self.grads: list[Any] = [None] * count
        self.fresh = [False] * count

    def add(self, number: int, g: Any, fresh: bool) -> None:
        """Add one more contribution to output `number`."""
        known = self.grads[number]
        if known is None:
            self.grads[number], self.fresh[number] = g, fresh
        elif self.fresh[number] and isinstance(known, np.ndarray) and isinstance(g, np.ndarray):
            run_quietly(np.add, known, g, known)
        else:
            self.grads[number], self.fresh[number] = add(known, g), True


class Walk:
    """One backward pass. With `targets`, only paths that lead to those edges are walked and their gradients
    returned."""

    def __init__(self, retain_graph: bool, create_graph: bool, targets: list[Edge] | None = None) -> None:
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.targets = targets
        self.found: dict[Edge, Any] = {}
        self.buffers: dict[Node, _Buffer] = {}
        self.heap: list[tuple[int, Node]] = []
        # Contributions that accumulators still wait for.
        self.awaited: dict[Node, int] = {}
        self.needed: set[Node] | None = None

    def run(self, roots: list[Tensor], gradients: list[Any]) -> list[Any]:
        """Send `gradients` back from `roots`; the gradients of the targets, None where nothing arrived."""
        edges = [edge_of(root) for root in roots]
        if self.targets is not None:
            self.needed = _leading_to(
                {node for node, _ in self.targets}, [edge[0] for edge in edges if edge is not None]
            )
        self._count([edge for edge in edges if edge is not None])
        with GradMode(self.create_graph):
            for edge, g in zip(edges, gradients, strict=True):
                assert edge is not None, "roots were checked"
                self._send(edge, g, fresh=False)
            while self.heap:
                _, node = heapq.heappop(self.heap)
                self._visit(node, self.buffers.pop(node))
            # Some of what these waited for never came.
            for node in list(self.buffers):
                self._complete(node)
        return [] if self.targets is None else [self.found.get(edge) for edge in self.targets]

    def _count(self, edges: list[Edge]) -> None:
        """Count the contributions that each accumulator will get."""
        seen: set[Node] = set()
        nodes: list[Node] = [node for node, _ in edges]
        while nodes:
            node = nodes.pop()
            if type(node) is AccumulateGrad:
                self.awaited[node] = self.awaited.get(node, 0) + 1
            elif node not in seen and (self.needed is None or node in self.needed):
                seen.add(node)
                nodes += [edge[0] for edge in node.edges if edge is not None]

    def _send(self, edge: Edge, g: Any, fresh: bool) -> None:
        node, number = edge
        if self.needed is not None and node not in self.needed:
            return
        accumulates = type(node) is AccumulateGrad
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = _Buffer(node.output_count)
            # Nodes are numbered after their inputs: the highest number has heard from everyone. Not so
            # accumulators: they live as long as anybody uses the leaf, and are numbered by the first.
            if not accumulates:
                heapq.heappush(self.heap, (-node.sequence, node))
        if g is not None:
            buffer.add(number, g, fresh)
        if accumulates:
            self.awaited[node] -= 1
            if not self.awaited[node]:
                self._complete(node)

    def _complete(self, accumulator: Node) -> None:
        """Hand on what an accumulator has got."""
        buffer = self.buffers.pop(accumulator)
        if buffer.grads[0] is not None:
            self._visit(accumulator, buffer)

    def _visit(self, node: Node, buffer: _Buffer) -> None:
        grads = buffer.grads
        hooked = False
        if isinstance(node, AccumulateGrad) or node.hooks or node.retained:
            hooked = _run_hooks(node, grads)
        if self.targets is not None:
            for edge in self.targets:
                if edge[0] is node:
                    self.found[edge] = grads[edge[1]]
        if isinstance(node, AccumulateGrad):
            if self.targets is None:
                accumulate(node.tensor, grads[0], self.create_graph, buffer.fresh[0] and not hooked)
            return
        if self.needed is not None and not any(
            edge is not None and edge[0] in self.needed for edge in node.edges
        ):
            return
        results = node.gradients(grads, self._unpack(node))
        for edge, g in zip(node.edges, results, strict=True):
            if edge is not None and (g is not None or type(edge[0]) is AccumulateGrad):
                # What a user's backward returns may be held elsewhere.
                self._send(edge, g, fresh=isinstance(node, OpNode) and _is_fresh(g, grads))
        if not self.retain_graph:
            node.release()

    def _unpack(self, node: Node) -> Callable[[Any], Any]:
        return functools.partial(_unpack_tensor, node) if self.create_graph else _unpack_payload


def _is_fresh(g: Any, grads: list[Any]) -> bool:
    """Whether a rule made `g` itself: not the incoming gradient, not a view."""
    return (
        isinstance(g, np.ndarray)
        and is_own(g)
        and g.flags.writeable
        and (g is not grads[0] if len(grads) == 1 else all(g is not other for other in grads))
    )


def _unpack_tensor(node: Node, entry: Any) -> Any:
    kind = type(entry)
    if kind is TypeOnly:
        return wrap(entry.array())
    if kind is not Saved:
        return entry
    if entry.tensor is not None and entry.storage is not None:
        return entry.tensor
    alias = wrap(entry.data) if is_pending(entry.data) else alias_of(entry)
    if entry.storage is None:
        alias = wrap(known(entry.data) if ambient.tracer is None else entry.data)
    if entry.tensor is None:
        alias._node = node
    else:
        edge = entry.edge
        if edge is not None:
            alias._node, alias._output = edge
    return alias


def _leading_to(targets: set[Node], roots: Sequence[Node]) -> set[Node]:
    """The nodes below `roots` from which a target can be reached, targets included."""
    users: dict[Node, list[Node]] = {}
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        for edge in node.edges:
            if edge is None:
                continue
            users.setdefault(edge[0], []).append(node)
            if edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    needed = targets & seen
    stack = list(needed)
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in needed:
                needed.add(user)
                stack.append(user)
    return needed


def _run_hooks(node: Node, grads: list[Any]) -> bool:
    """Let hooks see and replace the gradients of one node's outputs; whether there were any."""
    by_output: Mapping[int, Mapping[int, Callable[..., Any]]]
    if isinstance(node, AccumulateGrad):
        by_output = {0: node.tensor._hooks} if node.tensor._hooks else {}
    else:
        by_output = node.hooks or {}
    for number, hooks in by_output.items():
        for hook in list(hooks.values()):
            if grads[number] is not None:
                grads[number] = _hooked(hook, grads[number])
    for number, reference in (node.retained or {}).items():
        tensor = reference()
        if tensor is not None and grads[number] is not None:
            accumulate(tensor, grads[number], create_graph=isinstance(grads[number], Tensor), fresh=False)
    return bool(by_output)


def _hooked(hook: Callable[..., Any], g: Any) -> Any:
    given = as_tensor(g)
    result = hook(given)
    if result is None:
        return g
    if not isinstance(result, Tensor):
        raise TypeError(f"a gradient hook must return a Tensor or None, got {type(result).__name__}")
    if result.shape != given.shape:
        raise RuntimeError(
            f"hook has changed the size of value: from {list(given.shape)} to {list(result.shape)}"
        )
    return result if isinstance(g, Tensor) else payload(result)


def accumulate(t: Tensor, g: Any, create_graph: bool, fresh: bool) -> None:
    """Add `g` to `t.grad`. `fresh`: nobody else holds the array, so it may become the gradient itself."""
    before = t.grad
    if create_graph:
        given = as_tensor(g)
        set_grad(t, given if before is None else add(before, given))
    elif before is None:
        g = payload(g) if isinstance(g, Tensor) else g
        if isinstance(g, Deferred):
            g = g.kept()
        elif isinstance(g, np.ndarray) and not fresh:
            g = np.array(g, order="C")
        set_grad(t, wrap(g))
    else:
        write(before, add(payload(before), payload(g) if isinstance(g, Tensor) else g))
    if t._post_accumulate_hooks:
        for hook in list(t._post_accumulate_hooks.values()):
            hook(t)
