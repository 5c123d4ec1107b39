"""A GPU that is none: the stand-in library, whose kernels Triton's interpreter runs on its memory."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernels.gpu import interpret
from kernels.gpu.checked import Memory
from kernels.gpu.code import Code
from kernels.gpu.compile import digest
from kernels.gpu.cuda import Cuda
from kernels.gpu.device import Device
from kernels.gpu.driver import Driver
from kernels.gpu.launch import Launch
from kernels.gpu.standin import Image, Launched, StandIn


@dataclass
class Standing:
    """`machine` for programs, on `library`; `compiled` tells what was compiled, by name and architecture."""

    capability: tuple[int, int] = (9, 0)
    graphs: bool = True
    # What object code is made for, where that is not what was asked for.
    instead: str | None = None
    scratch: int = 0
    shared: int = 0
    compiled: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.launches: dict[bytes, Launch] = {}
        self.library = StandIn(self.capability, execute=self.execute)
        self.device = Device(Driver(self.library))
        self.machine = Cuda(self.device, self.graphs, self.compile)

    def compile(self, requests: Sequence[tuple[Launch, str]]) -> list[Code]:
        """Object code that only the stand-in knows."""
        return [self.code(launch, architecture) for launch, architecture in requests]

    def code(self, launch: Launch, architecture: str) -> Code:
        """Object code of one launch."""
        binary = digest(launch, architecture).encode()
        types = tuple(p.type for p in launch.parameters)
        if binary not in self.launches:
            self.compiled.append((launch.name, architecture))
            self.launches[binary] = launch
            self.library.images[binary] = Image("kernel", types)
        threads, made_for = 32 * launch.warps, self.instead or architecture
        numbers = self.shared, types, self.scratch, 16
        return Code(made_for, "kernel", binary, "", launch.warps, threads, *numbers, "none")

    def execute(self, launched: Launched) -> None:
        """Run a kernel on the arguments that arrived, in memory that was allocated."""
        launch = self.launches[launched.image]
        assert launched.threads == 32 * launch.warps
        scratch = launched.values[-2]
        assert bool(scratch) is bool(self.scratch) and launched.values[-1] == 0
        values = launched.values[:-2]
        count = len(launch.pointers)
        for parameter, value in zip(launch.parameters, values, strict=True):
            assert value % parameter.divisibility == 0, f"{launch.name}: {parameter} is {value}"
        called = replace(launch, grid=launched.grid, arguments=values[count:])
        blocks = self.library.allocations.items()
        try:
            interpret.run(called, values[:count], Memory([x[start - x.ctypes.data :] for start, x in blocks]))
        except Exception:
            # The program hears of it as an error code.
            traceback.print_exc()
            raise
