"""How the native runner hands out tasks: every one once, neighbours as one call, whoever runs them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from kernels import dtypes
from kernels.cpu import pool, runner
from kernels.cpu.native import MOST
from kernels.cpu.runner import LARGE, SMALL, Program
from kernels.spec import Load, LoopSpec, Operand, Store
from kernels.work import Work

COPY = LoopSpec("copy", 1, 0, "rows", (Operand(dtypes.float32, (1,)),) * 2, (Load("v1", 0), Store("v1", 1)))
Call = tuple[int, int, int, int]


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = pool.get_num_threads()
    pool.set_num_threads(request.param)
    yield request.param
    pool.set_num_threads(before)


def calls(tasks: list[Call], size: int) -> list[Call]:
    """The calls (table, start, stop, part) of a kernel that only notes them, for a launch of these tasks."""
    noted: list[Call] = []
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(lambda *given: noted.append(given[:4]))
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    program = Program([Work(COPY, (64,), ((1,), (1,)), (0, 0))], [0])
    rows = np.array([(address, *task) for task in tasks], np.int64)
    program.launches[0] = 0, len(tasks), size, 0
    program.head[2] = rows.ctypes.data
    program.parallel = True
    program.fit(pool.get_num_threads())
    assert runner.native_run()(program.address, pool.address()) == 0
    return noted


@pytest.mark.parametrize("size", [0, SMALL, LARGE])
@pytest.mark.parametrize("count", [1, 2, 7, 64, MOST + 5])
def test_neighbours_are_one_call(threads: int, count: int, size: int) -> None:
    noted = calls([(1, 10 * i, 10 * i + 10, 0) for i in range(count)], size)
    covered = sorted((start, stop) for _, start, stop, _ in noted)
    assert covered[0][0] == 0 and covered[-1][1] == 10 * count
    assert all(stop == start for (_, stop), (start, _) in pairwise(covered))
    if threads == 1 or size == 0:
        assert len(noted) == 1
    elif count >= 64:
        # A quarter of what is left at a time.
        assert len(noted) < count // 2


def test_what_may_not_be_one_call(threads: int) -> None:
    """Tasks of other kernels, of other parts, and those that do not follow one another."""
    tasks = [(1, 0, 5, 0), (2, 5, 9, 0), (2, 9, 12, 1), (2, 13, 20, 1), (2, 20, 30, 2), (1, 30, 31, 2)]
    assert sorted(calls(tasks, LARGE)) == sorted(tasks)
    assert sorted(calls(tasks, 0)) == sorted(tasks)
