"""A GPU as a machine for programs: launches as driver calls, a whole program as one graph.

Knows launches and object code. When an address changes, the nodes of the graph that use it get their
arguments anew; the graph itself is made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from kernels.blocks import AnyWork, BlockWork
from kernels.errors import KernelError
from kernels.gpu import compile as _compile
from kernels.gpu.arguments import Arguments, Room, Unit
from kernels.gpu.code import Code
from kernels.gpu.device import Call, Device, Event, Graph, GraphInstance, device
from kernels.gpu.launch import Launch
from kernels.gpu.memory import Allocator, Block
from kernels.gpu.render import launch_of
from kernels.gpu.tune import tuned

Array = np.ndarray[Any, Any]
# Launches of which the fastest counts, when a kernel is timed.
TRIALS = 20
Compiler = Callable[[Sequence[tuple[Launch, str]]], list[Code]]


class Cuda:
    """A device with its allocator and the stream that its programs run on.

    With `graphs` a program is started as a whole; without, launch by launch, so that an error is told where
    it happens when CUDA_LAUNCH_BLOCKING is set. With `tune`, of a few ways to cut a kernel the fastest is
    found by trying, once per kernel, sizes and kind of GPU.
    """

    def __init__(
        self,
        device: Device,
        graphs: bool = True,
        compiler: Compiler = _compile.compile_all,
        tune: bool = False,
    ) -> None:
        self.device, self.graphs, self.compiler, self.tune = device, graphs, compiler, tune
        self.stream = device.stream()
        self.allocator = Allocator(device)
        self.codes: dict[tuple[object, ...], Code] = {}

    @property
    def architecture(self) -> str:
        """As Machine.architecture."""
        return self.device.architecture

    def allocate(self, size: int) -> Block:
        """As Machine.allocate."""
        # In a forked child this raises; the allocator's lock may be held by a thread of the parent.
        self.device.enter()
        return self.allocator.allocate(size, self.stream)

    def write(self, address: int, array: Array) -> None:
        """As Machine.write."""
        self.device.write(address, array, self.stream)

    def read(self, address: int, array: Array) -> None:
        """As Machine.read."""
        self.device.read(address, array, self.stream)
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait for all that programs started."""
        self.stream.synchronize()

    def glance(self, address: int, size: int, slots: int) -> CudaGlance:
        """As Machine.glance."""
        return CudaGlance(self, address, size, slots)

    def launch(
        self, work: AnyWork, alignment: Sequence[int], rooms: Sequence[Room], flags: int, tf32: bool
    ) -> Launch:
        """As Machine.launch."""
        if not self.tune or isinstance(work, BlockWork):
            return launch_of(work, alignment, flags, tf32)
        measure = partial(self.seconds, rooms=rooms, flags=flags)
        return tuned(work, self.device.architecture, measure, alignment, flags, tf32)

    def seconds(self, launch: Launch, code: Code, rooms: Sequence[Room], flags: int = 0) -> float:
        """What a launch takes on memory of zeros; `rooms` are the bytes around each operand's pointer."""
        sizes = [*(before + after for before, after in rooms), *[1] * flags]
        blocks = [self.allocate(max(size, 1)) for size in sizes]
        for block in blocks:
            self.device.fill(block.address, 0, max(block.size, 1), self.stream)
        starts = [b.address + before for b, (before, _) in zip(blocks, rooms, strict=False)]
        unit = Unit(launch, (0,), 0, (rooms,), tuple(b.address for b in blocks[len(rooms) :]))
        arguments = Arguments([unit])
        for place, (start, operand) in enumerate(zip(starts, unit.operands, strict=True)):
            arguments.values[place] = start if operand.is_pointer else 0
        routine = CudaRoutine(self, arguments, [code])
        begin, end = self.device.event(timed=True), self.device.event(timed=True)
        best = math.inf
        for _ in range(TRIALS):
            begin.record(self.stream)
            for call in routine.calls.values():
                call.launch(self.stream)
            end.record(self.stream)
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000)
        return best

    def prepare(self, arguments: Arguments) -> CudaRoutine:
        """As Machine.prepare, for the architecture of the device."""
        launches = [unit.launch for unit in arguments.units]
        # Programs that differ in sizes alone need not look at the disk.
        new = {launch.code: launch for launch in launches if launch.code not in self.codes}
        if new:
            architecture = self.device.architecture
            made = self.compiler([(launch, architecture) for launch in new.values()])
            self.codes |= zip(new, made, strict=True)
        return CudaRoutine(self, arguments, [self.codes[launch.code] for launch in launches])


@cache
def cuda(number: int = 0) -> Cuda:
    """GPU `number` of this machine. Raises UnavailableError, saying what is missing."""
    return Cuda(device(number))


class CudaGlance:
    """Copies in pinned memory, each with the event that says it is there."""

    def __init__(self, machine: Cuda, address: int, size: int, slots: int) -> None:
        self.machine = machine
        self.copies = [machine.device.pinned(size) for _ in range(slots)]
        self.events = [machine.device.event() for _ in range(slots)]
        stream = machine.stream.handle
        self.copy = [(copy.ctypes.data, address, size, stream) for copy in self.copies]
        self.record = [(event.handle, stream) for event in self.events]

    def take(self, slot: int) -> None:
        """As Glance.take; the device is the current one."""
        call = self.machine.device.driver.call
        call("cuMemcpyDtoHAsync", *self.copy[slot])
        call("cuEventRecord", *self.record[slot])

    def look(self, slot: int) -> Array:
        """As Glance.look."""
        self.events[slot].synchronize()
        return self.copies[slot]

    def __del__(self) -> None:
        # Copies may be under way to memory that goes now.
        for event in getattr(self, "events", ()):
            self.machine.device.release("cuEventSynchronize", event.handle)


class CudaRoutine:
    """Calls in order of their levels, and the graph of them all."""

    def __init__(self, machine: Cuda, arguments: Arguments, codes: Sequence[Code]) -> None:
        self.machine, self.arguments = machine, arguments
        self.scratch: list[Block] = []
        self.calls: dict[int, Call] = {}
        for number, (unit, code) in enumerate(zip(arguments.units, codes, strict=True)):
            # A launch of nothing is an error to the driver.
            if 0 not in unit.launch.grid:
                self.calls[number] = self._call(number, unit.launch, code)
        self.stale: set[int] = set()
        self.graph: Graph | None = None
        self.instance: GraphInstance | None = None
        self.nodes: dict[int, int] = {}
        for call in self.calls.values():
            call.config.stream = machine.stream.handle
        self.raw = [call.raw for call in self.calls.values()]

    def _call(self, number: int, launch: Launch, code: Code) -> Call:
        device, arguments = self.machine.device, self.arguments
        if code.architecture != device.architecture:
            raise KernelError(
                f"{launch.name} was compiled for {code.architecture}, and {device.name} is a "
                f"{device.architecture}: it is not launched"
            )
        wanted = tuple(p.type for p in launch.parameters)
        if code.types != wanted:
            raise KernelError(f"{launch.name}: object code takes {code.types}, the launch gives {wanted}")
        if code.scratch:
            x, y, z = launch.grid
            block = self.machine.allocate(code.scratch * x * y * z)
            self.scratch.append(block)
            arguments.values[arguments.scratch(number)] = block.address
        function = device.function(code.binary, code.function, code.shared)
        return Call(function, launch.grid, code.threads, code.shared, arguments.addresses(number))

    def changed(self, units: Iterable[int]) -> None:
        """As Routine.changed."""
        if self.instance is not None:
            self.stale.update(units)

    def run(self) -> None:
        """As Routine.run."""
        device = self.machine.device
        device.enter()
        if self.machine.graphs:
            if self.instance is None:
                self.graph = self._graph()
                self.instance = self.graph.instantiate()
            elif self.stale:
                for number in self.stale & self.nodes.keys():
                    self.instance.update(self.nodes[number], self.calls[number])
                self.stale.clear()
            self.instance.launch(self.machine.stream)
            return
        launch = device.driver.functions["cuLaunchKernelEx"]
        for raw in self.raw:
            if code := launch(*raw):
                raise device.driver.error("cuLaunchKernelEx", code)

    def timed(self) -> list[tuple[int, float]]:
        """As Routine.timed, by the device's own clock."""
        device, stream = self.machine.device, self.machine.stream
        device.enter()
        found: list[tuple[int, Event, Event]] = []
        for number, call in self.calls.items():
            begin, end = device.event(timed=True), device.event(timed=True)
            begin.record(stream)
            call.launch(stream)
            end.record(stream)
            found.append((number, begin, end))
        stream.synchronize()
        return [(number, begin.elapsed_time(end) / 1e3) for number, begin, end in found]

    def _graph(self) -> Graph:
        """A node for each call; those of one level run side by side, after all of the level before."""
        graph = Graph(self.machine.device)
        before: list[int] = []
        levels: dict[int, list[int]] = {}
        for number in self.calls:
            levels.setdefault(self.arguments.units[number].level, []).append(number)
        for numbers in levels.values():
            if len(before) > 1:
                before = [graph.join(before)]
            for number in numbers:
                self.nodes[number] = graph.launch(self.calls[number], before)
            before = [self.nodes[number] for number in numbers]
        return graph
