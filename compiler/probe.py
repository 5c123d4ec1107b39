"""A program's kernels run one at a time, each buffer in memory of its own: every value can be looked at.

Knows plans and native kernels; compares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from compiler.ir import Apply, Value
from compiler.lower import Buffer, Geometry, Kernel
from compiler.plan import Plan, Request
from compiler.schedule import is_free
from kernels.cpu import pool, runner
from kernels.cpu.runner import Program
from kernels.prepared import aligned

Array = np.ndarray[Any, Any]


class Memory:
    """Memory of a program's buffers: inputs hold copies of `arrays`, whatever their layout was."""

    def __init__(self, request: Request, plan: Plan, arrays: Sequence[Array]) -> None:
        self.held: dict[Buffer, Array] = {}
        for number, (buffer, array) in enumerate(zip(plan.inputs, arrays, strict=True)):
            strides = request.strides.get(number)
            self.held[buffer] = array.copy() if strides is None else strided(array, strides)
        for buffer, constant in plan.constants.items():
            self.held[buffer] = np.array(constant.data, order="C")

    def at(self, buffer: Buffer) -> Array:
        """The memory of a buffer that is part of no other."""
        if buffer not in self.held:
            made = aligned(max(buffer.type.size, 1), buffer.type.dtype)
            made.view(np.uint8)[:] = 0
            self.held[buffer] = made
        return self.held[buffer]

    def run(self, kernel: Kernel) -> None:
        """Run one kernel."""
        program = Program([kernel.work()], [0])
        for operand, place in enumerate(kernel.places):
            address = place.offset
            if place.buffer is not None:
                root = place.buffer.root
                address = self.at(root).ctypes.data + place.offset * root.type.dtype.itemsize
            program.table[program.pointer_slot(0, operand)] = address
        runner.native_run()(program.address, pool.address() if program.parallel else 0)

    def view(self, buffer: Buffer, geometry: Geometry) -> Array:
        """What lies at a geometry in a buffer, to be read or written."""
        shape, strides, offset = geometry
        memory = self.at(buffer.root)
        size = memory.itemsize
        # An input's first element need not be its lowest: as_strided starts at the array's own address.
        start = as_strided(memory, (1,), (size,)) if memory.ndim == 0 else memory
        if offset:
            flat = as_strided(memory, (offset + 1,), (size,))
            start = flat[offset:]
        return as_strided(start, shape, tuple(s * size for s in strides))


def strided(array: Array, strides: Sequence[int]) -> Array:
    """A copy of an array with these strides, in elements."""
    low = sum(s * (n - 1) for s, n in zip(strides, array.shape, strict=True) if s < 0 and n)
    high = sum(s * (n - 1) for s, n in zip(strides, array.shape, strict=True) if s > 0 and n)
    memory = np.zeros(high - low + 1, array.dtype)
    made = as_strided(memory[-low:], array.shape, tuple(s * array.itemsize for s in strides))
    made[...] = array
    return made


def completed(plan: Plan, buffers: Mapping[Value, Buffer]) -> dict[int, list[Value]]:
    """The values that are whole once a kernel has run, by its number; `buffers` says where values are."""
    last: dict[Buffer, int] = {}
    for number, kernel in enumerate(plan.kernels):
        for operand in kernel.spec.written:
            buffer = kernel.places[operand].buffer
            for around in () if buffer is None else buffer.around:
                last[around] = number
    found: dict[int, list[Value]] = {}
    for value, buffer in buffers.items():
        if isinstance(value, Apply) and not is_free(value) and buffer in last:
            found.setdefault(last[buffer], []).append(value)
    return found
