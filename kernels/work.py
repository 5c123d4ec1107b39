"""A spec with sizes: all that a back end must know of one kernel but where its memory is.

Knows no addresses, and no back end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.spec import LoopSpec, MatmulSpec


@dataclass(frozen=True)
class Work:
    """One kernel of a program: its spec and sizes, strides per operand and axis, and the exact number of row
    parts.

    `parts` 0 lets the rows be cut anywhere; `serial` keeps them one task. `varying` are axes of which other
    sizes are to be expected: a back end does well to take what serves many.
    """

    spec: LoopSpec | MatmulSpec
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    index_strides: tuple[int, ...]
    parts: int = 0
    serial: bool = False
    varying: frozenset[int] = frozenset()

    @property
    def elements(self) -> int:
        """Points of the iteration space."""
        return math.prod(self.extents)


@dataclass(frozen=True)
class Link:
    """A kernel of a chain, number `number` of the program; `work` is what it does for one tile.

    `row` is its axis that is as long as a tile has rows, -1 where there is none. `moves` says for each
    operand how many elements its start lies further on from one tile to the next along each of the chain's
    axes, and from row to row; `private` which private memory the operand is in, -1 for none. With `sums` it
    adds up what the tiles give, those of one set of rows after the other.
    """

    number: int
    work: Work
    row: int
    moves: tuple[tuple[int, ...], ...]
    private: tuple[int, ...]
    sums: bool = False


@dataclass(frozen=True)
class Chain:
    """Kernels of a program that run one after the other for each tile, with memory for one tile a thread.

    Tiles are cut along `outer` axes, one index each, and from `rows` rows, `step` at a time. `private` are
    the bytes of each memory that only the chain sees.
    """

    outer: tuple[int, ...]
    rows: int
    step: int
    links: tuple[Link, ...]
    private: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many tiles the rows are cut into."""
        return -(-self.rows // self.step)

    @property
    def in_order(self) -> bool:
        """Whether the tiles of all rows belong to one task, first one first."""
        return any(link.sums for link in self.links)

    @property
    def units(self) -> int:
        """Tiles, or sets of rows, that can run at once."""
        return math.prod(self.outer) * (1 if self.in_order else self.blocks)
