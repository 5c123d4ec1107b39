"""How a matrix product is cut for a GPU: block sizes, warps and stages by shape, without a device.

Knows sizes and element types, no specs and no architectures: a cut has to do for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kernels import dtypes
from kernels.dtypes import DType

# Programs that a large GPU runs at once: below that, smaller tiles are worth reading factors more often.
PROCESSORS = 128
# Neighbouring programs walk so many tiles down before the next column: what they read stays in the L2 cache.
GROUP = 8
# Words of each element that an epilogue may hold at once in tiles of 64 elements a thread.
LIGHT = 3
# Elements of a tile, and length of k, up to and from which steps are twice as deep.
SMALL, LONG = 1024, 512
# What another kernel takes (2 us), and writing and reading an element of a slice there, in units of `_time`,
# 0.05 ns each; and the share of the time in one kernel below which two are worth it.
SECOND, MOVED, GAIN = 40_000.0, 0.08, 0.6
EXACT, TF32 = "ieee", "tf32"
_SIDES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Tile:
    """A program makes `rows` by `columns` of the product in steps of `depth`."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def coarse(size: int) -> int:
    """The least power of four that is not below a size: one of few, of which nothing is smaller by far."""
    return 1 << 2 * (max(size - 1, 0).bit_length() + 1 >> 1)


def ranked(m: int, n: int, k: int, batch: int, factor: DType, precision: str, live: int = 1) -> list[Tile]:
    """Tiles for an m by n product over k, one of `batch`, of factors in memory of type `factor`, whose
    epilogue holds `live` words of each element at once; the one of least time first.
    """
    cuts = candidates(k, factor, precision, live)
    return sorted(cuts, key=lambda cut: _time(cut, m, n, batch, factor, precision))


def candidates(k: int, factor: DType, precision: str, live: int = 1) -> Iterator[Tile]:
    """Tiles that compile without spills on every architecture."""
    half = factor.compute is not None
    # Exact float32 keeps both factors of a step in registers: 32 deep spills.
    deepest = 64 if half else 32 if precision == TF32 and factor is dtypes.float32 else 16
    depth = next((d for d in (16, 32) if d >= k and d < deepest), deepest)
    largest = 4096 if factor is dtypes.float64 or live > LIGHT else 16384
    for rows in _SIDES:
        for columns in _SIDES:
            area = rows * columns
            if area > largest:
                continue
            # Few programs of small tiles over a long k: fewer, longer steps.
            step = 2 * depth if area <= SMALL and k >= LONG else depth
            warps = 8 if area >= 8192 else 4 if area >= 2048 or (half and rows >= 64) else 2
            # Every thread has 16 bytes of each factor to load, and of the product to store.
            least = min(rows * step, columns * step, area)
            most = least * factor.itemsize // (16 * 32)
            while warps > max(most, 1):
                warps //= 2
            yield Tile(rows, columns, step, warps, 3)


def slices(
    m: int, n: int, k: int, batch: int, factor: DType, precision: str, live: int, counts: Iterable[int]
) -> int:
    """Into how many of `counts` slices the depth is worth cutting, whose sum is a kernel of its own; 1 for
    none. The sum goes through the epilogue, and a slice's tiles hold nothing but the product.
    """

    def time(count: int, live: int) -> float:
        cut = ranked(m, n, k // count, batch * count, factor, precision, live)[0]
        return k / count * _time(cut, m, n, batch * count, factor, precision)

    times = {c: time(c, 1) + SECOND + MOVED * c * m * n * max(batch, 1) for c in counts}
    best = min(times, key=times.__getitem__, default=1)
    return best if best > 1 and times[best] < GAIN * time(1, live) else 1


def _time(cut: Tile, m: int, n: int, batch: int, factor: DType, precision: str) -> float:
    """Time of a product up to a factor: waves of programs, each as long as multiply-adds and loads take."""
    programs = max(batch, 1) * -(-max(m, 1) // cut.rows) * -(-max(n, 1) // cut.columns)
    waves = max(1.0, programs / PROCESSORS)
    cores = factor.compute is not None or precision == TF32
    # What multiply-adds of a tile cost beside a load of one row or column of factors.
    arithmetic = cut.rows * cut.columns / (64 if cores else 16)
    # Few warps wait longer for memory.
    return waves * (arithmetic + (cut.rows + cut.columns) * factor.itemsize / 4 + 16) * (1 + 0.5 / cut.warps)
