"""What every program of a plan has, whatever runs it: the optimised request, scratch memory, and the place of
every address.

Knows plans and addresses; knows no back end.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from compiler.chains import chained
from compiler.debugging import VERIFYING, ladder
from compiler.errors import LoweringError
from compiler.ir import Const, Graph
from compiler.levels import accesses
from compiler.lower import Bound, Buffer, Kernel
from compiler.passes import PIPELINE, THERE
from compiler.plan import Plan, Planner, Request
from compiler.stored import planned
from compiler.verify import verify
from kernels import files
from kernels.memory import uncollected
from kernels.spec import LoopSpec, MatmulSpec

Array = np.ndarray[Any, Any]


def plan_of(request: Request, spent: list[float] | None = None) -> tuple[Request, Plan]:
    """The optimised request and its plan, from the disk where an earlier process made it; `spent` gets the
    seconds of the passes where none did.
    """
    # Nothing is freed in a plan's making, and looking for it takes a third of the time for 10,000 nodes.
    with uncollected():
        make = partial(_plan, spent=spent)
        # A plan from the disk went through its passes elsewhere, and is not verified here.
        return make(request) if ladder.level >= VERIFYING else planned(request, make)


def _plan(request: Request, spent: list[float] | None = None) -> tuple[Request, Plan]:
    begin = time.perf_counter()
    request = optimise(request)
    if spent is not None:
        spent.append(time.perf_counter() - begin)
    return request, chained(Planner(request).run())


def optimise(request: Request) -> Request:
    """Run the pass pipeline on a request's graph."""
    graph: Graph = request.graph
    every = ladder.level >= VERIFYING or bool(os.environ.get("TRACEFUSE_VERIFY"))
    for run in (*PIPELINE, *(THERE if request.there else ())):
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
    if checks != flags:
        graph = Graph(graph.inputs, (*graph.outputs[: returned + len(writes)], *checks))
    return replace(request, graph=graph, writes=writes, checks=checks)


@dataclass(frozen=True)
class KernelView:
    """One kernel of a program as its author sees it."""

    kernel: Kernel
    source: str
    level: int

    @property
    def spec(self) -> LoopSpec | MatmulSpec:
        """What the kernel computes: a loop nest, or a product, over named operands."""
        return self.kernel.spec

    def save(self, path: str | Path) -> None:
        """Write the kernel to a file, for `python -m kernels.bench PATH` or `kernels.files.load`."""
        files.save(self.kernel.placed(), path)

    def __repr__(self) -> str:
        return f"<kernel {self.kernel.spec.name} {list(self.kernel.extents)}>"


class Memory(Protocol):
    """Memory that goes back with the object."""

    address: int


class HostMemory:
    """Host memory that begins on a cache line."""

    def __init__(self, size: int) -> None:
        self.array = np.empty(size + 64, np.uint8)
        self.address = -(-self.array.ctypes.data // 64) * 64


class Mover(Protocol):
    """A user of an arena."""

    def move(self, distance: int) -> None:
        """Follow the arena, which is `distance` bytes further on."""
        ...


class Arena:
    """Scratch memory. Programs that never run at once may share one: it has the size of the largest."""

    def __init__(self, allocate: Callable[[int], Memory] = HostMemory) -> None:
        self.allocate = allocate
        self.base = self.size = 0
        self.users: weakref.WeakSet[Mover] = weakref.WeakSet()

    def reserve(self, size: int) -> int:
        """The address of `size` bytes. No user may be running: when they are too few, all of them move."""
        if size > self.size or not self.base:
            self.size = size
            self.memory = self.allocate(size)
            before, self.base = self.base, self.memory.address
            for user in self.users:
                user.move(self.base - before)
        return self.base


class Tables(Protocol):
    """A back end's program, whose `table` has a slot for each operand's address."""

    table: Array

    def pointer_slot(self, work: int, operand: int) -> int:
        """Index in `table` of an operand's address."""
        ...


@dataclass(frozen=True)
class Binding:
    """Slots whose addresses are in the arena; and rows (slot, number of an input or output, byte offset) of
    those that follow the caller's memory.
    """

    local: Array
    patches: Array

    @classmethod
    def fill(
        cls,
        plan: Plan,
        program: Tables,
        base: int,
        fixed: Mapping[Buffer, int],
        kernels: Sequence[Bound] = (),
    ) -> Binding:
        """Put the addresses that are known into a program's table: `fixed` ones, those in the arena at
        `base`, and starts of operands without memory. `kernels` are the program's, if not the plan's own.
        """
        outside: dict[Buffer, int] = {b: i for i, b in enumerate([*plan.inputs, *plan.outputs])}
        patches: list[tuple[int, int, int]] = []
        local: list[int] = []
        for number, kernel in enumerate(kernels or plan.kernels):
            for operand, place in enumerate(kernel.places):
                slot = program.pointer_slot(number, operand)
                if place.buffer is None:
                    program.table[slot] = place.offset
                    continue
                buffer, offset = place.buffer.root, place.offset * place.buffer.type.dtype.itemsize
                if buffer in plan.private:
                    continue
                if buffer in fixed:
                    program.table[slot] = fixed[buffer] + offset
                elif buffer in plan.arena:
                    program.table[slot] = base + plan.arena[buffer] + offset
                    local.append(slot)
                else:
                    patches.append((slot, outside[buffer], offset))
        return cls(np.array(local, np.int64), np.array(patches or np.zeros((0, 3)), np.int64))


def check_levels(
    checks: Sequence[Buffer], kernels: Sequence[Bound], levels: Sequence[int]
) -> dict[Buffer, int]:
    """The flag of every check, with the level after which it is known."""
    if not checks:
        return {}
    written = [(level, accesses(k)[1]) for k, level in zip(kernels, levels, strict=True)]
    return {flag: max(level for level, writes in written if flag in writes) for flag in checks}


def output_types(request: Request, plan: Plan) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every array that a program returns."""
    return [(v.shape, v.dtype.numpy) for v in request.graph.outputs[: len(plan.outputs)]]
