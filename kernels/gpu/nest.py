"""The text of steps inside a loop's tile: what several rows share is stored once, and where the tile is not
covered nothing is added to a reduction.

Knows the tiling's shape; what a program walks, and in which order, is for `kernels.gpu.loop`.
"""

from __future__ import annotations

from typing import cast

from kernels.gpu import phases, vocabulary
from kernels.gpu.steps import Dims, Steps
from kernels.gpu.tiles import Tiling
from kernels.spec import COMBINE, ELEMENT, KERNEL, LoopSpec, Reduce, Step, Store, identity
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
        self.everywhere: Dims = frozenset(range(len(self.shape)))
        self.outer = [s for s in spec.steps if isinstance(s, Reduce) and s.outer]
        # The axes along which programs lie, beside the parts.
        rows, inner = list(range(spec.rows)), list(range(spec.rows, spec.axes))
        self.walked = (inner if tiling.columns else []) if self.outer else [] if tiling.serial else rows

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

    # Stores

    def store(self, value: str, operand: int, index: str | None) -> str:
        """The statement that stores a value, once where several rows have the same; or adds it, always."""
        if index is not None:
            return self.add(value, operand, index)
        strides, own = self.spec.operands[operand].strides, self.dims(operand)
        axes = [*self.walked, *(range(self.spec.rows) if self.outer else [])]
        repeated = [a for a in axes if strides[a] == 0 and self.work.extents[a] > 1]
        if repeated and self.level(Store(value, operand)) == KERNEL:
            dims, first = own, ["(tl.program_id(0) == 0)"]
        else:
            dims = own | {self.dimension[a] for a in repeated if a in self.dimension}
            first = [f"({self.index[a]} == 0)" for a in repeated]
        mask = " & ".join([*filter(None, [self.masked(dims)]), *first])
        return vocabulary.store(
            self.spread(self.address(operand), own, dims), value, self.spec.operands[operand].dtype, mask
        )

    def add(self, value: str, operand: int, index: str) -> str:
        """The statement that adds a value at a computed position, as often as the loop comes there."""
        dtype, address = self.spec.operands[operand].dtype, self.address(operand, index)
        if self.tiling.serial:
            total = vocabulary.call("add", [vocabulary.load(address, dtype), value], [dtype, dtype], dtype)
            return vocabulary.store(address, total, dtype)
        dims = self.level_dims(self.level(Store(value, operand, index)))
        mask = self.masked(dims)
        address = self.spread(address, self.dims(operand, index), dims)
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
                    self.add_in_memory(step)
                else:
                    self.accumulate(
                        step, self.covered(value, step, 0) if self.tiling.part_rows > 1 else value
                    )
            case Reduce(value=value):
                whole = self.spread(value, self.varies[value], self.everywhere)
                covered = self.covered(whole, step, self.dimension[self.inner])
                if self.tiling.looped:
                    self.accumulate(step, covered)
                else:
                    self.finish(step, covered)
            case _:
                super().compute(step)

    def in_memory(self, step: Reduce) -> bool:
        """Whether a total over the rows has more elements than a tile, and grows in memory."""
        return self.tiling.looped and self.level(step) == ELEMENT

    def identity(self, step: Reduce) -> float | int:
        """What changes nothing when it is combined."""
        return identity(step.combine, step.dtype.arithmetic)

    def start(self, step: Reduce, dims: Dims) -> None:
        """Write the total of nothing."""
        total = vocabulary.literal(self.identity(step), step.dtype.arithmetic, self.tile(dims))
        self.out.line(f"total_{step.out} = {total}")

    def covered(self, value: str, step: Reduce, dimension: int) -> str:
        """A value, but what changes nothing outside the mask of a dimension."""
        if dimension not in self.mask:
            return value
        nothing = vocabulary.number(self.identity(step), step.dtype.arithmetic)
        return f"tl.where({self.mask[dimension]}, {value}, {nothing})"

    def combined(self, step: Reduce, x: str, y: str) -> str:
        """The expression of two values combined."""
        return vocabulary.call(COMBINE[step.combine], [x, y], [step.dtype, step.dtype], step.dtype)

    def accumulate(self, step: Reduce, value: str) -> None:
        """Write the addition of a tile to the total."""
        self.out.line(f"total_{step.out} = {self.combined(step, f'total_{step.out}', value)}")

    def finish(self, step: Reduce, tile: str) -> None:
        """Write the row-level value of a tile, which is combined along the inner axis."""
        axis = self.dimension[self.inner]
        text = vocabulary.reduced(tile, axis if len(self.shape) > 1 else None, step.combine, step.dtype)
        if step.dtype.compute:
            text = vocabulary.cast(text, step.dtype.compute, step.dtype)
        self.name(step.out, text, self.everywhere - {axis}, step.dtype)

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
