"""A plan as something to call: memory, tables and the native run.

Takes and gives NumPy arrays; knows nothing of tensors or guards.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import LoweringError
from compiler.ir import Const, Graph
from compiler.lower import Buffer, Kernel
from compiler.passes import PIPELINE
from compiler.plan import Plan, Planner, Request
from compiler.stored import planned
from compiler.verify import verify
from kernels import files, memory
from kernels.cpu import pool, runner
from kernels.cpu.runner import Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class KernelView:
    """One kernel of a program as its author sees it."""

    kernel: Kernel
    source: str
    level: int
    path: str
    cached: bool
    compile_seconds: float

    def save(self, path: str | Path) -> None:
        """Write the kernel to a file, for `python -m kernels.bench PATH` or `kernels.files.load`."""
        files.save(self.kernel.placed(), path)

    def __repr__(self) -> str:
        return f"<kernel {self.kernel.spec.name} {list(self.kernel.extents)}>"


class Arena:
    """Scratch memory. Programs that never run at once may share one: it has the size of the largest."""

    def __init__(self) -> None:
        self.base = self.size = 0
        self.users: weakref.WeakSet[Executable] = weakref.WeakSet()

    def reserve(self, size: int) -> int:
        """The address of `size` bytes. No user may be running: when they are too few, all of them move."""
        if size > self.size or not self.base:
            self.size = size
            self.memory = np.empty(size + 64, np.uint8)
            before, self.base = self.base, -(-self.memory.ctypes.data // 64) * 64
            for user in self.users:
                user.move(self.base - before)
        return self.base


class Executable:
    """A compiled request: `run` computes the outputs and carries out the writes."""

    def __init__(self, request: Request, arena: Arena | None = None) -> None:
        begin = time.perf_counter()
        with uncollected():
            self.request, self.plan = planned(request, _plan)
        plan = self.plan
        done = time.perf_counter()
        self.arena = Arena() if arena is None else arena
        base = self.arena.reserve(plan.arena_bytes)
        self.constants = {b: np.ascontiguousarray(c.data) for b, c in plan.constants.items()}
        flags = []
        for buffer in plan.checks:
            level = max(lv for k, lv in zip(plan.kernels, plan.levels, strict=True) if buffer in _written(k))
            flags.append((level, base + plan.arena[buffer]))
        self.program = program = Program(
            [k.work() for k in plan.kernels], _separate(plan.levels, flags), _spread(flags)
        )
        returned = self.request.graph.outputs[: len(plan.outputs)]
        self.output_types = [(v.shape, v.dtype.numpy) for v in returned]
        outside: dict[Buffer, int] = {b: i for i, b in enumerate([*plan.inputs, *plan.outputs])}
        patches: list[tuple[int, int, int]] = []
        local: list[int] = []
        for number, kernel in enumerate(plan.kernels):
            for operand, place in enumerate(kernel.places):
                slot = program.pointer_slot(number, operand)
                if place.buffer is None:
                    program.table[slot] = place.offset
                    continue
                buffer, offset = place.buffer.root, place.offset * place.buffer.type.dtype.itemsize
                if buffer in plan.arena:
                    program.table[slot] = base + plan.arena[buffer] + offset
                    local.append(slot)
                elif buffer in self.constants:
                    program.table[slot] = self.constants[buffer].ctypes.data + offset
                else:
                    patches.append((slot, outside[buffer], offset))
        self.local = np.array(local, np.int64)
        self.patches = np.array(patches or np.zeros((0, 3)), np.int64)
        self.objects = np.zeros(max(len(outside), 1), np.int64)
        self.bound: dict[int, Array] = {}
        program.connect(self.patches, self.objects)
        self.native = runner.native_run()
        self.interrupted = False
        self.arena.users.add(self)
        self.plan_seconds = done - begin
        self.build_seconds = time.perf_counter() - done

    def move(self, distance: int) -> None:
        """Follow the arena, which is `distance` bytes further on."""
        self.program.table[self.local] += distance
        flags = self.program.launches[:, 3]
        flags[flags != 0] += distance

    def bind(self, number: int, array: Array) -> None:
        """Use `array` as input `number` from now on."""
        self.bound[number] = array
        self.objects[number] = id(array)

    def run(self, given: Sequence[tuple[int, Array]], outputs: Sequence[Array]) -> int:
        """Run on (input number, array) pairs, writing `outputs`; the inputs left out are those bound before.

        Returns 0, or the number of the launch whose check found bad input; then nothing was written to any
        input. Not to be called by two threads at once. A KeyboardInterrupt waits for `let_through`.
        """
        objects = self.objects
        for number, array in given:
            objects[number] = id(array)
        for number, array in enumerate(outputs, len(self.plan.inputs)):
            objects[number] = id(array)
        program = self.program
        if program.threads != pool.get_num_threads():
            program.fit(pool.get_num_threads())
        workers = pool.address() if program.parallel else 0
        try:
            return self.native(program.address, workers)
        except KeyboardInterrupt:
            # Python noticed it after the native code, which nothing stops: let the caller do its part first.
            self.interrupted = True
            return program.failed()

    def let_through(self) -> None:
        """Raise the KeyboardInterrupt that came while the program ran, if one did."""
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def __call__(self, *arrays: Array) -> list[Array]:
        """Outputs, in fresh memory, for one array per input. Raises RuntimeError when a check finds bad
        input.
        """
        outputs = [memory.empty(shape, dtype) for shape, dtype in self.output_types]
        failed = self.run(list(enumerate(arrays)), outputs)
        self.let_through()
        if failed:
            raise RuntimeError(f"bad input found by the check of launch {failed}")
        return outputs

    @property
    def kernels(self) -> list[KernelView]:
        """Every kernel, in launch order."""
        rows = zip(self.plan.kernels, self.plan.levels, self.program.machines, strict=True)
        return [KernelView(k, m.source, lv, m.path, m.cached, m.seconds) for k, lv, m in rows]


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collections inside: nothing is freed in a plan's making, and looking for it takes a third
    of the time for 10,000 nodes.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _plan(request: Request) -> tuple[Request, Plan]:
    request = optimise(request)
    return request, Planner(request).run()


def optimise(request: Request) -> Request:
    """Run the pass pipeline on a request's graph."""
    graph: Graph = request.graph
    every = bool(os.environ.get("TRACEFUSE_VERIFY"))
    for run in PIPELINE:
        graph = run(graph)
        if every:
            verify(graph, run.__name__)
    verify(graph, "the passes")
    returned = len(graph.outputs) - len(request.writes) - len(request.checks)
    written = graph.outputs[returned : returned + len(request.writes)]
    writes = tuple((number, value) for (number, _), value in zip(request.writes, written, strict=True))
    flags = graph.outputs[returned + len(writes) :]
    if any(isinstance(flag, Const) and flag.data for flag in flags):
        raise LoweringError("an operand that is known now is bad input: the eager op says why")
    checks = tuple(flag for flag in flags if not isinstance(flag, Const))
    graph = Graph(graph.inputs, (*graph.outputs[: returned + len(writes)], *checks))
    return Request(graph, writes, checks, request.strides)


def _written(kernel: Kernel) -> set[Buffer | None]:
    return {kernel.places[i].buffer for i in kernel.spec.written}


def _separate(levels: Sequence[int], flags: Sequence[tuple[int, int]]) -> list[int]:
    """Levels with room for one flag test each: a launch tests at most one flag."""
    scale = len(flags) + 1
    return [lv * scale for lv in levels]


def _spread(flags: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    scale = len(flags) + 1
    return [(level * scale + i, address) for i, (level, address) in enumerate(flags)]
