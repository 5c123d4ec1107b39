"""Kernels that hand values of one shape on to each other, as block specs: what is handed on becomes a value.

Knows kernels by their specs and places, and nothing of ops. Everything is seen from the axes of the memory
that is handed on: outer ones, rows, columns. What sums over the columns goes to one kernel, whose programs
have a block of rows and walk the columns; products that sum over the rows go to another, to which the first
leaves what its rows came to.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.chains import Run, runs_of, strides_along
from compiler.lower import BlockKernel, Buffer, Kernel, Place, merge_axes
from compiler.types import TensorType, contiguous_strides
from kernels import dtypes
from kernels.blocks import Axes, BlockSpec, BlockStep, Dot, Total, needs, operands_of
from kernels.dtypes import DType
from kernels.gpu.block_tiles import LONGEST
from kernels.spec import (
    PRODUCT,
    Call,
    Index,
    Literal,
    Load,
    LoopSpec,
    MatmulSpec,
    Operand,
    Reduce,
    Store,
    pattern,
)

Shape = tuple[int, ...]


class UnfitError(Exception):
    """These kernels cannot be one."""


def require(held: object, words: str) -> None:
    """Raise UnfitError unless something holds."""
    if not held:
        raise UnfitError(words)


@dataclass(frozen=True)
class Stored:
    """What a kernel of the set wrote: a value, and where it is along the axes."""

    name: str
    offset: int
    strides: tuple[int, ...]


class Assembly:
    """Collects the steps of kernels over memory with `axes`: outer ones, rows, columns.

    `hidden` memory is seen by these kernels alone, and need not be written. Raises UnfitError, here and in
    `kernels`, where they cannot be one.
    """

    def __init__(self, axes: Shape, hidden: Collection[Buffer]) -> None:
        self.axes, self.hidden = axes, hidden
        self.rows, self.columns = len(axes) - 2, len(axes) - 1
        self.depths: list[int] = []
        self.places: list[Place] = []
        self.types: list[DType] = []
        # Each step; reductions and products with the axis that they sum over.
        self.steps: list[tuple[BlockStep, int]] = []
        self.varies: dict[str, Axes] = {}
        self.dtype: dict[str, DType] = {}
        self.stored: dict[Buffer, Stored] = {}
        self.loaded: set[Buffer] = set()
        self.names: dict[str, str] = {}
        # The values of operands that were loaded: nothing of the set writes to them.
        self.held: dict[int, str] = {}

    # Kernels

    def add(self, kernel: Kernel, shared: Collection[Buffer]) -> None:
        """Add the next kernel, which has some operands in `shared` memory of the axes' shape."""
        runs: tuple[Run, ...] | None = None
        handed: list[int] = []
        for operand, place in enumerate(kernel.places):
            if place.buffer is not None and place.buffer in shared:
                found = runs_of(kernel, operand, place.buffer.type.size, self.axes)
                require(found is not None and runs in (None, found), "walks it otherwise")
                runs = found
                handed.append(operand)
        if runs is None:
            raise UnfitError("has none of the memory")
        self.names = {}
        if isinstance(kernel.spec, MatmulSpec):
            self.product(kernel, kernel.spec, runs, handed)
        else:
            self.loop(kernel, kernel.spec, runs)

    def loop(self, kernel: Kernel, spec: LoopSpec, runs: Sequence[Run]) -> None:
        """Add a loop, all of whose axes are the memory's."""
        axes = zip(runs, kernel.extents, strict=True)
        require(all(run is not None or n == 1 for run, n in axes), "has axes of its own")
        inner = [run for run in runs[spec.rows :] if run is not None]
        for step in spec.steps:
            if isinstance(step, Reduce):
                require(not step.outer and len(inner) == 1 and inner[0][0] == inner[0][1], "sums otherwise")
                require(inner[0][1] >= self.rows, "sums over an outer axis")
                self.reduce(step, inner[0][1])
            else:
                self.pointwise(step, kernel, runs)

    def product(self, kernel: Kernel, spec: MatmulSpec, runs: Sequence[Run], handed: list[int]) -> None:
        """Add a product: one that makes the memory, or sums it up."""
        require(spec.depth == 1, "sums over several axes")
        batch, m, n, k = spec.batch, *runs[spec.batch :]
        around = zip(runs[:batch], kernel.extents, strict=False)
        require(all(run is not None or size == 1 for run, size in around), "has a batch of its own")
        m_size, n_size, k_size = kernel.extents[batch:]
        if k is None:
            require(min(handed) > 1, "has it as a factor")
            # The axis of a product's rows may be outer ones and then the memory's.
            sides = [run[1] for run in (m, n) if run is not None]
            require(sorted(sides) == [self.rows, self.columns], "has no rows or no columns")
            axis = self.depth(k_size)
            factors = [self.factor(kernel, o, runs, batch + 2, axis, sides[o]) for o in (0, 1)]
            if sides[0] == self.columns:
                factors.reverse()
            out = self.fresh(PRODUCT, frozenset((self.rows, self.columns)), spec.dtype)
            self.steps.append((Dot(out, factors[0], factors[1], axis, spec.dtype), -1))
            runs = (*runs[: batch + 2], None)
        else:
            require(handed[0] < 2 and len(handed) == 1, "has it twice")
            require(k[0] == k[1] and k[1] >= self.rows, "sums over an outer axis")
            (value,), over = handed, k[1]
            free, size = (batch + 1, n_size) if value == 0 else (batch, m_size)
            require(runs[free] is None and runs[2 * batch + 1 - free] is not None, "has no axis of its own")
            axis = self.depth(size)
            source = self.load(kernel, value, runs, "")
            whole = frozenset((self.rows, self.columns))
            require(self.varies[source] == whole, "has a factor that is the same in all rows or columns")
            factor = self.factor(kernel, 1 - value, runs, free, axis, over)
            kept = self.rows + self.columns - over
            out = self.fresh(PRODUCT, frozenset((kept, axis)), spec.dtype)
            kind = spec.operands[value].dtype
            self.steps.append((Total(out, source, factor, axis, kind, spec.dtype), over))
            # What comes after it is no longer along the axis that was summed over.
            runs = (*runs[: batch + 2], None)
        for step in spec.steps:
            require(not isinstance(step, Reduce), "reduces a product")
            self.pointwise(step, kernel, runs)

    def depth(self, size: int) -> int:
        """The short axis of a size."""
        require(1 < size <= LONGEST, "is summed over many, or has many columns")
        if size not in self.depths:
            self.depths.append(size)
        return len(self.axes) + self.depths.index(size)

    # Operands

    def along(
        self, kernel: Kernel, operand: int, runs: Sequence[Run], free: int = -1, axis: int = -1
    ) -> list[int]:
        """An operand's strides along the axes; along the kernel's axis `free`, along the short one `axis`."""
        found = [0] * (len(self.axes) + len(self.depths))
        strides = strides_along(kernel, operand)
        for number, (stride, run, size) in enumerate(zip(strides, runs, kernel.extents, strict=True)):
            if run is not None:
                for at in range(run[0], run[1] + 1):
                    found[at] = stride * math.prod(self.axes[at + 1 : run[1] + 1])
            elif stride and size > 1:
                require(number == free, "has an axis of its own")
                found[axis] = stride
        return found

    def operand(self, place: Place, strides: Sequence[int], dtype: DType) -> int:
        """The number of an operand, the same for the same memory."""
        wanted = replace(place, strides=_short(strides))
        for number, known in enumerate(self.places):
            if known == wanted and self.types[number] is dtype:
                return number
        self.places.append(wanted)
        self.types.append(dtype)
        return len(self.places) - 1

    def factor(
        self, kernel: Kernel, operand: int, runs: Sequence[Run], free: int, axis: int, long: int
    ) -> int:
        """A factor in memory, which lies along one long axis and a short one."""
        place = kernel.places[operand]
        assert place.buffer is not None, "a factor has memory"
        self.read(place.buffer)
        strides = self.along(kernel, operand, runs, free, axis)
        other = self.rows + self.columns - long
        require(strides[long] and strides[axis] and not strides[other], "has a factor of another form")
        return self.operand(place, strides, kernel.spec.operands[operand].dtype)

    def read(self, buffer: Buffer) -> None:
        """Memory is read as it was before the set began."""
        require(buffer.root not in self.stored, "reads what another wrote")
        self.loaded.add(buffer.root)

    # Steps

    def fresh(self, name: str, varies: Axes, dtype: DType) -> str:
        """A name for a kernel's value."""
        new = self.names[name] = f"v{len(self.varies)}"
        self.varies[new], self.dtype[new] = varies, dtype
        return new

    def reduce(self, step: Reduce, over: int) -> None:
        """Add a reduction of the rows, or of the columns."""
        value = self.names[step.value]
        kept = self.rows + self.columns - over
        require(self.varies[value] <= {self.rows, self.columns}, "reduces other values")
        out = self.fresh(step.out, frozenset((kept,)), step.dtype)
        self.steps.append((replace(step, out=out, value=value), over))

    def pointwise(self, step: object, kernel: Kernel, runs: Sequence[Run]) -> None:
        """Add a step at the kernel's axes."""
        match step:
            case Literal(out, _, dtype):
                self.steps.append((replace(step, out=self.fresh(out, frozenset(), dtype)), -1))
            case Call(out, _, inputs, dtype):
                given = tuple(self.names[x] for x in inputs)
                varies = frozenset[int]().union(*(self.varies[x] for x in given))
                self.steps.append((replace(step, out=self.fresh(out, varies, dtype), inputs=given), -1))
            case Load(out, operand, None):
                self.load(kernel, operand, runs, out)
            case Index(out, operand):
                strides = self.strides(kernel, operand, runs)
                number = self.operand(kernel.places[operand], strides, dtypes.int64)
                self.steps.append((Index(self.fresh(out, self.tile(strides), dtypes.int64), number), -1))
            case Store(value, operand, None):
                self.store(self.names[value], kernel, operand, runs)
            case _:
                raise UnfitError("goes to computed positions")

    def strides(self, kernel: Kernel, operand: int, runs: Sequence[Run]) -> list[int]:
        """The strides of an operand of a loop, or of a product's epilogue."""
        free = next((a for a, run in enumerate(runs) if run is None and kernel.extents[a] > 1), -1)
        axis = -1
        if isinstance(kernel.spec, MatmulSpec) and free < kernel.spec.batch + 2 and free >= 0:
            axis = self.depth(kernel.extents[free])
        return self.along(kernel, operand, runs, free, axis)

    def tile(self, strides: Sequence[int]) -> Axes:
        """The axes of a tile along which strides lead."""
        return frozenset(a for a in range(self.rows, len(strides)) if strides[a])

    def load(self, kernel: Kernel, operand: int, runs: Sequence[Run], out: str) -> str:
        """Add a load, or find the value that a kernel before stored there."""
        place, dtype = kernel.places[operand], kernel.spec.operands[operand].dtype
        assert place.buffer is not None, "it is memory"
        root, strides = place.buffer.root, self.strides(kernel, operand, runs)
        if root not in self.stored:
            self.loaded.add(root)
            number = self.operand(place, strides, dtype)
            if number in self.held:
                self.names[out] = self.held[number]
                return self.held[number]
            name = self.held[number] = self.fresh(out, self.tile(strides), dtype)
            self.steps.append((Load(name, number), -1))
            return name
        found = self.stored[root]
        require(found.offset == place.offset and found.strides == _short(strides), "reads it at other places")
        name = found.name
        if self.dtype[name] is not dtype:
            name = self.fresh(out, self.varies[name], dtype)
            self.steps.append((Call(name, "cast", (found.name,), dtype), -1))
        self.names[out] = name
        return name

    def store(self, value: str, kernel: Kernel, operand: int, runs: Sequence[Run]) -> None:
        """Add a store, unless nobody else sees it."""
        place, dtype = kernel.places[operand], kernel.spec.operands[operand].dtype
        assert place.buffer is not None, "it is memory"
        root, strides = place.buffer.root, self.strides(kernel, operand, runs)
        require(root not in self.stored and root not in self.loaded, "writes what is read")
        outer = zip(strides[: self.rows], self.axes, strict=False)
        require(all(stride for stride, _ in outer), "writes one place many times")
        require(self.varies[value] <= self.tile(strides), "writes one place many times")
        self.stored[root] = Stored(value, place.offset, _short(strides))
        if root not in self.hidden:
            self.steps.append((Store(value, self.operand(place, strides, dtype)), -1))

    # Programs

    def kernels(self, name: str) -> list[BlockKernel]:
        """The set as one or two kernels. Raises UnfitError where that cannot be, or nothing is gained."""
        over = {axis for step, axis in self.steps if isinstance(step, Reduce)}
        require(len(over) == 1, "reduces nothing, or both rows and columns")
        (first,) = over
        second = self.rows + self.columns - first
        steps = [step for step, _ in self.steps]
        crossing = {step.out for step, axis in self.steps if isinstance(step, Total) and axis == second}
        for step in steps:
            if not isinstance(step, Store) and any(x in crossing for x in needs(step)):
                crossing.add(step.out)
        stores = [s for s in steps if isinstance(s, Store)]
        late = [s for s in stores if s.value in crossing]
        early = [s for s in stores if s.value not in crossing]
        made: list[BlockKernel] = []
        if late:
            chosen = self.closure(late, stop=True)
            rows = [s for s in chosen if isinstance(s, Reduce)]
            statistics = {s.out: self.statistic(s, second) for s in rows}
            early += [Store(out, operand) for out, operand in statistics.items()]
            swapped = [Load(s.out, statistics[s.out]) if isinstance(s, Reduce) else s for s in chosen]
            made.append(self.kernel(f"{name}_{second}", swapped, second))
        if early:
            steps = [*self.closure(early), *(s for s in early if s not in stores)]
            made.insert(0, self.kernel(name, steps, first))
        return made

    def closure(self, stores: Sequence[Store], stop: bool = False) -> list[BlockStep]:
        """Some stores and all that they need, in order; with `stop`, not what reductions need."""
        named = {s.out: s for s, _ in self.steps if not isinstance(s, Store)}
        wanted: dict[BlockStep, None] = dict.fromkeys(stores)
        stack: list[BlockStep] = [*stores]
        while stack:
            step = stack.pop()
            if stop and isinstance(step, Reduce):
                continue
            for name in needs(step):
                if named[name] not in wanted:
                    wanted[named[name]] = None
                    stack.append(named[name])
        return [s for s, _ in self.steps if s in wanted]

    def statistic(self, step: Reduce, axis: int) -> int:
        """An operand for what each row (column) came to: `axis` is left of the long ones."""
        shape = (*self.axes[: self.rows], self.axes[axis])
        strides = [0] * len(self.axes)
        for at, stride in zip((*range(self.rows), axis), contiguous_strides(shape), strict=True):
            strides[at] = stride
        buffer = Buffer(TensorType(shape, step.dtype), f"{step.combine} of a row")
        return self.operand(Place(buffer, 0, ()), strides, step.dtype)

    def kernel(self, name: str, steps: Sequence[BlockStep], walked: int) -> BlockKernel:
        """Steps as a kernel that walks one of the long axes."""
        own = self.rows + self.columns - walked
        numbers = {o: i for i, o in enumerate(sorted({o for s in steps for o in operands_of(s)}))}
        places = [self.places[o] for o in numbers]
        written = {s.operand for s in steps if isinstance(s, Store)}
        count = len(self.axes) + len(self.depths)
        strides = [[*p.strides, *[0] * (count - len(p.strides))] for p in places]
        require(all(strides[numbers[o]][own] for o in written), "writes one place many times")
        used = [a for a in range(len(self.axes), count) if any(own[a] for own in strides)]
        outer = merge_axes([(n, tuple(s[a] for s in strides)) for a, n in enumerate(self.axes[: self.rows])])
        order = [own, walked, *used]
        axis = {a: i for i, a in enumerate(order, len(outer))}
        found = [
            (*(along[i] for _, along in outer), *(strides[i][a] for a in order)) for i in range(len(places))
        ]
        operands = tuple(
            Operand(self.types[o], tuple(pattern(s) for s in own))
            for o, own in zip(numbers, found, strict=True)
        )
        sizes = (*self.axes, *self.depths)
        renamed = tuple(_renumbered(s, numbers, axis, walked == self.rows) for s in steps)
        return BlockKernel(
            BlockSpec(name, len(outer), len(used), operands, renamed),
            (*(n for n, _ in outer), *(sizes[a] for a in order)),
            tuple(replace(p, strides=own) for p, own in zip(places, found, strict=True)),
        )


def _renumbered(
    step: BlockStep, operands: Mapping[int, int], axis: Mapping[int, int], turned: bool
) -> BlockStep:
    """A step with other numbers of operands and axes; `turned`, its rows are walked."""
    match step:
        case Dot(own=own, walked=walked):
            own, walked = (walked, own) if turned else (own, walked)
            return replace(step, own=operands[own], walked=operands[walked], axis=axis[step.axis])
        case Total():
            return replace(step, operand=operands[step.operand], axis=axis[step.axis])
        case Load() | Index() | Store():
            return replace(step, operand=operands[step.operand])
    return step


def _short(strides: Sequence[int]) -> tuple[int, ...]:
    """Strides without zeros at the end, so that axes that come later change nothing."""
    found = list(strides)
    while found and not found[-1]:
        found.pop()
    return tuple(found)
