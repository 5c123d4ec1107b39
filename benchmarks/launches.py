"""`python -m benchmarks.launches`: what starting kernels on a GPU costs the host, measured without a GPU.

The driver library is the stand-in, whose hot calls are machine code that returns at once; what NVIDIA's own
would take (2 to 3 µs a launch) comes on top.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.machine import describe
from kernels import dtypes
from kernels.gpu.code import Code
from kernels.gpu.compile import digest
from kernels.gpu.cuda import Cuda
from kernels.gpu.device import Device
from kernels.gpu.driver import CALLS, Driver
from kernels.gpu.launch import Launch
from kernels.gpu.runner import Program
from kernels.gpu.standin import Image, StandIn
from kernels.spec import Call, Load, LoopSpec, Operand, Store
from kernels.work import Work

# A training step of some layers.
KERNELS, ELEMENTS = 100, 1000
# What may be spent: a launch from Python, the replay of a whole program.
MOST_LAUNCH, MOST_REPLAY = 3.0, 10.0
HOT = (
    "cuLaunchKernelEx", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuCtxSetCurrent",
    "cuMemcpyDtoHAsync", "cuEventRecord",
)  # fmt: skip


def silence(driver: Driver) -> None:
    """From now on, hot calls return success from machine code."""
    from numba import cfunc, types

    for name in HOT:
        kinds = [types.uint64 if ctypes.sizeof(kind) == 8 else types.uint32 for kind in CALLS[name]]
        arguments = ", ".join(f"x{i}" for i in range(len(kinds)))
        function: Any = cfunc(types.int32(*kinds))(eval(f"lambda {arguments}: 0"))
        call: Any = ctypes.CFUNCTYPE(ctypes.c_int, *CALLS[name])(function.address)
        # What keeps the machine code alive.
        call.function = function
        driver.functions[name] = call


def added() -> Work:
    """p3 = p0 + p1 * p2."""
    f32 = dtypes.float32
    steps = (
        *(Load(x, i) for i, x in enumerate("abc")),
        Call("d", "mul", ("b", "c"), f32),
        Call("e", "add", ("a", "d"), f32),
        Store("e", 3),
    )
    spec = LoopSpec("added", 1, 0, "rows", (Operand(f32, (1,)),) * 4, steps)
    return Work(spec, (ELEMENTS,), ((1,),) * 4, (0,) * 4)


def a_program(graphs: bool, checks: int = 0) -> tuple[Program, list[int], list[Any]]:
    """KERNELS kernels, of which the first three read memory that the caller gives; addresses for two runs."""
    library = StandIn()

    def compiled(requests: Sequence[tuple[Launch, str]]) -> list[Code]:
        codes = []
        for launch, architecture in requests:
            types = tuple(p.type for p in launch.parameters)
            binary = digest(launch, architecture).encode()
            library.images[binary] = Image("kernel", types)
            codes.append(Code(architecture, "kernel", binary, "", 4, 128, 0, types, 0, 1, ""))
        return codes

    machine = Cuda(Device(Driver(library)), graphs, compiled)
    program = Program([added()] * KERNELS, range(KERNELS), machine, [0] * checks)
    blocks = [machine.allocate(4 * ELEMENTS) for _ in range(7)]
    program.table[:] = blocks[0].address
    program.connect([(program.pointer_slot(i, 0), i, 0) for i in range(3)], 3)
    program.build()
    addresses = [block.address for block in blocks[1:]]
    # The graph is built in the first run.
    program.run(addresses[:3])
    program.failed()
    silence(machine.device.driver)
    return program, addresses, blocks


def microseconds(call: Callable[[], Any], rounds: int = 200, calls: int = 100) -> float:
    """The best mean time of a call."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls * 1e6)
    return best


def alternating(program: Program, addresses: list[int]) -> Callable[[], None]:
    """Two runs on memory of which all that the caller gives is elsewhere each time."""

    def run() -> None:
        program.run(addresses[:3])
        program.run(addresses[3:])

    return run


def main() -> None:
    """Print the table, and whether the limits hold."""
    print(describe())
    print(f"{KERNELS} kernels of 4 operands, on the stand-in driver; best of many, in µs")
    launched, addresses, keep = a_program(graphs=False)
    each = microseconds(lambda: launched.run(addresses[:3])) / KERNELS
    print(f"  a kernel, launched from Python                 {each:6.2f}   (at most {MOST_LAUNCH})")
    replayed, addresses, more = a_program(graphs=True)
    replay = microseconds(lambda: replayed.run(addresses[:3]))
    print(f"  a replay of the graph                          {replay:6.2f}   (at most {MOST_REPLAY})")
    patched = microseconds(alternating(replayed, addresses)) / 2
    print(f"  a replay with 3 addresses changed              {patched:6.2f}   (at most {MOST_REPLAY})")
    checked, addresses, most = a_program(graphs=True, checks=1)
    checked.glance.look = lambda slot: np.zeros(16, np.uint8)  # type: ignore[method-assign]
    with_check = microseconds(lambda: checked.run(addresses[:3]))
    print(f"  a replay of a program with a check             {with_check:6.2f}   (at most {MOST_REPLAY})")
    held = each <= MOST_LAUNCH and max(replay, patched, with_check) <= MOST_REPLAY
    print("the limits hold" if held else "NOT within the limits")
    del keep, more, most


if __name__ == "__main__":
    main()
