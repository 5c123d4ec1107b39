"""Adding floats at computed positions in the order of the loop: the bits are the CPU's, from run to run.

Along some axes of the loop the target has a stride of its own (the columns of an embedding's gradient):
programs share them. All others are walked: a program looks at every index, finds those that it owns (the
index modulo the number of owners) and adds what belongs there, one after the other. Nothing is sorted, and no
memory is needed; what it costs is that each owner reads all indices. Where every element of the shared axes
has an index of its own, and there are many, each lane walks its own. What has less than 4 bytes, for which
there are no atomic additions, is added here too.

Elements along axes with a stride in the target must be different ones whatever the index is, as they are in
an array whose index is within bounds. Knows collapsed loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from kernels.gpu import vocabulary, writing
from kernels.gpu.launch import Launch
from kernels.gpu.steps import Steps
from kernels.source import Source
from kernels.spec import Call, Index, Load, LoopSpec, Named, Reduce, Store, used
from kernels.work import Work

# Programs of one warp that a large GPU has room for at once; indices that a program looks at together, and
# should find that are its own, so that finding them does not take longer than adding.
BUSY, LOOK, FOUND = 4096, 256, 8
# Bytes of a tile: 16 for each thread of a warp. One with fewer elements than a quarter has room for that.
TILE = 512
# Where every element has its own index: so few are walked without a search, or for so many elements.
FEW, MANY = 32, 2048


@dataclass(frozen=True)
class Cut:
    """Axes that programs share, and those that are walked; the shared axis that lies along a tile, -1 for
    none, and its elements; how many programs own a part of the indices, 0 where all walk everything.
    """

    shared: tuple[int, ...]
    walked: tuple[int, ...]
    tiled: int
    block: int
    owners: int


def serves(work: Work) -> bool:
    """Whether a loop does nothing but add at computed positions, of what cannot be added in any order."""
    spec = cast(LoopSpec, work.spec)
    effects = [s for s in spec.steps if isinstance(s, Store | Reduce)]
    if spec.inner or len(effects) != 1 or not isinstance(effects[0], Store) or not effects[0].index:
        return False
    target = effects[0].operand
    dtype = spec.operands[target].dtype
    again = any(isinstance(s, Load) and s.operand == target for s in spec.steps)
    return not again and (dtype.is_floating_point or dtype.itemsize < 4)


def render(work: Work, alignment: Sequence[int] | None, flags: int) -> Launch:
    """The launch of such a loop; see `kernels.gpu.render.launch_of`."""
    kernel = _Adding(work, cut(work))
    kernel.write(flags)
    return kernel.launch(alignment, flags)


def cut(work: Work) -> Cut:
    """How the loop is shared by programs: from sizes alone."""
    spec, extents = cast(LoopSpec, work.spec), work.extents
    store = _store(spec)
    strides = spec.operands[store.operand].strides
    shared = tuple(a for a, s in enumerate(strides) if s != 0)
    walked = tuple(a for a in range(spec.axes) if a not in shared)
    count = math.prod(extents[a] for a in walked)
    own = _axes_of_index(spec, store)
    uniform = [a for a in shared if a not in own]
    each = math.prod(extents[a] for a in shared)
    alone = not uniform and bool(shared) and (count <= FEW or each >= MANY)
    tiled, block, programs = -1, 1, each
    if uniform or alone:
        tiled = max(uniform or shared, key=lambda a: (strides[a] == 1, extents[a]))
        whole = TILE // spec.operands[store.operand].dtype.itemsize
        block = whole if extents[tiled] > whole // 4 or tiled in work.varying else whole // 4
        programs = each // max(extents[tiled], 1) * -(-extents[tiled] // block)
    wanted = min(count // FOUND, BUSY // max(programs, 1))
    return Cut(shared, walked, tiled, block, 0 if alone else 1 << max(wanted.bit_length() - 1, 0))


def _store(spec: LoopSpec) -> Store:
    return next(s for s in spec.steps if isinstance(s, Store))


def _chain(spec: LoopSpec, name: str) -> list[Named]:
    """The steps that a value comes from, in order."""
    wanted, found = {name}, list[Named]()
    for step in reversed(spec.steps):
        if not isinstance(step, Store) and step.out in wanted:
            wanted.update(used(step))
            found.append(step)
    return found[::-1]


def _axes_of_index(spec: LoopSpec, store: Store) -> set[int]:
    """The axes along which the index differs."""
    memory = [s.operand for s in _chain(spec, store.index or "") if isinstance(s, Load | Index)]
    return {a for o in memory for a, s in enumerate(spec.operands[o].strides) if s != 0}


class _Adding(Steps):
    """The text of one kernel, and then its launch."""

    def __init__(self, work: Work, cut: Cut) -> None:
        spec = cast(LoopSpec, work.spec)
        dimension = {cut.tiled: 0} if cut.tiled >= 0 else {}
        super().__init__(spec, {a: f"i{a}" for a in range(spec.axes)}, dimension, {}, Source())
        self.work, self.cut = work, cut
        self.constants = {"XBLOCK": cut.block} if cut.tiled >= 0 else {}
        if cut.owners:
            self.constants["LOOK"] = LOOK

    def launch(self, alignment: Sequence[int] | None, flags: int) -> Launch:
        """What has been written, with its sizes and strides."""
        cut, extents = self.cut, self.work.extents
        programs = math.prod(self.blocks(a) for a in cut.shared) * max(cut.owners, 1)
        total = math.prod(extents[a] for a in cut.walked)
        more = {"total": total, "owners": cut.owners}
        return writing.launch(
            self.work, self.out.lines, self.used, self.constants, programs, 1, alignment, flags, more
        )

    def blocks(self, axis: int) -> int:
        """Blocks of a shared axis; one outside the tile has one for each of its elements."""
        return -(-self.work.extents[axis] // (self.cut.block if axis == self.cut.tiled else 1))

    def write(self, flags: int) -> None:
        """Write everything below the kernel's head."""
        writing.leave_where_set(self.out, flags)
        wide = ".to(tl.int64)" if writing.is_wide(self.work) else ""
        self.out.line(f"program = tl.program_id(0){wide}")
        if self.cut.owners:
            self.out.line(f"owner = program % {self.use('owners')}")
            self.out.line("program = program // owners")
        for axis in reversed(self.cut.shared):
            self.place(axis)
        if not self.cut.walked:
            self.add()
        elif self.cut.owners:
            self.search()
        else:
            with self.out.block(f"for first in range({self.use('total')}):"):
                self.unravel("first", "i")
                self.add()

    def place(self, axis: int) -> None:
        """Write the index along a shared axis."""
        count, tiled = self.use(f"n{axis}"), axis == self.cut.tiled
        blocks = f"tl.cdiv({count}, XBLOCK)" if tiled else count
        number = f"program % {blocks}"
        self.out.line(f"i{axis} = {f'({number}) * XBLOCK + tl.arange(0, XBLOCK)' if tiled else number}")
        self.out.line(f"program = program // {blocks}")
        if tiled and (self.work.extents[axis] % self.cut.block or axis in self.work.varying):
            self.out.line(f"inside{axis} = i{axis} < {count}")
            self.mask[0] = f"inside{axis}"

    def unravel(self, flat: str, prefix: str) -> None:
        """Write the indices along the walked axes that a number in their order stands for."""
        first, *others = self.cut.walked
        for axis in reversed(others):
            size = self.use(f"n{axis}")
            self.out.line(f"{prefix}{axis} = {flat} % {size}")
            self.out.line(f"{prefix}rest = {flat} // {size}")
            flat = f"{prefix}rest"
        self.out.line(f"{prefix}{first} = {flat}")

    def search(self) -> None:
        """Write the walk over all indices: of those looked at together, the owned ones come in order."""
        out, total = self.out, self.use("total")
        index = _store(self.spec).index or ""
        with out.block(f"for start in range(0, {total}, LOOK):"):
            out.line("at = start + tl.arange(0, LOOK)")
            out.line(f"within = at < {total}")
            self.unravel("at", "w")
            names = self.index | {a: f"w{a}" for a in self.cut.walked}
            look = Steps(self.spec, names, dict.fromkeys(self.cut.walked, 0), {0: "within"}, out)
            look.used = self.used
            for step in _chain(self.spec, index):
                look.compute(_looked_at(step))
            out.line(f"owned = within & ((w_{index} & (owners - 1)) == owner)")
            out.line(f"waiting = tl.where(owned, at, {total})")
            out.line("first = tl.min(waiting)")
            with out.block(f"while first < {total}:"):
                self.unravel("first", "i")
                self.add()
                out.line(f"waiting = tl.where(at == first, {total}, waiting)")
                out.line("first = tl.min(waiting)")

    def add(self) -> None:
        """Write one addition; a barrier lets the next one see it."""
        for step in self.spec.steps:
            self.compute(step)
        if self.cut.walked:
            self.out.line("tl.debug_barrier()")

    def store(self, value: str, operand: int, index: str | None) -> str:
        """The statement that adds a value to what is there."""
        dtype, address = self.spec.operands[operand].dtype, self.address(operand, index)
        mask = self.masked(self.dims(operand, index))
        there = vocabulary.load(address, dtype, mask)
        total = vocabulary.call("add", [there, value], [dtype, dtype], dtype)
        return vocabulary.store(address, f"({total})", dtype, mask)


def _looked_at(step: Named) -> Named:
    """A step with names of its own for what it uses and gives."""
    out = f"w_{step.out}"
    match step:
        case Load(index=str(index)):
            return replace(step, out=out, index=f"w_{index}")
        case Call(inputs=inputs):
            return replace(step, out=out, inputs=tuple(f"w_{x}" for x in inputs))
    return replace(step, out=out)
