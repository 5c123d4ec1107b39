"""How a loop is cut into programs: which axes a tile spans, how far, and how many warps compute it.

Rules of thumb, from sizes alone; none of them changes a result by more than the order of a sum. Knows
collapsed loops; writes no text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from kernels.errors import SpecError
from kernels.spec import ELEMENT, Index, Load, LoopSpec, Reduce, Store
from kernels.work import Work

# Elements of a pointwise tile: 8 a thread of 4 warps, which are two 128-bit accesses of float32. With many
# operands 4 a thread, or registers run out.
POINTWISE, MANY_OPERANDS = 1024, 5
# A pointwise kernel has so many programs at least, but none of fewer elements than FEWEST.
PROGRAMS, FEWEST = 128, 256
# Elements of a row that one program keeps in registers: 16 a thread of 32 warps, half as many where more than
# LIVE tiles are alive at once. float32 spills at twice as many.
LONGEST_ROW, LIVE = 16384, 3
# Elements of a longer row that are walked at a time: 8 a thread of 8 warps.
STRETCH = 2048
# Elements of a tile of short rows, and of rows that lie across the lanes.
SHORT, ACROSS = 1024, 4096
# Sides of a tile through which an operand is transposed, for elements of 4 bytes and more, and for smaller.
TRANSPOSED, NARROW_TRANSPOSED = 32, 64
# Columns side by side in a sum down the columns: whole sectors of memory, and many loads in flight.
COLUMNS = 64


@dataclass(frozen=True)
class Tiling:
    """Blocks per axis, for one or two axes; the others are walked by programs, or by loops within one.

    With `looped`, the last inner axis is walked block by block, and those before it one by one. Where rows
    are combined, `part_rows` of a part are in a tile; with `columns`, programs share the inner axes. With
    `serial`, one program does one row after the other.
    """

    blocks: tuple[tuple[int, int], ...] = ()
    part_rows: int = 1
    looped: bool = False
    columns: bool = False
    serial: bool = False
    warps: int = 4


def power(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()


def tiling(work: Work) -> Tiling:
    """The tiling of a collapsed loop."""
    spec = cast(LoopSpec, work.spec)
    added = [spec.operands[s.operand].dtype for s in spec.steps if isinstance(s, Store) and s.index]
    if any(d.itemsize < 4 for d in added):
        # There are no atomic additions of so few bytes.
        if spec.inner:
            raise SpecError(f"{spec.name} adds {added[0].name} at computed positions, and has inner axes")
        return Tiling(serial=True, warps=1)
    if any(isinstance(s, Reduce) and s.outer for s in spec.steps):
        return _parts(work, spec)
    if spec.inner:
        return _rows(work, spec)
    return _pointwise(work, spec)


def _pointwise(work: Work, spec: LoopSpec) -> Tiling:
    axes = [a for a, n in enumerate(work.extents) if n != 1]
    if not axes:
        return Tiling(warps=1)
    counted = {s.operand for s in spec.steps if isinstance(s, Index)}
    memory = [o for i, o in enumerate(spec.operands) if i not in counted]
    unit = {a: sum(o.dtype.itemsize for o in memory if o.strides[a] == 1) for a in axes}
    lane = max(axes, key=lambda a: (unit[a], a))
    block = POINTWISE // 2 if len(spec.operands) >= MANY_OPERANDS else POINTWISE
    block = min(block, max(power(work.elements // PROGRAMS), FEWEST))
    warps = max(block // 256, 1) if block < POINTWISE // 2 else 4
    # What is contiguous for some operand comes first, then what is long, until the tile is full.
    order = sorted(axes, key=lambda a: (a == lane, unit[a] > 0, work.extents[a]), reverse=True)
    narrow = min((o.dtype.itemsize for o in memory), default=4) <= 2
    side = NARROW_TRANSPOSED if narrow else TRANSPOSED
    transposed = len(order) > 1 and unit[order[1]] > 0
    blocks: dict[int, int] = {}
    for axis in order[:3]:
        room = block // math.prod(blocks.values())
        blocks[axis] = min(power(work.extents[axis]), side if transposed and axis in order[:2] else room)
    return Tiling(tuple(sorted((a, b) for a, b in blocks.items() if b > 1)), warps=4 if transposed else warps)


def _live(spec: LoopSpec) -> int:
    """Tiles of a row's elements that a program holds at once, about."""
    loads = sum(isinstance(s, Load) and spec.levels[s.out] == ELEMENT for s in spec.steps)
    return loads + sum(isinstance(s, Reduce) and s.outer for s in spec.steps)


def _row_block(work: Work, spec: LoopSpec) -> tuple[int, bool]:
    """The block of the last inner axis, and whether it is looped over."""
    whole = power(work.extents[-1])
    widest = max(o.dtype.itemsize for o in spec.operands)
    longest = LONGEST_ROW * 4 // max(widest, 4) // (1 if _live(spec) <= LIVE else 2)
    fits = spec.inner == 1 and whole <= longest
    return (whole, False) if fits else (min(whole, STRETCH), True)


def _row_warps(elements: int) -> int:
    return min(max(elements // 512, 1), 32)


def _rows(work: Work, spec: LoopSpec) -> Tiling:
    last, lane = spec.axes - 1, spec.rows - 1
    rows = work.extents[: spec.rows]
    if spec.vector == "rows" and spec.rows:
        beside = min(64, power(rows[lane]))
        whole = power(work.extents[last])
        fits = spec.inner == 1 and whole * beside <= ACROSS
        block = whole if fits else min(whole, ACROSS // 4 // beside)
        warps = 4 if beside * block >= 512 else 1
        return Tiling(_beside(lane, beside, last, block), looped=not fits, warps=warps)
    block, looped = _row_block(work, spec)
    if looped:
        return Tiling(((last, block),), looped=True, warps=8 if block == STRETCH else 4)
    if block >= SHORT // 4 or not rows:
        return Tiling(((last, block),), warps=_row_warps(block))
    longest = max(range(spec.rows), key=lambda a: rows[a])
    together = min(SHORT // block, power(max(rows[longest] // PROGRAMS, 1)))
    return Tiling(_beside(longest, together, last, block), warps=max(together * block // 256, 1))


def _beside(axis: int, together: int, last: int, block: int) -> tuple[tuple[int, int], ...]:
    """Blocks of rows and of their inner axis; a row on its own is no dimension of the tile."""
    return (((axis, together),) if together > 1 else ()) + ((last, block),)


def _parts(work: Work, spec: LoopSpec) -> Tiling:
    rows = power(-(-math.prod(work.extents[: spec.rows]) // max(work.parts, 1)))
    if not spec.inner:
        return Tiling(part_rows=min(rows, STRETCH), warps=_row_warps(2 * min(rows, STRETCH)))
    last = spec.axes - 1
    if _only_columns(spec):
        beside = min(COLUMNS, power(work.extents[last]))
        return Tiling(((last, beside),), part_rows=min(rows, SHORT // beside), columns=True, warps=4)
    block, looped = _row_block(work, spec)
    if looped:
        return Tiling(((last, block),), looped=True, warps=8 if block == STRETCH else 4)
    together = min(rows, max(SHORT // 2 // block, 1))
    return Tiling(((last, block),), part_rows=together, warps=_row_warps(2 * block))


def _only_columns(spec: LoopSpec) -> bool:
    """Whether nothing but single elements is computed, so that columns may go to different programs."""
    effects = [s for s in spec.steps if isinstance(s, Store | Reduce)]
    return all(
        (isinstance(s, Store) or s.outer) and spec.operand_level(s.operand) == ELEMENT for s in effects
    )
