"""Works that share machine code as one launch: results, flags, changed addresses, machine code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.gpu.compile import compiled
from kernels.gpu.emulator import Emulator
from kernels.gpu.grouping import MOST_MEMBERS, form, group
from kernels.gpu.inspection import inspect
from kernels.gpu.runner import Machine, Program
from kernels.spec import Call, Load, LoopSpec, Operand, Store
from kernels.work import Work
from tests.kernels.gpu.standing import Standing

Array = np.ndarray[Any, Any]
F32, BOOL = dtypes.float32, dtypes.bool_
MACHINES = [
    pytest.param(Emulator, id="interpreter"),
    pytest.param(lambda: Standing().machine, id="graph"),
    pytest.param(lambda: Standing(graphs=False).machine, id="launches"),
]


def moved(n: int) -> Work:
    """p0 = p0 + p1, in place."""
    steps = Load("x", 0), Load("g", 1), Call("y", "add", ("x", "g"), F32), Store("y", 0)
    spec = LoopSpec("moved", 1, 0, "rows", (Operand(F32, (1,)),) * 2, steps)
    return Work(spec, (n,), ((1,), (1,)), (0, 0))


def checked() -> Work:
    """p1 = whether p0 is below p0; never."""
    steps = Load("x", 0), Call("y", "ne", ("x", "x"), BOOL), Store("y", 1)
    spec = LoopSpec("checked", 1, 0, "rows", (Operand(F32, (0,)), Operand(BOOL, (0,))), steps)
    return Work(spec, (1,), ((0,), (0,)), (0, 0))


class Update:
    """Parameters and gradients of several sizes, and a number that must not be NaN."""

    def __init__(self, machine: Machine, sizes: tuple[int, ...]) -> None:
        self.machine, self.sizes = machine, sizes
        count = len(sizes)
        rooms = [[(0, 4), (0, 1)], *([(0, 4 * n)] * 2 for n in sizes)]
        works = [checked(), *map(moved, sizes)]
        self.program = program = Program(
            works, [0] + [1] * count, machine, [0], [False] + [True] * count, rooms
        )
        slot = program.pointer_slot
        program.table[slot(0, 1)] = program.flag(0)
        outside = [(0, 0), *((i + 1, k) for i in range(count) for k in (0, 1))]
        program.connect([(slot(i, k), n, 0) for n, (i, k) in enumerate(outside)], len(outside))
        program.build()

    def run(self, number: float, shift: int = 0) -> tuple[list[Array], list[Array]]:
        """Parameters after one run, and what they should be."""
        machine = self.machine
        keep, addresses, arrays = [], [], []
        given = [np.array([number], np.float32)]
        given += [np.arange(n, dtype=np.float32) * f for n in self.sizes for f in (1, 10)]
        for array in given:
            keep.append(machine.allocate(array.nbytes + shift))
            addresses.append(keep[-1].address + (shift if len(addresses) else 0))
            machine.write(addresses[-1], array)
        self.program.run(addresses)
        for address, n in zip(addresses[1::2], self.sizes, strict=True):
            arrays.append(np.empty(n, np.float32))
            machine.read(address, arrays[-1])
        factor = 1 if np.isnan(number) else 11
        return arrays, [np.arange(n, dtype=np.float32) * factor for n in self.sizes]


@pytest.mark.parametrize("make", MACHINES)
def test_members_do_what_they_did_alone(make: Callable[[], Machine]) -> None:
    # Less than a block, more, and whole ones.
    update = Update(make(), (32, 33, 2048, 1, 1040))
    assert [len(unit.works) for unit in update.program.arguments.units] == [1, 4, 1]
    for number in (1.0, np.nan, 2.0):
        for got, wanted in zip(*update.run(number), strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert update.program.failed() == int(np.isnan(number))


def test_members_of_weaker_alignment_are_grouped_anew() -> None:
    standing = Standing()
    update = Update(standing.machine, (32, 48, 64))
    for shift in (0, 4, 0):
        for got, wanted in zip(*update.run(0.0, shift), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert [name for name, _ in standing.compiled] == ["checked", "moved of 3", "moved of 3"]


def test_tables_are_written_when_addresses_change() -> None:
    standing = Standing()
    update = Update(standing.machine, (32, 48))
    held = [standing.machine.allocate(256) for _ in range(6)]
    first = [block.address for block in held[:5]]
    calls = standing.library.calls
    for addresses, copies in ((first, 1), (first, 0), ([*first[:4], held[5].address], 1)):
        before = calls.count("cuMemcpyHtoDAsync")
        update.program.run(addresses)
        assert calls.count("cuMemcpyHtoDAsync") - before == copies
    # A node's own arguments stay what they were: the table's address.
    assert "cuGraphExecKernelNodeSetParams" not in calls


def test_sizes_of_a_group_compile_nothing() -> None:
    standing = Standing()
    for sizes in ((32, 48, 64), (17, 80, 3000), (96, 144, 16, 32)):
        update = Update(standing.machine, sizes)
        for got, wanted in zip(*update.run(0.0), strict=True):
            np.testing.assert_array_equal(got, wanted)
    # The table's head has four places in each.
    assert [name for name, _ in standing.compiled] == ["checked", "moved of 3"]


def test_a_group_has_a_largest_size() -> None:
    program = Program([moved(16)] * (MOST_MEMBERS + 3), [0] * (MOST_MEMBERS + 3), Emulator())
    program.build()
    assert [len(unit.works) for unit in program.arguments.units] == [MOST_MEMBERS, 3]


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80"])
def test_accesses_of_full_blocks_are_wide_whatever_the_sizes(architecture: str) -> None:
    known = form(moved(1000))
    assert known is not None
    code = compiled(group(known, [1 << 20, 1001, 7], [16, 16], 1).launch, architecture)
    found = inspect(code)
    assert found.spilled == 0
    widths = {(a.kind, a.bits) for a in found.accesses if not a.uniform}
    assert {("load", 128), ("store", 128)} <= widths


def test_only_plain_loops_are_members() -> None:
    strided = replace(moved(9), strides=((2,), (1,)))
    spec = LoopSpec("strided", 1, 0, "rows", (Operand(F32, ("s",)), Operand(F32, (1,))), moved(9).spec.steps)
    assert form(replace(strided, spec=spec)) is None
    assert form(moved(0)) is None
    assert form(replace(moved(9), parts=2)) is None
