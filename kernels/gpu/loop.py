"""A loop over memory as a Triton kernel.

A program computes a tile: of up to three axes where elements are computed alone, of rows and a stretch of
their inner axis where rows are reduced. A row that fits into the tile is loaded once, and everything is done
in the order of the spec; a longer one is walked once for each of its phases. Where rows are combined, a
program walks one part of the rows in order. Adding at computed positions is atomic here, which for integers
is as good as any order; floats are added in order, by `kernels.gpu.ordered`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from kernels.gpu import ordered, phases, vocabulary, writing
from kernels.gpu.axes import collapsed
from kernels.gpu.launch import Launch
from kernels.gpu.nest import Nest
from kernels.gpu.tiles import tiling
from kernels.spec import ELEMENT, KERNEL, ROW, Reduce, Scan, Step
from kernels.work import Work


def render(work: Work, alignment: Sequence[int] | None = None, flags: int = 0) -> Launch:
    """The launch of a loop; see `kernels.gpu.render.launch_of`."""
    work = collapsed(work)
    if ordered.serves(work):
        return ordered.render(work, alignment, flags)
    kernel = _Loop(work, tiling(work))
    kernel.write(flags)
    return kernel.launch(alignment, flags)


class _Loop(Nest):
    """The text of one kernel, and then its launch."""

    def launch(self, alignment: Sequence[int] | None, flags: int) -> Launch:
        """What has been written, with its sizes and strides."""
        programs = math.prod(self.blocks_along(a) for a in self.walked)
        return writing.launch(
            self.work,
            self.out.lines,
            self.used,
            self.constants,
            programs * (max(self.work.parts, 1) if self.outer else 1),
            self.tiling.warps,
            alignment,
            flags,
            {"chunk": self.chunk},
        )

    @property
    def chunk(self) -> int:
        """Rows of a part."""
        return -(-math.prod(self.work.extents[: self.spec.rows]) // max(self.work.parts, 1))

    @cached_property
    def fixed(self) -> set[Step]:
        """What all rows of a part share, and a tile has room for: it is loaded once."""
        steps = self.spec.steps if self.outer and not self.tiling.looped else ()
        return {s for s in steps if phases.lasts(self.spec, s)}

    def blocks_along(self, axis: int) -> int:
        """Blocks of an axis; an axis outside the tile has one for each of its elements."""
        return -(-self.work.extents[axis] // self.constants.get(self.block.get(axis, ""), 1))

    # Which program does what

    def write(self, flags: int) -> None:
        """Write everything below the kernel's head."""
        writing.leave_where_set(self.out, flags)
        self.place_program()
        if self.spec.inner and not self.tiling.looped and not self.tiling.columns:
            self.place(self.inner)
        for step in self.spec.steps:
            if self.level(step) == KERNEL or step in self.fixed:
                self.compute(step)
        if self.outer:
            self.rows_of_part()
        else:
            self.row()

    def place_program(self) -> None:
        """Write the indices that differ from program to program; the last axis varies fastest."""
        program = "tl.program_id(0)" + (".to(tl.int64)" if writing.is_wide(self.work) else "")
        several = [a for a in self.walked if self.blocks_along(a) != 1 or a in self.work.varying]
        if self.outer or len(several) > 1:
            self.out.line(f"program = {program}")
            program = "program"
        for axis in reversed(self.walked):
            if axis not in several:
                self.place(axis)
            elif axis == several[0] and not self.outer:
                self.place(axis, program)
            else:
                count = self.use(f"n{axis}")
                if axis in self.block:
                    self.out.line(f"blocks{axis} = tl.cdiv({count}, {self.block[axis]})")
                    count = f"blocks{axis}"
                self.place(axis, f"program % {count}")
                self.out.line(f"program = program // {count}")

    def place(self, axis: int, number: str = "") -> None:
        """Write the index along an axis in the block of that number, or in the only one."""
        if axis in self.block:
            self.place_tile(axis, f"{number} * {self.block[axis]} + " if number else "")
        else:
            self.out.line(f"i{axis} = {number or 0}")

    def place_tile(self, axis: int, start: str) -> None:
        """Write the index along an axis of the tile, which begins at `start`, and its mask."""
        block, dimension = self.block[axis], self.dimension[axis]
        self.out.line(f"i{axis} = {start}{self.numbers(block, dimension)}")
        if self.quads and self.quads[1] == axis:
            self.out.line(f"q{axis} = {start}{self.numbers(f'{block} // 4', dimension)} * 4")
        size = self.work.extents[axis]
        if size % self.constants[block] or not size or axis in self.work.varying:
            self.out.line(f"inside{axis} = i{axis} < {self.use(f'n{axis}')}")
            self.mask[dimension] = f"inside{axis}"

    def numbers(self, block: str, dimension: int) -> str:
        """The numbers below a block's size, along a dimension of the tile."""
        places = ", ".join(":" if d == dimension else "None" for d in range(len(self.shape)))
        return f"tl.arange(0, {block})" + (f"[{places}]" if len(self.shape) > 1 else "")

    # Rows

    def row(self) -> None:
        """Write everything that is done with the rows of a tile."""
        if self.tiling.looped:
            loops = phases.Phases(self.spec)
            self.online = loops.online
            for before, elements in zip(loops.rows, [*loops.elements, []], strict=True):
                for step in before:
                    self.compute(step)
                if elements:
                    self.walk(elements)
            return
        for step in self.spec.steps:
            if self.level(step) != KERNEL and step not in self.fixed:
                self.compute(step)

    def walk(self, steps: Sequence[Step]) -> None:
        """Write one loop over the inner axes."""
        reductions = [s for s in steps if isinstance(s, Reduce) and not s.outer]
        running = {*self.online, *(s.out for s in self.online.values())}
        for step in reductions:
            self.start(step, self.level_dims(ROW) if step.out in running else self.everywhere)
        for step in steps:
            if isinstance(step, Scan):
                self.start(step, self.level_dims(ROW))
        self.open_inner()
        for step in steps:
            self.compute(step)
        self.out.close(self.spec.inner)
        for step in reductions:
            self.finish(step, f"total_{step.out}")

    def open_inner(self) -> None:
        """Write the heads of the loops over the inner axes."""
        for axis in range(self.spec.rows, self.inner):
            self.out.open(f"for i{axis} in range({self.use(f'n{axis}')}):")
        self.out.open(f"for start in range(0, {self.use(f'n{self.inner}')}, {self.block[self.inner]}):")
        self.place_tile(self.inner, "start + ")

    # Parts

    def rows_of_part(self) -> None:
        """Write the rows of a part as a loop, and what it combines them to."""
        out = self.out
        in_memory = [s for s in self.outer if self.in_memory(s)]
        in_registers = [s for s in self.outer if s not in in_memory]
        chunk = self.use("chunk")
        rows = " * ".join(self.use(f"n{a}") for a in range(self.spec.rows)) or "1"
        out.line(f"begin = program * {chunk}")
        out.line(f"end = tl.minimum(begin + {chunk}, {rows})")
        if in_memory:
            self.open_inner()
            for step in in_memory:
                self.store_total(step, vocabulary.literal(self.identity(step), step.dtype))
            out.close(self.spec.inner)
            out.line("tl.debug_barrier()")
        for step in in_registers:
            self.start(step, self.level_dims(self.level(step)))
        self.open_rows()
        self.row()
        if in_memory:
            out.line("tl.debug_barrier()")
        out.close()
        for step in in_registers:
            total = f"total_{step.out}"
            if self.tiling.part_rows > 1:
                axis = 0 if self.level(step) == ELEMENT else None
                total = vocabulary.reduced(total, axis, step.combine, step.dtype)
            self.store_total(step, total)

    def open_rows(self) -> None:
        """Write the head of the loop over a part's rows, and the row axes' indices."""
        out, flat = self.out, "i0" if self.spec.rows == 1 else "flat"
        if self.tiling.part_rows > 1:
            out.open("for first in range(begin, end, XBLOCK):")
            out.line(f"{flat} = first + {self.numbers('XBLOCK', 0)}")
            out.line(f"inside = {flat} < end")
            self.mask[0] = "inside"
        else:
            out.open(f"for {flat} in range(begin, end):")
        for axis in reversed(range(1, self.spec.rows)):
            size = self.use(f"n{axis}")
            out.line(f"i{axis} = {flat} % {size}")
            out.line(f"{'i0' if axis == 1 else 'rest'} = {flat} // {size}")
            flat = "rest"
