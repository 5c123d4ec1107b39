"""A program run kernel by kernel, with a look after each: slower, and to the same bits.

Knows the memory that kernels/cpu/native.py reads; what a look is for, and that kernels have names, it does
not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.cpu.runner import Program, native_run

# Words of a program's head: launch count, launches, and how many arrays to connect.
_COUNT, _LAUNCHES, _CONNECTED = 0, 1, 6


def run(program: Program, workers: int, ready: Callable[[], None], after: Callable[[int], None]) -> int:
    """Run `program` as its native call does, each kernel by itself: `ready()` comes before the first,
    `after(number)` follows each.

    Kernels that otherwise share a launch run one after the other, each still cut among the threads. Returns
    0, or the number of the launch whose check found bad input.
    """
    native = native_run()
    head = program.head.copy()
    row = np.zeros(4, np.int64)
    head[_COUNT], head[_LAUNCHES] = 0, row.ctypes.data
    native(head.ctypes.data, workers)  # connects the arrays
    head[_COUNT], head[_CONNECTED] = 1, 0
    ready()
    for launch, (start, stop, size, flag) in enumerate(program.launches.tolist()):
        parts = _parts(program, start, stop)
        for number, first, end in parts:
            row[:] = first, end, size if end - first > 1 else 0, flag if end == stop else 0
            if native(head.ctypes.data, workers):
                return launch + 1
            if number >= 0:
                after(number)
    return 0


def _parts(program: Program, start: int, stop: int) -> list[tuple[int, int, int]]:
    """(kernel, its first task, the end) within a launch; kernel -1 where there is none, only a check."""
    tables = program.tasks[start:stop, 1].tolist()
    if not tables:
        return [(-1, start, stop)]
    base = program.table.ctypes.data
    kernels = {base + 8 * place: i for i, place in enumerate(program.starts)}
    firsts = [i for i, table in enumerate(tables) if not i or table != tables[i - 1]]
    ends = [*firsts[1:], len(tables)]
    return [(kernels[tables[a]], start + a, start + b) for a, b in zip(firsts, ends, strict=True)]
