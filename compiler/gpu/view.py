"""One kernel of a GPU's program as its author sees it: its texts, and ways to run it alone and to time it.

Works on memory of its own; nothing here is on the way of a call.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.binding import KernelView
from compiler.view import memory_of
from kernels import prepared
from kernels.files import Placed
from kernels.gpu.compile import compiled
from kernels.gpu.launch import Launch
from kernels.gpu.runner import Machine, Memory, Program
from kernels.timing import Timing

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class DeviceKernelView(KernelView):
    """One kernel of a GPU's program: `source` is Triton's, `launch` what starts it, maybe with others.

    Alone it is run with exact factors in products, by `run` and `bench`, on the machine of its program.
    """

    launch: Launch = field(repr=False)
    machine: Machine = field(repr=False, compare=False)

    @property
    def architecture(self) -> str:
        """The GPU that the program is for, or "sm_90" where none stands behind it."""
        return self.machine.architecture

    @property
    def ptx(self) -> str:
        """Its assembly, for `architecture`."""
        return compiled(self.launch, self.architecture).assembly

    def arrays(self) -> list[Array]:
        """Memory for the kernel, flat and one array for each buffer: numbers it is defined on."""
        return prepared.filled(self.kernel.placed())

    def run(self, *arrays: Any) -> list[Array]:
        """The memory after the kernel ran on copies of `arrays` (of `self.arrays()` without any) there."""
        placed, memory = memory_of(self.kernel.placed(), arrays)
        program, held = self._alone(placed, memory)
        program.run([])
        for there, here in zip(held, memory, strict=True):
            self.machine.read(there.address, here)
        return memory

    def bench(self, seconds: float = 0.3) -> Timing:
        """The seconds that the kernel takes there, on memory of its own, from runs for about so long."""
        placed = self.kernel.placed()
        program, _ = self._alone(placed, prepared.filled(placed))
        took: list[float] = []
        begin = time.perf_counter()
        while len(took) < 3 or time.perf_counter() - begin < seconds:
            ((_, each),) = program.timed([])
            took.append(each)
        low, median, high = statistics.quantiles(took, n=4)
        return Timing(median, min(took), (high - low) / median if median else 0.0, len(took), 0.0)

    def _alone(self, placed: Placed, memory: list[Array]) -> tuple[Program, list[Memory]]:
        """A program of this kernel alone, on copies of `memory` there."""
        if any(getattr(s, "index", None) is not None for s in placed.work.spec.steps):
            # The reference looks at every index before a GPU follows it.
            prepared.by_reference(placed, [x.copy() for x in memory])
        held = [self.machine.allocate(max(x.nbytes, 1)) for x in memory]
        for there, here in zip(held, memory, strict=True):
            self.machine.write(there.address, here)
        rows = list(zip(placed.memory, placed.offsets, placed.work.spec.operands, strict=True))
        starts = [0 if m < 0 else offset * o.dtype.itemsize for m, offset, o in rows]
        rooms = [
            (0, 0) if m < 0 else (start, memory[m].nbytes - start)
            for (m, _, _), start in zip(rows, starts, strict=True)
        ]
        program = Program([placed.work], [0], self.machine, rooms=[rooms])
        for operand, ((m, offset, _), start) in enumerate(zip(rows, starts, strict=True)):
            address = offset if m < 0 else held[m].address + start
            program.table[program.pointer_slot(0, operand)] = address
        program.build()
        return program, held
