"""The arguments of a program's launches in memory: cells that the driver reads, tables that groups read.

Knows launches and pointers; knows neither works nor how a launch is carried out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.gpu.grouping import Group
from kernels.gpu.launch import Launch, Parameter

Room = tuple[int, int]


@dataclass(frozen=True)
class Unit:
    """One launch: of one work, or of a group of them. `works` are their numbers, `rooms` the bytes before and
    after each of their operands' pointers that are theirs, `flags` addresses that the launch takes.
    """

    launch: Launch
    works: tuple[int, ...]
    level: int
    rooms: tuple[Sequence[Room], ...]
    flags: tuple[int, ...] = ()
    group: Group | None = None

    @property
    def operands(self) -> tuple[Parameter, ...]:
        """The parameters of a work's operands."""
        if self.group is not None:
            return self.group.form.pointers
        return self.launch.pointers[: len(self.launch.pointers) - len(self.flags)]


@dataclass(frozen=True)
class Space:
    """Memory from `start` to `stop` in which a launch may work on elements of a type, by Triton's name."""

    start: int
    stop: int
    type: str


class Arguments:
    """The arguments of all units, in 64 bits each: what `starts[i]` begins is unit i's, scratch last.

    Then come the tables of groups; `tables` has the unit, the first and the end of each.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = tuple(units)
        # Object code takes two more pointers, to memory that some kernels need for themselves.
        sizes = [len(unit.launch.parameters) + 2 for unit in units]
        self.starts = [0, *itertools.accumulate(sizes)]
        contents = [(i, u.group.table()) for i, u in enumerate(units) if u.group is not None]
        ends = [*itertools.accumulate((len(table) for _, table in contents), initial=self.starts[-1])]
        self.values = np.zeros(max(ends[-1], 1), np.int64)
        self.tables = [
            (i, start, start + len(table)) for (i, table), start in zip(contents, ends, strict=False)
        ]
        for (_, start, end), (_, table) in zip(self.tables, contents, strict=True):
            self.values[start:end] = table
        self.address = self.values.ctypes.data
        table_of = {i: start for i, start, _ in self.tables}
        # Of each work: the index of its first argument.
        self.first: dict[int, int] = {}
        for number, (unit, start, size) in enumerate(zip(units, self.starts, sizes, strict=False)):
            scratch = start + size - 2
            given = len(unit.launch.arguments)
            self.values[scratch - given : scratch] = unit.launch.arguments
            pointers = scratch - given - len(unit.flags)
            self.values[pointers : scratch - given] = unit.flags
            for member, work in enumerate(unit.works):
                place = start if unit.group is None else table_of[number] + unit.group.cell(member)
                self.first[work] = place

    def addresses(self, unit: int) -> range:
        """Where the arguments of a unit's launch are, in order."""
        return range(self.address + 8 * self.starts[unit], self.address + 8 * self.starts[unit + 1], 8)

    def scratch(self, unit: int) -> int:
        """Index of the pointer to memory that a unit's kernel needs for itself."""
        return self.starts[unit + 1] - 2

    def pointers(self, unit: int) -> list[int]:
        """The first arguments of a unit's launch: those that are no sizes and no strides."""
        start = self.starts[unit]
        return self.values[start : start + len(self.units[unit].launch.pointers)].tolist()

    def spaces(self, unit: int) -> list[Space]:
        """All memory that a unit's launch may touch."""
        known = self.units[unit]
        found = [Space(flag, flag + 1, "*i1") for flag in known.flags]
        if known.group is not None:
            table = self.pointers(unit)[0]
            found.append(Space(table, table + 8 * known.group.length, "*i64"))
        for work, rooms in zip(known.works, known.rooms, strict=True):
            first = self.first[work]
            pointers = self.values[first : first + len(rooms)].tolist()
            for pointer, (before, after), operand in zip(pointers, rooms, known.operands, strict=True):
                if operand.is_pointer:
                    found.append(Space(pointer - before, pointer + after, operand.type))
        return found
