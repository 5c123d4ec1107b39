"""Memory under tensors: counts of the writes to it, and where an array lies in the memory it views.

Knows arrays, not tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.gpu import arrays


class Clock:
    """Counts the writes of a program's runs for every storage that each of them writes to `count` times."""

    __slots__ = ("clocks", "count", "time")

    def __init__(self, clocks: Clocks, count: int) -> None:
        self.clocks, self.count, self.time = clocks, count, 0


class Clocks:
    """The clocks of one program; `left` when a storage went to another's."""

    __slots__ = ("by_count", "left")

    def __init__(self) -> None:
        self.by_count: dict[int, Clock] = {}
        self.left = False

    def of(self, count: int) -> Clock:
        """The clock of what each run writes to `count` times."""
        return self.by_count.setdefault(count, Clock(self, count))

    def tick(self) -> None:
        """Count one run."""
        for clock in self.by_count.values():
            clock.time += clock.count


_STOPPED = Clocks().of(0)


class Storage:
    """Memory of a tensor and its views: the count of writes to it, its own and those of the program that
    updates it."""

    # Class attributes: running an __init__ would double the time to make one.
    writes: int = 0
    clock: Clock = _STOPPED
    # Whether someone outside may hold the memory, as an array or an address.
    exposed: bool = False

    @property
    def version(self) -> int:
        """Grows with every write."""
        return self.writes + self.clock.time

    def follow(self, clock: Clock) -> None:
        """Let `clock` count from now on: a program of 600 tensors then counts once a run, not 600 times."""
        if self.clock is not clock:
            self.writes += self.clock.time - clock.time
            self.clock.clocks.left = True
            self.clock = clock


# What NumPy puts between an array and what `as_strided` makes of it.
_Strided: Any = type(np.lib.stride_tricks.as_strided(np.zeros(1)).base)


def root_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that owns the memory `array` views."""
    while True:
        base: Any = array.base
        if type(base) is _Strided:
            base = base.base
        if not isinstance(base, np.ndarray):
            # A device array's base is what owns the memory.
            return base if arrays.is_device(base) else array  # type: ignore[return-value]
        array = base


def placement(array: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], int]:
    """Strides of `array`, and its offset from the start of its memory, in elements."""
    size = array.itemsize
    offset = (arrays.address(array) - arrays.address(root_of(array))) // size
    return tuple([stride // size for stride in array.strides]), offset
