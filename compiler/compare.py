"""A compiled program against its recorded graph, run op by op: the first node that is not what it should be.

Passes are looked at first, then each kernel on its own with right inputs, then the program as it runs. Works
on copies, and changes nothing. Knows arrays and graphs; what a call does to tensors is the framework's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from compiler.binding import optimise
from compiler.errors import CompilerError
from compiler.interpret import evaluate, values_of
from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.lower import Kernel
from compiler.passes import PIPELINE
from compiler.plan import Plan, Planner, Request
from compiler.probe import Memory, completed, strided
from compiler.program import Executable
from compiler.schedule import is_free
from compiler.tolerance import Apart, apart, precise_values
from kernels.errors import KernelError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A graph with an array for each input, whose compiled outputs are wrong."""

    graph: Graph
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class Difference:
    """The first value that is wrong: what was `looked_at` (a pass, a kernel, ...), its op and user line, the
    place where it is worst with the eager and the compiled element, and how many of its elements are off.

    `lines` are the user's lines of the kernel, if it is one; `cases` are graphs to reduce, smallest first.
    """

    looked_at: str
    op: str
    kind: str
    where: str
    apart: Apart
    lines: tuple[str, ...] = ()
    cases: tuple[Case, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        a = self.apart
        size = math.prod(int(n) for n in self.kind.partition("[")[2].rstrip("]").split(",") if n.strip())
        place = f" at [{', '.join(map(str, a.index))}]" if a.index else ""
        text = (
            f"{self.where or 'a value'}: {self.op} of {self.kind} differs in {self.looked_at}: "
            f"{a.count} of {size} elements, {_number(a.compiled)} in place of {_number(a.eager)}{place}"
        )
        others = [line for line in self.lines if line != self.where]
        return text + (f"; its lines: {', '.join(self.lines)}" if others else "")


def _number(x: Any) -> str:
    return f"{x:.9g}" if isinstance(x, float) else str(x)


class Place(Protocol):
    """Where kernels and programs are run, on arrays of the host."""

    def memory(self, request: Request, plan: Plan, arrays: Sequence[Array]) -> Memory:
        """Memory for the kernels of a plan, to run them one at a time."""
        ...

    def program(self, request: Request) -> Callable[..., list[Array]]:
        """A program to call with an array for each input, some of which it may write to."""
        ...


class Host:
    """The CPU."""

    def memory(self, request: Request, plan: Plan, arrays: Sequence[Array]) -> Memory:
        """As Place.memory."""
        return Memory(request, plan, arrays)

    def program(self, request: Request) -> Executable:
        """As Place.program."""
        return Executable(request)


HOST = Host()


@dataclass(frozen=True)
class Outcome:
    """What was compared: nodes, kernels, and the first difference; None when everything agrees."""

    nodes: int
    kernels: int
    difference: Difference | None


def compare(
    request: Request, arrays: Sequence[Array], relative: float | None = None, place: Place = HOST
) -> Outcome:
    """Compare the program of a recorded request, run at `place`, with the request itself, on `arrays`, one
    for each input.

    Raises what an eager op raises on them.
    """
    return _Comparison(request, arrays, relative, place).run()


class _Comparison:
    def __init__(
        self, request: Request, arrays: Sequence[Array], relative: float | None, place: Place
    ) -> None:
        self.request, self.relative, self.place = request, relative, place
        self.arrays = [np.array(x) for x in arrays]
        # Planned anew, as a plan on disk does not say where values are.
        self.optimised = optimise(request)
        self.graph = self.optimised.graph
        self.planner = Planner(self.optimised)
        self.plan = self.planner.run()

    def run(self) -> Outcome:
        recorded = self.request.graph
        known = values_of(recorded, self.arrays)
        precise = precise_values(recorded.nodes, known)
        found = self.passes(known, precise) or self.kernels() or self.program(known, precise)
        count = sum(isinstance(n, Apply) for n in recorded.nodes)
        return Outcome(count, len(self.plan.kernels), found)

    def check(self, value: Array, got: Array, precise: Array) -> Apart | None:
        return apart(value, got, precise, self.relative)

    # Passes

    def passes(self, known: dict[Value, Array], precise: dict[Value, Array]) -> Difference | None:
        """The first pass after which an output has another value, and the node that goes wrong in it."""
        recorded = self.request.graph
        returned = len(recorded.outputs) - len(self.request.checks)
        graph = recorded
        for run in PIPELINE:
            graph = run(graph)
            found = evaluate(graph, self.arrays)[:returned]
            for value, got in zip(recorded.outputs, found, strict=False):
                if self.check(known[value], got, precise[value]):
                    return self.blamed(run, value, known, precise)
        return None

    def blamed(
        self,
        run: Callable[[Graph], Graph],
        value: Value,
        known: dict[Value, Array],
        precise: dict[Value, Array],
    ) -> Difference:
        """The first node, on the way to `value`, that passes change."""

        def wrong(node: Value) -> Apart | None:
            (got,) = evaluate(optimise(Request(Graph(self.request.graph.inputs, (node,)))).graph, self.arrays)
            return self.check(known[node], got, precise[node])

        nodes = [n for n in Graph(self.request.graph.inputs, (value,)).nodes if isinstance(n, Apply)]
        low, high = -1, len(nodes) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if wrong(nodes[middle]) else (middle, high)
        node: Value = nodes[high]
        while isinstance(node, Apply):
            earlier = next((x for x in node.inputs if isinstance(x, Apply) and wrong(x)), None)
            if earlier is None:
                break
            node = earlier
        case = Case(Graph(self.request.graph.inputs, (node,)), tuple(self.arrays))
        return difference(
            f"the pass {run.__name__}", node, wrong(node) or _unsure(known[node]), cases=(case,)
        )

    # Kernels

    def kernels(self) -> Difference | None:
        """The first kernel that, given right inputs, computes a wrong value."""
        buffers, geometry = self.planner.buffers, self.planner.geometry
        known = values_of(self.graph, self.arrays)
        memory = self.place.memory(self.optimised, self.plan, self.arrays)
        finished = completed(self.plan, buffers)
        for number, kernel in enumerate(self.plan.kernels):
            memory.run(kernel)
            for value in finished.get(number, ()):
                got = memory.view(buffers[value], geometry[value])
                right = np.broadcast_to(known[value], value.shape)
                found = self.check(right, got, self.precise(kernel, value, known))
                if found:
                    return self.in_kernel(number, kernel, value, found, known)
                got[...] = right
        return None

    def precise(self, kernel: Kernel, value: Value, known: dict[Value, Array]) -> Array:
        """A kernel's value in float64, of the inputs it has."""
        return precise_values(kernel.nodes, known).get(value, known[value])

    def in_kernel(
        self, number: int, kernel: Kernel, value: Value, found: Apart, known: dict[Value, Array]
    ) -> Difference:
        """Name the node of a wrong kernel: one whose own kernel is wrong too, else the value it stores."""
        nodes = [n for n in kernel.nodes if isinstance(n, Apply)]
        whole = cut_out(nodes, [v for v in nodes if v in self.planner.buffers] or nodes, known)
        cases = () if whole is None else (whole,)
        lines = tuple(dict.fromkeys(n.where for n in nodes if n.where))
        looked_at = f"kernel {number} ({kernel.spec.name})"
        for node in nodes if len(nodes) > 1 else ():
            alone = cut_out([node], [node], known)
            wrong = None if alone is None else failing(alone, self.relative, self.place)
            if alone is not None and wrong is not None:
                return difference(looked_at, node, wrong, lines, (alone, *cases))
        return difference(looked_at, value, found, lines, cases)

    # The program as it runs

    def program(self, known: dict[Value, Array], precise: dict[Value, Array]) -> Difference | None:
        """What the program returns or writes that is wrong though each of its kernels is right."""
        recorded = self.request.graph
        strides = self.request.strides
        arrays = [x.copy() if i not in strides else strided(x, strides[i]) for i, x in enumerate(self.arrays)]
        outputs = self.place.program(self.request)(*arrays)
        written = [arrays[number] for number, _ in self.request.writes]
        for value, got in zip(recorded.outputs, [*outputs, *written], strict=False):
            found = self.check(known[value], got, precise[value])
            if found:
                case = Case(Graph(recorded.inputs, (value,)), tuple(self.arrays))
                what = f"the program of {len(self.plan.kernels)} kernels, each of which is right on its own"
                return difference(what, value, found, cases=(case,))
        return None


def difference(
    looked_at: str, value: Value, found: Apart, lines: tuple[str, ...] = (), cases: tuple[Case, ...] = ()
) -> Difference:
    """A Difference about a node of a graph."""
    op = value.op.name if isinstance(value, Apply) else type(value).__name__.lower()
    return Difference(looked_at, op, str(value.type), value.where, found, lines, cases)


def _unsure(value: Array) -> Apart:
    """A value that is wrong only together with others."""
    place = (0,) * value.ndim
    return Apart(place, value[place].item() if value.size else None, None, 0)


def failing(case: Case, relative: float | None = None, place: Place = HOST) -> Apart | None:
    """Where the compiled graph of a case is wrong in its first wrong output; None where it is right, or where
    it has no compiled form.
    """
    try:
        known = values_of(case.graph, case.arrays)
        found = place.program(Request(case.graph))(*case.arrays)
    except (CompilerError, KernelError, RuntimeError, ValueError, IndexError):
        return None
    precise = precise_values(case.graph.nodes, known)
    pairs = zip(case.graph.outputs, found, strict=True)
    return next((a for v, got in pairs if (a := apart(known[v], got, precise[v], relative))), None)


def cut_out(nodes: Sequence[Apply], outputs: Sequence[Apply], known: dict[Value, Array]) -> Case | None:
    """`nodes` as a graph of their own: what they read becomes inputs with the values that are known."""
    inside, new, inputs = set(nodes), dict[Value, Value](), list[Input]()

    def renewed(x: Value) -> Value:
        if x not in new:
            if isinstance(x, Const) or is_free(x):
                new[x] = x
            else:
                made = Input(x.type, name=f"t{len(inputs)}", where=x.where)
                inputs.append(made)
                new[x] = made
        return new[x]

    for node in sorted(inside, key=lambda n: n.serial):
        new[node] = node.with_inputs(tuple(renewed(x) for x in node.inputs))
    if not outputs:
        return None
    graph = Graph(tuple(inputs), tuple(new[v] for v in outputs))
    given = {new[x]: known[x] for x in new if isinstance(new[x], Input)}
    return Case(graph, tuple(np.ascontiguousarray(given[x]) for x in inputs))
