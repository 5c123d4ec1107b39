"""A program in numbers and words: its graph, its kernels and why they are not fewer, its memory, its making.

Data only, read off a plan; measures where it is asked to. How it looks is the framework's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial

from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.levels import accesses
from compiler.lower import Buffer
from compiler.ops.op import Movement
from compiler.program import Executable
from compiler.schedule import Scheduler, is_free
from compiler.view import KernelView
from kernels.cost import cost
from kernels.cpu import tasks
from kernels.errors import KernelError
from kernels.files import Placed
from kernels.prepared import Prepared
from kernels.roofline import Roofline
from kernels.timing import time_call

# Seconds of one kernel's measurement.
EACH = 0.02


@dataclass(frozen=True)
class OperandFacts:
    """One operand of a kernel: the value it belongs to, and whether it is read or written."""

    name: str
    kind: str
    read: bool
    written: bool


@dataclass(frozen=True)
class Measured:
    """A kernel's best time in seconds, the time at the roofline, and what bounds that."""

    seconds: float
    bound: float
    bound_by: str

    @property
    def share(self) -> float:
        """The share of the roofline that was reached."""
        return self.bound / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class KernelFacts:
    """One kernel: what it computes of which lines, over what, and how much it must move and calculate.

    `bytes` are those of distinct memory, each once. `measured` is None unless asked for.
    """

    number: int
    name: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    extents: tuple[int, ...]
    bytes: int
    flops: int
    level: int
    compile_seconds: float
    cached: bool | None
    kind: str
    dtype: str
    footprint: int
    # Seconds on one core, roughly, as the work is divided by.
    estimate: float
    operands: tuple[OperandFacts, ...]
    nodes: tuple[int, ...]
    spec: str = field(repr=False)
    source: str = field(repr=False)
    edited: str = ""
    measured: Measured | None = None


@dataclass(frozen=True)
class NodeFacts:
    """One node of the optimised graph, with the kernels that compute it (none where it costs nothing)."""

    number: int
    op: str
    kind: str
    where: str
    inputs: tuple[int, ...]
    attrs: str
    kernels: tuple[int, ...]
    output: bool


@dataclass(frozen=True)
class Unfused:
    """Two kernels of which one reads the other's value, and why they are not one."""

    first: int
    second: int
    value: str
    reason: str


@dataclass(frozen=True)
class BufferFacts:
    """A value in the arena: its place in bytes, and the first and the last launch that needs it."""

    name: str
    kind: str
    bytes: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class MemoryFacts:
    """Scratch memory: `arena` bytes hold `buffers` that would take `without_reuse`; `peak` are alive at once,
    at launch `peak_launch`. `inputs`, `outputs` and `constants` are bytes outside, and `in_place` counts the
    inputs that are updated where they are.
    """

    arena: int
    without_reuse: int
    peak: int
    peak_launch: int
    inputs: int
    outputs: int
    constants: int
    in_place: int
    buffers: tuple[BufferFacts, ...]


@dataclass(frozen=True)
class ChainFacts:
    """Kernels that run one after the other for each of `tiles`, of `rows` rows; a thread has `private` bytes
    for what they leave each other.
    """

    kernels: tuple[int, ...]
    tiles: int
    rows: int
    private: int


@dataclass(frozen=True)
class Phase:
    """A part of making a program, and its seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class ProgramFacts:
    """One program. `recorded` nodes became those of `nodes`, in `kernels` of `launches` launches.

    `from_disk` kernels had machine code in the cache, None where that is not known (of a GPU's), and
    `plan_from_disk` says the same of the plan.
    """

    recorded: int
    nodes: tuple[NodeFacts, ...]
    kernels: tuple[KernelFacts, ...]
    launches: int
    unfused: tuple[Unfused, ...]
    memory: MemoryFacts
    phases: tuple[Phase, ...]
    from_disk: int | None
    distinct: int
    plan_from_disk: bool
    chains: tuple[ChainFacts, ...] = ()


def kernel_facts(number: int, view: KernelView, nodes: dict[Value, int]) -> KernelFacts:
    """The numbers of one kernel."""
    kernel = view.kernel
    placed = kernel.placed()
    work, spec = cost(placed), kernel.spec
    lines = tuple(dict.fromkeys(n.where for n in kernel.nodes if n.where))
    ops = tuple(n.op.name for n in kernel.nodes) or (spec.name,)
    operands = tuple(
        OperandFacts(p.buffer.name, str(p.buffer.type), i in spec.read, i in spec.written)
        for i, p in enumerate(kernel.places)
        if p.buffer is not None
    )
    return KernelFacts(
        number=number,
        name=spec.name,
        ops=ops,
        lines=lines,
        extents=kernel.extents,
        bytes=work.least,
        flops=work.flops,
        level=view.level,
        # A kernel of a GPU says neither.
        compile_seconds=getattr(view, "compile_seconds", 0.0),
        cached=getattr(view, "cached", None),
        kind=type(spec).__name__.removesuffix("Spec").lower(),
        dtype=work.dtype.name,
        footprint=work.footprint,
        estimate=tasks.nanoseconds(placed.work) * 1e-9,
        operands=operands,
        nodes=tuple(nodes[n] for n in kernel.nodes if n in nodes),
        spec=str(spec),
        source=view.source,
        edited=str(getattr(view, "edited", None) or ""),
    )


def measure(placed: Placed, roof: Roofline) -> Measured | None:
    """A kernel's best time on memory of its own; None where no numbers are known that it is defined on."""
    try:
        best = time_call(Prepared(placed), EACH).best
    except KernelError:
        return None
    return Measured(best, *roof.bound(cost(placed)))


def program_facts(executable: Executable, roof: Roofline | None = None) -> ProgramFacts:
    """Everything about a program; with a `roof` its kernels are measured, 20 ms for each that differs."""
    plan, graph = executable.plan, executable.request.graph
    views = executable.kernels
    numbers = {v: i for i, v in enumerate(graph.nodes)}
    kernels = [kernel_facts(i, view, numbers) for i, view in enumerate(views)]
    if roof is not None and isinstance(executable, Executable):  # the roofline is the CPU's
        # The layers of a model have the same kernels: each is measured once.
        once = cache(partial(measure, roof=roof))
        kernels = [
            replace(facts, measured=once(view.kernel.placed()))
            for view, facts in zip(views, kernels, strict=True)
        ]
    of_node: dict[Value, list[int]] = {}
    for number, kernel in enumerate(plan.kernels):
        for node in kernel.nodes:
            of_node.setdefault(node, []).append(number)
    return ProgramFacts(
        sum(isinstance(n, Apply) for n in executable.recorded.graph.nodes),
        tuple(_node_facts(graph, numbers, of_node)),
        tuple(kernels),
        len(set(plan.levels)),
        tuple(_unfused(graph, of_node)),
        _memory(executable),
        tuple(_phases(executable)),
        None if any(k.cached is None for k in kernels) else sum(bool(k.cached) for k in kernels),
        len({view.source for view in views}),
        executable.pass_seconds is None,
        tuple(
            ChainFacts(
                tuple(link.number for link in chain.links),
                math.prod(chain.outer) * chain.blocks,
                chain.step,
                sum(chain.private),
            )
            for chain in plan.chains
        ),
    )


def _node_facts(
    graph: Graph, numbers: dict[Value, int], of_node: dict[Value, list[int]]
) -> Iterator[NodeFacts]:
    outputs = set(graph.outputs)
    for node, number in numbers.items():
        match node:
            case Apply(op=op, inputs=inputs, attrs=attrs):
                text = ", ".join(f"{key}={_short(x)}" for key, x in attrs.items())
                row = op.name, tuple(numbers[x] for x in inputs), text
            case Const(data=data):
                row = "constant", (), _short(data.item()) if data.ndim == 0 else ""
            case Input(name=name):
                row = f"input {name}", (), ""
            case _:
                row = type(node).__name__.lower(), (), ""
        name, operands, text = row
        kernels = tuple(of_node.get(node, ()))
        yield NodeFacts(number, name, str(node.type), node.where, operands, text, kernels, node in outputs)


def _short(x: object) -> str:
    text = f"{x:.6g}" if isinstance(x, float) else getattr(x, "name", None) or repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unfused(graph: Graph, of_node: dict[Value, list[int]]) -> Iterator[Unfused]:
    """Every pair of kernels that an edge joins, with the reason of the scheduler, which is run once more."""
    notes: dict[tuple[Value, Value], str] = {}
    scheduler = Scheduler(graph, notes)
    scheduler.run()
    seen: set[tuple[int, int]] = set()
    for node in graph.nodes:
        if not isinstance(node, Apply) or node not in of_node:
            continue
        for x in node.inputs:
            behind, moved = x, ""
            while isinstance(behind, Apply) and isinstance(behind.op, Movement) and behind not in of_node:
                behind, moved = behind.inputs[0], moved or behind.op.name
            pair = of_node.get(behind, [-1])[-1], of_node[node][0]
            if pair[0] < 0 or pair[0] == pair[1] or pair in seen or is_free(behind):
                continue
            seen.add(pair)
            reason = notes.get((x, node))
            if reason is None:
                kinds = {scheduler.group[v].kind for v in (behind, node)}
                reason = _reason(moved, behind, node, kinds)
            name = behind.op.name if isinstance(behind, Apply) else "value"
            yield Unfused(*pair, f"{name} of {behind.type}", reason)


def _reason(moved: str, first: Value, second: Apply, kinds: set[str]) -> str:
    if moved:
        return f"a {moved} lies between, and what one loop writes the other reads at other places"
    singles = [v.op.name for v in (first, second) if isinstance(v, Apply) and v.op.grads is not None]
    if "single" in kinds:
        return f"{' or '.join(dict.fromkeys(singles))} is a kernel of its own"
    if "product" in kinds:
        return "a product starts from whole operands, which must be in memory"
    return "they were joined to other kernels first"


def _memory(executable: Executable) -> MemoryFacts:
    plan = executable.plan
    order = {level: i for i, level in enumerate(sorted(set(plan.levels)))}
    life: dict[Buffer, tuple[int, int]] = {}
    for kernel, level in zip(plan.kernels, plan.levels, strict=True):
        for b in {b.root for b in set().union(*accesses(kernel))} & plan.arena.keys():
            first, last = life.get(b, (order[level], order[level]))
            life[b] = min(first, order[level]), max(last, order[level])
    buffers = [
        BufferFacts(b.name, str(b.type), b.type.nbytes, offset, *life.get(b, (0, 0)))
        for b, offset in plan.arena.items()
    ]
    alive = [sum(b.bytes for b in buffers if b.first <= i <= b.last) for i in order.values()] or [0]
    written = {b for k in plan.kernels for b in accesses(k)[1]}
    return MemoryFacts(
        plan.arena_bytes,
        sum(b.bytes for b in buffers),
        max(alive),
        alive.index(max(alive)),
        sum(b.type.nbytes for b in plan.inputs),
        sum(b.type.nbytes for b in plan.outputs),
        sum(b.type.nbytes for b in plan.constants),
        sum(b in written for b in plan.inputs),
        tuple(sorted(buffers, key=lambda b: (b.first, b.offset))),
    )


def _phases(executable: Executable) -> Iterator[Phase]:
    passes = executable.pass_seconds
    if passes is None:
        yield Phase("plan, from disk", executable.plan_seconds)
    else:
        yield Phase("passes", passes)
        yield Phase("fusion and memory plan", executable.plan_seconds - passes)
    if not isinstance(executable, Executable):
        yield Phase("machine code and tables", executable.build_seconds)
        return
    machines = executable.program.machines
    # Code that another program has made before costs nothing here.
    code = min(sum({m.path: m.seconds for m in machines}.values()), executable.build_seconds)
    yield Phase("machine code", code)
    yield Phase("tables", executable.build_seconds - code)
