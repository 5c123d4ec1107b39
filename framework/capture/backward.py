"""The compiled backward of a compiled forward, and the backward of that: programs built when first needed.

Recording the gradient rules splits their graph in two: what depends on the incoming gradients is the backward
program; the forward values it reads are kept by the forward program. The second derivative computes again
what it needs beyond these. Knows graphs, and the gradient tape of a recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.errors import CompilerError, TraceError
from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.ops.op import Movement
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType
from framework import autograd
from framework.capture.tracer import Source, Tracer
from framework.graph import AccumulateGrad, Node, OpNode
from framework.inplace import Overwrite, WriteThroughView
from framework.tensor import Tensor, edge_of, geometry

Array = np.ndarray[Any, Any]
# Nodes whose gradients are rules of ops.
_OWN_NODES = (OpNode, Overwrite, WriteThroughView)


class Derivative:
    """A program of gradients. Its inputs are incoming gradients, then kept values, then program inputs of the
    call.
    """

    def __init__(self, graph: Graph, first_source: int, sources: Sequence[Source]) -> None:
        self.graph = graph
        self.strides = {first_source + i: geometry(s.owner)[1] for i, s in enumerate(sources)}
        self.lock = threading.Lock()
        self.executable: Executable | None = None

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The gradients for one array per input."""
        with self.lock:
            if self.executable is None:
                self.executable = Executable(Request(self.graph, strides=self.strides))
            return self.executable(*arrays)


@dataclass(eq=False)
class Second:
    """How to differentiate the gradients: of those numbered `live` among them, with respect to the `targets`
    (positions among the first derivative's) and the incoming gradients numbered `seeds`.

    The program's inputs are a gradient for each of `live`, the first derivative's incoming gradients, all
    kept values, and the `sources`.
    """

    live: list[int]
    targets: list[int]
    seeds: list[int]
    sources: list[int]
    program: Derivative


@dataclass(eq=False)
class Backward:
    """What one variant needs to differentiate its results.

    `targets` are the sources (by number) that get gradients, of which the first `reached` get one from the
    results; `kept` the forward values that are kept, of which the program reads the first `read`; `sources`
    the numbers of the program inputs it reads. `second` may be the reason why there is none.
    """

    targets: list[int]
    reached: int
    kept: list[Value]
    read: int
    sources: list[int]
    program: Derivative
    second: Second | str = ""
    types: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)


def record_backward(roots: Sequence[Tensor], sources: Sequence[Source], tracer: Tracer) -> Backward | None:
    """Record the gradients of `roots` with respect to every source that requires one; None when none does."""
    numbers = [i for i, s in enumerate(sources) if s.owner.requires_grad]
    if not numbers:
        return None
    seeds = [Input(TensorType(tuple(r.shape), r.dtype), name=f"gradient{i}") for i, r in enumerate(roots)]
    owners = [sources[i].owner for i in numbers]
    with _cut_off(owners):
        found = autograd.grad(
            roots, owners, [tracer.wrap(s) for s in seeds], retain_graph=True, allow_unused=True
        )
        reached = [(i, g) for i, g in zip(numbers, found, strict=True) if g is not None]
        outputs = tuple(tracer.read(g) for _, g in reached)
        # Memory that the call writes to is another's when the backward runs.
        lasting = {s.input: i for i, s in enumerate(sources) if s.input is not None and not s.writes}
        kept, inputs, graph = _split(seeds, outputs, lasting)
        backward = Backward(
            [i for i, _ in reached],
            len(reached),
            kept,
            len(kept),
            inputs,
            Derivative(graph, len(seeds) + len(kept), [sources[i] for i in inputs]),
            types=[(tuple(g.shape), g.dtype.numpy) for _, g in reached],
        )
        try:
            _record_second(backward, roots, sources, numbers, seeds, lasting, tracer)
        except (CompilerError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            backward.second = f"{type(error).__name__}: {error}"
    return backward


def runs_user_code(roots: Sequence[Tensor], sources: Sequence[Source]) -> bool:
    """Whether hooks or custom functions take part in the backward of `roots`.

    Raises TraceError for gradients that would arrive at a leaf made inside the call.
    """
    found = False
    ends = {edge[0] for s in sources if (edge := edge_of(s.owner)) is not None}
    stack = [edge[0] for r in roots if (edge := edge_of(r)) is not None]
    seen = {*ends}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, AccumulateGrad):
            raise TraceError("a leaf that requires grad is made inside @compile: make it outside")
        found = found or bool(node.hooks) or type(node) not in _OWN_NODES
        stack += [edge[0] for edge in node.edges if edge is not None]
    return found


@contextlib.contextmanager
def _cut_off(owners: Sequence[Tensor]) -> Iterator[None]:
    """End the history at tensors from outside, without their hooks: outside, both act again."""
    edges = [edge_of(t) for t in owners]
    nodes: list[Node] = list({edge[0]: None for edge in edges if edge is not None})
    before = [(node.edges, node.hooks, node.retained) for node in nodes]
    hooks = [t._hooks for t in owners]
    for node in nodes:
        node.edges, node.hooks, node.retained = (), None, None
    for t in owners:
        t._hooks = None
    try:
        yield
    finally:
        for node, (node.edges, node.hooks, node.retained) in zip(nodes, before, strict=True):
            pass
        for t, table in zip(owners, hooks, strict=True):
            t._hooks = table


def _split(
    seeds: list[Input], outputs: tuple[Value, ...], numbers: Mapping[Input, int]
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
        if isinstance(x, Const) or (isinstance(x, Apply) and not x.inputs):
            return x
        if isinstance(x, Apply) and isinstance(x.op, Movement):
            # A view costs nothing: keep what it views.
            return new.setdefault(x, x.with_inputs((operand(x.inputs[0]),)))
        table = read if x in numbers else kept
        return table.setdefault(x, Input(x.type, name=f"kept{len(table)}"))

    for node in Graph((*seeds,), outputs).nodes:
        if isinstance(node, Apply) and any(x in depends for x in node.inputs):
            depends.add(node)
            new[node] = node.with_inputs(tuple(operand(x) for x in node.inputs))
    results = tuple(operand(v) for v in outputs)
    inputs = (*seeds, *kept.values(), *read.values())
    return list(kept), [numbers[x] for x in read if isinstance(x, Input)], Graph(inputs, results)


def _record_second(
    backward: Backward,
    roots: Sequence[Tensor],
    sources: Sequence[Source],
    numbers: Sequence[int],
    seeds: Sequence[Input],
    lasting: Mapping[Input, int],
    tracer: Tracer,
) -> None:
    """Record the gradients of the gradients; what they need of the forward is added to what is kept."""
    given = [tracer.wrap(s).requires_grad_() for s in seeds]
    owners = [sources[i].owner for i in backward.targets]
    first = autograd.grad(roots, owners, given, create_graph=True, allow_unused=True)
    live = [(i, g) for i, g in enumerate(first) if g is not None and g.requires_grad]
    incoming = [Input(TensorType(tuple(g.shape), g.dtype), name=f"second{i}") for i, g in live]
    wanted = [sources[i].owner for i in numbers]
    found: Sequence[Tensor | None] = [None] * (len(wanted) + len(given))
    if live:
        found = autograd.grad(
            [g for _, g in live], [*wanted, *given], [tracer.wrap(x) for x in incoming], allow_unused=True
        )
    reached = [(i, g) for i, g in zip(numbers, found, strict=False) if g is not None]
    through = [(k, g) for k, g in enumerate(found[len(numbers) :]) if g is not None]
    outputs = tuple(tracer.read(g) for _, g in (*reached, *through))
    kept = {v: Input(v.type, name=f"kept{i}") for i, v in enumerate(backward.kept)}
    own = {x: x for x in (*incoming, *seeds)}
    more, read, results = _recomputed(outputs, {**kept, **own}, lasting)
    known = set(backward.targets)
    backward.targets += [i for i, _ in reached if i not in known]
    backward.kept += list(more)
    inputs = [lasting[x] for x in read]
    graph = Graph((*incoming, *seeds, *kept.values(), *more.values(), *read.values()), results)
    count = len(graph.inputs) - len(inputs)
    backward.second = Second(
        [i for i, _ in live],
        [backward.targets.index(i) for i, _ in reached],
        [k for k, _ in through],
        inputs,
        Derivative(graph, count, [sources[i] for i in inputs]),
    )


def _recomputed(
    outputs: Sequence[Value], given: Mapping[Value, Value], lasting: Mapping[Input, int]
) -> tuple[dict[Input, Input], dict[Input, Input], tuple[Value, ...]]:
    """Outputs computed from `given` values and program inputs: (inputs to be kept, inputs that last, new
    outputs).
    """
    reached: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value not in reached and value not in given:
            reached.add(value)
            if isinstance(value, Apply):
                stack += value.inputs
    more: dict[Input, Input] = {}
    read: dict[Input, Input] = {}
    new: dict[Value, Value] = dict(given)
    for value in sorted(reached, key=lambda v: v.serial):
        if isinstance(value, Input):
            table = read if value in lasting else more
            new[value] = table[value] = Input(value.type, name=f"again{len(table)}")
        elif isinstance(value, Apply):
            new[value] = value.with_inputs(tuple(new[x] for x in value.inputs))
        else:
            new[value] = value
    return more, read, tuple(new[v] for v in outputs)
