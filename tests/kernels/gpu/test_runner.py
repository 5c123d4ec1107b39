"""Programs of works on machines: what is launched, when, with what; checks; changed addresses; other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.dtypes import DType
from kernels.errors import KernelError
from kernels.gpu import tune
from kernels.gpu.cuda import TRIALS, Cuda
from kernels.gpu.device import Device
from kernels.gpu.driver import Driver
from kernels.gpu.emulator import Emulator
from kernels.gpu.runner import OPEN_RUNS, Machine, Program
from kernels.gpu.standin import StandIn
from kernels.spec import Call, Index, Literal, Load, LoopSpec, Operand, Store
from kernels.work import Work
from tests.kernels.gpu.standing import Standing

Array = np.ndarray[Any, Any]
F32, I64, BOOL = dtypes.float32, dtypes.int64, dtypes.bool_
SIZE = 100


def work(
    name: str, steps: Sequence[Any], kinds: Sequence[DType], strides: Sequence[int], n: int = SIZE
) -> Work:
    """A loop over one axis."""
    operands = tuple(Operand(d, (s,)) for d, s in zip(kinds, strides, strict=True))
    spec = LoopSpec(name, 1, 0, "rows", operands, tuple(steps))
    return Work(spec, (n,), tuple((s,) for s in strides), (0,) * len(operands))


def scaled(factor: float, n: int = SIZE) -> Work:
    """p1 = p0 * factor."""
    steps = Load("x", 0), Literal("c", factor, F32), Call("y", "mul", ("x", "c"), F32), Store("y", 1)
    return work(f"times {factor}", steps, (F32, F32), (1, 1), n)


def added(n: int = SIZE) -> Work:
    """p2 = p0 + p1."""
    steps = Load("x", 0), Load("y", 1), Call("z", "add", ("x", "y"), F32), Store("z", 2)
    return work("add", steps, (F32, F32, F32), (1, 1, 1), n)


def negative() -> Work:
    """p1 = whether p0 is below 0; one element."""
    steps = Load("x", 0), Literal("c", 0.0, F32), Call("y", "lt", ("x", "c"), BOOL), Store("y", 1)
    return work("negative", steps, (F32, BOOL), (1, 1), 1)


class Diamond:
    """z = 2 x + 3 x by three kernels, of which two may run side by side; the last is guarded by a check."""

    def __init__(self, machine: Machine, offset: int = 0) -> None:
        self.machine = machine
        self.scratch = machine.allocate(2 * 512)
        rooms = [[(0, 400)] * 2, [(0, 400)] * 2, [(0, 4), (0, 1)], [(0, 400)] * 3]
        works = [scaled(2.0), scaled(3.0), negative(), added()]
        self.program = program = Program(works, [0, 0, 1, 2], machine, [1], [False] * 3 + [True], rooms)
        a = self.scratch.address
        for number, operand, address in [(0, 1, a), (1, 1, a + 512), (3, 0, a), (3, 1, a + 512)]:
            program.table[program.pointer_slot(number, operand)] = address
        program.table[program.pointer_slot(2, 1)] = program.flag(0)
        patches = [(program.pointer_slot(n, 0), 0, 0) for n in (0, 1)]
        patches += [(program.pointer_slot(2, 0), 2, offset), (program.pointer_slot(3, 2), 1, 0)]
        program.connect(patches, 3)
        program.build()

    def memory(self, array: Array, shift: int = 0) -> tuple[Any, int]:
        """Memory on the machine with an array in it."""
        block = self.machine.allocate(array.nbytes + shift)
        self.machine.write(block.address + shift, array)
        return block, block.address + shift

    def read(self, address: int) -> Array:
        """The array of a result."""
        got = np.empty(SIZE, np.float32)
        self.machine.read(address, got)
        return got


def machines() -> list[Any]:
    return [
        pytest.param(lambda: Standing().machine, id="graph"),
        pytest.param(lambda: Standing(graphs=False).machine, id="launches"),
        pytest.param(Emulator, id="interpreter"),
    ]


X = np.arange(SIZE, dtype=np.float32)
GOOD, BAD = np.ones(1, np.float32), -np.ones(1, np.float32)


@pytest.mark.parametrize("make", machines())
def test_a_program_runs_in_order_of_levels(make: Any) -> None:
    diamond = Diamond(make())
    (a, x), (b, z), (c, ok) = (diamond.memory(v) for v in (X, X, GOOD))
    for _ in range(3):
        diamond.program.run([x, z, ok])
    assert diamond.program.failed() == 0
    np.testing.assert_array_equal(diamond.read(z), 5 * X)
    del a, b, c


@pytest.mark.parametrize("make", machines())
def test_memory_may_be_elsewhere_every_time(make: Any) -> None:
    diamond = Diamond(make())
    keep = []
    for factor in (1, 10, 100):
        (a, x), (b, z), (c, ok) = (diamond.memory(v) for v in (factor * X, X, GOOD))
        keep += [a, b, c]
        diamond.program.run([x, z, ok])
        np.testing.assert_array_equal(diamond.read(z), 5 * factor * X)
    assert diamond.program.failed() == 0


@pytest.mark.parametrize("make", machines())
def test_a_failed_check_leaves_memory_as_it_was(make: Any) -> None:
    diamond = Diamond(make())
    (a, x), (b, z), (c, ok), (d, bad) = (diamond.memory(v) for v in (X, -X, GOOD, BAD))
    program = diamond.program
    program.run([x, z, bad])
    np.testing.assert_array_equal(diamond.read(z), -X)
    # The host learns of it when it asks, though a good run came after it; and once.
    program.run([x, z, ok])
    np.testing.assert_array_equal(diamond.read(z), 5 * X)
    assert program.failed() == 1
    assert program.failed() == 0
    del a, b, c, d


@pytest.mark.parametrize("make", machines())
def test_no_failed_check_is_forgotten(make: Any) -> None:
    diamond = Diamond(make())
    (a, x), (b, z), (c, ok), (d, bad) = (diamond.memory(v) for v in (X, X, GOOD, BAD))
    diamond.program.run([x, z, bad])
    for _ in range(3 * OPEN_RUNS):
        diamond.program.run([x, z, ok])
    assert diamond.program.failed() == 1
    del a, b, c, d


@pytest.mark.parametrize("make", machines())
def test_weaker_alignment_is_compiled_for_once(make: Any) -> None:
    diamond = Diamond(make())
    (a, x), (b, z), (c, ok) = (diamond.memory(v, 4) for v in (X, X, GOOD))
    (d, other) = diamond.memory(2 * X)
    for source in (x, other, x):
        diamond.program.run([source, z, ok])
    np.testing.assert_array_equal(diamond.read(z), 5 * X)
    assert diamond.program.failed() == 0
    del a, b, c, d


def test_what_is_aligned_is_compiled_once_and_what_is_not_once_more() -> None:
    standing = Standing()
    diamond = Diamond(standing.machine)
    aligned, shifted = diamond.memory(X), diamond.memory(X, 4)
    _, (_, z), (_, ok) = aligned, diamond.memory(X), diamond.memory(GOOD)
    assert len(standing.compiled) == 4
    for _, x in (aligned, shifted, aligned, shifted):
        diamond.program.run([x, z, ok])
    assert sorted(name for name, _ in standing.compiled[4:]) == ["times 2.0", "times 3.0"]


def test_a_graph_is_built_once_and_patched_where_addresses_changed() -> None:
    standing = Standing()
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, X, GOOD)]
    x, other, z, ok = (address for _, address in held)
    calls = standing.library.calls
    for source, patched in ((x, 0), (x, 0), (other, 2), (other, 0), (x, 2)):
        before = calls.count("cuGraphExecKernelNodeSetParams")
        diamond.program.run([source, z, ok])
        assert calls.count("cuGraphExecKernelNodeSetParams") - before == patched
    assert calls.count("cuGraphInstantiateWithFlags") == 1
    assert calls.count("cuGraphLaunch") == 5 and "cuLaunchKernelEx" not in calls
    standing.device.synchronize()
    assert len(standing.library.launches) == 5 * 4


def test_launches_wait_for_nothing() -> None:
    standing = Standing()
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, GOOD)]
    for _ in range(OPEN_RUNS):
        diamond.program.run([address for _, address in held])
    assert not standing.library.launches
    assert diamond.program.failed() == 0
    assert len(standing.library.launches) == OPEN_RUNS * 4


def test_every_argument_is_what_the_launch_says() -> None:
    standing = Standing()
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, GOOD)]
    addresses = [address for _, address in held]
    diamond.program.run(addresses)
    standing.device.synchronize()
    a, flag = diamond.scratch.address, diamond.program.flag(0)
    seen = {standing.launches[x.image].name: x for x in standing.library.launches}
    launch = standing.launches[seen["add"].image]
    assert seen["add"].values == (a, a + 512, addresses[1], flag, *launch.arguments, 0, 0)
    assert [len(raw) for raw in seen["add"].raw] == [
        8 if p.type[0] == "*" or p.type == "i64" else 4 for p in launch.parameters
    ] + [8, 8]
    assert seen["times 2.0"].values[:2] == (addresses[0], a)


def test_moved_memory_is_followed() -> None:
    standing = Standing()
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, GOOD)]
    addresses = [address for _, address in held]
    diamond.program.run(addresses)
    program, moved = diamond.program, standing.machine.allocate(1024)
    old, a = diamond.scratch.address, moved.address
    program.table[(program.table >= old) & (program.table < old + 1024)] += a - old
    program.move()
    standing.library.launches.clear()
    diamond.program.run(addresses)
    np.testing.assert_array_equal(diamond.read(addresses[1]), 5 * X)
    assert {x.values[1] for x in standing.library.launches if len(x.values) < 7} >= {a, a + 512}


def test_an_operand_without_memory_is_a_number() -> None:
    steps = Index("i", 0), Call("x", "add", ("i", "i"), I64), Store("x", 1)
    twice = work("twice", steps, (I64, I64), (3, 1))
    standing = Standing()
    for machine in (standing.machine, Emulator()):
        program = Program([twice], [0], machine, rooms=[[(0, 0), (0, 8 * SIZE)]])
        block = machine.allocate(8 * SIZE)
        program.table[program.pointer_slot(0, 0)] = 7
        program.connect([(program.pointer_slot(0, 1), 0, 0)], 1)
        program.build()
        program.run([block.address])
        got = np.empty(SIZE, np.int64)
        machine.read(block.address, got)
        np.testing.assert_array_equal(got, 2 * (7 + 3 * np.arange(SIZE)))


def test_nothing_to_do_is_not_launched() -> None:
    standing = Standing()
    program = Program([scaled(2.0, 0)], [0], standing.machine, rooms=[[(0, 0)] * 2])
    program.connect([(0, 0, 0), (1, 1, 0)], 2)
    program.build()
    block = standing.machine.allocate(16)
    program.run([block.address, block.address])
    standing.device.synchronize()
    assert not standing.library.launches


# Object code ----------------------------------------------------------------------------------------


def test_another_gpu_gets_code_of_its_own() -> None:
    for capability, architecture in (((8, 0), "sm_80"), ((9, 0), "sm_90")):
        standing = Standing(capability)
        Diamond(standing.machine)
        assert {a for _, a in standing.compiled} == {architecture}


def test_code_for_another_gpu_is_never_launched() -> None:
    standing = Standing(instead="sm_80")
    with pytest.raises(
        KernelError, match="compiled for sm_80, and stand-in 0 is a sm_90: it is not launched"
    ):
        Diamond(standing.machine)
    assert "cuModuleLoadData" not in standing.library.calls


def test_kernels_get_the_memory_they_need_for_themselves() -> None:
    standing = Standing(scratch=256, shared=100 << 10)
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, GOOD)]
    diamond.program.run([address for _, address in held])
    assert diamond.program.failed() == 0
    launches = standing.library.launches
    assert len({x.values[-2] for x in launches}) == 4 and {x.shared for x in launches} == {100 << 10}
    assert all(standing.library.inside(x.values[-2], 256) for x in launches)


def test_a_program_that_was_not_built_does_not_run() -> None:
    program = Program([added()], [0], Emulator(), rooms=[[(0, 400)] * 3])
    with pytest.raises(KernelError, match=r"build\(\) comes before run\(\)"):
        program.run([])


def test_memory_outside_an_operands_room_is_not_touched() -> None:
    program = Program([added()], [0], Emulator(), rooms=[[(0, 400), (0, 400), (0, 396)]])
    blocks = [program.machine.allocate(400) for _ in range(3)]
    for slot, block in enumerate(blocks):
        program.table[slot] = block.address
    program.build()
    with pytest.raises(KernelError, match="stores bytes"):
        program.run([])


def test_a_machine_without_graphs_says_what_fails() -> None:
    standing = Standing(graphs=False)
    diamond = Diamond(standing.machine)
    held = [diamond.memory(v) for v in (X, X, GOOD)]
    diamond.program.run([held[0][1], 4096 * 16, held[2][1]])
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        standing.device.synchronize()


def test_the_fastest_of_a_few_launches_is_found_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))
    for trials in (2 * TRIALS, 0):
        standing = Standing()
        standing.machine.tune = True
        standing.library.duration = lambda launched: 1.0 if launched.threads == 64 else 2.0
        monkeypatch.setattr(tune, "attempts", standing.compile)
        monkeypatch.setattr(tune, "inspect", lambda code: SimpleNamespace(spilled=0))
        program = Program([added(3000)], [0], standing.machine, rooms=[[(0, 12000)] * 3])
        blocks = [standing.machine.allocate(12000) for _ in range(3)]
        program.connect([(slot, slot, 0) for slot in range(3)], 3)
        program.build()
        assert len(standing.library.launches) == trials
        assert {launch.warps for launch in program.launches} == {2}
        standing.machine.write(blocks[0].address, np.ones(3000, np.float32))
        standing.machine.write(blocks[1].address, np.arange(3000, dtype=np.float32))
        program.run([block.address for block in blocks])
        got = np.empty(3000, np.float32)
        standing.machine.read(blocks[2].address, got)
        np.testing.assert_array_equal(got, 1 + np.arange(3000))


def test_a_new_device_needs_no_compiler() -> None:
    machine = Cuda(Device(Driver(StandIn())))
    assert machine.device.architecture == "sm_90"
