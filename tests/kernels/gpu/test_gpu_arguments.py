"""What launches pass is what Triton's object code takes: number, order and width of every parameter."""

from __future__ import annotations

import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.gpu.compile import compile_all
from kernels.gpu.cuda import Cuda
from kernels.gpu.device import Device
from kernels.gpu.driver import Driver
from kernels.gpu.render import launch_of
from kernels.gpu.runner import Program
from kernels.gpu.standin import FORMATS, Image, StandIn
from kernels.spec import Call, Index, Load, LoopSpec, Operand, Store
from kernels.work import Work

ROOT = Path(__file__).parents[3]
F32, I64 = dtypes.float32, dtypes.int64
# Attributes in a cubin's notes on a kernel: the size of all parameters, and one record for each of them.
ALL_BYTES, ONE = 0x19, 0x17


def parameters(cubin: bytes) -> tuple[list[tuple[int, int]], int]:
    """Offset and size of each parameter of a cubin's kernel, in order, and the size of them all."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    found, total = {}, 0
    for name, _, _, _, start, length in sections:
        at = sections[names][4] + name
        if not cubin[at : cubin.index(b"\0", at)].startswith(b".nv.info."):
            continue
        place = start
        while place < start + length:
            form, attribute, extent = struct.unpack_from("<BBH", cubin, place)
            if (form, attribute) == (4, ONE):
                _, number, offset, bits = struct.unpack_from("<IHHI", cubin, place + 4)
                found[number] = offset, bits >> 18
            elif (form, attribute) == (3, ALL_BYTES):
                total = extent
            place += 4 + (extent if form == 4 else 0)
    return [found[i] for i in range(len(found))], total


def counted(n: int) -> Work:
    """p2 = p0 + a number that counts up, by a kernel with sizes, strides and a start."""
    operands = Operand(F32, ("s", 1)), Operand(I64, ("s", "s")), Operand(F32, (1, "s"))
    steps = (
        Load("x", 0),
        Index("i", 1),
        Call("f", "cast", ("i",), F32),
        Call("y", "add", ("x", "f"), F32),
        Store("y", 2),
    )
    spec = LoopSpec("counted", 2, 0, "rows", operands, steps)
    return Work(spec, (n, 37), ((41, 1), (2, 3), (1, n)), (0, 0, 0))


@pytest.mark.parametrize("n", [50, 60_000_000], ids=["i32", "i64"])
def test_arguments_fit_object_code(n: int) -> None:
    launch = launch_of(counted(n), flags=2)
    (code,) = compile_all([(launch, "sm_90")])
    taken, total = parameters(code.binary)
    widths = [8 if t.startswith("*") else struct.calcsize(FORMATS[t]) for t in code.types]
    assert {p.type for p in launch.parameters} >= {"*fp32", "*i1", "i64"}
    # Two pointers to scratch memory come last.
    assert [size for _, size in taken] == [*widths, 8, 8]
    assert total == taken[-1][0] + 8


def test_object_code_is_loaded_and_launched() -> None:
    library = StandIn()
    work = counted(50)
    launch = launch_of(work)
    (code,) = compile_all([(launch, "sm_90")])
    library.images[code.binary] = Image(code.function, code.types)
    machine = Cuda(Device(Driver(library)))
    program = Program([work], [0], machine)
    block = machine.allocate(50 * 41 * 4)
    program.table[:3] = block.address, -7, block.address
    program.build()
    program.run([])
    machine.device.synchronize()
    (launched,) = library.launches
    assert launched.grid == launch.grid and launched.threads == 32 * launch.warps
    assert launched.values == (block.address, -7, block.address, *launch.arguments, 0, 0)


WARM = """
import sys
from kernels.dtypes import float32
from kernels.gpu.compile import compile_all
from kernels.gpu.cuda import Cuda
from kernels.gpu.device import Device
from kernels.gpu.driver import Driver
from kernels.gpu.render import launch_of
from kernels.gpu.runner import Program
from kernels.gpu.standin import Image, StandIn
from kernels.spec import Load, LoopSpec, Operand, Store
from kernels.work import Work

spec = LoopSpec("copied", 1, 0, "rows", (Operand(float32, (1,)),) * 2, (Load("x", 0), Store("x", 1)))
work = Work(spec, (1000,), ((1,), (1,)), (0, 0))
library = StandIn()
(code,) = compile_all([(launch_of(work), "sm_90")])
library.images[code.binary] = Image(code.function, code.types)
program = Program([work], [0], Cuda(Device(Driver(library))))
program.build()
program.run([])
program.machine.device.synchronize()
assert len(library.launches) == 1
print(*sys.modules)
"""


def test_kernels_in_the_cache_need_no_compiler() -> None:
    run = partial(subprocess.run, [sys.executable, "-c", WARM], cwd=ROOT, check=True, capture_output=True)
    # The first process makes the code, if no earlier one did.
    run()
    loaded = set(run().stdout.decode().split())
    assert not {"triton", "numba", "llvmlite", "cupy", "torch"} & loaded and "ctypes" in loaded
