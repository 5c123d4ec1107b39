"""One group of nodes to one loop spec, with the memory each operand reads or writes.

Knows geometry (strides, offsets) and the scalar vocabulary; knows nothing of addresses, arenas or machine
code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.errors import LoweringError
from compiler.ir import Apply, Const, Value
from compiler.ops import creation, indexing
from compiler.ops.op import Elementwise, Movement, Reduction, Scan
from compiler.schedule import Axes, Group, padded
from compiler.types import TensorType, contiguous_strides
from kernels import dtypes
from kernels.blocks import BlockSpec, BlockWork
from kernels.cpu import tasks
from kernels.dtypes import DType
from kernels.files import Placed, reach
from kernels.recorder import Recorder, Register
from kernels.spec import (
    RUNTIME,
    Index,
    Literal,
    Load,
    LoopSpec,
    MatmulSpec,
    Operand,
    Reduce,
    Step,
    Store,
    pattern,
)
from kernels.spec import Scan as ScanStep
from kernels.work import Work

Shape = tuple[int, ...]
# Sizes of axes, from the outermost, each with its stride in every operand.
Walk = list[tuple[int, tuple[int, ...]]]
# Rows of one part of a reduction over rows, and elements of one part at least: the float32 partial sums of a
# part stay accurate, and a part is work worth a thread (8192 elements take some microseconds).
PART_ROWS, PART_ELEMENTS = 512, 8192


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of one value: an input's, an output's, a constant's, a place in the arena, or a part of a
    `whole`, which other parts do not overlap.
    """

    type: TensorType
    name: str = ""
    whole: Buffer | None = None

    @property
    def around(self) -> Iterator[Buffer]:
        """This buffer and what it is part of, up to the memory that has an address."""
        buffer: Buffer | None = self
        while buffer is not None:
            yield buffer
            buffer = buffer.whole

    @property
    def root(self) -> Buffer:
        """The memory that has an address."""
        return self if self.whole is None else self.whole.root


@dataclass(frozen=True)
class Place:
    """Where an operand is: a buffer, an offset in elements from its root, strides per loop axis, the stride
    of an index or a part.
    """

    buffer: Buffer | None
    offset: int
    strides: tuple[int, ...]
    index_stride: int = 0


@dataclass(frozen=True)
class Kernel:
    """A spec bound to buffers: `extents` of its axes, a `Place` per operand, and how many parts its rows are
    cut into.

    `parts` is 0 when the cut changes no result; otherwise the rows are cut into exactly that many.
    """

    spec: LoopSpec | MatmulSpec
    extents: tuple[int, ...]
    places: tuple[Place, ...]
    nodes: tuple[Apply, ...]
    parts: int = 0
    serial: bool = False

    @property
    def indexed(self) -> bool:
        """Whether it reads or adds at computed positions."""
        return any(isinstance(s, Load | Store) and s.index is not None for s in self.spec.steps)

    def work(self) -> Work:
        """The kernel as the runner takes it: without buffers."""
        strides = tuple(p.strides for p in self.places)
        index_strides = tuple(p.index_stride for p in self.places)
        return Work(self.spec, self.extents, strides, index_strides, self.parts, self.serial)

    def placed(self) -> Placed:
        """The kernel with as much memory as its buffers have, for a file."""
        work = self.work()
        # An input need not be contiguous, nor start at its lowest element.
        spans: dict[Buffer | None, tuple[int, int]] = {}
        for operand, place in enumerate(self.places):
            if place.buffer is not None:
                low, high = reach(work, operand)
                start, stop = spans.get(place.buffer, (0, math.prod(place.buffer.type.shape)))
                spans[place.buffer] = min(start, place.offset + low), max(stop, place.offset + high + 1)
        numbers = {buffer: number for number, buffer in enumerate(spans)}
        return Placed(
            work,
            tuple(numbers.get(p.buffer, -1) for p in self.places),
            tuple(p.offset - spans.get(p.buffer, (0, 0))[0] for p in self.places),
            tuple(stop - start for start, stop in spans.values()),
        )


@dataclass(frozen=True)
class BlockKernel:
    """A block spec bound to buffers, in place of the kernels that it was made of."""

    spec: BlockSpec
    extents: tuple[int, ...]
    places: tuple[Place, ...]
    indexed = False

    def work(self) -> BlockWork:
        """The kernel as the runner takes it: without buffers."""
        return BlockWork(self.spec, self.extents, tuple(p.strides for p in self.places))


Bound = Kernel | BlockKernel
Geometry = tuple[Shape, tuple[int, ...], int]


def resolve(value: Value, stored: Callable[[Value], Geometry | None]) -> tuple[Value, Geometry]:
    """The value in memory behind a chain of movements, and the geometry `value` has there.

    Raises LoweringError when a movement on the way needs a copy.
    """
    chain: list[Apply] = []
    base = value
    while (geometry := stored(base)) is None:
        if not isinstance(base, Apply) or not isinstance(base.op, Movement):
            raise LoweringError(f"{base.type} is not in memory")
        chain.append(base)
        base = base.inputs[0]
    for step in reversed(chain):
        assert isinstance(step.op, Movement)
        moved = step.op.view(*geometry, **step.attrs)
        if moved is None:
            raise LoweringError(f"{step.op.name} of {base.type} needs a copy")
        geometry = moved
    return base, geometry


def index_geometry(value: Value) -> Geometry | None:
    """Geometry of an index grid, as if each element lay at the address it holds; None for anything else."""
    if not isinstance(value, Apply) or value.op is not creation.iota:
        return None
    return value.shape, tuple(int(a == value.attrs["axis"]) for a in range(value.ndim)), 0


class LoopLowering:
    """Builds the kernels of one loop group."""

    def __init__(
        self,
        group: Group,
        buffers: dict[Value, Buffer],
        stored: Callable[[Value], Geometry | None],
        outputs: Sequence[tuple[Apply, Buffer, Geometry]],
        name: str,
    ) -> None:
        self.group, self.buffers, self.stored, self.outputs, self.name = group, buffers, stored, outputs, name
        self.domain = group.domain or (1,)
        self.members = set(group.nodes)
        self.k = Recorder()
        self.values: dict[Value, Register] = {}
        # Places with strides per domain axis, until the axes are put in loop order and collapsed.
        self.places: list[Place] = []
        self.types: list[DType] = []
        self.slots: dict[object, int] = {}
        self.partials: list[tuple[Apply, int]] = []
        every = frozenset(a for a, size in enumerate(self.domain) if size != 1)
        inner = group.inner or frozenset()
        # A whole tensor reduced to one number has no rows to divide: its reduction runs over the rows
        # instead.
        self.whole = bool(group.reductions) and inner == every and not self.along_rows()
        self.inner: Axes = frozenset() if self.whole else inner
        self.rows = tuple(a for a in range(len(self.domain)) if a not in self.inner)
        self.order = (*self.rows, *sorted(self.inner))

    def along_rows(self) -> bool:
        """Whether a reduction's result is read inside the group, or a scan runs along its rows."""
        return any(
            isinstance(x, Apply) and isinstance(x.op, Reduction) and x in self.members
            for n in self.group.nodes
            for x in n.inputs
        ) or any(isinstance(n.op, Scan) for n in self.group.nodes)

    # Values

    def strides_in_domain(self, shape: Shape, strides: Sequence[int]) -> tuple[int, ...]:
        rank = len(self.domain)
        aligned = (0,) * (rank - len(shape)) + tuple(strides)
        return tuple(0 if size == 1 else s for size, s in zip(padded(shape, rank), aligned, strict=True))

    def operand(
        self, buffer: Buffer | None, offset: int, strides: tuple[int, ...], dtype: DType, step: int = 0
    ) -> int:
        key = (buffer, offset, strides, step)
        if key not in self.slots:
            self.slots[key] = len(self.places)
            self.places.append(Place(buffer, offset, strides, step))
            self.types.append(dtype)
        return self.slots[key]

    def read(self, value: Value) -> Register:
        """The register of a value anywhere in the graph."""
        if value not in self.values:
            self.values[value] = self.compute(value) if value in self.members else self.load(value)
        return self.values[value]

    def load(self, value: Value) -> Register:
        if isinstance(value, Const) and value.ndim == 0:
            return self.k.literal(value.data.item(), value.dtype)
        if isinstance(value, Apply) and value.op is creation.full:
            return self.k.literal(creation.full.compute(**{**value.attrs, "shape": ()}).item(), value.dtype)
        base, geometry = resolve(value, self.known)
        shape, strides, offset = geometry
        strides = self.strides_in_domain(shape, strides)
        if isinstance(base, Apply) and base.op is creation.iota:
            index = self.k.fresh(dtypes.int64)
            self.k.steps.append(Index(index.name, self.operand(None, offset, strides, dtypes.int64)))
            return self.k.cast(index, base.dtype)
        register = self.k.fresh(value.dtype)
        self.k.steps.append(
            Load(register.name, self.operand(self.buffers[base], offset, strides, value.dtype))
        )
        return register

    def known(self, value: Value) -> Geometry | None:
        """Geometry of what is in memory; an index grid counts, each element holding its own index."""
        return index_geometry(value) or self.stored(value)

    def compute(self, node: Value) -> Register:
        assert isinstance(node, Apply)
        if isinstance(node.op, Elementwise):
            operands = [self.arithmetic(self.read(x)) for x in node.inputs]
            result = node.op.body(self.k, *operands, **node.attrs)
            return self.k.cast(result, node.dtype)
        if isinstance(node.op, Reduction):
            return self.reduce(node, node.op.combine)
        if isinstance(node.op, Scan):
            return self.scan(node, node.op.combine)
        return self.indexed(node)

    def scan(self, node: Apply, combine: str) -> Register:
        *factor, value = (self.arithmetic(self.read(x)) for x in node.inputs)
        if node.shape[node.attrs["axis"]] == 1:
            return self.k.cast(value, node.dtype)
        register = self.k.fresh(node.dtype.arithmetic)
        named = factor[0].name if factor else None
        self.k.steps.append(ScanStep(register.name, value.name, combine, register.dtype, named))
        return self.k.cast(register, node.dtype)

    def arithmetic(self, x: Register) -> Register:
        """16-bit floats are float32 registers already; only the name of the dtype changes."""
        return x if x.dtype.compute is None else Register(x.name, x.dtype.compute)

    def reduce(self, node: Apply, combine: str) -> Register:
        value = self.read(node.inputs[0])
        register = self.k.fresh(node.dtype)
        shape = padded(node.inputs[0].shape, len(self.domain))
        reduced = frozenset(
            a for a, s in enumerate(padded(node.shape, len(self.domain))) if s == 1 and shape[a] != 1
        )
        if reduced == self.inner and not self.whole:
            self.k.steps.append(Reduce(register.name, value.name, combine, node.dtype))
            return register
        kept = tuple(s if a in self.inner else 1 for a, s in enumerate(shape))
        buffer = Buffer(TensorType((0, *kept), node.dtype), "partial")
        strides = self.strides_in_domain(kept, contiguous_strides(kept))
        slot = self.operand(buffer, 0, strides, node.dtype, math.prod(kept))
        self.k.steps.append(Reduce(register.name, value.name, combine, node.dtype, outer=True, operand=slot))
        self.partials.append((node, slot))
        return register

    def indexed(self, node: Apply) -> Register:
        """take and gather: the operand's strides outside the indexed axis, plus the index times its stride
        there.
        """
        x, index = node.inputs
        axis = node.attrs["axis"]
        base, (_, strides, offset) = resolve(x, self.stored)
        if node.op is indexing.gather:
            position = self.read(index)
            around = tuple(0 if a == axis else s for a, s in enumerate(strides))
        else:
            after = x.ndim - axis - 1
            index_base, (shape, steps, start) = resolve(index, self.known)
            spread = (0,) * axis + tuple(steps) + (0,) * after
            slot = self.operand(
                self.buffers[index_base], start, self.strides_in_domain(node.shape, spread), index.dtype
            )
            position = self.k.fresh(index.dtype)
            self.k.steps.append(Load(position.name, slot))
            around = (*strides[:axis], *(0,) * len(shape), *strides[axis + 1 :])
        slot = self.operand(
            self.buffers[base], offset, self.strides_in_domain(node.shape, around), node.dtype, strides[axis]
        )
        register = self.k.fresh(node.dtype)
        self.k.steps.append(Load(register.name, slot, self.k.cast(position, dtypes.int64).name))
        return register

    # Kernels

    def store(self, node: Apply, buffer: Buffer, geometry: Geometry) -> None:
        _, strides, offset = geometry
        slot = self.operand(buffer, offset, self.strides_in_domain(node.shape, strides), node.dtype)
        self.k.steps.append(Store(self.read(node).name, slot))

    def kernels(self) -> list[Kernel]:
        """The group's kernel, and a small one for each reduction over rows that was cut into parts."""
        for node in self.group.nodes:
            self.read(node)
        partial_nodes = {node for node, _ in self.partials}
        targets = {node: buffer for node, buffer, _ in self.outputs}
        for node, buffer, geometry in self.outputs:
            if node not in partial_nodes:
                self.store(node, buffer, geometry)
        kernel = self.kernel()
        if not self.partials:
            return [kernel]
        parts = self.part_count(kernel)
        finishers: list[Kernel] = []
        places = list(kernel.places)
        for node, slot in self.partials:
            partial = target = targets[node]
            if parts > 1:
                partial = Buffer(
                    TensorType((parts, places[slot].index_stride), node.dtype), f"parts of {target.name}"
                )
                finishers.append(combine_parts(node, partial, target))
            places[slot] = replace(places[slot], buffer=partial)
        return [replace(kernel, places=tuple(places), parts=parts), *finishers]

    def part_count(self, kernel: Kernel) -> int:
        """Parts of a reduction over rows: by shape alone, so that any thread count gives the same sums."""
        work = kernel.work()
        wanted = max(-(-tasks.rows(work) // PART_ROWS) if self.vector == "inner" else 1, 1)
        return tasks.part_count(work, max(wanted, min(-(-math.prod(self.domain) // PART_ELEMENTS), 64)))

    @property
    def vector(self) -> str:
        last = max((a for a, s in enumerate(self.domain) if s != 1), default=0)
        return "inner" if last in self.inner else "rows"

    def kernel(self) -> Kernel:
        rows, inner = self.walk(self.rows), self.walk(tuple(sorted(self.inner)))
        extents = tuple(size for size, _ in rows + inner)
        places = tuple(
            replace(p, strides=tuple(strides[number] for _, strides in rows + inner))
            for number, p in enumerate(self.places)
        )
        operands = tuple(
            Operand(dtype, tuple(pattern(s) for s in place.strides))
            for dtype, place in zip(self.types, places, strict=True)
        )
        spec = LoopSpec(self.name, len(rows), len(inner), self.vector, operands, tuple(self.k.steps))
        return Kernel(spec, extents, places, tuple(self.group.nodes))

    def walk(self, axes: tuple[int, ...]) -> Walk:
        """Domain axes as the loops over them."""
        return merge_axes(
            more_than_one([(self.domain[a], tuple(p.strides[a] for p in self.places)) for a in axes])
        )


def more_than_one(axes: Walk) -> Walk:
    """The axes of more than one element, or the first where none is."""
    return [axis for axis in axes if axis[0] != 1] or axes[:1]


def merge_axes(axes: Walk) -> Walk:
    """Neighbouring axes that every operand walks as one, made one."""
    merged: Walk = []
    for size, strides in axes:
        if merged and all(s == t * size for s, t in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * size, strides
        else:
            merged.append((size, strides))
    return merged


def combine_parts(node: Apply, partial: Buffer, target: Buffer) -> Kernel:
    """The kernel that adds up, in order, the parts of a reduction over rows."""
    assert isinstance(node.op, Reduction)
    parts, size = partial.type.shape
    operands = (Operand(node.dtype, (1, RUNTIME)), Operand(node.dtype, (1, 0)))
    steps = (Load("v1", 0), Reduce("v2", "v1", node.op.combine, node.dtype), Store("v2", 1))
    spec = LoopSpec("parts", 1, 1, "rows", operands, steps)
    places = (Place(partial, 0, (1, size)), Place(target, 0, (1, 0)))
    return Kernel(spec, (size, parts), places, (node,))


def copy_kernel(
    source: Geometry, buffer: Buffer, target: Geometry, target_buffer: Buffer, name: str = "copy"
) -> Kernel:
    """Copy one strided view onto another of the same shape."""
    shape, strides, offset = source
    return _elementwise_kernel(
        name, shape, [(buffer, strides, offset)], (target_buffer, target[1], target[2]), ()
    )


def fill_kernel(value: float, target: Geometry, buffer: Buffer) -> Kernel:
    """Set every element of a strided view."""
    shape, strides, offset = target
    return _elementwise_kernel("fill", shape, [], (buffer, strides, offset), (value,))


def _elementwise_kernel(
    name: str,
    shape: Shape,
    sources: list[tuple[Buffer, tuple[int, ...], int]],
    target: tuple[Buffer, tuple[int, ...], int],
    fill: tuple[float, ...],
) -> Kernel:
    buffer = target[0]
    shape, dtype = shape or (1,), buffer.type.dtype
    everything = [*sources, target]
    axes = [(size, tuple((s or (0,))[a] for _, s, _ in everything)) for a, size in enumerate(shape)]
    walk = merge_axes(more_than_one(axes))
    extents = tuple(size for size, _ in walk)
    places = tuple(
        Place(b, o, tuple(strides[number] for _, strides in walk))
        for number, (b, _, o) in enumerate(everything)
    )
    operands = tuple(Operand(dtype, tuple(pattern(s) for s in p.strides)) for p in places)
    first: Step = Literal("v1", fill[0], dtype) if fill else Load("v1", 0)
    spec = LoopSpec(name, len(walk), 0, "rows", operands, (first, Store("v1", len(places) - 1)))
    return Kernel(spec, extents, places, ())


def scatter_kernel(
    node: Apply, buffer: Buffer, buffers: dict[Value, Buffer], stored: Callable[[Value], Geometry | None]
) -> Kernel:
    """Add a source into `buffer`, which holds the operand already, at computed positions; one thread, in
    order.
    """
    x, index, source = node.inputs
    axis, strides = node.attrs["axis"], contiguous_strides(node.shape)
    source_base, (shape, source_strides, source_offset) = resolve(source, stored)
    index_base, (_, index_strides, index_offset) = resolve(index, stored)
    if node.op is indexing.scatter_add:
        around = tuple(0 if a == axis else s for a, s in enumerate(strides))
    else:
        around = (*strides[:axis], *(0,) * index.ndim, *strides[axis + 1 :])
        index_strides = (0,) * axis + tuple(index_strides) + (0,) * (x.ndim - axis - 1)
    shape = shape or (1,)
    places = (
        Place(buffers[source_base], source_offset, tuple(source_strides) or (0,)),
        Place(buffers[index_base], index_offset, tuple(index_strides) or (0,)),
        Place(buffer, 0, tuple(around) or (0,), strides[axis]),
    )
    kinds = (source.dtype, index.dtype, node.dtype)
    operands = tuple(
        Operand(d, tuple(pattern(s) for s in p.strides)) for d, p in zip(kinds, places, strict=True)
    )
    steps: tuple[Step, ...] = (Load("v1", 0), Load("v2", 1), Store("v1", 2, "v2"))
    spec = LoopSpec(node.op.name, len(shape), 0, "rows", operands, steps)
    return Kernel(spec, shape, places, (node,), serial=True)
