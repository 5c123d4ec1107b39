"""How a loop is cut into programs: which axes a tile spans, how far, and how many warps compute it.

Rules of thumb, from sizes alone; none of them changes a result by more than the order of a sum. Knows
collapsed loops; writes no text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from kernels.errors import SpecError
from kernels.gpu.pressure import fits, held
from kernels.gpu.product_tiles import coarse
from kernels.spec import ELEMENT, Index, LoopSpec, Reduce, Scan, Store
from kernels.work import Work

# Elements of a pointwise tile: 8 a thread of 4 warps, which are two 128-bit accesses of float32. With many
# operands 4 a thread, or registers run out.
POINTWISE, MANY_OPERANDS = 1024, 5
# Programs that keep a device busy: a tile is smaller rather than that there are fewer, if not below FEWEST
# elements.
PROGRAMS, FEWEST = 128, 256
# Sides of a tile through which an operand is transposed, for elements of 4 bytes and more, and for smaller.
TRANSPOSED, NARROW_TRANSPOSED = 32, 64
# Elements of a row that one program keeps in registers, if they hold it: 16 a thread of 32 warps.
LONGEST_ROW = 16384
# Elements of a longer row that are walked at a time: 8 a thread of 8 warps.
STRETCH = 2048
# Elements of a tile of several short rows: one warp's. In a tile of more warps, what the rows share (a bias,
# the weights of a norm) is loaded in another layout than theirs, and goes through shared memory.
SHORT = 256
# Rows that lie along the lanes: whole sectors of memory, as many tiles as keep the device busy.
FEWEST_BESIDE, MOST_BESIDE = 16, 64
# The least block of an axis whose size varies.
LEAST_VARYING = 64
# Elements of a tile of a part's rows, and its warps: there are few parts, so that each has many.
PART, PART_WARPS = 4096, 16


@dataclass(frozen=True)
class Tiling:
    """Blocks of the axes that a tile spans; the others are walked by programs, or by loops within one.

    With `looped`, the last inner axis is walked block by block, and those before it one by one. Where rows
    are combined, `part_rows` of a part are in a tile; with `columns`, programs share the inner axes.
    """

    blocks: tuple[tuple[int, int], ...] = ()
    part_rows: int = 1
    looped: bool = False
    columns: bool = False
    warps: int = 4


def power(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


def block_of(work: Work, axis: int) -> int:
    """A block with room for an axis; where other sizes are to be expected one of few, for many of them."""
    size = work.extents[axis]
    return max(coarse(size), LEAST_VARYING) if axis in work.varying else power(size)


def tiling(work: Work) -> Tiling:
    """The tiling of a collapsed loop. Where a size varies, all from some class up have the same."""
    spec = cast(LoopSpec, work.spec)
    added = [spec.operands[s.operand].dtype for s in spec.steps if isinstance(s, Store) and s.index]
    if any(d.itemsize < 4 for d in added):
        # There are no atomic additions of so few bytes; `kernels.gpu.ordered` does what is nothing else.
        raise SpecError(f"{spec.name} adds {added[0].name} at computed positions, and does more than that")
    if any(isinstance(s, Reduce) and s.outer for s in spec.steps):
        return _parts(work, spec)
    if spec.inner:
        return _rows(work, spec)
    return _pointwise(work, spec)


def _pointwise(work: Work, spec: LoopSpec) -> Tiling:
    axes = [a for a, n in enumerate(work.extents) if n != 1 or a in work.varying]
    if not axes:
        return Tiling(warps=1)
    counted = {s.operand for s in spec.steps if isinstance(s, Index)}
    memory = [o for i, o in enumerate(spec.operands) if i not in counted]
    unit = {a: sum(o.dtype.itemsize for o in memory if o.strides[a] == 1) for a in axes}
    lane = max(axes, key=lambda a: (unit[a], a))
    crossing = {a for a in axes if any(o.strides[a] == 1 and o.strides[lane] != 0 for o in memory)} - {lane}
    # What an operand is contiguous along comes first, then what is long, until the tile is full.
    length = {a: 0 if a in work.varying else work.extents[a] for a in axes}
    order = sorted(axes, key=lambda a: (a == lane, a in crossing, length[a]), reverse=True)
    block = POINTWISE // 2 if len(spec.operands) >= MANY_OPERANDS else POINTWISE
    if not work.varying:
        block = min(block, max(power(work.elements // PROGRAMS), FEWEST))
    while block > FEWEST and not fits(held(spec), block, 4):
        block //= 2
    narrow = min((o.dtype.itemsize for o in memory), default=4) <= 2
    side = NARROW_TRANSPOSED if narrow else TRANSPOSED
    blocks: dict[int, int] = {}
    for axis in order[:3]:
        most = SHORT if blocks and not crossing else block
        room = side if crossing and len(blocks) < 2 else max(most // math.prod(blocks.values()), 1)
        blocks[axis] = min(block_of(work, axis), room)
    tile = math.prod(blocks.values())
    warps = 4 if crossing or tile >= POINTWISE // 2 else 1
    return Tiling(tuple(sorted((a, b) for a, b in blocks.items() if b > 1)), warps=warps)


def _warps(elements: int, each: int, most: int = 32) -> int:
    """Warps whose threads have `each` of a tile's elements."""
    return min(max(elements // (32 * each), 1), most)


def _holding(spec: LoopSpec, elements: int, each: int, most: int = 32) -> int:
    """Warps that hold a tile in registers, with about `each` element a thread; 0 where none do."""
    registers, wanted = held(spec), _warps(elements, each, most)
    counts = [w for w in (wanted, wanted // 2, 2 * wanted) if 1 <= w <= most]
    return next((w for w in counts if fits(registers, elements, w)), 0)


def _rows(work: Work, spec: LoopSpec) -> Tiling:
    last, lane = spec.axes - 1, spec.rows - 1
    rows, whole = work.extents[: spec.rows], block_of(work, last)
    alone = spec.inner == 1
    if spec.vector == "rows" and spec.rows:
        beside = min(max(power(rows[lane] // PROGRAMS), FEWEST_BESIDE), MOST_BESIDE, power(rows[lane]))
        if lane in work.varying:
            beside = MOST_BESIDE if rows[lane] >= MOST_BESIDE * PROGRAMS else FEWEST_BESIDE
        if alone and whole * beside <= PART and (warps := _holding(spec, whole * beside, 16)):
            return Tiling(_beside(lane, beside, last, whole), warps=warps)
        block = min(whole, STRETCH // beside)
        return Tiling(_beside(lane, beside, last, block), looped=True, warps=_warps(beside * block, 16))
    warps = _holding(spec, whole, 16) if alone and whole <= LONGEST_ROW else 0
    if not warps:
        return _long(last, whole)
    if whole >= SHORT or not rows:
        return Tiling(((last, whole),), warps=warps)
    longest = max(range(spec.rows), key=lambda a: (a in work.varying, rows[a]))
    together = SHORT // whole
    if work.varying.isdisjoint(range(spec.rows)):
        together = min(together, power(math.prod(rows) // PROGRAMS), power(rows[longest]))
    return Tiling(_beside(longest, together, last, whole), warps=1)


def _long(last: int, whole: int, stretch: int = STRETCH) -> Tiling:
    """A row at a time, in stretches."""
    block = min(whole, stretch)
    return Tiling(((last, block),), looped=True, warps=_warps(block, 8))


def _beside(axis: int, together: int, last: int, block: int) -> tuple[tuple[int, int], ...]:
    """Blocks of rows and of their inner axis; a row on its own is no dimension of the tile."""
    return (((axis, together),) if together > 1 else ()) + ((last, block),)


def _parts(work: Work, spec: LoopSpec) -> Tiling:
    rows = -(-math.prod(work.extents[: spec.rows]) // max(work.parts, 1))
    rows = power(rows) if work.varying.isdisjoint(range(spec.rows)) else max(coarse(rows), LEAST_VARYING)
    if not spec.inner:
        return Tiling(part_rows=min(rows, PART), warps=_warps(min(rows, PART), 8, PART_WARPS))
    last, whole = spec.axes - 1, block_of(work, spec.axes - 1)
    if _only_columns(spec):
        beside = min(MOST_BESIDE, whole)
        together = min(rows, POINTWISE // beside)
        return Tiling(((last, beside),), together, columns=True, warps=_warps(beside * together, 8))
    together = min(rows, max(PART // whole, 1)) if spec.inner == 1 and whole <= LONGEST_ROW else 0
    while together:
        if warps := _holding(spec, together * whole, 8, PART_WARPS):
            return Tiling(((last, whole),), together, warps=warps)
        together //= 2
    return _long(last, whole, PART)


def _only_columns(spec: LoopSpec) -> bool:
    """Whether nothing but single elements is computed, so that columns may go to different programs."""
    return all(
        not isinstance(s, Scan)
        and spec.operand_level(s.operand) == ELEMENT
        and (isinstance(s, Store) or s.outer)
        for s in spec.steps
        if isinstance(s, Store | Reduce | Scan)
    )
