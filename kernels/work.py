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
