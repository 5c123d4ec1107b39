"""A plan as something to call on a GPU, or on what stands for one: memory there, and launches.

The plan is the CPU's: the same kernels in the same order. Takes addresses, or NumPy arrays that it copies;
knows nothing of tensors or guards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from compiler.binding import Arena, Binding, check_levels, output_types, plan_of
from compiler.gpu.blocks import blocked, in_slices, unblocked
from compiler.gpu.view import DeviceKernelView
from compiler.levels import accesses
from compiler.lower import Bound, Buffer
from compiler.plan import Request
from kernels.blocks import AnyWork
from kernels.files import reach
from kernels.gpu.launch import Launch
from kernels.gpu.runner import Machine, Memory, Program
from kernels.memory import bytes_at
from kernels.varying import Varying

Array = np.ndarray[Any, Any]


class DeviceExecutable:
    """A compiled request on a machine: `run` starts it, `failed` waits and says whether a check stopped it.

    `tf32` lets products of float32 use tensor cores, with factors of ten bits. Programs of one arena run on
    one machine, one after the other; those that share `varying` are of one function. `blocks` lets sets of
    kernels be one, whose values stay in registers. Raises BuildError for what does not compile.
    """

    def __init__(
        self,
        request: Request,
        machine: Machine,
        arena: Arena | None = None,
        tf32: bool = False,
        varying: Varying | None = None,
        blocks: bool = True,
    ) -> None:
        begin = time.perf_counter()
        self.machine = machine
        spent: list[float] = []
        self.request, plan = plan_of(replace(request, there=True), spent)
        found = in_slices(blocked(plan) if blocks else unblocked(plan), tf32)
        plan, kernels, levels = found.plan, found.kernels, found.levels
        self.plan, self.members = plan, found.members
        planned = time.perf_counter()
        self.arena = Arena(machine.allocate) if arena is None else arena
        base = self.arena.reserve(max(plan.arena_bytes, 1))
        self.constants = {b: self._copied(np.ascontiguousarray(c.data)) for b, c in plan.constants.items()}
        visible = {*plan.inputs, *plan.outputs}
        checks = check_levels(plan.checks, kernels, levels)
        works = [k.work() for k in kernels]
        self.program = program = Program(
            works if varying is None else varying.marked(works),
            levels,
            machine,
            list(checks.values()),
            [k.indexed or any(b.root in visible for b in accesses(k)[1]) for k in kernels],
            [rooms(k) for k in kernels],
            tf32,
        )
        self.output_types = output_types(self.request, plan)
        fixed = {b: memory.address for b, memory in self.constants.items()}
        fixed |= {b: program.flag(number) for number, b in enumerate(checks)}
        bound = Binding.fill(plan, program, base, fixed, kernels)
        self.local = bound.local
        self.addresses = [0] * (len(plan.inputs) + len(plan.outputs))
        program.connect(bound.patches.tolist(), len(self.addresses))
        program.build()
        self.arena.users.add(self)
        # Of the passes; None where an earlier process left the plan on disk.
        self.pass_seconds = spent[0] if spent else None
        self.plan_seconds = planned - begin
        self.build_seconds = time.perf_counter() - planned

    def _copied(self, array: Array) -> Memory:
        memory = self.machine.allocate(max(array.nbytes, 1))
        self.machine.write(memory.address, array)
        return memory

    def move(self, distance: int) -> None:
        """Follow the arena, which is `distance` bytes further on."""
        self.program.table[self.local] += distance
        self.program.move()

    def bind(self, number: int, address: int) -> None:
        """Use memory at `address` as input `number` from now on."""
        self.addresses[number] = address

    def run(self, given: Sequence[tuple[int, int]], outputs: Sequence[int]) -> None:
        """Start on (input number, address) pairs, writing memory at `outputs`.

        Inputs left out are those bound before. An address is that of element 0, ..., 0. One thread at a time.
        """
        self.program.run(self._addresses(given, outputs))

    def _addresses(self, given: Sequence[tuple[int, int]], outputs: Sequence[int]) -> list[int]:
        """Where all inputs and outputs are now."""
        addresses = self.addresses
        for number, address in given:
            addresses[number] = address
        for number, address in enumerate(outputs, len(self.plan.inputs)):
            addresses[number] = address
        return addresses

    def timed(
        self, given: Sequence[tuple[int, int]], outputs: Sequence[int]
    ) -> list[tuple[tuple[int, ...], float]]:
        """As `run`, launch by launch: the numbers of the kernels that each is, and its seconds. Waits."""
        found = self.program.timed(self._addresses(given, outputs))
        return [(tuple(n for unit in units for n in self.members[unit]), took) for units, took in found]

    def failed(self) -> int:
        """Wait for all runs: 0, or the number (from 1) of the check that stopped the first bad one.

        It wrote to no input and no output then.
        """
        return self.program.failed()

    def __call__(self, *arrays: Array) -> list[Array]:
        """Outputs, in fresh memory, for one array per input; arrays are copied there, and back where the
        program writes to them. Raises RuntimeError when a check finds bad input.
        """
        held = [self._placed(array) for array in arrays]
        outputs = [self.machine.allocate(max(_bytes(t), 1)) for t in self.output_types]
        self.run([(i, address) for i, (_, address, _) in enumerate(held)], [o.address for o in outputs])
        if failed := self.failed():
            raise RuntimeError(f"bad input found by check {failed}")
        for number, _ in self.request.writes:
            memory, _, span = held[number]
            self.machine.read(memory.address, span)
        results = [np.empty(shape, dtype) for shape, dtype in self.output_types]
        for memory, result in zip(outputs, results, strict=True):
            self.machine.read(memory.address, result)
        return results

    def _placed(self, array: Array) -> tuple[Memory, int, Array]:
        """Memory with all bytes of an array from its lowest on; where element 0, ..., 0 is; those bytes."""
        low, high = byte_bounds(array)
        span = bytes_at(low, high - low)
        memory = self._copied(span)
        return memory, memory.address + array.ctypes.data - low, span

    @property
    def kernels(self) -> list[DeviceKernelView]:
        """Every kernel, in the plan's order."""
        first: dict[int, Launch] = {}
        for members, launch in zip(self.members, self.program.launches, strict=True):
            for number in members:
                first.setdefault(number, launch)
        rows = enumerate(zip(self.plan.kernels, self.plan.levels, strict=True))
        return [DeviceKernelView(k, first[n].source, lv, first[n], self.machine) for n, (k, lv) in rows]


def _bytes(kind: tuple[tuple[int, ...], np.dtype[Any]]) -> int:
    return math.prod(kind[0]) * kind[1].itemsize


def rooms(kernel: Bound) -> list[tuple[int, int]]:
    """Bytes before and after each operand's pointer that are its buffer's."""
    work = kernel.work()
    return [_room(work, i, p.buffer, p.offset) for i, p in enumerate(kernel.places)]


def _room(work: AnyWork, operand: int, buffer: Buffer | None, offset: int) -> tuple[int, int]:
    if buffer is None:
        return 0, 0
    # An input need not be contiguous, nor start at its lowest element.
    low, high = reach(work, operand)
    whole = math.prod(buffer.root.type.shape)
    before, after = max(offset, -low), max(whole - offset, high + 1)
    size = buffer.type.dtype.itemsize
    return before * size, after * size
