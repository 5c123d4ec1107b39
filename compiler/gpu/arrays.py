"""A program on a GPU that takes and gives that GPU's arrays, as the CPU's program does NumPy's.

Numbers that the host keeps, seeds among them, are copied there at each run. Knows arrays and addresses; knows
nothing of tensors or guards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler import watching
from compiler.binding import Arena
from compiler.debugging import PROGRAMS, ladder, tell
from compiler.gpu.program import DeviceExecutable
from compiler.gpu.view import DeviceKernelView
from compiler.pictures import Part, Picture
from compiler.plan import Request
from compiler.telling import told
from compiler.watching import watched
from kernels.gpu import arrays
from kernels.gpu.runner import FLAG
from kernels.varying import Varying

Array = Any


class ArrayExecutable:
    """A compiled request on GPU `number`, called as `compiler.program.Executable` is; `tf32` and `varying`
    as in DeviceExecutable."""

    # Nothing here runs so long without Python that an interrupt could come in between.
    interrupted = False

    def __init__(
        self,
        request: Request,
        number: int,
        arena: Arena | None = None,
        tf32: bool = False,
        varying: Varying | None = None,
    ) -> None:
        self.number, self.engine = number, arrays.engine()
        self.machine = arrays.machine(number)
        with arrays.there(number):
            self.inner = inner = DeviceExecutable(request, self.machine, arena, tf32, varying)
        # As it was recorded, each node with the line that made it.
        self.recorded = request
        self.request, self.plan, self.output_types = inner.request, inner.plan, inner.output_types
        self.plan_seconds, self.build_seconds = inner.plan_seconds, inner.build_seconds
        self.pass_seconds = inner.pass_seconds
        if ladder.level >= PROGRAMS:
            tell(told(self, ladder.level))
        # Arrays of the host by the number of the input, each with 16 bytes there.
        self.hosts: dict[int, Any] = {}
        self.cells: Any = None
        self.values: list[Any] = []
        # What inputs are bound to lives as long.
        self.bound: dict[int, Array] = {}

    def bind(self, number: int, array: Array) -> None:
        """Use `array`, there or a number of 8 bytes on the host, as input `number` from now on."""
        self.bound[number] = array
        if arrays.is_device(array):
            self.inner.bind(number, arrays.address(array))
            return
        self.hosts[number] = array.reshape(1).view(np.int64)
        self.values = list(self.hosts.values())
        self.stage = np.zeros((len(self.values), FLAG // 8), np.int64)
        with arrays.there(self.number):
            self.cells = self.machine.allocate(self.stage.nbytes)
        for place, i in enumerate(self.hosts):
            self.inner.bind(i, self.cells.address + FLAG * place)

    def run(self, given: Sequence[tuple[int, Array]], outputs: Sequence[Array]) -> int:
        """As Executable.run. Waits for the GPU only where there are checks."""
        address = arrays.address
        with arrays.there(self.number), Joined(self.engine, self.machine):
            if self.values:
                np.concatenate(self.values, out=self.stage[:, 0])
                self.machine.write(self.cells.address, self.stage)
            places = [(i, address(x)) for i, x in given], [address(x) for x in outputs]
            if watched.threads:
                known, run, timed = {**self.bound, **dict(given)}, self._run, self._timed
                ways = partial(run, *places), partial(timed, *places)
                return watching.run_there(self, known, list(outputs), *ways)
            return self._run(*places)

    def _run(self, given: list[tuple[int, int]], outputs: list[int]) -> int:
        self.inner.run(given, outputs)
        return self.inner.failed() if self.inner.program.checks else 0

    def _timed(
        self, given: list[tuple[int, int]], outputs: list[int]
    ) -> tuple[int, list[tuple[tuple[int, ...], float]]]:
        """Run launch by launch: what `run` returns, and the kernels of each launch with its seconds."""
        found = self.inner.timed(given, outputs)
        return self.inner.failed() if self.inner.program.checks else 0, found

    def let_through(self) -> None:
        """As Executable.let_through: nothing waits."""

    def __call__(self, *operands: Array) -> list[Array]:
        """As Executable.__call__; arrays of the host are copied there."""
        operands = tuple(arrays.put(x, self.number) for x in operands)
        outputs = [arrays.empty(shape, dtype, self.number) for shape, dtype in self.output_types]
        if failed := self.run(list(enumerate(operands)), outputs):
            raise RuntimeError(f"bad input found by check {failed}")
        return outputs

    @property
    def picture(self) -> Picture:
        """The graph after the passes, with its kernels."""
        return Picture(self.request.graph, tuple([Part(k.spec.name, k.nodes) for k in self.plan.kernels]))

    @property
    def kernels(self) -> list[DeviceKernelView]:
        """Every kernel, in the plan's order."""
        return self.inner.kernels


class Joined:
    """Inside, a program's stream follows the stream that arrays are computed on; what comes after follows it.

    The default stream and that of programs wait for each other by themselves; with any other the host waits.
    """

    def __init__(self, engine: arrays.Engine, machine: Any) -> None:
        self.stream = engine.xp.cuda.get_current_stream()
        self.apart, self.machine = bool(self.stream.ptr), machine

    def __enter__(self) -> None:
        if self.apart:
            self.stream.synchronize()

    def __exit__(self, *exception: object) -> None:
        if self.apart:
            self.machine.synchronize()
