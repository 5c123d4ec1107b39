"""The compiled backward of a compiled forward, and the backward of that: programs built when first needed.

Recording the gradient rules splits their graph in two: what depends on the incoming gradients is the backward
program; the forward values it reads are kept by the forward program. The second derivative computes again
what it needs beyond these. Knows graphs, and the gradient tape of a recording.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from compiler.binding import Arena
from compiler.dims import is_symbolic
from compiler.errors import CompilerError, TraceError
from compiler.ir import Apply, Const, Graph, Input, Measure, Value
from compiler.ops.arithmetic import add
from compiler.ops.creation import zeros
from compiler.ops.op import Elementwise, Movement
from compiler.plan import Request
from compiler.types import TensorType
from framework import autograd
from framework.capture import machines
from framework.capture.tracer import Source, Tracer
from framework.graph import Edge, Node, OpNode, Saved
from framework.inplace import Overwrite, WriteThroughView
from framework.state import ambient
from framework.tensor import Tensor, edge_of, geometry
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]
# Ops that a backward does again rather than read a value from memory.
LONGEST_CHAIN = 6
# Nodes whose gradients are rules of ops.
_OWN_NODES = (OpNode, Overwrite, WriteThroughView)


class Settling(Protocol):
    """What puts numbers in place of symbolic sizes, and where programs for several sizes work."""

    backward_arena: Arena
    backward_lock: threading.Lock

    def value(self, x: Value) -> Value:
        """A value with numbers for sizes."""
        ...

    def input(self, x: Input) -> Input:
        """An input with numbers for sizes."""
        ...

    def numbers(self, x: Any) -> Any:
        """Numbers for sizes, in tuples too."""
        ...


class Derivative:
    """A program of gradients. Its inputs are incoming gradients, then kept values, then program inputs of the
    call.
    """

    def __init__(
        self,
        graph: Graph,
        strides: Mapping[int, tuple[int, ...]],
        arena: Arena | None = None,
        lock: threading.Lock | None = None,
        sizes: machines.Sizes | None = None,
    ) -> None:
        self.graph, self.strides, self.arena = graph, strides, arena
        self.sizes = sizes or machines.Sizes()
        # Programs that share an arena are run one at a time.
        self.lock = lock or threading.Lock()
        self.executable: Any = None

    def run(self, operands: Sequence[Array]) -> list[Array]:
        """The gradients for one array per input."""
        with self.lock:
            if self.executable is None:
                request = Request(self.graph, strides=self.strides)
                number = arrays.common(operands)
                self.executable = machines.program(request, self.arena, number, self.sizes.gradients)
            return self.executable(*operands)

    def settled(self, sizes: Settling) -> Derivative:
        """The program with numbers for symbolic sizes."""
        inputs, outputs = map(sizes.input, self.graph.inputs), map(sizes.value, self.graph.outputs)
        graph = Graph(tuple(inputs), tuple(outputs))
        return Derivative(graph, self.strides, sizes.backward_arena, sizes.backward_lock, self.sizes)


@dataclass(eq=False)
class Second:
    """How to differentiate the gradients: of those numbered `live` among them, with respect to the `targets`
    (positions among the first derivative's) and the incoming gradients numbered `seeds`.

    The program's inputs are a gradient for each of `live`, the first derivative's incoming gradients, all
    kept values, and the sources at positions `sources` among those that a call keeps.
    """

    live: list[int]
    targets: list[int]
    seeds: list[int]
    sources: list[int]
    program: Derivative


class Backward:
    """What one variant needs to differentiate its results.

    `targets` are the sources (by number) that get gradients, the first ones from the results, of `types`;
    `kept` the forward values that are kept, of which the program reads the first `read`; `sources` the
    numbers of the program inputs that are needed, of which it reads the first `direct`. `uses` names for each
    result the steps behind it that hold values, which one backward pass lets go of.
    """

    def __init__(
        self, roots: Sequence[Tensor], sources: Sequence[Source], free: Container[Value], tracer: Tracer
    ) -> None:
        numbers = [i for i, s in enumerate(sources) if s.owner.requires_grad]
        owners = [sources[i].owner for i in numbers]
        self.seeds = [
            Input(TensorType(tuple(r.shape), r.dtype), name=f"gradient{i}") for i, r in enumerate(roots)
        ]
        ends = {edge[0] for t in owners if (edge := edge_of(t)) is not None}
        self.uses = tuple([_holding(r, ends) for r in roots])
        with _cut_off(owners):
            found = autograd.grad(
                roots, owners, [tracer.wrap(s) for s in self.seeds], retain_graph=True, allow_unused=True
            )
        reached = [(i, g) for i, g in zip(numbers, found, strict=True) if g is not None]
        self.types = [(tuple(g.shape), g.dtype.numpy) for _, g in reached]
        outputs = tuple(tracer.read(g) for _, g in reached)
        # Memory that the call writes to is another's when the backward runs.
        lasting = {s.input: i for i, s in enumerate(sources) if s.input is not None and not s.writes}
        self.kept, self.sources, graph = _split(self.seeds, outputs, lasting, free)
        self.read, self.direct = len(self.kept), len(self.sources)
        # What the second derivative may need beyond that.
        behind = Graph((), (*outputs, *(tracer.read(r) for r in roots))).nodes
        inputs = [x for x in behind if isinstance(x, Input) and x not in self.seeds]
        known = {*self.sources}
        self.sources += [lasting[x] for x in inputs if x in lasting and lasting[x] not in known]
        self.kept += [x for x in inputs if x not in lasting and x not in self.kept]
        met = {lasting[x] for x in inputs if x in lasting}
        targets = [i for i, _ in reached]
        self.targets = targets + [i for i in numbers if i in met and i not in targets]
        # What stands for arguments of any size has none: such arguments are row-major.
        owned = [sources[i].owner for i in self.sources]
        self.strides = [None if t._data is None else geometry(t)[1] for t in owned]
        self.inputs: list[Input] = [x for i in self.sources if (x := sources[i].input) is not None]
        strides = _by_number(self.strides[: self.direct], len(self.seeds) + self.read)
        self.program = Derivative(graph, strides, sizes=tracer.sizes)
        self.lock = threading.Lock()
        self.parts: dict[tuple[bool, ...], tuple[Derivative, list[int]]] = {}
        self.tape: Tape | None = None
        self.known: Second | str | None = None
        targeted = [sources[i].owner for i in self.targets]
        try:
            if runs_user_code(roots, sources):
                with _cut_off(targeted):
                    self.known = self._record(roots, targeted, tracer)
            else:
                self.tape = Tape(roots, targeted)
        except _REASONS as error:
            self.known = f"{type(error).__name__}: {error}"

    def part(self, arrived: tuple[bool, ...]) -> tuple[Derivative, list[int]]:
        """The program for gradients of some results alone, and which of all gradients it gives.

        Not the whole with zeros: zero times an infinity that only another result knows is nan.
        """
        with self.lock:
            if arrived not in self.parts:
                whole = self.program
                absent = [s for s, here in zip(self.seeds, arrived, strict=True) if not here]
                outputs = _without(whole.graph, self.seeds, absent)
                numbers = [i for i, v in enumerate(outputs) if v is not None]
                graph = Graph(whole.graph.inputs, tuple(v for v in outputs if v is not None))
                part = Derivative(graph, whole.strides, whole.arena, whole.lock, whole.sizes)
                self.parts[arrived] = part, numbers
            return self.parts[arrived]

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of both derivatives."""
        second = self.second()
        return [self.program.graph, *([] if isinstance(second, str) else [second.program.graph])]

    def settled(self, sizes: Settling) -> Backward:
        """What was recorded with symbolic sizes, with numbers for them."""
        made = object.__new__(Backward)
        made.targets, made.sources, made.read, made.direct = (
            self.targets,
            self.sources,
            self.read,
            self.direct,
        )
        made.seeds = list(map(sizes.input, self.seeds))
        made.types = [(sizes.numbers(shape), dtype) for shape, dtype in self.types]
        made.kept = list(map(sizes.value, self.kept))
        made.strides, made.uses = self.strides, self.uses
        made.program = self.program.settled(sizes)
        made.lock, made.parts, made.tape = threading.Lock(), {}, None
        second = self.second()
        made.known = (
            second if isinstance(second, str) else replace(second, program=second.program.settled(sizes))
        )
        return made

    def second(self) -> Second | str:
        """The second derivative, recorded when it is first asked for; or why there is none."""
        with self.lock:
            if self.known is None:
                assert self.tape is not None, "the tape waits for this"
                try:
                    with self.tape.played() as (roots, targets, tracer):
                        self.known = self._record(roots, targets, tracer)
                except _REASONS as error:
                    self.known = f"{type(error).__name__}: {error}"
                self.tape = None
            return self.known

    def _record(self, roots: Sequence[Tensor], targets: Sequence[Tensor], tracer: Tracer) -> Second:
        """Record the gradients of the gradients."""
        given = [tracer.wrap(s).requires_grad_() for s in self.seeds]
        reached = targets[: len(self.types)]
        first = autograd.grad(roots, reached, given, create_graph=True, allow_unused=True)
        live = [(i, g) for i, g in enumerate(first) if g is not None and g.requires_grad]
        incoming = [Input(TensorType(tuple(g.shape), g.dtype), name=f"second{i}") for i, g in live]
        found: Sequence[Tensor | None] = ()
        if live:
            found = autograd.grad(
                [g for _, g in live],
                [*targets, *given],
                [tracer.wrap(x) for x in incoming],
                allow_unused=True,
            )
        numbered = [(i, tracer.read(g)) for i, g in enumerate(found) if g is not None]
        kept = {v: Input(v.type, name=f"kept{i}") for i, v in enumerate(self.kept)}
        read: dict[Input, Input] = {}
        own = {x: x for x in (*incoming, *self.seeds)}
        results = _recomputed([v for _, v in numbered], {**kept, **own}, read)
        positions = [self.inputs.index(x) for x in read]
        inputs = (*incoming, *self.seeds, *kept.values(), *read.values())
        start = len(inputs) - len(read)
        strides = _by_number([self.strides[i] for i in positions], start)
        count = len(targets)
        return Second(
            [i for i, _ in live],
            [i for i, _ in numbered if i < count],
            [i - count for i, _ in numbered if i >= count],
            positions,
            Derivative(Graph(inputs, results), strides),
        )


def _by_number(strides: Sequence[tuple[int, ...] | None], first: int) -> dict[int, tuple[int, ...]]:
    """The strides that are known, by the number of the input."""
    return {number: s for number, s in enumerate(strides, first) if s is not None}


def _without(graph: Graph, seeds: Sequence[Value], absent: Sequence[Value]) -> list[Value | None]:
    """The outputs of a graph that is linear in `seeds` when `absent` ones are zero; None for those that
    are.
    """
    depends, gone = set(seeds), set(absent)
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        if not isinstance(node, Apply) or depends.isdisjoint(node.inputs):
            continue
        depends.add(node)
        here = [x for x in node.inputs if x in depends and x not in gone]
        if not here:
            gone.add(node)
        elif node.op is add and not gone.isdisjoint(node.inputs) and here[0].type == node.type:
            new[node] = new.get(here[0], here[0])
        else:
            operands = [zeros(x, x.shape) if x in gone else new.get(x, x) for x in node.inputs]
            new[node] = node.with_inputs(tuple(operands))
    return [None if v in gone else new.get(v, v) for v in graph.outputs]


class Tape:
    """The history of a call's results, cut loose from every tensor, to be differentiated later."""

    def __init__(self, roots: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.dtype = ambient.default_dtype
        edges = [edge_of(t) for t in targets]
        self.ends: dict[Any, End] = {edge[0]: End(edge[0]) for edge in edges if edge is not None}
        self.targets = [self._moved(edge) for edge in edges]
        self.target_types = [TensorType(tuple(t.shape), t.dtype) for t in targets]
        self.roots = [self._moved(edge_of(r)) for r in roots]
        self.root_types = [TensorType(tuple(r.shape), r.dtype) for r in roots]
        stack = [edge[0] for edge in self.roots if edge is not None and isinstance(edge[0], Node)]
        seen: set[Node] = {*self.ends.values()}
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            node.edges = tuple(map(self._moved, node.edges))
            stack += node.below
            for entry in (node.saved or ()) if isinstance(node, OpNode) else ():
                if type(entry) is Saved and entry.storage is not None:
                    entry.check(node)
                    edge = self._moved(edge_of(entry.tensor))
                    entry.freeze(edge)
                    stack += [edge[0]] if edge is not None and isinstance(edge[0], Node) else []
                if type(entry) is Saved:
                    entry.tensor = _NO_TENSOR

    def _moved(self, edge: Edge | None) -> Edge | None:
        return edge if edge is None else (self.ends.get(edge[0], edge[0]), edge[1])

    @contextlib.contextmanager
    def played(self) -> Iterator[tuple[list[Tensor], list[Tensor], Tracer]]:
        """Roots and targets for a recording of their gradients, and its tracer, which is the active one."""
        tracer = Tracer()
        before, dtype = ambient.tracer, ambient.default_dtype
        ambient.tracer, ambient.default_dtype = tracer, self.dtype
        try:
            yield (
                [_stand_in(tracer, *pair) for pair in zip(self.roots, self.root_types, strict=True)],
                [_stand_in(tracer, *pair) for pair in zip(self.targets, self.target_types, strict=True)],
                tracer,
            )
        finally:
            ambient.tracer, ambient.default_dtype = before, dtype


class End(Node):
    """Stands for the history of a tensor from outside."""

    __slots__ = ("output_count",)

    def __init__(self, replaced: Any) -> None:
        super().__init__(())
        # The engine visits nodes in this order, and this one after all that lead to it.
        if isinstance(replaced, Node):
            self.output_count, self.sequence = replaced.output_count, replaced.sequence
        else:
            self.output_count, self.sequence = 1, -self.sequence


# What a saved value came from, when that is gone: not an output.
_NO_TENSOR = object()
# What a recording of gradients raises that have none.
_REASONS = (CompilerError, RuntimeError, NotImplementedError, TypeError, ValueError)


def _stand_in(tracer: Tracer, edge: Edge | None, kind: TensorType) -> Tensor:
    t = tracer.wrap(Input(kind, name="history"))
    if edge is not None:
        t._node, t._output = edge
    t._traced = kind
    return t


def record_backward(
    roots: Sequence[Tensor], sources: Sequence[Source], free: Container[Value], tracer: Tracer
) -> Backward | None:
    """Record the gradients of `roots` with respect to every source that requires one; None when none does.

    Values that are `free` need no memory to be kept.
    """
    wanted = any(s.owner.requires_grad for s in sources)
    return Backward(roots, sources, free, tracer) if wanted else None


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
        if not isinstance(node, Node):
            raise TraceError("a leaf that requires grad is made inside @compile: make it outside")
        found = found or bool(node.hooks) or type(node) not in _OWN_NODES
        stack += [edge[0] for edge in node.edges if edge is not None]
    return found


def _holding(root: Tensor, ends: Collection[Node]) -> frozenset[int]:
    """Numbers of the nodes between `root` and `ends` that hold values for the backward."""
    found = set()
    edge = edge_of(root)
    stack, seen = [] if edge is None else [edge[0]], {*ends}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if not isinstance(node, Node):
            continue
        saved: Any = getattr(node, "saved", None)
        if any(type(entry) is Saved for entry in saved or ()) if isinstance(node, OpNode) else saved:
            found.add(id(node))
        stack += [edge[0] for edge in node.edges if edge is not None]
    return frozenset(found)


@contextlib.contextmanager
def _cut_off(owners: Sequence[Tensor]) -> Iterator[None]:
    """End the history at tensors from outside, without their hooks: outside, both act again."""
    edges = [edge_of(t) for t in owners]
    nodes = list({edge[0]: None for edge in edges if edge is not None and isinstance(edge[0], Node)})
    before = [(node.edges, node.hooks, node.retained) for node in nodes]
    hooks = [t._hooks for t in owners]
    for node in nodes:
        node.edges, node.hooks, node.retained = (), None, None
    for t in owners:
        t._hooks = None
    try:
        yield
    finally:
        for node, (edges_before, hooks_before, retained) in zip(nodes, before, strict=True):
            node.edges, node.hooks, node.retained = edges_before, hooks_before, retained
        for t, table in zip(owners, hooks, strict=True):
            t._hooks = table


def _split(
    seeds: list[Input], outputs: tuple[Value, ...], numbers: Mapping[Input, int], free: Container[Value]
) -> tuple[list[Value], list[int], Graph]:
    """Cut a gradient graph below the seeds: (forward values it reads, program inputs it reads, the rest as a
    graph).
    """
    depends: set[Value] = set(seeds)
    nodes = []
    for node in Graph((*seeds,), outputs).nodes:
        if isinstance(node, Apply) and any(x in depends for x in node.inputs):
            depends.add(node)
            nodes.append(node)
    wanted = _behind_views(x for n in nodes for x in n.inputs if x not in depends)
    wanted |= _behind_views(v for v in outputs if v not in depends)
    again = computed_again(wanted, free)
    new: dict[Value, Value] = {s: s for s in seeds}
    kept: dict[Value, Input] = {}
    read: dict[Value, Input] = {}

    def operand(x: Value) -> Value:
        if x in new:
            return new[x]
        if isinstance(x, Const | Measure) or (isinstance(x, Apply) and not x.inputs):
            return x
        if isinstance(x, Apply) and (x in again or isinstance(x.op, Movement)):
            # A view costs nothing: keep what it views.
            return new.setdefault(x, x.with_inputs(tuple(map(operand, x.inputs))))
        table = read if x in numbers else kept
        return table.setdefault(x, Input(x.type, name=f"kept{len(table)}"))

    for node in nodes:
        new[node] = node.with_inputs(tuple(map(operand, node.inputs)))
    results = tuple(operand(v) for v in outputs)
    inputs = (*seeds, *kept.values(), *read.values())
    return list(kept), [numbers[x] for x in read if isinstance(x, Input)], Graph(inputs, results)


def _behind_views(values: Iterable[Value]) -> set[Value]:
    """What is to be kept of values that a backward reads."""
    found = set()
    for value in values:
        while isinstance(value, Apply) and isinstance(value.op, Movement):
            value = value.inputs[0]
        if not isinstance(value, Const | Measure) and not (isinstance(value, Apply) and not value.inputs):
            found.add(value)
    return found


def computed_again(wanted: set[Value], free: Container[Value]) -> set[Value]:
    """Values not worth keeping: short chains of cheap elementwise ops on others of `wanted`, which then are
    kept. Those in `free` are kept at no cost.
    """
    there, again = set(wanted), set()
    needed: set[Value] = set()
    for value in sorted(wanted, key=lambda v: -v.serial):
        if value in free or value in needed or (not is_symbolic(value.type.size) and value.type.size == 1):
            continue
        chain: set[Value] = set()
        leaves: set[Value] = set()
        if _is_cheap(value, there, chain, leaves):
            there.discard(value)
            needed |= leaves
            again |= chain
    return again


def _is_cheap(value: Value, there: set[Value], chain: set[Value], leaves: set[Value]) -> bool:
    """Whether `value` is a short chain over values that are `there`; notes the chain and its leaves."""
    if not isinstance(value, Apply):
        return False
    cheap = isinstance(value.op, Elementwise) and not value.op.expensive
    if not (cheap or isinstance(value.op, Movement)) or len(chain) >= LONGEST_CHAIN:
        return False
    chain.add(value)
    for x in value.inputs:
        if isinstance(x, Const | Measure) or (isinstance(x, Apply) and not x.inputs) or x in chain:
            continue
        if x in there:
            leaves.add(x)
        elif not _is_cheap(x, there, chain, leaves):
            return False
    return True


def _recomputed(
    outputs: Sequence[Value], given: Mapping[Value, Value], read: dict[Input, Input]
) -> tuple[Value, ...]:
    """Outputs computed from `given` values and program inputs, which are noted in `read`."""
    reached: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value not in reached and value not in given:
            reached.add(value)
            if isinstance(value, Apply):
                stack += value.inputs
    new: dict[Value, Value] = dict(given)
    for value in sorted(reached, key=lambda v: v.serial):
        if isinstance(value, Input):
            new[value] = read[value] = Input(value.type, name=f"again{len(read)}")
        elif isinstance(value, Apply):
            new[value] = value.with_inputs(tuple(new[x] for x in value.inputs))
        else:
            new[value] = value
    return tuple(new[v] for v in outputs)
