"""How a kernel is cut into tasks for threads: what is divided, and by an estimate of its time into how many.

Knows sizes; knows no threads and no addresses.
"""

from __future__ import annotations

import math

from kernels.cpu import loop, matmul
from kernels.cpu.target import lanes
from kernels.spec import EXPENSIVE, Call, LoopSpec, MatmulSpec
from kernels.work import Work

# Nanoseconds of one element on one core of the reference machine: per memory operand, per call, per expensive
# call.
_OPERAND, _CALL, _EXPENSIVE = 0.05, 0.02, 0.4
# Multiply-adds per nanosecond of one core.
_PRODUCT = 50.0
# A task is about this long, and a launch shorter than two of them is not shared: handing one out costs 0.1 to
# 0.3 us while the workers look for work, as they do between two steps of a training loop.
TASK = 1500.0
# Most tasks of one kernel: enough for the threads of a large machine to finish together.
MOST_TASKS = 64


def rows(work: Work) -> int:
    """What is divided among tasks: rows of a loop, panels of a product."""
    if isinstance(work.spec, MatmulSpec):
        return matmul.units(work.spec, work.extents, lanes())
    sizes = work.extents[: work.spec.rows]
    return math.prod(sizes[:-1]) if work.spec.vector == "rows" and len(sizes) > 1 else math.prod(sizes)


def _together(work: Work) -> int:
    """Rows that stay together: a vector of them, where the rows are the lanes."""
    spec = work.spec
    return 64 if isinstance(spec, LoopSpec) and spec.vector == "rows" and spec.rows == 1 else 1


def nanoseconds(work: Work) -> float:
    """A rough estimate of one core's time."""
    spec = work.spec
    calls = [s.function for s in spec.steps if isinstance(s, Call)]
    expensive = sum(f in EXPENSIVE for f in calls)
    each = _OPERAND * len(spec.operands) + _CALL * len(calls) + _EXPENSIVE * expensive
    if isinstance(spec, MatmulSpec):
        return work.elements / _PRODUCT + each * math.prod(work.extents[: spec.batch + 2])
    return each * work.elements


def cuts(work: Work) -> list[tuple[int, int]]:
    """(start, stop) of each task, by shape alone."""
    count, together = rows(work), _together(work)
    wanted = work.parts or (1 if work.serial else min(int(nanoseconds(work) // TASK), MOST_TASKS))
    size = -(-max(count, 1) // max(wanted, 1))
    size = -(-size // together) * together
    starts = range(0, count, size)
    # A reduction of no rows still writes its identity.
    return [(s, min(s + size, count)) for s in starts] or ([(0, 0)] if work.parts else [])


def part_count(work: Work, wanted: int) -> int:
    """How many parts the rows fall into when cut near `wanted` times."""
    count, together = max(rows(work), 1), _together(work)
    size = -(-count // max(wanted, 1))
    return -(-count // (-(-size // together) * together))


def scratch_bytes(work: Work) -> int:
    """Private memory one thread needs."""
    render = matmul if isinstance(work.spec, MatmulSpec) else loop
    return render.scratch_bytes(work.spec, work.extents, lanes())  # type: ignore[arg-type]
