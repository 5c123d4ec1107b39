"""A program of kernels on a device: argument blocks prepared once, launches in order of their levels, checks.

Knows kernels as works with addresses; knows nothing of graphs of operations. What carries a launch out is a
machine: a GPU (`kernels/gpu/cuda.py`), or Triton's interpreter on host memory (`kernels/gpu/emulator.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from kernels.blocks import AnyWork
from kernels.errors import KernelError
from kernels.gpu.arguments import Arguments, Room, Unit
from kernels.gpu.grouping import MOST_MEMBERS, form, group
from kernels.gpu.launch import Launch, divisibility, facts
from kernels.spec import Index

Array = np.ndarray[Any, Any]
# Bytes from one check's flag to the next: kernels are compiled for operands that begin at multiples of 16.
FLAG = 16
# Runs whose checks nobody asked for yet, at most: a further run waits for the first of them.
OPEN_RUNS = 8


class Memory(Protocol):
    """Memory of a machine, which goes back with the object."""

    address: int


class Routine(Protocol):
    """Launches that a machine has prepared."""

    def changed(self, units: Iterable[int]) -> None:
        """Arguments of these units are others now."""
        ...

    def run(self) -> None:
        """Start all launches, in order of their levels."""
        ...

    def timed(self) -> list[tuple[int, float]]:
        """Run all launches one after the other: the unit of each, and the seconds it took there."""
        ...


class Machine(Protocol):
    """What programs run on. Work is done in the order it is given; `read` waits for what was given before."""

    @property
    def architecture(self) -> str:
        """What object code for it is made for, e.g. "sm_90"."""
        ...

    def allocate(self, size: int) -> Memory:
        """Memory whose address is a multiple of 256."""
        ...

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to the machine."""
        ...

    def read(self, address: int, array: Array) -> None:
        """Copy from the machine into a contiguous array."""
        ...

    def glance(self, address: int, size: int, slots: int) -> Glance:
        """Copies of `size` bytes at `address` that nobody waits for, up to `slots` of them at once."""
        ...

    def launch(
        self, work: AnyWork, alignment: Sequence[int], rooms: Sequence[Room], flags: int, tf32: bool
    ) -> Launch:
        """The launch of a work alone, as `kernels.gpu.render.launch_of`."""
        ...

    def prepare(self, arguments: Arguments) -> Routine:
        """Compile the launches of all units and lay out their calls. Raises BuildError."""
        ...


class Glance(Protocol):
    """Bytes of the machine as they were at several moments."""

    def take(self, slot: int) -> None:
        """Copy them when the machine gets there."""
        ...

    def look(self, slot: int) -> Array:
        """What `take` copied; waits for it."""
        ...


def _start(routine: Routine) -> None:
    routine.run()


class Program:
    """Works as launches on a machine; the caller fills in pointers, then calls `build` once.

    `table` holds every work's pointers end to end; `pointer_slot(work, operand)` is where an operand's
    address goes, or the start of one without memory. `checks` are levels: kernels after check i's level that
    are `guarded` do nothing once its flag, at `flag(i)`, is set. `rooms` are the bytes before and after each
    operand's pointer that are its own. `tf32` lets products of float32 round their factors to ten bits.
    Loops of one kind and level are one launch.
    """

    def __init__(
        self,
        works: Sequence[AnyWork],
        levels: Sequence[int],
        machine: Machine,
        checks: Sequence[int] = (),
        guarded: Sequence[bool] = (),
        rooms: Sequence[Sequence[Room]] = (),
        tf32: bool = False,
    ) -> None:
        self.machine, self.works, self.checks = machine, tuple(works), tuple(checks)
        self.guarded = tuple(guarded) or (False,) * len(works)
        self.levels, self.rooms, self.tf32 = tuple(levels), rooms or ((),) * len(works), tf32
        self.after = [
            tuple(i for i, level in enumerate(self.checks) if guard and level < own)
            for guard, own in zip(self.guarded, self.levels, strict=True)
        ]
        # What may become one launch with others of its level.
        self.forms = [form(work) for work in works]
        self.alone: dict[int, Launch] = {}
        self.starts = [0, *itertools.accumulate(len(w.spec.operands) for w in works)]
        self.table = np.zeros(max(self.starts[-1], 1), np.int64)
        # Much faster to write to one by one.
        self.pointers = self.table.data
        # What divides each pointer: 16 unless it says otherwise, an address or a user of `connect`.
        self.alignment = [FLAG] * len(self.table)
        self.counted = {
            self.pointer_slot(n, s.operand)
            for n, w in enumerate(works)
            for s in w.spec.steps
            if isinstance(s, Index)
        }
        self.patches: list[list[tuple[int, int, int]]] = []
        self.current: list[int] = []
        self.flags = machine.allocate(max(FLAG * len(self.checks), 1))
        self.glance = machine.glance(self.flags.address, max(FLAG * len(self.checks), 1), OPEN_RUNS)
        self.runs = self.seen = 0
        self.bad: list[int] = []
        self.routine: Routine | None = None

    def pointer_slot(self, work: int, operand: int) -> int:
        """Index in `table` of an operand's address."""
        return self.starts[work] + operand

    def flag(self, check: int) -> int:
        """Address of the byte that a check sets."""
        return self.flags.address + FLAG * check

    def connect(self, patches: Sequence[tuple[int, int, int]], objects: int) -> None:
        """Fill table slots at every run: a patch is (slot, number of an address of `run`, byte offset)."""
        self.patches = [[] for _ in range(objects)]
        self.current = [0] * objects
        work = np.searchsorted(self.starts, np.arange(len(self.table)), "right") - 1
        for slot, number, offset in patches:
            self.patches[number].append((slot, int(work[slot]), offset))
            self.alignment[slot] = divisibility(offset)

    def build(self) -> None:
        """Compile for the pointers in `table`, and for what `connect` said of the others."""
        patched = {slot for rows in self.patches for slot, _, _ in rows}
        for slot in range(self.starts[-1]):
            if slot not in patched and slot not in self.counted:
                self.alignment[slot] = divisibility(int(self.table[slot]))
        self._prepare()

    def _prepare(self) -> None:
        self.arguments = arguments = Arguments(self._units())
        self.written = arguments.values.data
        self.unit_of = [0] * len(self.works)
        self.cell_of = [0] * self.starts[-1]
        for number, unit in enumerate(arguments.units):
            for work in unit.works:
                self.unit_of[work] = number
                start, stop = self.starts[work : work + 2]
                first = arguments.first[work]
                self.cell_of[start:stop] = range(first, first + stop - start)
        # By unit: a group's table on the machine, and where it is here.
        self.tables: dict[int, tuple[Memory, Array]] = {}
        for number, start, end in arguments.tables:
            memory = self.machine.allocate(8 * (end - start))
            arguments.values[arguments.starts[number]] = memory.address
            self.tables[number] = memory, arguments.values[start:end]
        self.stale = set(self.tables)
        self.routine = self.machine.prepare(arguments)
        self.move()

    def _units(self) -> list[Unit]:
        """What is launched, in order of levels."""
        together: dict[tuple[object, ...], list[int]] = {}
        for number, known in enumerate(self.forms):
            key: tuple[object, ...] = (number,)
            if known is not None:
                key = id(known), self.levels[number], self.after[number], self._aligned(number)
            together.setdefault(key, []).append(number)
        units = [
            self._unit(numbers[i : i + MOST_MEMBERS])
            for numbers in together.values()
            for i in range(0, len(numbers), MOST_MEMBERS)
        ]
        return sorted(units, key=lambda unit: (unit.level, unit.works))

    def _aligned(self, work: int) -> tuple[int, ...]:
        varies = bool(self.works[work].varying)
        return tuple(facts(a, varies) for a in self.alignment[self.starts[work] : self.starts[work + 1]])

    def _unit(self, numbers: list[int]) -> Unit:
        first = numbers[0]
        level, known, aligned = self.levels[first], self.forms[first], self._aligned(first)
        flags = tuple(self.flag(check) for check in self.after[first])
        rooms = tuple(self.rooms[n] for n in numbers)
        if known is not None and len(numbers) > 1:
            grouped = group(known, [self.works[n].elements for n in numbers], aligned, len(flags))
            return Unit(grouped.launch, tuple(numbers), level, rooms, flags, grouped)
        if first not in self.alone:
            given = aligned, self.rooms[first], len(flags), self.tf32
            self.alone[first] = self.machine.launch(self.works[first], *given)
        return Unit(self.alone[first].aligned(aligned), (first,), level, rooms, flags)

    @property
    def launches(self) -> list[Launch]:
        """The launch that each work is, or is a member of."""
        return [self.arguments.units[number].launch for number in self.unit_of]

    def move(self) -> None:
        """See that pointers in `table` are others now, with no less alignment than those before."""
        self.arguments.values[self.cell_of] = self.table[: self.starts[-1]]
        self.stale |= self.tables.keys()
        if self.routine is not None:
            self.routine.changed(range(len(self.arguments.units)))

    def timed(self, addresses: Sequence[int]) -> list[tuple[tuple[int, ...], float]]:
        """As `run`, launch by launch: the works that each is, and the seconds that it took. Waits."""
        found: list[tuple[int, float]] = []
        self.run(addresses, lambda routine: found.extend(routine.timed()))
        return [(self.arguments.units[number].works, seconds) for number, seconds in found]

    def run(self, addresses: Sequence[int], start: Callable[[Routine], None] = _start) -> None:
        """Start the program on memory at `addresses`, without waiting. One thread at a time.

        Every address is a multiple of its elements' size. One that is less aligned than those before has the
        kernels that use it compiled anew, once.
        """
        routine = self.routine
        if routine is None:
            raise KernelError("build() comes before run()")
        if addresses != self.current:
            self._take(addresses)
            routine = self.routine
        assert routine is not None, "what was built stays"
        if self.stale:
            for number in self.stale:
                memory, table = self.tables[number]
                self.machine.write(memory.address, table)
            self.stale.clear()
        start(routine)
        if self.checks:
            if self.runs - self.seen == OPEN_RUNS:
                self._see()
            self.glance.take(self.runs % OPEN_RUNS)
        self.runs += 1

    def _take(self, addresses: Sequence[int]) -> None:
        """Patch what uses addresses that changed."""
        changed: set[int] = set()
        weaker = False
        table, cells, cell_of, alignment = self.pointers, self.written, self.cell_of, self.alignment
        unit_of = self.unit_of
        for address, before, patches in zip(addresses, self.current, self.patches, strict=True):
            if address == before:
                continue
            for slot, work, offset in patches:
                pointer = address + offset
                table[slot] = cells[cell_of[slot]] = pointer
                changed.add(unit_of[work])
                if pointer % alignment[slot]:
                    alignment[slot] = divisibility(pointer)
                    weaker = True
        self.current = list(addresses)
        if weaker:
            self._prepare()
            return
        self.stale |= changed & self.tables.keys()
        if self.routine is not None:
            self.routine.changed(changed - self.tables.keys())

    def _see(self) -> None:
        """Look at the flags of the first run that nobody has looked at."""
        flags = self.glance.look(self.seen % OPEN_RUNS)[: FLAG * len(self.checks) : FLAG]
        found = np.flatnonzero(flags)
        if len(found):
            # Of checks that fail the first in the program's order is told; later ones may not have run.
            self.bad.append(1 + min(found.tolist(), key=lambda i: self.checks[i]))
        self.seen += 1

    def failed(self) -> int:
        """Wait for the checks of all runs: 0, or 1 + the number of the check that stopped the first bad run.

        A bad run is told once.
        """
        while self.checks and self.seen < self.runs:
            self._see()
        first = self.bad[0] if self.bad else 0
        self.bad.clear()
        return first
