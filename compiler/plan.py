"""From groups to an ordered list of kernels with memory: what is stored where, what is updated in place, what
runs together.

Knows shapes, strides and buffers; knows nothing of addresses or machine code.

Kernels of one level are independent and share a launch. A buffer lives from the level that writes it first to
the level that reads it last; buffers whose lives do not meet share the arena.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from compiler.alike import Alike, Outline
from compiler.errors import LoweringError
from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.joining import JOINS, Spot, behind, edges, joined, pieces, region_of
from compiler.levels import assign_levels, conflicts, pack
from compiler.lower import (
    Buffer,
    Geometry,
    Kernel,
    LoopLowering,
    copy_kernel,
    fill_kernel,
    index_geometry,
    resolve,
    scatter_kernel,
)
from compiler.matmul import product_kernel
from compiler.ops import creation, indexing, movement
from compiler.ops.op import Movement
from compiler.schedule import Group, addressed, by_depth, is_free, is_product, schedule
from compiler.types import TensorType, contiguous_strides
from kernels.work import Chain

_INDEXED = frozenset((indexing.take, indexing.gather, indexing.take_add, indexing.scatter_add))


@dataclass(frozen=True)
class Request:
    """What a program is made from.

    `graph` computes the values to return, then `writes` (input number, value: the value replaces the input's
    memory), then `checks` (bool values without axes, true where the program must stop before it writes to
    anything). `strides` are the inputs' layouts, row-major where None. `there`: it is for a GPU.
    """

    graph: Graph
    writes: tuple[tuple[int, Value], ...] = ()
    checks: tuple[Value, ...] = ()
    strides: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    there: bool = False


@dataclass
class Plan:
    """Kernels with their levels, and where every buffer is.

    Those of one of the `chains` have one level, and run in their order; what each thread has for itself has
    no place in the arena.
    """

    kernels: list[Kernel]
    levels: list[int]
    inputs: list[Buffer]
    outputs: list[Buffer]
    checks: list[Buffer]
    constants: dict[Buffer, Const]
    arena: dict[Buffer, int]
    arena_bytes: int
    chains: tuple[Chain, ...] = ()
    # The same kernels with some of them in chains, for a back end that can run those.
    chained: Plan | None = None

    @cached_property
    def private(self) -> frozenset[Buffer]:
        """What only chains see, in memory of each thread's own."""
        places = [
            (self.kernels[link.number].places[operand], memory)
            for chain in self.chains
            for link in chain.links
            for operand, memory in enumerate(link.private)
        ]
        return frozenset(p.buffer.root for p, memory in places if memory >= 0 and p.buffer is not None)


class Planner:
    """Builds the plan of one request."""

    taken: set[Buffer]
    # What must run before each group: what it reads, and who reads what it overwrites.
    waits: dict[Group, set[Group]]

    def __init__(self, request: Request) -> None:
        self.request = request
        self.graph = request.graph
        self.buffers: dict[Value, Buffer] = {}
        self.geometry: dict[Value, Geometry] = {}
        self.constants: dict[Buffer, Const] = {}
        self.kernels: list[Kernel] = []
        self.inputs: list[Buffer] = []
        self.joined: dict[Value, Spot] = {}
        self.alike = Alike()
        for number, node in enumerate(self.graph.inputs):
            strides = request.strides.get(number, contiguous_strides(node.shape))
            self.inputs.append(self.give(node, Buffer(node.type, node.name), strides))
        for node in self.graph.nodes:
            if isinstance(node, Const) and node.ndim:
                self.constants[self.give(node, Buffer(node.type, "constant"))] = node

    def give(self, value: Value, buffer: Buffer, strides: Sequence[int] | None = None) -> Buffer:
        """Let `value` live in `buffer`, or in its place in a join."""
        plain = value.shape, tuple(strides or contiguous_strides(value.shape)), 0
        self.buffers[value], self.geometry[value] = self.joined.get(value, (buffer, plain))
        return self.buffers[value]

    def run(self) -> Plan:
        """Plan the request. Raises LoweringError for what has no kernel."""
        groups = schedule(self.graph)
        targets = self.in_place(groups)
        self.joined = joined(self.graph, groups, targets)
        # Old values of inputs are taken before anything is overwritten.
        returned = self.graph.outputs[: self.returned]
        early = {i: self.output(v) for i, v in enumerate(returned) if self.is_input(v)}
        written = {number for number, _ in self.request.writes}
        staged = {v: self.staged(v) for _, v in self.request.writes if self.is_input(v, among=written)}
        for group in self.ordered(groups, targets):
            self.lower(group, targets)
        outputs = [early[i] if i in early else self.output(v) for i, v in enumerate(returned)]
        for number, value in self.request.writes:
            target, node = self.inputs[number], self.graph.inputs[number]
            if value in staged:
                source, memory = (value.shape, contiguous_strides(value.shape), 0), staged[value]
            else:
                base, source = self.place(value)
                memory = self.buffers[base]
            if memory is not target:
                self.kernels.append(copy_kernel(source, memory, self.geometry[node], target))
        checks = [self.buffers[self.place(v)[0]] for v in self.request.checks]
        visible = {*self.inputs, *outputs}
        levels = assign_levels([conflicts(k, checks, visible) for k in self.kernels])
        arena, size = pack(self.kernels, levels, checks, {*visible, *self.constants})
        return Plan(self.kernels, levels, self.inputs, outputs, checks, self.constants, arena, size)

    def is_input(self, value: Value, among: set[int] | None = None) -> bool:
        """Whether a value is an input's memory, or a movement of it (of the inputs numbered `among`)."""
        behind = self.memory_of(value)
        return any(x in behind for i, x in enumerate(self.graph.inputs) if among is None or i in among)

    def staged(self, value: Value) -> Buffer:
        """A copy of a value in memory of its own."""
        base, geometry = self.place(value)
        buffer = Buffer(value.type, "staged")
        self.kernels.append(
            copy_kernel(
                geometry, self.buffers[base], (value.shape, contiguous_strides(value.shape), 0), buffer
            )
        )
        return buffer

    @property
    def returned(self) -> int:
        return len(self.graph.outputs) - len(self.request.writes) - len(self.request.checks)

    # What is stored

    def stored(self, value: Value) -> Geometry | None:
        return self.geometry.get(value)

    def place(self, value: Value) -> tuple[Value, Geometry]:
        """Where a value lies; what was a number or an index is filled in, what needs a copy copied."""
        base, chain = self.behind(value)
        if base not in self.geometry:
            self.materialise(base)
        for step in reversed(chain):
            self.move(step)
        return resolve(value, self.stored)

    def behind(self, value: Value) -> tuple[Value, list[Apply]]:
        """What is behind movements, in memory or no movement itself; and those movements, last one first."""
        chain: list[Apply] = []
        while isinstance(value, Apply) and isinstance(value.op, Movement) and value not in self.geometry:
            chain.append(value)
            value = value.inputs[0]
        return value, chain

    def materialise(self, value: Value) -> None:
        """Write a constant or an index grid to memory."""
        buffer = self.give(value, Buffer(value.type, "constant"))
        if isinstance(value, Const):
            self.constants[buffer] = value
        elif isinstance(value, Apply) and value.op is creation.full:
            self.kernels.append(fill_kernel(value.attrs["value"], self.geometry[value], buffer))
        elif isinstance(value, Apply) and value.op is creation.iota:
            group = Group([value], value.shape, "loop")
            lowering = LoopLowering(group, self.buffers, lambda v: None, [], "iota")
            register = lowering.load(value)
            lowering.values[value] = register
            lowering.store(value, buffer, self.geometry[value])
            self.kernels.append(lowering.kernel())
        else:
            raise LoweringError(f"{value.type} was not computed before it is read")

    def needed_outside(self, group: Group) -> list[Apply]:
        """Nodes of a group that something else reads."""
        members = set(group.nodes)
        outputs = set(self.graph.outputs)
        return [n for n in group.nodes if n in outputs or any(u not in members for u in self.graph.users[n])]

    def output(self, value: Value) -> Buffer:
        """A buffer of the caller's own for a returned value."""
        base, geometry = self.place(value)
        buffer = self.buffers[base]
        private = buffer not in self.inputs and buffer not in self.constants and buffer.whole is None
        mine = private and buffer not in self.taken
        if mine and base.type.size == value.type.size and _is_contiguous(geometry):
            self.taken.add(buffer)
            return buffer
        target = Buffer(value.type, "output")
        self.kernels.append(
            copy_kernel(geometry, buffer, (value.shape, contiguous_strides(value.shape), 0), target)
        )
        self.taken.add(target)
        return target

    # Groups to kernels

    def lower(self, group: Group, targets: Mapping[Apply, Buffer]) -> None:
        first = group.nodes[0]
        name = "_".join(dict.fromkeys(n.op.name for n in group.nodes))[:48]
        if group.kind in ("loop", "product"):
            for node in group.nodes:
                self.ready_operands(node)
            outputs = []
            for node in self.needed_outside(group):
                buffer = self.give(node, targets.get(node) or Buffer(node.type, node.op.name))
                outputs.append((node, buffer, self.geometry[node]))
            outline = Outline(group, self.buffers, self.stored, outputs)
            known = self.alike.kernel(group, outline)
            if known is not None:
                self.kernels.append(known)
                return
            lowering = LoopLowering(group, self.buffers, self.stored, outputs, name)
            made = lowering.kernels() if group.kind == "loop" else [product_kernel(lowering)]
            self.alike.note(outline, made)
            self.kernels += made
        elif isinstance(first.op, Movement):
            self.move(first)
        elif not is_free(first):
            self.single(first)

    def ready_operands(self, node: Apply) -> None:
        """See that what a loop reads by address is in memory."""
        for x in node.inputs if node.op is indexing.take or is_product(node) else addressed(node):
            self.place(x)

    def move(self, node: Apply) -> None:
        """A movement costs nothing where strides can express it, and a copy of its input where not."""
        if node in self.geometry:
            return
        source = node.inputs[0]
        base, _ = self.behind(source)
        if is_free(base) or (isinstance(base, Const) and base.ndim == 0):
            virtual = index_geometry(base) or (base.shape, (0,) * base.ndim, 0)
            try:
                resolve(node, lambda v: virtual if v is base else None)
                return
            except LoweringError:
                self.materialise(base)
        try:
            resolve(node, self.stored)
        except LoweringError:
            below, geometry = resolve(source, self.stored)
            buffer = self.give(node, Buffer(node.type, "copy"))
            whole = (source.shape, contiguous_strides(source.shape), 0)
            self.kernels.append(copy_kernel(geometry, self.buffers[below], whole, buffer))

    def single(self, node: Apply) -> None:
        buffer = self.give(node, Buffer(node.type, node.op.name))
        whole = self.geometry[node]
        if node.op in (indexing.scatter_add, indexing.take_add):
            self.copy_into(node.inputs[0], whole, buffer)
            for x in node.inputs[1:]:
                self.place(x)
            self.kernels.append(scatter_kernel(node, buffer, self.buffers, self.stored))
        elif node.op is movement.slice_update:
            base, new = node.inputs
            self.copy_into(base, whole, buffer)
            self.copy_into(new, region_of(whole, **node.attrs), buffer)
        elif node.op in JOINS:
            self.join(node, whole, buffer)
        else:
            raise LoweringError(f"{node.op.name} has no compiled form ({node.where})")

    def join(self, node: Apply, whole: Geometry, buffer: Buffer) -> None:
        """Fill what of a concatenation or a pad was not computed in its place."""
        if node.op is movement.pad:
            for block in edges(node, whole):
                edge = Buffer(TensorType(block[0], node.dtype), "edge", buffer)
                self.kernels.append(fill_kernel(node.attrs["value"], block, edge))
        for piece, block in pieces(node, whole):
            x, geometry = behind(piece, block)
            memory, placed = self.joined.get(x, (None, None))
            if memory is None or memory.whole is not buffer or placed != geometry:
                self.copy_into(piece, block, Buffer(piece.type, "piece", buffer))

    def copy_into(self, value: Value, target: Geometry, buffer: Buffer) -> None:
        """Write a value, broadcast, to a region of a buffer."""
        if isinstance(value, Const) and value.ndim == 0:
            self.kernels.append(fill_kernel(value.data.item(), target, buffer))
        elif isinstance(value, Apply) and value.op is creation.full:
            self.kernels.append(fill_kernel(value.attrs["value"], target, buffer))
        else:
            base, geometry = self.place(value)
            spread = movement.expand.view(*geometry, shape=target[0])
            assert spread is not None
            self.kernels.append(copy_kernel(spread, self.buffers[base], target, buffer))

    # Updates in place

    def in_place(self, groups: Sequence[Group]) -> dict[Apply, Buffer]:
        """Values that may be computed straight into the input they replace.

        Every other reader of the old value must be able to run first, and the computing loop must read it, if
        at all, at the very elements it writes.
        """
        self.taken = set()
        of_node: dict[Value, Group] = {n: g for g in groups for n in g.nodes}
        after: dict[Group, set[Group]] = {
            g: {of_node[x] for n in g.nodes for x in n.inputs if x in of_node} - {g} for g in groups
        }
        self.waits = after
        chosen: dict[Apply, Buffer] = {}
        seen: set[Value] = set()
        for number, written in self.request.writes:
            source, value = self.graph.inputs[number], _unshaped(written)
            group = of_node.get(value)
            if (
                group is None
                or group.kind not in ("loop", "product")
                or not isinstance(value, Apply)
                or value in seen
            ):
                continue
            seen.add(value)
            if {value, written} & set(self.graph.outputs[: self.returned]) or written.type != source.type:
                continue
            if any(n.op in (indexing.take, indexing.gather) for n in group.nodes):
                continue
            if self.geometry[source][1] != contiguous_strides(source.shape) or self.reads_elsewhere(
                group, source, value
            ):
                continue
            readers = {of_node[u] for u in self.readers(source)} - {group}
            if group in _behind(readers, after):
                continue
            after[group] |= readers
            chosen[value] = self.inputs[number]
        return chosen

    def readers(self, source: Value) -> Iterable[Apply]:
        """Applications that read a value's memory, through movements too."""
        for user in self.graph.users[source]:
            yield user
            if isinstance(user.op, Movement):
                yield from self.readers(user)

    def reads_elsewhere(self, group: Group, source: Input, value: Apply) -> bool:
        """Whether the group reads the memory it is about to overwrite other than element by element."""
        inside = set(group.nodes)
        for node in self.readers(source):
            if node not in inside:
                continue
            direct = all(_unshaped(x) is source for x in node.inputs if source in self.memory_of(x))
            if not direct or is_product(node) or node.shape != value.shape:
                return True
        return False

    def memory_of(self, value: Value) -> set[Value]:
        """A value and everything it is a movement of."""
        found = {value}
        while isinstance(value, Apply) and isinstance(value.op, Movement):
            value = value.inputs[0]
            found.add(value)
        return found

    def ordered(self, groups: Sequence[Group], targets: Mapping[Apply, Buffer]) -> list[Group]:
        """Groups in dependency order, those that overwrite an input after its readers."""
        of_node: dict[Value, Group] = {n: g for g in groups for n in g.nodes}
        waits = self.waits
        # Overwriting anything waits for every check, so that a program that stops has changed nothing.
        checks = {of_node[v] for v in self.request.checks if v in of_node}
        writers = {of_node[v] for v in targets}
        # So does reading or adding at a computed position, which a bad index would take out of bounds; unless
        # the check itself needs the result.
        indexed = [g for g in groups if any(n.op in _INDEXED for n in g.nodes)] if checks else []
        users: dict[Group, set[Group]] = {g: set() for g in groups} if indexed else {}
        for g in users:
            for before in waits[g]:
                users[before].add(g)
        for g in indexed:
            needing = _behind([g], users)
            added = {c for c in checks if c is not g and c not in needing}
            waits[g] |= added
            for c in added:
                users[c].add(g)
        for g in writers:
            if g not in checks:
                waits[g] |= checks
        return by_depth(groups, waits)


def _unshaped(value: Value) -> Value:
    """The value behind reshapes: the same elements in the same order."""
    while isinstance(value, Apply) and value.op is movement.reshape:
        value = value.inputs[0]
    return value


def _is_contiguous(geometry: Geometry) -> bool:
    shape, strides, offset = geometry
    plain = contiguous_strides(shape)
    return offset == 0 and all(n == 1 or s == p for n, s, p in zip(shape, strides, plain, strict=True))


def _behind(starts: Iterable[Group], after: Mapping[Group, set[Group]]) -> set[Group]:
    """What some groups lead to, in one step or more."""
    stack, found = list(starts), set[Group]()
    while stack:
        new = after[stack.pop()] - found
        found |= new
        stack += new
    return found
