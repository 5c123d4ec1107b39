"""A program in memory: tables, tasks and launches laid out for the native runner, and the call that runs it.

Knows kernels as specs with extents, strides and addresses; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kernels.cpu import engine, loop, matmul, pool
from kernels.cpu.engine import Machine
from kernels.cpu.target import lanes
from kernels.errors import BuildError
from kernels.spec import EXPENSIVE, Call, LoopSpec, MatmulSpec

# Nanoseconds of one element on one core of the reference machine: per memory operand, per call, per expensive
# call.
_OPERAND, _CALL, _EXPENSIVE = 0.05, 0.02, 0.4
# Multiply-adds per nanosecond of one core.
_PRODUCT = 50.0
# A task is about this long, and a launch shorter than two of them is not shared: handing one out costs 0.1 to
# 0.3 us while the workers look for work, as they do between two steps of a training loop.
_TASK = 1500.0
# A launch this long is worth waking workers for. How kernels/cpu/native.py shares launches below and above
# it.
_LARGE = 100_000.0
SMALL, LARGE = 1, 2
# Where the native runner finds the address of an ndarray's data (kernels/cpu/native.py).
DATA_FIELD = 16
# Most tasks of one kernel: enough for the threads of a large machine to finish together.
_MOST_TASKS = 64


@dataclass(frozen=True)
class Work:
    """One kernel of a program: its spec and sizes, strides per operand and axis, and the exact number of row
    parts.

    `parts` 0 lets the rows be cut anywhere; `serial` keeps them one task.
    """

    spec: LoopSpec | MatmulSpec
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    index_strides: tuple[int, ...]
    parts: int = 0
    serial: bool = False

    @property
    def elements(self) -> int:
        """Points of the iteration space."""
        return math.prod(self.extents)

    @property
    def rows(self) -> int:
        """What is divided among tasks: rows of a loop, panels of a product."""
        if isinstance(self.spec, MatmulSpec):
            return matmul.units(self.spec, self.extents, lanes())
        rows = self.extents[: self.spec.rows]
        return math.prod(rows[:-1]) if self.spec.vector == "rows" and len(rows) > 1 else math.prod(rows)

    @property
    def step(self) -> int:
        """Rows that stay together: a vector of them, where the rows are the lanes."""
        return (
            64
            if isinstance(self.spec, LoopSpec) and self.spec.vector == "rows" and self.spec.rows == 1
            else 1
        )

    @property
    def nanoseconds(self) -> float:
        """A rough estimate of one core's time, for cutting work into tasks."""
        calls = [s.function for s in self.spec.steps if isinstance(s, Call)]
        expensive = sum(f in EXPENSIVE for f in calls)
        each = _OPERAND * len(self.spec.operands) + _CALL * len(calls) + _EXPENSIVE * expensive
        if isinstance(self.spec, MatmulSpec):
            return self.elements / _PRODUCT + each * math.prod(self.extents[: self.spec.batch + 2])
        return each * self.elements

    def cuts(self) -> list[tuple[int, int]]:
        """(start, stop) of each task, by shape alone."""
        rows = self.rows
        wanted = self.parts or (1 if self.serial else min(int(self.nanoseconds // _TASK), _MOST_TASKS))
        size = -(-max(rows, 1) // max(wanted, 1))
        size = -(-size // self.step) * self.step
        starts = range(0, rows, size)
        # A reduction of no rows still writes its identity.
        return [(s, min(s + size, rows)) for s in starts] or ([(0, 0)] if self.parts else [])

    def part_count(self, wanted: int) -> int:
        """How many parts the rows fall into when cut near `wanted` times."""
        rows = max(self.rows, 1)
        size = -(-rows // max(wanted, 1))
        return -(-rows // (-(-size // self.step) * self.step))

    def scratch_bytes(self) -> int:
        """Private memory one thread needs."""
        render = matmul if isinstance(self.spec, MatmulSpec) else loop
        return render.scratch_bytes(self.spec, self.extents, lanes())  # type: ignore[arg-type]


_sources: dict[str, str] = {}


def source_of(spec: LoopSpec | MatmulSpec) -> str:
    """Generated source of a spec; specs that differ only in name share it."""
    if spec.digest not in _sources:
        render = matmul.render if isinstance(spec, MatmulSpec) else loop.render
        _sources[spec.digest] = render(spec, lanes())  # type: ignore[arg-type]
    return _sources[spec.digest]


def build(specs: Sequence[LoopSpec | MatmulSpec]) -> list[Machine]:
    """Machine code of specs."""
    return engine.load_many([engine.Request("kernel", source_of(s), "kernel") for s in specs])


@cache
def native_run() -> Any:
    """The native `run` as a Python callable."""
    machine = engine.load(engine.Request("native", pool.source(), "run"))
    probe = np.zeros(1)
    if ctypes.c_int64.from_address(id(probe) + DATA_FIELD).value != probe.ctypes.data:
        raise BuildError(
            f"NumPy {np.__version__} keeps an array's address elsewhere than {DATA_FIELD} bytes into it"
        )
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(machine.address)


class Program:
    """Work in launches, ready to run; the caller fills in pointers.

    `table` holds every kernel's table end to end; `pointer_slot(work, operand)` is where an operand's address
    goes. A launch of `levels` is shared among threads when that pays. `checks` are (level, address of a flag
    byte).
    """

    def __init__(
        self, works: Sequence[Work], levels: Sequence[int], checks: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.works = tuple(works)
        self.machines = build([w.spec for w in works])
        sizes = [w.spec.table_size for w in works]
        self.starts = [0, *itertools.accumulate(sizes)][:-1]
        self.table = np.zeros(max(sum(sizes), 1), np.int64)
        for work, start in zip(works, self.starts, strict=True):
            self._fill(work, start)
        tasks: list[tuple[int, ...]] = []
        launches: list[tuple[int, ...]] = []
        flags = dict(checks)
        together: dict[int, list[int]] = {level: [] for level in sorted({*levels, *flags})}
        for number, level in enumerate(levels):
            together[level].append(number)
        base = self.table.ctypes.data
        for level, numbers in together.items():
            first, cost = len(tasks), 0.0
            for number in numbers:
                work, address, table = (
                    works[number],
                    self.machines[number].address,
                    base + 8 * self.starts[number],
                )
                tasks += [(address, table, a, b, i) for i, (a, b) in enumerate(work.cuts())]
                cost += work.nanoseconds
            shared = len(tasks) - first > 1 and cost >= 2 * _TASK
            size = 0 if not shared else SMALL if cost < _LARGE else LARGE
            launches.append((first, len(tasks), size, flags.get(level, 0)))
        self.tasks = np.array(tasks or [(0,) * 5], np.int64)
        self.launches = np.array(launches or [(0,) * 4], np.int64)
        self.parallel = any(row[2] for row in launches)
        self.scratch_bytes = -(-max((w.scratch_bytes() for w in works), default=0) // 64) * 64 + 64
        head = (
            len(launches),
            self.launches.ctypes.data,
            self.tasks.ctypes.data,
            0,
            self.scratch_bytes,
            0,
            0,
            0,
            0,
        )
        self.head = np.array(head, np.int64)
        self.address = self.head.ctypes.data
        self.threads = 0
        self.fit(pool.get_num_threads())

    def fit(self, threads: int) -> None:
        """Give each of `threads` threads its scratch memory."""
        self.threads = threads
        self.scratch = np.empty(self.scratch_bytes * (threads if self.parallel else 1) + 64, np.uint8)
        self.head[3] = -(-self.scratch.ctypes.data // 64) * 64

    def _fill(self, work: Work, start: int) -> None:
        spec, operands = work.spec, len(work.spec.operands)
        self.table[start + operands : start + operands + len(work.extents)] = work.extents
        for (operand, axis), slot in spec.stride_slots.items():
            stride = work.index_strides[operand] if axis < 0 else work.strides[operand][axis]
            self.table[start + slot] = stride

    def connect(self, patches: np.ndarray, objects: np.ndarray) -> None:
        """Fill table slots at every run: a row of `patches` is (slot, number of an array in `objects`, byte
        offset).

        `objects` holds addresses of ndarray objects (`id`), so that the caller need not ask each for its
        data.
        """
        self.connected = patches, objects
        self.head[5:] = (patches.ctypes.data, len(patches), objects.ctypes.data, self.table.ctypes.data)

    def failed(self) -> int:
        """What the last run returned: 0, or 1 + the number of the launch whose check found bad input."""
        for number, address in enumerate(self.launches[:, 3].tolist()):
            if address and ctypes.c_uint8.from_address(address).value:
                return number + 1
        return 0

    def pointer_slot(self, work: int, operand: int) -> int:
        """Index in `table` of an operand's address."""
        return self.starts[work] + operand
