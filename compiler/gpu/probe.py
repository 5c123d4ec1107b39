"""A program's kernels run one at a time on a machine, on copies of host memory: every value can be looked at.

Knows plans and machines; compares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from compiler import probe
from compiler.gpu.program import DeviceExecutable, rooms
from compiler.lower import Buffer, Kernel
from compiler.plan import Plan, Request
from kernels.gpu.runner import Machine, Program
from kernels.memory import bytes_at

Array = np.ndarray[Any, Any]


class DeviceMemory(probe.Memory):
    """As the CPU's; what a kernel works on is copied to the machine, and back."""

    def __init__(self, machine: Machine, request: Request, plan: Plan, arrays: Sequence[Array]) -> None:
        super().__init__(request, plan, arrays)
        self.machine = machine

    def run(self, kernel: Kernel) -> None:
        """Run one kernel."""
        program = Program([kernel.work()], [0], self.machine, rooms=[rooms(kernel)])
        placed: dict[Buffer, tuple[Any, Array, int]] = {}
        for operand, place in enumerate(kernel.places):
            address = place.offset
            if place.buffer is not None:
                root = place.buffer.root
                if root not in placed:
                    placed[root] = self._placed(self.at(root))
                address = placed[root][2] + place.offset * root.type.dtype.itemsize
            program.table[program.pointer_slot(0, operand)] = address
        program.build()
        program.run([])
        for memory, span, _ in placed.values():
            self.machine.read(memory.address, span)

    def _placed(self, array: Array) -> tuple[Any, Array, int]:
        """A copy of an array's bytes there, those bytes here, and where element 0, ..., 0 is there."""
        low, high = byte_bounds(array)
        span = bytes_at(low, high - low)
        memory = self.machine.allocate(max(high - low, 1))
        self.machine.write(memory.address, span)
        return memory, span, memory.address + array.ctypes.data - low


class OnMachine:
    """Where kernels and programs are run for a comparison: a machine. Factors of products are exact."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def memory(self, request: Request, plan: Plan, arrays: Sequence[Array]) -> DeviceMemory:
        """As Host.memory."""
        return DeviceMemory(self.machine, request, plan, arrays)

    def program(self, request: Request) -> DeviceExecutable:
        """As Host.program."""
        return DeviceExecutable(request, self.machine)
