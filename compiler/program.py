"""A plan as something to call: memory, tables and the native run.

Takes and gives NumPy arrays; knows nothing of tensors or guards.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from compiler import watching
from compiler.binding import Arena, Binding, check_levels, output_types, plan_of
from compiler.debugging import PROGRAMS, ladder, tell
from compiler.pictures import Part, Picture
from compiler.plan import Request
from compiler.serving import shared
from compiler.telling import told
from compiler.view import KernelView
from compiler.watching import watched
from kernels import memory
from kernels.cpu import edits, pool, runner
from kernels.cpu.runner import Program
from kernels.varying import Varying

Array = np.ndarray[Any, Any]


class Executable:
    """A compiled request: `run` computes the outputs and carries out the writes.

    `chains` lets kernels run tile by tile, without memory for all that one leaves for the next. Programs of
    one function for other sizes share `varying`, and kernels of products.
    """

    def __init__(
        self,
        request: Request,
        arena: Arena | None = None,
        chains: bool = True,
        varying: Varying | None = None,
    ) -> None:
        begin = time.perf_counter()
        # As it was recorded, each node with the line that made it.
        self.recorded = request
        spent: list[float] = []
        self.request, plan = plan_of(request, spent)
        if chains and plan.chained is not None:
            plan = plan.chained
        self.plan = plan = plan if varying is None else shared(plan, varying)
        planned = time.perf_counter()
        self.arena = Arena() if arena is None else arena
        base = self.arena.reserve(plan.arena_bytes)
        self.constants = {b: np.ascontiguousarray(c.data) for b, c in plan.constants.items()}
        checks = check_levels(plan.checks, plan.kernels, plan.levels)
        flags = [(level, base + plan.arena[buffer]) for buffer, level in checks.items()]
        self.program = program = Program(
            [k.work() for k in plan.kernels], _separate(plan.levels, flags), _spread(flags), plan.chains
        )
        self.output_types = output_types(self.request, plan)
        constants = {b: array.ctypes.data for b, array in self.constants.items()}
        bound = Binding.fill(plan, program, base, constants)
        self.local, self.patches = bound.local, bound.patches
        places = np.zeros(max(len(plan.inputs) + len(plan.outputs), 1), np.int64)
        self.objects = places.data  # quicker to write to than the array
        self.bound: dict[int, Array] = {}
        program.connect(self.patches, places)
        self.native: Callable[[int, int], int] = runner.native_run()
        self.interrupted = False
        self.arena.users.add(self)
        _living.add(self)
        # What files of edited kernels there were when it last looked.
        self.edits: tuple[tuple[str, int], ...] = ()
        if edits.active():
            self.native = self._native_renewed
        # Of the passes; None where an earlier process left the plan on disk.
        self.pass_seconds = spent[0] if spent else None
        self.plan_seconds = planned - begin
        self.build_seconds = time.perf_counter() - planned
        if ladder.level >= PROGRAMS:
            tell(told(self, ladder.level))

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
        if watched.threads:
            return watching.run(self, {**self.bound, **dict(given)}, list(outputs), workers)
        try:
            return self.native(program.address, workers)
        except KeyboardInterrupt:
            # Python noticed it after the native code, which nothing stops: let the caller do its part first.
            self.interrupted = True
            return program.failed()

    @cached_property
    def apart(self) -> Executable:
        """The same program without chains, each kernel of which leaves all that it computes in memory."""
        return Executable(self.recorded, self.arena, chains=False) if self.plan.chains else self

    def stepped(self) -> Program:
        """A program of the same kernels, connected to the same arrays, that can be run one by one."""
        apart = self.apart
        apart.objects[:] = self.objects
        if apart.program.threads != pool.get_num_threads():
            apart.program.fit(pool.get_num_threads())
        return apart.program

    def _native_renewed(self, address: int, workers: int) -> int:
        """The native run while kernels are edited: what changed is compiled before."""
        state = edits.state()
        if state != self.edits:
            self.program.renew()
            self.edits = state
        if not state:
            self.native = runner.native_run()
        return runner.native_run()(address, workers)

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
    def picture(self) -> Picture:
        """The graph after the passes, with its kernels."""
        return Picture(self.request.graph, tuple([Part(k.spec.name, k.nodes) for k in self.plan.kernels]))

    @property
    def kernels(self) -> list[KernelView]:
        """Every kernel, in launch order."""
        if edits.active():
            self.program.renew()
        rows = zip(self.plan.kernels, self.plan.levels, self.program.machines, strict=True)
        return [KernelView(k, m.source, lv, m.path, m.cached, m.seconds, _follow_edits) for k, lv, m in rows]


# Every program there is: those made before a kernel is edited follow its file too.
_living: weakref.WeakSet[Executable] = weakref.WeakSet()


def _follow_edits() -> None:
    """Let every program look at the files of edited kernels before it runs."""
    for executable in list(_living):
        executable.native = executable._native_renewed


def _separate(levels: Sequence[int], flags: Sequence[tuple[int, int]]) -> list[int]:
    """Levels with room for one flag test each: a launch tests at most one flag."""
    scale = len(flags) + 1
    return [lv * scale for lv in levels]


def _spread(flags: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    scale = len(flags) + 1
    return [(level * scale + i, address) for i, (level, address) in enumerate(flags)]
