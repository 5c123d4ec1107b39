"""A loop over memory as a Triton kernel.

A program computes a tile: of up to three axes where elements are computed alone, of rows and a stretch of
their inner axis where rows are reduced. A row that fits into the tile is loaded once, and everything is done
in the order of the spec; a longer one is walked once for each of its phases. Where rows are combined, a
program walks one part of the rows in order. Adding at computed positions is atomic, in no order: floats may
round otherwise from run to run.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import cached_property

from kernels.gpu import phases, vocabulary
from kernels.gpu.axes import collapsed
from kernels.gpu.launch import MOST, Launch, Parameter, divisibility
from kernels.gpu.nest import Nest
from kernels.gpu.tiles import tiling
from kernels.spec import ELEMENT, KERNEL, ROW, Call, Index, Literal, Load, Reduce, Step
from kernels.work import Work

# Offsets of so many elements, and more, have 64 bits: half as many as 32 hold, since the ends of tiles and of
# parts lie beyond them.
WIDE = 2**30


def render(work: Work, alignment: Sequence[int] | None = None, flags: int = 0) -> Launch:
    """The launch of a loop; see `kernels.gpu.render.launch_of`."""
    work = collapsed(work)
    kernel = _Loop(work, tiling(work))
    kernel.write(flags)
    return kernel.launch(alignment, flags)


class _Loop(Nest):
    """The text of one kernel, and then its launch."""

    def launch(self, alignment: Sequence[int] | None, flags: int) -> Launch:
        """What has been written, with its sizes and strides."""
        spec, work = self.spec, self.work
        counted = {s.operand for s in spec.steps if isinstance(s, Index)}
        known = map(divisibility, alignment or [MOST] * len(spec.operands))
        pointers = [
            Parameter(f"p{i}", *(("i64", 1) if i in counted else (vocabulary.pointer(o.dtype), facts)))
            for i, (o, facts) in enumerate(zip(spec.operands, known, strict=True))
        ]
        pointers += [Parameter(f"flag{i}", "*i1") for i in range(flags)]
        values = {f"n{axis}": size for axis, size in enumerate(work.extents)} | {"chunk": self.chunk}
        for number, strides in enumerate(work.strides):
            values |= {f"s{number}_{axis}": stride for axis, stride in enumerate(strides)}
            values[f"s{number}_i"] = work.index_strides[number]
        arguments = {name: values[name] for name in sorted(self.used)}
        kind = "i64" if self.wide else "i32"
        integers = [Parameter(name, kind, divisibility(value)) for name, value in arguments.items()]
        programs = math.prod(self.blocks_along(a) for a in self.walked)
        return Launch(
            spec.name,
            vocabulary.module(spec, self.text([p.name for p in (*pointers, *integers)])),
            (*pointers, *integers),
            tuple(self.constants.items()),
            (programs * (max(work.parts, 1) if self.outer else 1), 1, 1),
            self.tiling.warps,
            1,
            tuple(arguments.values()),
        )

    def text(self, parameters: Sequence[str]) -> str:
        """The kernel as a function."""
        signature = ", ".join([*parameters, *(f"{name}: tl.constexpr" for name in self.constants)])
        head = f"def kernel({signature}):"
        if len(head) > 100:
            # A name stays with its annotation.
            lines = textwrap.wrap(signature.replace(": ", ":\xa0"), 96)
            wrapped = "\n    ".join(lines).replace("\xa0", " ")
            head = f"def kernel(\n    {wrapped}\n):"
        return "\n".join([head, *(f"    {line}" for line in self.out.lines)]) + "\n"

    @property
    def wide(self) -> bool:
        """Whether offsets or sizes pass 32 bits."""
        work = self.work
        reach = [sum(abs(s) * n for s, n in zip(own, work.extents, strict=True)) for own in work.strides]
        jumps = [abs(s) * max(work.parts, 1) for s in work.index_strides]
        return max(map(sum, zip(reach, jumps, strict=True)), default=0) + work.elements >= WIDE

    @property
    def chunk(self) -> int:
        """Rows of a part."""
        return -(-math.prod(self.work.extents[: self.spec.rows]) // max(self.work.parts, 1))

    @cached_property
    def fixed(self) -> set[Step]:
        """What all rows of a part share, and a tile has room for: it is computed once."""
        spec, found, names = self.spec, set[Step](), set[str]()
        for step in spec.steps if self.outer and not self.tiling.looped else ():
            match step:
                case Load(operand=operand) | Index(operand=operand):
                    rows = spec.operands[operand].strides[: spec.rows]
                    same = operand not in spec.written and not any(rows)
                case _:
                    same = isinstance(step, Call | Literal)
            if same and names.issuperset(phases.operands(step)):
                found.add(step)
                names.add(step.out)  # type: ignore[union-attr]
        return found

    def blocks_along(self, axis: int) -> int:
        """Blocks of an axis; an axis outside the tile has one for each of its elements."""
        return -(-self.work.extents[axis] // self.constants.get(self.block.get(axis, ""), 1))

    # Which program does what

    def write(self, flags: int) -> None:
        """Write everything below the kernel's head."""
        if flags:
            with self.out.block("if " + " | ".join(f"tl.load(flag{i})" for i in range(flags)) + ":"):
                self.out.line("return")
        self.place_program()
        if self.spec.inner and not self.tiling.looped and not self.tiling.columns:
            self.place(self.inner)
        for step in self.spec.steps:
            if self.level(step) == KERNEL or step in self.fixed:
                self.compute(step)
        if self.tiling.serial:
            self.one_by_one()
        elif self.outer:
            self.rows_of_part()
        else:
            self.row()

    def place_program(self) -> None:
        """Write the indices that differ from program to program; the last axis varies fastest."""
        program = "tl.program_id(0)" + (".to(tl.int64)" if self.wide else "")
        several = [a for a in self.walked if self.blocks_along(a) != 1]
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
        if self.work.extents[axis] % self.constants[block] or not self.work.extents[axis]:
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

    def one_by_one(self) -> None:
        """Write all rows as one program's: each finds in memory what the last one left there."""
        for axis in range(self.spec.rows):
            self.out.open(f"for i{axis} in range({self.use(f'n{axis}')}):")
        self.row()
        self.out.line("tl.debug_barrier()")
        self.out.close(self.spec.rows)

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
