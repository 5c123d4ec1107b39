"""The engine of backward passes: walks the gradient graph from roots to leaves, hooks included.

Knows nodes, gradients and accumulation; what a user calls is autograd.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.ops.arithmetic import add
from compiler.ops.quiet import run_quietly
from compiler.where import made_at, user_line
from framework.deferred import Deferred, is_pending, known
from framework.graph import Edge, Node, OpNode, Saved, TypeOnly
from framework.state import GradMode, ambient, is_recording, unusual
from framework.tensor import Tensor, edge_of, payload, set_grad, wrap, write
from framework.watch import unwatched
from kernels.gpu import arrays
from kernels.memory import is_own


def as_tensor(g: Any) -> Tensor:
    """A gradient as a Tensor, whether it is one or a payload."""
    return g if isinstance(g, Tensor) else wrap(g)


def _arrays(node: OpNode) -> list[Any]:
    """What a node's rules read, outside a capture."""
    arguments = []
    for entry in node.saved or ():
        if type(entry) is Saved:
            storage, data = entry.storage, entry.data
            if storage is not None and storage.writes + storage.clock.time != entry.version:
                entry.check(node)
            arguments.append(data if type(data) is np.ndarray else _in_memory(entry))
        elif entry is None or type(entry) is TypeOnly:
            arguments.append(entry)  # of what is only a type rules read no more than shape and dtype
        else:
            arguments.append(payload(entry) if isinstance(entry, Tensor) else entry)
    return arguments


def _in_memory(entry: Saved) -> Any:
    """A value that was saved deferred: what memory holds, as eagerly, where `.data` may have written."""
    t = entry.tensor
    if t is not None and t._data is not None and t._storage is entry.storage:
        return t._data
    return known(entry.data)


def _payloads(node: OpNode) -> list[Any]:
    """What a node's rules read, in a capture."""
    saved = node.saved or ()
    for entry in saved:
        if type(entry) is Saved:
            entry.check(node)
    return [_payload(entry) for entry in saved]


def _payload(entry: Any) -> Any:
    kind = type(entry)
    if kind is Saved:
        tracer = ambient.tracer
        if arrays.is_array(entry.data):
            # Recorded before this capture: the program must read it anew at each run.
            return payload(entry.tensor if entry.tensor is not None else alias_of(entry))
        if tracer.unversioned and entry.storage is not None and entry.tensor is not None:
            return payload(entry.tensor)  # what is in memory now
        return entry.data
    if kind is TypeOnly:
        return entry.array()
    return payload(entry) if isinstance(entry, Tensor) else entry


def _tensors(node: OpNode) -> list[Any]:
    """What a node's rules read, as Tensors, so that they record themselves."""
    saved = node.saved or ()
    for entry in saved:
        if type(entry) is Saved:
            entry.check(node)
    return [_tensor(node, entry) for entry in saved]


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
        self.buffers: dict[Any, _Buffer] = {}
        self.heap: list[tuple[int, Node]] = []
        # Contributions that leaves still wait for.
        self.awaited: dict[Tensor, int] = {}
        self.needed: set[Any] | None = None
        # What gives the gradients of an op's node; a watch or a recording puts its own way here.
        self.rule: Callable[..., list[Any]] = OpNode.gradients

    def run(self, roots: list[Tensor], gradients: list[Any]) -> list[Any]:
        """Send `gradients` back from `roots`; the gradients of the targets, None where nothing arrived."""
        self.unpack = _tensors if self.create_graph else _arrays if ambient.tracer is None else _payloads
        detour = ambient.detour if unusual.threads else None
        if detour is not None and not detour.drives:
            self.rule = detour.rule
        edges: list[Edge] = [edge for root in roots if (edge := edge_of(root)) is not None]
        fresh = False
        if self.targets is None and len(edges) == 1 and not self.create_graph:
            end = self._descend(edges[0], gradients[0])
            if end is None:
                return []
            edges, gradients, fresh = [end[0]], [end[1]], end[2]
        if self.create_graph or unusual.threads:
            with GradMode(self.create_graph):
                if is_recording() and _is_ours(edges):
                    with made_at(user_line()):
                        unwatched(self._walk, edges, gradients, fresh)
                else:
                    self._walk(edges, gradients, fresh)
        else:
            self._walk(edges, gradients, fresh)
        return [] if self.targets is None else [self.found.get(edge) for edge in self.targets]

    def _descend(self, edge: Edge, g: Any) -> tuple[Edge, Any, bool] | None:
        """Follow the edges while there is one at a time: nothing is awaited on the way, and nobody's code
        runs. Gives where that ends with the gradient there, and whether it is fresh; None when all is done.
        """
        made = False
        while type(node := edge[0]) is OpNode and len(node.edges) == 1:
            if node.hooks or node.retained:
                break
            (following,) = node.edges
            (result,) = self.rule(node, [g], self.unpack)
            made = result is not g
            if not self.retain_graph:
                node.release()
            if following is None:
                return None
            edge, g = following, result
        fresh = made and _is_fresh(g)
        if not isinstance(node, Tensor) or node._hooks or node._post_accumulate_hooks:
            return edge, g, fresh
        accumulate(node, g, False, fresh)
        return None

    def _walk(self, edges: list[Edge], gradients: list[Any], fresh: bool) -> None:
        """Visit every node below `edges` once, when all its users have been visited."""
        if self.targets is not None:
            self.needed = _leading_to({node for node, _ in self.targets}, [node for node, _ in edges])
        self._count(edges)
        for edge, g in zip(edges, gradients, strict=True):
            self._send(edge, g, fresh)
        while self.heap:
            _, node = heapq.heappop(self.heap)
            self._visit(node, self.buffers.pop(node))
        # Some of what these waited for never came.
        for leaf in list(self.buffers):
            self._complete(leaf)

    def _count(self, edges: list[Edge]) -> None:
        """Count the contributions that each leaf will get."""
        seen: set[Node] = set()
        nodes = [node for node, _ in edges]
        while nodes:
            node = nodes.pop()
            if isinstance(node, Tensor):
                self.awaited[node] = self.awaited.get(node, 0) + 1
            elif node not in seen and (self.needed is None or node in self.needed):
                seen.add(node)
                nodes += [edge[0] for edge in node.edges if edge is not None]

    def _send(self, edge: Edge, g: Any, fresh: bool) -> None:
        node, number = edge
        if self.needed is not None and node not in self.needed:
            return
        is_leaf, awaited = isinstance(node, Tensor), 0
        if is_leaf:
            awaited = self.awaited[node] = self.awaited[node] - 1
        buffer = self.buffers.get(node)
        if buffer is None:
            if is_leaf and not awaited and g is not None:
                return self._arrive(node, [g], fresh)  # all that it gets
            buffer = self.buffers[node] = _Buffer(1 if is_leaf else node.output_count)
            # Nodes are numbered after their inputs: the highest number has heard from everyone. Leaves are
            # not numbered.
            if not is_leaf:
                heapq.heappush(self.heap, (-node.sequence, node))
        if g is not None:
            buffer.add(number, g, fresh)
        if is_leaf and not awaited:
            self._complete(node)

    def _complete(self, leaf: Tensor) -> None:
        """Hand on what a leaf has got."""
        buffer = self.buffers.pop(leaf)
        if buffer.grads[0] is not None:
            self._arrive(leaf, buffer.grads, buffer.fresh[0])

    def _visit(self, node: Node, buffer: _Buffer) -> None:
        grads = buffer.grads
        if node.hooks or node.retained:
            with GradMode(self.create_graph):
                _run_hooks(node, grads)
        if self.targets is not None:
            self._note(node, grads)
        if self.needed is not None and not any(
            edge is not None and edge[0] in self.needed for edge in node.edges
        ):
            return
        ours = isinstance(node, OpNode)  # what a user's backward returns may be held elsewhere
        if ours:
            results = self.rule(node, grads, self.unpack)
        else:
            with GradMode(self.create_graph):
                results = node.gradients(grads, self.unpack)
        for edge, g in zip(node.edges, results, strict=True):
            if edge is not None and (g is not None or isinstance(edge[0], Tensor)):
                self._send(edge, g, ours and g is not grads[0] and _is_fresh(g))
        if not self.retain_graph:
            node.release()

    def _arrive(self, leaf: Tensor, grads: list[Any], fresh: bool) -> None:
        """Hand the gradient of a leaf to who asked for it."""
        if leaf._hooks:
            with GradMode(self.create_graph):
                for hook in list(leaf._hooks.values()):
                    grads[0], fresh = _hooked(hook, grads[0]), False
        if self.targets is None:
            accumulate(leaf, grads[0], self.create_graph, fresh)
        else:
            self._note(leaf, grads)

    def _note(self, node: Node | Tensor, grads: list[Any]) -> None:
        for edge in self.targets or ():
            if edge[0] is node:
                self.found[edge] = grads[edge[1]]


def _is_ours(edges: Sequence[Edge]) -> bool:
    """Whether nothing of a user's runs on the way back from `edges`: no hook, no custom function."""
    seen = {node for node, _ in edges}
    nodes = list(seen)
    while nodes:
        node = nodes.pop()
        if isinstance(node, Tensor):
            hooked = node._hooks or node._post_accumulate_hooks
            if hooked or not type(node).__module__.startswith("framework."):
                return False
            continue
        if node.hooks or not (type(node) is OpNode or node.is_ours):
            return False
        for edge in node.edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                nodes.append(edge[0])
    return True


def _is_fresh(g: Any) -> bool:
    """Whether a rule that did not hand on a gradient made `g` itself: it is no view."""
    if isinstance(g, np.ndarray):
        return is_own(g) and g.flags.writeable
    return arrays.is_device(g) and g.base is None


def _tensor(node: Node, entry: Any) -> Any:
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


def _leading_to(targets: set[Any], roots: Sequence[Any]) -> set[Any]:
    """The nodes and leaves below `roots` from which a target can be reached, targets included."""
    users: dict[Any, list[Node]] = {}
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if isinstance(node, Tensor):
            continue
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


def _run_hooks(node: Node, grads: list[Any]) -> None:
    """Let hooks see and replace the gradients of one node's outputs."""
    for number, hooks in (node.hooks or {}).items():
        for hook in list(hooks.values()):
            if grads[number] is not None:
                grads[number] = _hooked(hook, grads[number])
    for number, reference in (node.retained or {}).items():
        tensor = reference()
        if tensor is not None and grads[number] is not None:
            accumulate(tensor, grads[number], create_graph=isinstance(grads[number], Tensor), fresh=False)


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


def _placed(t: Tensor, g: Any) -> Any:
    """A gradient where `t` is: one that is all zeros or ones may have been made on the host."""
    number = arrays.number_of(t._data)
    return arrays.get(g) if number is None else arrays.put(g, number)


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
        elif arrays.is_array(g):
            if type(g) is not np.ndarray or type(t._data) is not np.ndarray:
                g = _placed(t, g)
            g = g if fresh else arrays.copied(g)
        set_grad(t, wrap(g))
    else:
        write(before, add(payload(before), payload(g) if isinstance(g, Tensor) else g))
    if t._post_accumulate_hooks:
        with GradMode(create_graph):
            for hook in list(t._post_accumulate_hooks.values()):
                hook(t)
