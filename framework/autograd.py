"""Backward: the engine that walks the gradient graph, and custom differentiable functions.

Iterative, so that depth is bounded by memory only. Gradients are payloads; with `create_graph` they are
Tensors, and the gradient rules, being ops, record themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ops.movement import expand
from compiler.ops.op import typed_number
from compiler.ops.reduction import sum_to
from compiler.where import user_line
from framework.access import array_beside, beside
from framework.deferred import is_pending
from framework.engine import Walk, accumulate, alias_of, as_tensor
from framework.graph import Edge, Node, Saved, raise_freed, shape_of
from framework.promotion import convert
from framework.state import (
    ambient,
    enable_grad,
    inference_mode,
    is_recording,
    no_grad,
    set_grad_enabled,
    unusual,
)
from framework.tensor import Tensor, edge_of, payload, wrap
from kernels.dtypes import OF_NUMPY, DType
from kernels.gpu import arrays

if TYPE_CHECKING:
    from framework.anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly

__all__ = [
    "Function",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "inference_mode",
    "is_anomaly_enabled",
    "no_grad",
    "once_differentiable",
    "set_detect_anomaly",
    "set_grad_enabled",
]


# Anomaly detection is loaded when it is first used.
_LAZY = ("detect_anomaly", "is_anomaly_enabled", "set_detect_anomaly")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("framework.anomaly"), name)


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Add the gradient of `tensors` to the `.grad` of the leaves (or only of `inputs`) they depend on.

    Shapes: a gradient in `grad_tensors` has the shape of its tensor; a tensor of one element needs none.

    Example::

        >>> x = fw.tensor([3.0], requires_grad=True)
        >>> fw.autograd.backward((x * x).sum())
        >>> x.grad
        tensor([6.])
    """
    if grad_tensors is None and inputs is None and isinstance(tensors, Tensor) and not create_graph:
        one = _one_for(tensors)
        if one is not None:
            Walk(bool(retain_graph), False).run([tensors], [one])
            return
    roots = _sequence(tensors)
    targets = None if inputs is None else _sequence(inputs)
    if targets is not None and not targets:
        raise RuntimeError(
            "`inputs` argument to `backward()` cannot be empty; leave it out to reach every leaf"
        )
    gradients = _root_gradients(roots, _sequence(grad_tensors), create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    if targets is None:
        walk, tracer = Walk(keep, create_graph), ambient.tracer
        if create_graph or tracer is None or not tracer.drives:
            walk.run(roots, gradients)
        else:
            tracer.backward(roots, gradients, keep, functools.partial(walk.run, roots, gradients))
        return
    found = Walk(keep, create_graph, [_edge_of_input(x) for x in targets]).run(roots, gradients)
    for x, g in zip(targets, found, strict=True):
        if g is not None:
            accumulate(x, g, create_graph, fresh=False)


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
    unused input.

    Shapes: a gradient has the shape of its input.

    Example::

        >>> x = fw.tensor([3.0], requires_grad=True)
        >>> fw.autograd.grad((x * x).sum(), x)
        (tensor([6.]),)
    """
    if is_grads_batched:
        raise NotImplementedError("is_grads_batched is not available; call grad once for each row")
    roots, targets = _sequence(outputs), _sequence(inputs)
    gradients = _root_gradients(roots, _sequence(grad_outputs), create_graph)
    keep = create_graph if retain_graph is None else retain_graph
    found = Walk(keep, create_graph, [_edge_of_input(x) for x in targets]).run(roots, gradients)
    results: list[Tensor | None] = [None if g is None else as_tensor(g) for g in found]
    for i, (x, g) in enumerate(zip(targets, results, strict=True)):
        if g is None and materialize_grads:
            results[i] = beside(x, np.zeros(x.shape, x.dtype.numpy))
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
    return tuple(results)


def _zeros(shape: tuple[int, ...], dtype: DType, beside: Sequence[Any]) -> Any:
    """Zeros on the device of the gradients that did arrive."""
    number = arrays.common(g._data if isinstance(g, Tensor) else g for g in beside)
    zeros = np.zeros(shape, dtype.numpy)
    return zeros if number is None else arrays.put(zeros, number)


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


def _one_for(root: Tensor) -> Any:
    """The gradient that a backward pass from a single element in memory begins with; None for any other."""
    data = root._data
    if type(data) is not np.ndarray or data.ndim or (unusual.threads and ambient.detour is not None):
        return None
    return typed_number(1, OF_NUMPY[data.dtype]).copy() if edge_of(root) is not None else None


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
            shape, dtype = shape_of(root), root.dtype
            if math.prod(shape) != 1:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            one = np.ones(shape, dtype.numpy) if shape else typed_number(1, dtype).copy()
            recorded = create_graph or ambient.tracer is not None
            gradients.append(beside(root, one) if recorded else array_beside(root, one))
            continue
        if g.shape != root.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{i}] has a shape of {g.shape} and output[{i}] has a shape "
                f"of {root.shape}."
            )
        gradients.append(convert(g, root.dtype))
    return gradients if create_graph else [payload(g) if isinstance(g, Tensor) else g for g in gradients]


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

    @property
    def is_ours(self) -> bool:  # type: ignore[override]
        """Whether the function is the library's, and so runs no user's code."""
        return self.function.__module__.startswith("framework.")

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
            alias = wrap(entry.data) if is_pending(entry.data) else alias_of(entry)
            if self.edges:
                alias._node, alias._output = self, number
            unpacked.append(alias)
        return tuple(unpacked)

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        given = [
            as_tensor(g) if g is not None else wrap(_zeros(shape, dtype, grads)) if self.materialize else None
            for g, (shape, dtype) in zip(grads, self.shapes, strict=True)
        ]
        if unusual.threads and ambient.detour is not None and ambient.detour is ambient.watch:
            results = ambient.watch.custom(
                self, self.function.__name__, grads, lambda: _tupled(self.function.backward(self, *given))
            )
        else:
            results = self.function.backward(self, *given)
        results = _tupled(results)
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


def _tupled(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


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

    Shapes: any; `backward` gives a gradient of the shape of each input.

    Example::

        >>> class Square(fw.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x * g
        >>> x = fw.tensor([3.0], requires_grad=True)
        >>> Square.apply(x).sum().backward()
        >>> x.grad
        tensor([6.])
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
    if unusual.threads and ambient.watch is not None:
        ambient.watch.lines[ctx] = user_line()
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
        entry = Saved.made(
            payload(x), x._storage, x._version, None if number >= 0 and not is_recording() else x
        )
        ctx.saved.append((entry, number))
    ctx.to_save = ()


def once_differentiable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot itself be differentiated.

    Example::

        >>> class Twice(fw.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return 2 * x
        ...     @staticmethod
        ...     @fw.autograd.once_differentiable
        ...     def backward(ctx, g):
        ...         return 2 * g
        >>> Twice.apply(fw.ones(2))
        tensor([2., 2.])
    """

    @functools.wraps(function)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with no_grad():
            return function(ctx, *grads)

    return wrapped
