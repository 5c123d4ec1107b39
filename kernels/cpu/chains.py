"""A chain in memory: the table that its native side walks, and how it is cut into tasks.

Knows works and addresses; what a chain is for, the compiler knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernels.cpu import engine, tasks
from kernels.spec import Call, Index, Load, LoopSpec, MatmulSpec, Store
from kernels.work import Chain, Link, Work

# Words of kernels/cpu/tiles.py's tables: a chain's before its sizes, a link.
_HEAD, _LINK = 7, 10
# Bytes at whose multiples memory of a tile begins.
_ALIGNMENT = 64


def address() -> int:
    """Where the native function is that runs chains."""
    source = Path(__file__).with_name("tiles.py").read_text()
    return engine.load(engine.Request("tiles", source, "chain")).address


def cuts(chain: Chain, works: Sequence[Work]) -> list[tuple[int, int]]:
    """(start, stop) of each task, by shape alone; `works` are those of the whole program."""
    wanted = min(max(int(nanoseconds(chain, works) // tasks.TASK), 1), tasks.MOST_TASKS)
    size = -(-chain.units // wanted)
    return [(start, min(start + size, chain.units)) for start in range(0, chain.units, size)]


def nanoseconds(chain: Chain, works: Sequence[Work]) -> float:
    """A rough estimate of one core's time."""
    return sum(tasks.nanoseconds(works[link.number]) for link in chain.links)


def later_spec(spec: LoopSpec | MatmulSpec) -> MatmulSpec:
    """A product as it goes on to add up what other rows give."""
    (store,) = spec.steps
    assert isinstance(spec, MatmulSpec) and isinstance(store, Store)
    before, total = Load("before", store.operand), Call("total", "add", ("before", store.value), spec.dtype)
    return replace(spec, steps=(before, total, replace(store, value="total")))


class Layout:
    """A chain's table, the links it names, and how much private memory a thread needs for it.

    `tables` are the addresses of the kernels' own tables. `machines` are the addresses of the kernels, and of
    those for later blocks.
    """

    def __init__(self, chain: Chain, tables: Sequence[int], machines: Sequence[tuple[int, int]]) -> None:
        self.chain = chain
        last = chain.rows - chain.step * (chain.blocks - 1)
        # A tile of fewer rows may need more.
        tiles = [_tile(link, rows) for link in chain.links for rows in (chain.step, last)]
        own = max(map(tasks.scratch_bytes, tiles))
        copies, end = _spaced([8 * link.work.spec.table_size for link in chain.links], own)
        private, self.scratch_bytes = _spaced(chain.private, end)
        axes = len(chain.outer)
        self.operands = [_operands(link, private) for link in chain.links]
        self.links = np.zeros((len(chain.links), _LINK), np.int64)
        placed = zip(chain.links, tables, copies, self.operands, strict=True)
        for number, (link, table, copy, operands) in enumerate(placed):
            spec = link.work.spec
            slot = len(spec.operands) + link.row if link.row >= 0 else -1
            stops = [tasks.rows(_tile(link, rows)) for rows in (chain.step, last)]
            place = table, spec.table_size, copy, slot
            self.links[number, 2:] = *place, *stops, len(spec.operands), operands.ctypes.data
        self.renew(machines)
        head = (
            len(chain.links), axes, chain.blocks, chain.step, chain.rows, chain.in_order,
            self.links.ctypes.data, *chain.outer,
        )  # fmt: skip
        assert len(head) == _HEAD + axes
        self.table = np.array(head, np.int64)

    def renew(self, machines: Sequence[tuple[int, int]]) -> None:
        """Take other machine code."""
        self.links[:, :2] = machines


def _spaced(sizes: Sequence[int], start: int) -> tuple[list[int], int]:
    """Where memory of these sizes begins, one after the other from `start` on, and the end."""
    places: list[int] = []
    for size in sizes:
        start = -(-start // _ALIGNMENT) * _ALIGNMENT
        places.append(start)
        start += size
    return places, -(-start // _ALIGNMENT) * _ALIGNMENT


def _operands(link: Link, private: Sequence[int]) -> np.ndarray:
    """A row per operand: where it is in private memory or -1, then its moves in bytes."""
    spec = link.work.spec
    counters = {s.operand for s in spec.steps if isinstance(s, Index)}
    rows: list[list[int]] = []
    for i, (operand, moves, slot) in enumerate(zip(spec.operands, link.moves, link.private, strict=True)):
        size = 1 if i in counters else operand.dtype.itemsize
        rows.append([private[slot] if slot >= 0 else -1, *(move * size for move in moves)])
    return np.array(rows, np.int64)


def _tile(link: Link, rows: int) -> Work:
    """A kernel's work on a tile of so many rows."""
    extents = tuple(rows if axis == link.row else n for axis, n in enumerate(link.work.extents))
    return replace(link.work, extents=extents)
