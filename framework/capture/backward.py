"""The compiled backward of a compiled forward: a second program, built when it is first needed.

Recording the gradient rules splits their graph in two: what depends on the incoming gradients is the backward
program; the forward values it reads are kept by the forward program. Knows graphs and nodes of the gradient
tape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.errors import TraceError
from compiler.ir import Apply, Const, Graph, Input, Measure, Value
from compiler.ops.op import Movement
from compiler.plan import Request
from compiler.program import Arena, Executable
from compiler.types import TensorType
from framework import autograd
from framework.capture.tracer import Source, Tracer
from framework.deferred import known
from framework.graph import Node, Saved, raise_freed
from framework.tensor import Tensor, edge_of

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Backward:
    """What one variant needs to differentiate its results.

    `targets` are the sources (by number) that get gradients; `kept` the forward values the backward reads,
    `sources` the numbers of program inputs it reads; the program's inputs are gradients, kept values, inputs,
    in this order.
    """

    targets: list[int]
    kept: list[Value]
    sources: list[int]
    graph: Graph
    arena: Arena | None = None
    # A program is not run by two threads at once, nor are those that share an arena.
    lock: threading.RLock = field(default_factory=threading.RLock)
    _program: list[Executable] = field(default_factory=list)

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the backward program; it is built at the first backward."""
        with self.lock:
            if not self._program:
                self._program.append(Executable(Request(self.graph), self.arena))
            return self._program[0](*arrays)


def record_backward(roots: Sequence[Tensor], sources: Sequence[Source], tracer: Tracer) -> Backward | None:
    """Record the gradients of `roots` with respect to every source that requires one; None when none does."""
    numbers = [i for i, s in enumerate(sources) if s.owner.requires_grad]
    if not numbers:
        return None
    seeds = [Input(TensorType(tuple(r.shape), r.dtype), name=f"gradient{i}") for i, r in enumerate(roots)]
    owners = [sources[i].owner for i in numbers]
    found = autograd.grad(roots, owners, [tracer.wrap(s) for s in seeds], allow_unused=True)
    reached = [(i, g) for i, g in zip(numbers, found, strict=True) if g is not None]
    outputs = tuple(tracer.read(g) for _, g in reached)
    kept, inputs, graph = _split(seeds, outputs, {s.input: i for i, s in enumerate(sources)})
    return Backward([i for i, _ in reached], kept, inputs, graph)


def _split(
    seeds: list[Input], outputs: tuple[Value, ...], numbers: dict[Input | None, int]
) -> tuple[list[Value], list[int], Graph]:
    """Cut a gradient graph below the seeds: (forward values it reads, program inputs it reads, the rest as a
    graph).
    """
    depends: set[Value] = set(seeds)
    new: dict[Value, Value] = {s: s for s in seeds}
    kept: dict[Value, Input] = {}
    read: dict[Value, Input] = {}

    def operand(x: Value) -> Value:
        if x in new:
            return new[x]
        if isinstance(x, Const | Measure) or (isinstance(x, Apply) and not x.inputs):
            return x
        if isinstance(x, Apply) and isinstance(x.op, Movement):
            # A view costs nothing: keep what it views.
            return new.setdefault(x, x.with_inputs((operand(x.inputs[0]),)))
        if isinstance(x, Input) and x not in numbers:
            raise TraceError("a gradient depends on a runtime scalar: call backward() inside @compile")
        table = read if isinstance(x, Input) else kept
        return table.setdefault(x, Input(x.type, name=f"kept{len(table)}"))

    for node in Graph((*seeds,), outputs).nodes:
        if isinstance(node, Apply) and any(x in depends for x in node.inputs):
            depends.add(node)
            new[node] = node.with_inputs(tuple(operand(x) for x in node.inputs))
    results = tuple(operand(v) for v in outputs)
    inputs = (*seeds, *kept.values(), *read.values())
    return list(kept), [numbers[x] for x in read if isinstance(x, Input)], Graph(inputs, results)


class CompiledBackward(Node):
    """The gradient of one call of a compiled function: its results' history."""

    __slots__ = ("backward", "kept", "output_count", "saved", "shapes")

    def __init__(
        self, backward: Backward, kept: list[Array], inputs: Sequence[Tensor], roots: list[tuple[Any, Any]]
    ) -> None:
        super().__init__(tuple(edge_of(inputs[i]) for i in backward.targets))
        self.backward = backward
        self.kept: list[Array] | None = kept
        self.saved = [_saved(inputs[i]) for i in backward.sources]
        self.shapes = roots
        self.output_count = len(roots)

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        if self.kept is None:
            raise_freed()
        for entry in self.saved:
            entry.check(self)
        seeds = [
            np.zeros(*kind) if g is None else known(g) for g, kind in zip(grads, self.shapes, strict=True)
        ]
        if not all(isinstance(g, np.ndarray) for g in seeds):
            raise RuntimeError(
                "the backward of a compiled function is itself not differentiable: call the function "
                "uncompiled for create_graph=True, or compute the second derivative inside @compile"
            )
        return self.backward(
            (*map(np.ascontiguousarray, seeds), *self.kept, *(known(e.data) for e in self.saved))
        )

    def release(self) -> None:
        self.kept = None


def _saved(t: Tensor) -> Saved:
    return Saved(t._data, t._storage, t._version, t)
