"""Host memory and Triton's interpreter as a machine for programs: what a GPU would compute, without one.

Every access is checked: none may leave its operand's memory, none may depend on the order of programs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kernels.blocks import AnyWork
from kernels.gpu import interpret
from kernels.gpu.arguments import Arguments, Room, Space
from kernels.gpu.checked import Memory
from kernels.gpu.launch import Launch
from kernels.gpu.render import launch_of
from kernels.memory import bytes_at

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256
# Element types by Triton's names of pointers to them; what is not here is looked at by bytes.
_TYPES = {
    "*fp32": "f4",
    "*fp64": "f8",
    "*i64": "i8",
    "*i32": "i4",
    "*i16": "i2",
    "*fp16": "f2",
    "*bf16": "i2",
}


class HostMemory:
    """Bytes at `address`, filled with what nobody would take for a result."""

    def __init__(self, size: int) -> None:
        self.array = np.full(size + _ALIGNMENT, 0xA5, np.uint8)
        self.address = -(-self.array.ctypes.data // _ALIGNMENT) * _ALIGNMENT


class Emulator:
    """A machine without a device; `architecture` is what object code is looked at for."""

    architecture = "sm_90"

    def allocate(self, size: int) -> HostMemory:
        """As Machine.allocate."""
        return HostMemory(size)

    def write(self, address: int, array: Array) -> None:
        """As Machine.write."""
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: Array) -> None:
        """As Machine.read."""
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def synchronize(self) -> None:
        """All is done at once."""

    def glance(self, address: int, size: int, slots: int) -> HostGlance:
        """As Machine.glance."""
        return HostGlance(address, size, slots)

    def launch(
        self, work: AnyWork, alignment: Sequence[int], rooms: Sequence[Room], flags: int, tf32: bool
    ) -> Launch:
        """As Machine.launch."""
        return launch_of(work, alignment, flags, tf32)

    def prepare(self, arguments: Arguments) -> HostRoutine:
        """As Machine.prepare; nothing is compiled."""
        return HostRoutine(arguments)


class HostGlance:
    """Copies that are made at once."""

    def __init__(self, address: int, size: int, slots: int) -> None:
        self.source = bytes_at(address, size)
        self.copies = np.zeros((slots, size), np.uint8)

    def take(self, slot: int) -> None:
        """As Glance.take."""
        self.copies[slot] = self.source

    def look(self, slot: int) -> Array:
        """As Glance.look."""
        return self.copies[slot]


class HostRoutine:
    """Launches that the interpreter runs one by one."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.memory: dict[int, Memory] = {}

    def changed(self, units: Iterable[int]) -> None:
        """As Routine.changed. What a group's members work on may have changed in any case."""
        for number in units:
            self.memory.pop(number, None)

    def run(self) -> None:
        """As Routine.run."""
        self.timed()

    def timed(self) -> list[tuple[int, float]]:
        """As Routine.timed, by the host's clock: what the interpreter takes."""
        found: list[tuple[int, float]] = []
        with interpret.interpreting():
            for number, unit in enumerate(self.arguments.units):
                begin = time.perf_counter()
                memory = self.memory.get(number)
                if memory is None or unit.group is not None:
                    memory = self.memory[number] = Memory(arrays(self.arguments.spaces(number)))
                interpret.run(unit.launch, self.arguments.pointers(number), memory)
                found.append((number, time.perf_counter() - begin))
        return found


def arrays(spaces: Sequence[Space]) -> list[Array]:
    """Spaces as arrays that do not overlap."""
    found: list[tuple[int, int, str]] = []
    for start, stop, kind in sorted((s.start, s.stop, _TYPES.get(s.type, "u1")) for s in spaces):
        if found and start < found[-1][1]:
            first, last, other = found[-1]
            found[-1] = first, max(last, stop), kind if kind == other else "u1"
        elif stop > start:
            found.append((start, stop, kind))
    return [bytes_at(start, stop - start).view(kind) for start, stop, kind in found]
