"""The text of steps inside a loop's tile: what several rows share is stored once, and where the tile is not
covered nothing is added to a reduction.

Knows the tiling's shape; what a program walks, and in which order, is for `kernels.gpu.loop`.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import cast

from kernels.gpu import phases, vocabulary
from kernels.gpu.steps import Dims, Steps
from kernels.gpu.tiles import Tiling
from kernels.spec import (
    COMBINE,
    ELEMENT,
    KERNEL,
    ROW,
    Call,
    Index,
    LoopSpec,
    Reduce,
    Scan,
    Step,
    Store,
    identity,
)
from kernels.work import Work


class Nest(Steps):
    """Writes the steps of a collapsed loop that is cut as `tiling` says."""

    def __init__(self, work: Work, tiling: Tiling) -> None:
        spec, blocks = cast(LoopSpec, work.spec), dict(tiling.blocks)
        self.work, self.tiling = work, tiling
        self.inner = spec.axes - 1
        # The kernel's constants are the sides of its tile. Rows that are combined are one of them together.
        self.block = {a: _name(a, spec, blocks) for a in blocks}
        together = {"XBLOCK": tiling.part_rows} if tiling.part_rows > 1 else {}
        self.constants = together | {self.block[a]: size for a, size in blocks.items()}
        self.shape = list(self.constants)
        dimension = {a: d for d, a in enumerate(blocks, len(together))}
        if together:
            dimension |= dict.fromkeys(range(spec.rows), 0)
        super().__init__(spec, {a: f"i{a}" for a in range(spec.axes)}, dimension, {})
        # Sums whose terms need the maximum so far, while a long row is walked.
        self.online: dict[str, Reduce] = {}
        self.everywhere: Dims = frozenset(range(len(self.shape)))
        self.outer = [s for s in spec.steps if isinstance(s, Reduce) and s.outer]
        # The axes along which programs lie, beside the parts.
        rows, inner = list(range(spec.rows)), list(range(spec.rows, spec.axes))
        self.walked = (inner if tiling.columns else []) if self.outer else rows

    def level(self, step: Step) -> int:
        """Where in the nest a step does its work."""
        return phases.level(self.spec, step)

    def tile(self, dims: Dims) -> str:
        """The shape of what varies along some dimensions."""
        return f"[{', '.join(n if d in dims else '1' for d, n in enumerate(self.shape))}]" if dims else "()"

    def level_dims(self, level: int) -> Dims:
        """The dimensions of everything at a level of the nest."""
        inner = {d for a, d in self.dimension.items() if a >= self.spec.rows}
        return self.everywhere - (inner if level != ELEMENT else set())

    def is_long(self, axis: int) -> bool:
        """Whether an axis has, or may have, more than one element."""
        return self.work.extents[axis] > 1 or axis in self.work.varying

    # Stores

    def store(self, value: str, operand: int, index: str | None) -> str:
        """The statement that stores a value, once where several rows have the same; or adds it, always."""
        if index is not None:
            return self.add(value, operand, index)
        strides, own = self.spec.operands[operand].strides, self.dims(operand)
        axes = [*self.walked, *(range(self.spec.rows) if self.outer else [])]
        repeated = [a for a in axes if strides[a] == 0 and self.is_long(a)]
        if repeated and self.level(Store(value, operand)) == KERNEL:
            dims, first = own, ["(tl.program_id(0) == 0)"]
        else:
            dims = own | {self.dimension[a] for a in repeated if a in self.dimension}
            first = [f"({self.index[a]} == 0)" for a in repeated]
        mask = " & ".join([*filter(None, [self.masked(dims)]), *first])
        address = self.spread(self.address(operand), own, dims)
        return vocabulary.store(address, value, self.spec.operands[operand].dtype, mask)

    def add(self, value: str, operand: int, index: str) -> str:
        """The statement that adds a value at a computed position, as often as the loop comes there."""
        dims = self.level_dims(self.level(Store(value, operand, index)))
        mask = self.masked(dims)
        address = self.spread(self.address(operand, index), self.dims(operand, index), dims)
        return f'tl.atomic_add({address}, {value}{mask and f", {mask}"}, sem="relaxed")'

    def spread(self, text: str, own: Dims, dims: Dims) -> str:
        """A value that varies along `own` dimensions, for all elements of `dims`."""
        return text if dims <= own else f"tl.broadcast_to({text}, {self.tile(own | dims)})"

    # Reductions

    def compute(self, step: Step) -> None:
        """Write a step; of a total that outlasts the body of a loop, what the body adds to it."""
        match step:
            case Reduce(value=value, outer=True):
                if self.in_memory(step):
                    return self.add_in_memory(step)
                # Only a tile of several rows may have some that are not the part's.
                self.accumulate(step, self.covered(value, step, 0) if self.tiling.part_rows > 1 else value)
            case Reduce(value=value):
                if step.out in self.online:
                    return self.accumulate_online(step, self.online[step.out])
                whole = self.spread(value, self.varies[value], self.everywhere)
                covered = self.covered(whole, step, self.dimension[self.inner])
                if step in self.online.values():
                    self.out.line(f"before_{step.out} = total_{step.out}")
                    self.accumulate(step, self.across(step, covered))
                elif self.tiling.looped:
                    self.accumulate(step, covered)
                else:
                    self.finish(step, covered)
            case Scan():
                self.scan(step)
            case Call(out, "random_bits", (seed, offset, i), dtype) if self.quads and self.quads[0].out == i:
                counter, axis = self.quads
                first = re.sub(rf"\bi{axis}\b", f"q{axis}", self.address(counter.operand))
                quads = f"random_quads({seed}, {offset}, {first})"
                with self.out.block(f"if p{counter.operand} % 4 == 0:"):
                    self.name(out, f"tl.reshape({quads}, {self.tile(self.varies[i])})", self.varies[i], dtype)
                with self.out.block("else:"):
                    super().compute(step)
            case _:
                super().compute(step)

    @cached_property
    def quads(self) -> tuple[Index, int] | None:
        """The counter of random bits that come four at a time, and the axis along whose lanes they lie.

        Blocks of four begin where its strides say; that the first one does is looked at by the kernel.
        """
        steps, axis = self.spec.steps, max(self.block, default=None)
        counters = {s.inputs[2] for s in steps if isinstance(s, Call) and s.function == "random_bits"}
        for step in steps:
            if isinstance(step, Index) and step.out in counters and axis is not None:
                strides = self.work.strides[step.operand]
                whole = not any(s % 4 for a, s in enumerate(strides) if a != axis)
                if strides[axis] == 1 and whole and self.constants[self.block[axis]] >= 4:
                    return step, axis
        return None

    def in_memory(self, step: Reduce) -> bool:
        """Whether a total over the rows has more elements than a tile, and grows in memory."""
        return self.tiling.looped and self.level(step) == ELEMENT

    def identity(self, step: Reduce | Scan) -> float | int:
        """What changes nothing when it is combined."""
        return identity(step.combine, step.dtype.arithmetic)

    def start(self, step: Reduce | Scan, dims: Dims) -> None:
        """Write the total of nothing."""
        total = vocabulary.literal(self.identity(step), step.dtype.arithmetic, self.tile(dims))
        self.out.line(f"total_{step.out} = {total}")

    def covered(self, value: str, step: Reduce, dimension: int) -> str:
        """A value, but what changes nothing outside the mask of a dimension."""
        if dimension not in self.mask:
            return value
        nothing = vocabulary.number(self.identity(step), step.dtype.arithmetic)
        return f"tl.where({self.mask[dimension]}, {value}, {nothing})"

    def combined(self, step: Reduce | Scan, x: str, y: str) -> str:
        """The expression of two values combined."""
        return vocabulary.call(COMBINE[step.combine], [x, y], [step.dtype, step.dtype], step.dtype)

    def accumulate(self, step: Reduce, value: str) -> None:
        """Write the addition of a tile to the total."""
        self.out.line(f"total_{step.out} = {self.combined(step, f'total_{step.out}', value)}")

    def across(self, step: Reduce | Scan, tile: str) -> str:
        """The expression of a tile combined along the inner axis."""
        axis = self.dimension[self.inner] if len(self.shape) > 1 else None
        return vocabulary.reduced(tile, axis, step.combine, step.dtype)

    def finish(self, step: Reduce, tile: str) -> None:
        """Write the row-level value of a tile, or of a total that is the row's already."""
        if step.out in self.online:
            most = f"total_{self.online[step.out].out}"
            text = f'tl.where({most} == float("-inf"), float("nan"), {tile})'
        else:
            text = tile if step in self.online.values() else self.across(step, tile)
        if step.dtype.compute:
            text = vocabulary.cast(text, step.dtype.compute, step.dtype)
        self.name(step.out, text, self.level_dims(ROW), step.dtype)

    def accumulate_online(self, step: Reduce, most: Reduce) -> None:
        """Write the addition of exp(x - the maximum so far), to a total whose maximum was another before."""
        before, now, shift = (f"{word}_{most.out}" for word in ("before", "total", "shift"))
        # Nothing is subtracted where all is -inf so far: exp of that is 0, and of -inf - -inf it is not.
        self.out.line(f'{shift} = tl.where({now} == float("-inf"), 0.0, {now})')
        self.out.line(f"total_{step.out} = total_{step.out} * libdevice.exp({before} - {shift})")
        whole = self.spread(most.value, self.varies[most.value], self.everywhere)
        covered = self.covered(whole, most, self.dimension[self.inner])
        self.accumulate(step, self.across(step, f"libdevice.exp({covered} - {shift})"))

    # Scans

    def scan(self, step: Scan) -> None:
        """Write the running totals of a tile, those of a stretch on top of what came before it."""
        out, axis, dims = step.out, self.dimension[self.inner], self.everywhere
        value = self.spread(step.value, self.varies[step.value], dims)
        if step.factor:
            factor = self.spread(step.factor, self.varies[step.factor], dims)
            both = f"tl.associative_scan(({factor}, {value}), {axis}, combine_recurrence)"
            self.out.line(f"factor_{out}, own_{out} = {both}")
            text = f"recurrence(total_{out}, factor_{out}, own_{out})"
        else:
            self.out.line(f"own_{out} = {vocabulary.scanned(value, axis, step.combine, step.dtype)}")
            text = self.combined(step, f"total_{out}", f"own_{out}")
        self.name(out, text if self.tiling.looped else f"own_{out}", dims, step.dtype)
        if self.tiling.looped:
            last = f"i{self.inner} == start + {self.block[self.inner]} - 1"
            nothing = vocabulary.number(self.identity(step), step.dtype.arithmetic)
            self.out.line(f"total_{out} = {self.across(step, f'tl.where({last}, {out}, {nothing})')}")

    # Totals over the rows of a part, in memory

    def part(self, step: Reduce) -> str:
        """The address of this part's totals."""
        return f"{self.address(step.operand)} + program * {self.use(f's{step.operand}_i')}"

    def store_total(self, step: Reduce, total: str) -> None:
        """Write the store of a part's totals."""
        mask = self.masked(self.dims(step.operand))
        self.out.line(vocabulary.store(self.part(step), total, step.dtype, mask))

    def add_in_memory(self, step: Reduce) -> None:
        """Write the addition of a stretch of a row."""
        mask = self.masked(self.dims(step.operand))
        self.out.line(f"total_{step.out} = {vocabulary.load(self.part(step), step.dtype, mask)}")
        self.accumulate(step, step.value)
        self.store_total(step, f"total_{step.out}")


def _name(axis: int, spec: LoopSpec, blocks: dict[int, int]) -> str:
    """The constant that is the block of an axis."""
    inwards = [a for a in blocks if a < spec.rows][::-1]
    return f"{'XYZ'[inwards.index(axis)]}BLOCK" if axis in inwards else "RBLOCK"
