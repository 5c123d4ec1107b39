"""Kernels that run tile by tile: what one leaves for the next stays in memory of one tile, in the cache.

Knows a plan's kernels by what they read and write; knows nothing of ops. A product, a softmax over its rows
and a product of that are such a chain: no thread ever has more of the scores than some rows.

A tile is one index of the outer axes of what is left from kernel to kernel, and some of its rows. Kernels
whose axes cover those axes are cut there, whatever they compute: a product's rows and columns do not depend
on each other, nor do a loop's rows. A product that sums over the rows adds up what the tiles give.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.levels import Accesses, assign_levels, conflicts, following, makes_cycle, ordered, pack
from compiler.lower import Buffer, Kernel
from compiler.plan import Plan
from kernels.cpu import tasks
from kernels.spec import PRODUCT, LoopSpec, MatmulSpec, Store
from kernels.work import Chain, Link, Work

Shape = tuple[int, ...]
# Bytes that a chain keeps out of memory, at least: fewer are in the cache anyway.
LEAST = 1 << 22
# A chain has one buffer at least of this share of that.
MOST_BUFFERS = 16
# What a tile's private memory should take, a core's second cache. And the fewest rows of a tile: for each the
# second factors of products are packed anew, which costs as much as 8 to 12 rows. Attention over 8 heads of
# 2048 rows of 64 takes, of the time without a chain, 0.95 in tiles of 128 rows, 1.05 in tiles of 32.
TILE_BYTES, FEWEST_ROWS = 1 << 20, 128
# Products of fewer rows may add in another order (kernels.cpu.matmul.DOT_ROWS).
LAST_ROWS = 8
# Nanoseconds of a tile, roughly, at least: to start its kernels takes some hundred.
SHORTEST = 5000.0
# Fewer tasks than this leave threads without work.
FEWEST_UNITS = 8
# Rows of private memory a multiple of so many bytes apart would fall into the same few lines of a cache.
APART, LINE = 1024, 64


def chained(plan: Plan) -> Plan:
    """`plan`, with what it is in chains, if it has any."""
    finder = _Finder(plan)
    chains = finder.run()
    if not chains:
        return plan
    visible = _visible(plan)
    units = ordered(finder.following, [[link.number for link in chain.links] for chain in chains])
    levels = assign_levels(finder.conflicts, units)
    made = replace(plan, levels=levels, chains=tuple(chains))
    made.arena, made.arena_bytes = pack(
        plan.kernels, levels, plan.checks, {*visible, *plan.constants, *made.private}
    )
    return replace(plan, chained=made)


def _places(spec: LoopSpec | MatmulSpec, operand: int) -> list[int]:
    """For each axis of a kernel which of an operand's strides is along it, -1 for none."""
    if not isinstance(spec, MatmulSpec):
        return [*range(spec.axes)]
    batch, depth = spec.batch, spec.depth
    if operand == 0:
        return [*range(batch + 1), -1, *range(batch + 1, batch + 1 + depth)]
    if operand == 1:
        return [*range(batch), -1, batch + depth, *range(batch, batch + depth)]
    return [*range(batch + 2), *(-1,) * depth]


def strides_along(kernel: Kernel, operand: int) -> list[int]:
    """An operand's strides along all axes of its kernel."""
    strides = kernel.places[operand].strides
    return [strides[at] if at >= 0 else 0 for at in _places(kernel.spec, operand)]


# The tile axes, first and last, that a kernel's axis covers; None for what lies within a tile.
Run = tuple[int, int] | None


def runs_of(kernel: Kernel, operand: int, size: int, axes: Shape) -> tuple[Run, ...] | None:
    """Which axes of a kernel walk which tile axes of an operand, row-major memory of `size` elements; None
    where the kernel does not stay within a tile.
    """
    width = size // math.prod(axes)
    steps = [width * math.prod(axes[i + 1 :]) for i in range(len(axes))]
    strides = strides_along(kernel, operand)
    found: list[Run] = []
    within = 0
    for extent, stride in zip(kernel.extents, strides, strict=True):
        run: Run = None
        if extent > 1 and stride in steps:
            last = first = steps.index(stride)
            while first >= 0 and math.prod(axes[first : last + 1]) < extent:
                first -= 1
            if first < 0 or math.prod(axes[first : last + 1]) != extent:
                return None
            run = first, last
        else:
            within += (extent - 1) * abs(stride)
            if stride < 0:
                return None
        found.append(run)
    covered = sorted(axis for run in found if run for axis in range(run[0], run[1] + 1))
    return tuple(found) if covered == list(range(len(axes))) and within < width else None


@dataclass(frozen=True)
class _Cut:
    """Where kernels are cut into tiles: the axes, of which the last one is the rows if they are `by_rows`."""

    axes: Shape
    by_rows: bool


@dataclass(frozen=True)
class _Fit:
    """Kernels that can be a chain: how each is cut, and the buffers that only they see."""

    cut: _Cut
    runs: dict[int, tuple[Run, ...]]
    private: tuple[Buffer, ...]


class _Finder:
    """Looks for the chains of one plan: kernels that share buffers which nothing else sees, largest first."""

    def __init__(self, plan: Plan) -> None:
        self.kernels = plan.kernels
        self.users: dict[Buffer, list[tuple[int, int]]] = {}
        parts = {b.root for b in plan.checks}
        for number, kernel in enumerate(self.kernels):
            for operand, place in enumerate(kernel.places):
                if place.buffer is not None:
                    self.users.setdefault(place.buffer.root, []).append((number, operand))
                    if place.buffer.whole is not None or place.offset or place.index_stride:
                        parts.add(place.buffer.root)
        self.plain = {b for b in self.users if b not in parts and b.type.size}
        self.lonely = [b for b in self.users if b in self.plain and b in plan.arena]
        self.hidden = frozenset(self.lonely)
        self.plan = plan
        self.found: dict[int, _Fit] = {}

    def run(self) -> list[Chain]:
        """The chains that pay; no two share a kernel."""
        for buffer in sorted(self.lonely, key=lambda b: -b.type.nbytes):
            members = {number for number, _ in self.users[buffer]}
            before = list({id(f): f for n in members if (f := self.found.get(n))}.values())
            members.update(*(fit.runs for fit in before))
            if not before and MOST_BUFFERS * buffer.type.nbytes < LEAST:
                continue
            if len(members) < 2 or not all(map(self.is_plain, members)) or self.makes_cycle(members):
                continue
            fit = next(filter(None, (self.fit(members, cut) for cut in _cuts(buffer, before))), None)
            if fit is not None:
                self.found |= dict.fromkeys(members, fit)
        fits = {id(fit): fit for _, fit in sorted(self.found.items())}.values()
        return [chain for fit in fits if (chain := self.chain(fit)) is not None]

    def is_plain(self, number: int) -> bool:
        """Whether a kernel's rows can be cut anywhere, and it goes to no computed position."""
        kernel = self.kernels[number]
        return not kernel.parts and not kernel.serial and not kernel.indexed

    # Order

    @cached_property
    def conflicts(self) -> list[Accesses]:
        """What each kernel reads and writes, or waits for as if it did."""
        return [conflicts(k, self.plan.checks, _visible(self.plan)) for k in self.kernels]

    @cached_property
    def following(self) -> list[set[int]]:
        """Per kernel those that must run after it, directly."""
        return following(self.conflicts)

    def makes_cycle(self, members: Collection[int]) -> bool:
        """Whether these kernels as one would wait for themselves."""
        return makes_cycle(self.following, members, lambda n: self.found[n].runs if n in self.found else (n,))

    # Tiles

    def fit(self, members: Collection[int], cut: _Cut) -> _Fit | None:
        """These kernels as a chain cut so; None where one needs of another what is not in its tile."""
        runs: dict[int, tuple[Run, ...]] = {}
        private: list[Buffer] = []
        places = [p for n in sorted(members) for p in self.kernels[n].places]
        buffers = dict.fromkeys(p.buffer.root for p in places if p.buffer is not None)
        for buffer in buffers:
            inside = [(n, i) for n, i in self.users[buffer] if n in members]
            if not any(self.hands_on(number, operand, inside) for number, operand in inside):
                continue
            if buffer not in self.plain:
                return None
            for number, operand in inside:
                found = runs_of(self.kernels[number], operand, buffer.type.size, cut.axes)
                if found is None or runs.setdefault(number, found) != found:
                    return None
            if buffer in self.hidden and len(inside) == len(self.users[buffer]):
                private.append(buffer)
        if runs.keys() != set(members) or not private:
            return None
        if not all(self.can_cut(n, runs[n], cut, members) for n in members):
            return None
        return _Fit(cut, {n: runs[n] for n in sorted(members)}, tuple(private))

    def hands_on(self, number: int, operand: int, users: Sequence[tuple[int, int]]) -> bool:
        """Whether a kernel writes an operand that another of these users of its memory reads or writes."""
        if operand not in self.kernels[number].spec.written:
            return False
        mine = self.kernels[number].places[operand].buffer
        others = [self.kernels[n].places[i].buffer for n, i in users if n != number]
        return any(a and mine and (a in mine.around or mine in a.around) for a in others)

    def can_cut(self, number: int, runs: tuple[Run, ...], cut: _Cut, members: Collection[int]) -> bool:
        """Whether a kernel can be cut along these of its axes."""
        spec = self.kernels[number].spec
        if not isinstance(spec, MatmulSpec):
            return all(run is None for run in runs[spec.rows :])
        summed = [run for run in runs[spec.batch + 2 :] if run is not None]
        if not summed:
            return True
        last = len(cut.axes) - 1
        if not cut.by_rows or spec.depth != 1 or summed != [(last, last)] or not adds_up(spec):
            return False
        # What it adds up is not there before the last tile.
        target = self.kernels[number].places[2].buffer
        if target is None:
            return False
        return not self.hands_on(number, 2, [(n, i) for n, i in self.users[target.root] if n in members])

    def chain(self, fit: _Fit) -> Chain | None:
        """The chain, with tiles that fit the cache; None where it does not pay."""
        *outer, rows = fit.cut.axes if fit.cut.by_rows else (*fit.cut.axes, 1)
        widths = [b.type.size // math.prod(fit.cut.axes) for b in fit.private]
        padded = [_apart(w, b.type.dtype.itemsize) for w, b in zip(widths, fit.private, strict=True)]
        line = sum(w * b.type.dtype.itemsize for w, b in zip(padded, fit.private, strict=True))
        step = _step(rows, line)
        saved = sum(b.type.nbytes for b in fit.private)
        memory = {b: (i, w) for i, (b, w) in enumerate(zip(fit.private, padded, strict=True))}
        links = tuple(self.link(n, fit, step, memory) for n in fit.runs)
        sizes = tuple(step * w * b.type.dtype.itemsize for b, w in zip(fit.private, padded, strict=True))
        chain = Chain(tuple(outer), rows, step, links, sizes)
        if any(self.is_other_sum(link) for link in links):
            return None
        long = sum(tasks.nanoseconds(link.work) for link in links) >= SHORTEST
        pays = saved >= LEAST and long and chain.units >= FEWEST_UNITS and self.pays(chain, saved)
        return chain if pays else None

    def is_other_sum(self, link: Link) -> bool:
        """Whether a product adds in another order on a tile, which has so few of its rows."""
        work, kernel = link.work, self.kernels[link.number]
        at = work.spec.batch if isinstance(work.spec, MatmulSpec) else -1
        return at >= 0 and LAST_ROWS >= work.extents[at] < kernel.extents[at]

    def pays(self, chain: Chain, saved: int) -> bool:
        """Whether what is not written and read outweighs the second factors that each tile packs anew: a byte
        of one costs about as much as a byte of the other.
        """
        axes, again = (*chain.outer, chain.blocks), 0
        for link in chain.links:
            spec, work = link.work.spec, link.work
            if isinstance(spec, MatmulSpec):
                n, *k = work.extents[spec.batch + 1 :]
                different = math.prod(size for size, move in zip(axes, link.moves[1], strict=True) if move)
                more = math.prod(axes) - different
                again += n * math.prod(k) * more * spec.operands[1].dtype.itemsize
        return again <= saved

    def link(self, number: int, fit: _Fit, step: int, memory: dict[Buffer, tuple[int, int]]) -> Link:
        """A kernel as one of a chain: its work on a tile of `step` rows, and the way from tile to tile."""
        kernel, runs, axes = self.kernels[number], fit.runs[number], fit.cut.axes
        last = len(axes) - 1 if fit.cut.by_rows else -1
        row = next((a for a, run in enumerate(runs) if run and run[1] == last), -1)
        extents = tuple(
            n if run is None else step if a == row else 1
            for a, (n, run) in enumerate(zip(kernel.extents, runs, strict=True))
        )
        work, strides = kernel.work(), [list(x) for x in kernel.work().strides]
        moves: list[tuple[int, ...]] = []
        private: list[int] = []
        for operand, place in enumerate(kernel.places):
            along = strides_along(kernel, operand)
            move = [0] * (len(axes) + (not fit.cut.by_rows))
            for stride, run in zip(along, runs, strict=True):
                for axis in range(run[0], run[1] + 1) if run else ():
                    move[axis] = stride * math.prod(axes[axis + 1 : run[1] + 1]) if run else 0
            slot, width = memory.get(place.buffer, (-1, 0)) if place.buffer else (-1, 0)
            if slot >= 0 and row >= 0:
                strides[operand][_places(kernel.spec, operand)[row]] = width
            moves.append(tuple(move))
            private.append(slot)
        summed = isinstance(kernel.spec, MatmulSpec) and row == kernel.spec.batch + 2 and step < axes[-1]
        made = Work(work.spec, extents, tuple(map(tuple, strides)), work.index_strides)
        return Link(number, made, row, tuple(moves), tuple(private), summed)


def _visible(plan: Plan) -> set[Buffer]:
    return {*plan.inputs, *plan.outputs}


def _cuts(buffer: Buffer, before: Sequence[_Fit]) -> list[_Cut]:
    """Ways to cut what writes and reads a buffer, the best one first: as the chains it would join are cut."""
    if before:
        return [before[0].cut] if all(fit.cut == before[0].cut for fit in before) else []
    axes = tuple(n for n in buffer.type.shape[:-1] if n != 1)
    return [cut for cut in (_Cut(axes, True), _Cut(axes[:-1], False)) if cut.axes]


def adds_up(spec: MatmulSpec) -> bool:
    """Whether a product is only stored, in its own dtype."""
    match spec.steps:
        case (Store(value, 2),):
            return value == PRODUCT and spec.operands[2].dtype is spec.dtype
    return False


def _step(rows: int, line: int) -> int:
    """Rows of a tile, of `line` bytes each."""
    step = max(TILE_BYTES // max(line, 1), FEWEST_ROWS)
    if step >= rows:
        return rows
    step = -(-rows // -(-rows // step))
    step = -(-step // 8) * 8
    while rows > step and 0 < rows % step <= LAST_ROWS:
        step += 8
    return min(step, rows)


def _apart(width: int, size: int) -> int:
    """Elements from row to row of private memory: such that rows fall into different lines of a cache."""
    return width + LINE // size if width > 1 and width * size % APART == 0 else width
