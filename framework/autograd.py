"""Backward: the engine that walks the gradient graph, and custom differentiable functions.

Iterative, so that depth is bounded by memory only. Gradients are payloads; with `create_graph` they are
Tensors, and the gradient rules, being ops, record themselves.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.ops.arithmetic import add
from compiler.ops.movement import expand
from compiler.ops.op import run_quietly
from compiler.ops.reduction import sum_to
from framework.deferred import Deferred, is_pending, known
from framework.graph import AccumulateGrad, Edge, Node, OpNode, Saved, TypeOnly, raise_freed
from framework.promotion import convert
from framework.state import (
    _GradMode,
    ambient,
    enable_grad,
    inference_mode,
    is_recording,
    no_grad,
    set_grad_enabled,
)
from framework.tensor import Tensor, edge_of, payload, set_grad, wrap, write
from kernels.memory import is_own

__all__ = [
    "Function",
    "backward",
    "enable_grad",
    "grad",
    "inference_mode",
    "no_grad",
    "once_differentiable",
    "set_grad_enabled",
]


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of `tensors` to the `.grad` of the leaves (or only of `inputs`) they depend on."""
    roots = _sequence(tensors)
    targets = None if inputs is None else _sequence(inputs)
    if targets is not None and not targets:
        raise RuntimeError(
            "`inputs` argument to `backward()` cannot be empty; leave it out to reach every leaf"
        )
    gradients = _root_gradients(roots, _sequence(grad_tensors), create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    if targets is None:
        walk, tracer = _Walk(keep, create_graph), ambient.tracer
        if create_graph or tracer is None or not tracer.drives:
            walk.run(roots, gradients)
        else:
            tracer.backward(roots, gradients, keep, functools.partial(walk.run, roots, gradients))
        return
    found = _Walk(keep, create_graph, [_edge_of_input(x) for x in targets]).run(roots, gradients)
    for x, g in zip(targets, found, strict=True):
        if g is not None:
            _accumulate(x, g, create_graph, fresh=False)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`; `.grad` is left alone. Raises RuntimeError on an
    unused input."""
    if is_grads_batched:
        raise NotImplementedError("is_grads_batched is not available; call grad once for each row")
    roots, targets = _sequence(outputs), _sequence(inputs)
    gradients = _root_gradients(roots, _sequence(grad_outputs), create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    found = _Walk(keep, create_graph, [_edge_of_input(x) for x in targets]).run(roots, gradients)
    results: list[Tensor | None] = [None if g is None else as_tensor(g) for g in found]
    for i, (x, g) in enumerate(zip(targets, results, strict=True)):
        if g is None and materialize_grads:
            results[i] = wrap(np.zeros(x.shape, x.dtype.numpy))
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(results)


def _sequence(x: Any) -> list[Any]:
    if x is None:
        return []
    return [x] if isinstance(x, Tensor) else list(x)


def _edge_of_input(x: Tensor) -> Edge:
    edge = edge_of(x)
    if edge is None:
        raise RuntimeError(
            "One of the differentiated Tensors does not require grad; call requires_grad_() before using it"
        )
    return edge


def _root_gradients(roots: list[Tensor], given: list[Any], create_graph: bool) -> list[Any]:
    if given and len(given) != len(roots):
        raise RuntimeError(
            f"got {len(roots)} tensors and {len(given)} gradients; give one gradient (or None) for each"
        )
    gradients = []
    for i, root in enumerate(roots):
        if edge_of(root) is None:
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
        g = given[i] if given else None
        if g is None:
            if root.numel() != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            g = wrap(np.ones(tuple(root.shape), root.dtype.numpy))
        elif g.shape != root.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a shape "
                f"of {root.shape}."
            )
        g = convert(g, root.dtype)
        gradients.append(g if create_graph else payload(g))
    return gradients


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
            return payload(entry.tensor if entry.tensor is not None else _alias(entry))
        return entry.data
    if kind is TypeOnly:
        return entry.array()
    return payload(entry) if isinstance(entry, Tensor) else entry


def _alias(entry: Saved) -> Tensor:
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


class _Walk:
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
        with _GradMode(self.create_graph):
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
                _accumulate(node.tensor, grads[0], self.create_graph, buffer.fresh[0] and not hooked)
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
    alias = wrap(entry.data) if is_pending(entry.data) else _alias(entry)
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
            _accumulate(tensor, grads[number], create_graph=isinstance(grads[number], Tensor), fresh=False)
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


def _accumulate(t: Tensor, g: Any, create_graph: bool, fresh: bool) -> None:
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


class FunctionCtx(Node):
    """The `ctx` of a custom Function: what forward leaves for backward. It is also the node of its
    outputs."""

    def __init__(self, function: type[Function]) -> None:
        super().__init__(())
        self.function = function
        self.needs_input_grad: tuple[bool, ...] = ()
        self.output_count = 1
        self.shapes: tuple[tuple[Any, Any], ...] = ()
        self.dirty: tuple[Tensor, ...] = ()
        self.not_differentiable: tuple[Tensor, ...] = ()
        self.materialize = True
        self.to_save: tuple[Tensor | None, ...] = ()
        self.input_types: tuple[Any, ...] = ()
        # Each with the number of the output it is, -1 for others.
        self.saved: list[tuple[Saved, int] | None] | None = []

    def name(self) -> str:
        return self.label or f"{self.function.__name__}Backward"

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, which reads them as `saved_tensors`; later in-place changes are
        noticed."""
        self.to_save = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say which inputs forward changed in place."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs have no gradient."""
        self.not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (the default) or None for outputs that no gradient reached."""
        self.materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of `save_for_backward`. Raises RuntimeError when freed or modified since."""
        if self.saved is None:
            raise_freed()
        unpacked: list[Tensor | None] = []
        for item in self.saved:
            if item is None:
                unpacked.append(None)
                continue
            entry, number = item
            entry.check(self)
            if number < 0:
                unpacked.append(entry.tensor)
                continue
            alias = wrap(entry.data) if is_pending(entry.data) else _alias(entry)
            if self.edges:
                alias._node, alias._output = self, number
            unpacked.append(alias)
        return tuple(unpacked)

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        given = [
            as_tensor(g)
            if g is not None
            else wrap(np.zeros(shape, dtype.numpy))
            if self.materialize
            else None
            for g, (shape, dtype) in zip(grads, self.shapes, strict=True)
        ]
        results = self.function.backward(self, *given)
        results = results if isinstance(results, tuple) else (results,)
        expected = len(self.needs_input_grad)
        if len(results) < expected or any(r is not None for r in results[expected:]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {expected}, got "
                f"{len(results)})"
            )
        as_given = any(isinstance(g, Tensor) for g in grads)
        return [
            None if edge is None or r is None else self._fitting(r, i, as_given)
            for i, (edge, r) in enumerate(zip(self.edges, results[:expected], strict=True))
        ]

    def _fitting(self, r: Any, position: int, keep_tensor: bool) -> Any:
        if not isinstance(r, Tensor):
            raise TypeError(
                f"{self.name()} returned a {type(r).__name__} as gradient {position}; return a Tensor or None"
            )
        shape, dtype = self.input_types[position]
        if tuple(r.shape) != shape:
            if not _broadcasts(shape, tuple(r.shape)):
                raise RuntimeError(
                    f"Function {self.name()} returned an invalid gradient at index {position} - got "
                    f"{list(r.shape)} but "
                    f"expected shape compatible with {list(shape)}"
                )
            r = _fit_shape(r, shape)
        r = convert(r, dtype)
        return r if keep_tensor else payload(r)

    def release(self) -> None:
        if self.saved:
            self.saved = None


def _broadcasts(shape: tuple[int, ...], have: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, have) in (shape, have)
    except ValueError:
        return False


def _fit_shape(r: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) <= r.ndim and np.broadcast_shapes(shape, tuple(r.shape)) == tuple(r.shape):
        return sum_to(r, shape)
    return expand(r, shape=shape)


class Function:
    """Base of custom differentiable functions: static `forward(ctx, *args)` and `backward(ctx, *gradients)`.

    With a static `setup_context(ctx, inputs, output)`, forward takes no ctx. Call it as `Name.apply(*args)`.
    """

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; runs without recording."""
        raise NotImplementedError("a Function must define a static forward(ctx, *args)")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what backward needs."""
        raise NotImplementedError("define setup_context(ctx, inputs, output), or let forward take ctx first")

    @staticmethod
    def backward(*args: Any, **kwargs: Any) -> Any:
        """`backward(ctx, *gradients)`: one gradient, or None, per argument of forward."""
        raise NotImplementedError(
            "a Function must define a static backward(ctx, *gradients) to be differentiated"
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward and record backward as its gradient."""
        edges = tuple(edge_of(x) if isinstance(x, Tensor) and ambient.grad_enabled else None for x in args)
        # Made after the edges: a node is numbered after its inputs' nodes.
        ctx = FunctionCtx(cls)
        ctx.needs_input_grad = tuple(edge is not None for edge in edges)
        ctx.input_types = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else None for x in args)
        with no_grad():
            if cls.setup_context is Function.setup_context:
                output = cls.forward(ctx, *args, **kwargs)
            else:
                output = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, output)
        outputs = output if isinstance(output, tuple) else (output,)
        outputs = tuple(_own_output(ctx, x, args) for x in outputs)
        if any(edge is not None for edge in edges):
            _attach(ctx, edges, outputs)
        _save(ctx, outputs)
        return outputs if isinstance(output, tuple) else outputs[0]


def _own_output(ctx: FunctionCtx, x: Any, args: tuple[Any, ...]) -> Any:
    """An input returned unchanged becomes a tensor of its own, so that its history is not overwritten."""
    if isinstance(x, Tensor) and any(x is a for a in args) and all(x is not d for d in ctx.dirty):
        return x.detach()
    return x


def _attach(ctx: FunctionCtx, edges: tuple[Edge | None, ...], outputs: tuple[Any, ...]) -> None:
    ctx.edges = edges
    tensors = [x for x in outputs if isinstance(x, Tensor)]
    ctx.output_count = len(outputs)
    ctx.shapes = tuple((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else ((), None) for x in outputs)
    for number, x in enumerate(outputs):
        if x is None or all(x is not t for t in tensors):
            continue
        if any(x is t for t in ctx.not_differentiable) or not x.dtype.is_floating_point:
            continue
        x._node, x._output, x._requires_grad = ctx, number, False


def _save(ctx: FunctionCtx, outputs: tuple[Any, ...]) -> None:
    ctx.saved = []
    for x in ctx.to_save:
        if x is None:
            ctx.saved.append(None)
            continue
        number = next((i for i, out in enumerate(outputs) if out is x), -1)
        entry = Saved(payload(x), x._storage, x._version, None if number >= 0 and not is_recording() else x)
        ctx.saved.append((entry, number))
    ctx.to_save = ()


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot itself be differentiated."""

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            return function(ctx, *grads)

    return wrapped
