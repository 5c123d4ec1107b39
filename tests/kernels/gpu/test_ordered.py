"""Floats added at computed positions: in the loop's order, so that they have the bits of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import ordered
from kernels.gpu.axes import collapsed
from kernels.gpu.interpret import interpreting
from kernels.gpu.render import launch_of
from kernels.spec import Call, Index, Load, LoopSpec, Operand, Store
from kernels.work import Work
from tests.kernels.gpu.interpreted import check, work_of

F32, I64, S = dtypes.float32, dtypes.int64, "s"
ADD = (Load("x", 0), Load("i", 1), Store("x", 2, "i"))


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


def numbers(dtype: DType, size: int) -> np.ndarray:
    """Numbers of several magnitudes: another order of their sum has other bits."""
    random = np.random.default_rng(size)
    wide = random.standard_normal(size) * 10.0 ** random.integers(-3, 3, size)
    return (wide if dtype.is_floating_point else random.integers(0, 99, size)).astype(dtype.numpy)


def cut_of(work: Work) -> ordered.Cut:
    return ordered.cut(collapsed(work))


@pytest.mark.parametrize(
    "dtype", [F32, dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int8], ids=str
)
def test_rows_are_added_in_order(dtype: DType) -> None:
    # The gradient of an embedding; most rows go to the same place.
    operands = (Operand(dtype, (S, 1)), Operand(I64, (1, 0)), Operand(dtype, (0, 1)))
    spec = LoopSpec("embedding", 2, 0, "rows", operands, ADD)
    index = np.where(np.arange(300) % 3 == 0, np.arange(300) % 7, 5)
    strides, jumps = [(40, 1), (1, 0), (0, 1)], (0, 0, 40)
    check(spec, (300, 40), [numbers(dtype, 12000), index, numbers(dtype, 280)], strides, jumps)
    assert cut_of(work_of(spec, (300, 40), strides, jumps)).owners > 1


def test_single_elements_are_added_in_order() -> None:
    spec = LoopSpec("flat", 1, 0, "rows", (Operand(F32, (1,)), Operand(I64, (1,)), Operand(F32, (0,))), ADD)
    for n in (1, 5, 300):
        index = np.random.default_rng(n).integers(0, 4, n)
        check(spec, (n,), [numbers(F32, n), index, numbers(F32, 4)], [(1,), (1,), (0,)], (0, 0, 1))


@pytest.mark.parametrize(("rows", "columns"), [(5, 70), (40, 7), (33, 2050)])
def test_every_element_with_an_index_of_its_own(rows: int, columns: int) -> None:
    # scatter_add along axis 0: few rows or many columns are walked by lanes, others are searched.
    operands = (Operand(F32, (S, 1)), Operand(I64, (S, 1)), Operand(F32, (0, 1)))
    spec = LoopSpec("scatter", 2, 0, "rows", operands, ADD)
    index = np.random.default_rng(rows).integers(0, 3, rows * columns)
    strides, jumps = [(columns, 1), (columns, 1), (0, 1)], (0, 0, columns)
    arrays = [numbers(F32, rows * columns), index, numbers(F32, 3 * columns)]
    check(spec, (rows, columns), arrays, strides, jumps)
    searched = cut_of(work_of(spec, (rows, columns), strides, jumps)).owners > 0
    assert searched == (rows == 40)


def test_an_axis_in_the_middle() -> None:
    # take_add along axis 1 of [2, 6, 9], by an index of two axes: 12 positions, with the target's around.
    operands = (Operand(F32, (S, S, S, 1)), Operand(I64, (0, S, S, 0)), Operand(F32, (S, 0, 0, 1)))
    spec = LoopSpec("middle", 4, 0, "rows", operands, ADD)
    index = np.random.default_rng(0).integers(0, 6, 12)
    arrays = [numbers(F32, 2 * 12 * 9), index, numbers(F32, 2 * 6 * 9)]
    # The index lies transposed, so that its axes stay two.
    strides = [(108, 36, 9, 1), (0, 1, 3, 0), (54, 0, 0, 1)]
    check(spec, (2, 3, 4, 9), arrays, strides, (0, 0, 9))


def test_positions_that_are_computed() -> None:
    # Positions of 32 bits, and a value of several words.
    operands = (Operand(F32, (1,)), Operand(dtypes.int32, (1,)), Operand(F32, (0,)), Operand(I64, (1,)))
    steps = (
        *(Load("x", 0), Load("n", 1), Call("i", "cast", ("n",), I64), Index("c", 3)),
        *(Call("y", "cast", ("c",), F32), Call("z", "mul", ("x", "y"), F32), Store("z", 2, "i")),
    )
    spec = LoopSpec("computed", 1, 0, "rows", operands, steps)
    index = np.random.default_rng(0).integers(0, 5, 90).astype(np.int32)
    arrays = [numbers(F32, 90), index, numbers(F32, 5), np.array([3])]
    check(spec, (90,), arrays, [(1,), (1,), (0,), (1,)], (0, 0, 1, 0))


def test_integers_are_added_at_once() -> None:
    spec = LoopSpec("flat", 1, 0, "rows", (Operand(I64, (1,)), Operand(I64, (1,)), Operand(I64, (0,))), ADD)
    work = work_of(spec, (90,), [(1,), (1,), (0,)], (0, 0, 1))
    assert not ordered.serves(work) and "tl.atomic_add" in launch_of(work).source
    floats = tuple(replace(o, dtype=F32) if i != 1 else o for i, o in enumerate(spec.operands))
    assert "tl.atomic_add" not in launch_of(replace(work, spec=replace(spec, operands=floats))).source


def test_many_programs_share_the_indices() -> None:
    operands = (Operand(F32, (S, 1)), Operand(I64, (1, 0)), Operand(F32, (0, 1)))
    spec = LoopSpec("embedding", 2, 0, "rows", operands, ADD)
    work = work_of(spec, (8192, 768), [(768, 1), (1, 0), (0, 1)], (0, 0, 768))
    assert launch_of(work).grid == (6 * 512, 1, 1)
    # Beyond 2**30 elements there are 64 bits for positions.
    large = work_of(spec, (2**21, 768), [(768, 1), (1, 0), (0, 1)], (0, 0, 768))
    assert "program = tl.program_id(0).to(tl.int64)" in launch_of(large).source
