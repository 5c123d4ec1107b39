"""Running totals as machine code against the reference and against plain Python: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dtypes
from kernels.dtypes import DTYPES, DType
from kernels.errors import SpecError
from kernels.files import placed
from kernels.spec import COMBINE, Call, Index, Literal, Load, LoopSpec, Operand, Reduce, Scan, Store
from kernels.text import parse
from kernels.work import Work
from tests.kernels.cpu.native import EXTENTS, check, run_native
from tests.kernels.cpu.test_plain import check as check_plain
from tests.kernels.specs import scan_arrays, scan_spec


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=lambda d: d.name)
def test_running_totals(dtype: DType, vector: str) -> None:
    for combine in ("max",) if dtype is dtypes.bool_ else COMBINE:
        spec = scan_spec(combine, dtype, vector)
        for size in EXTENTS:
            arrays, strides = scan_arrays(dtype, 3, size)
            check(spec, (3, size), arrays, strides)


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
def test_what_came_before_times_a_factor(dtype: DType, vector: str) -> None:
    spec = scan_spec("add", dtype, vector, factor=True)
    for rows, size in [(3, n) for n in EXTENTS] + [(n, 5) for n in EXTENTS]:
        check(spec, (rows, size), *scan_arrays(dtype, rows, size))


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_plain_python_has_the_same_bits(vector: str) -> None:
    for spec in (
        *(scan_spec(combine, dtypes.float32, vector) for combine in COMBINE),
        scan_spec("add", dtypes.int64, vector),
        scan_spec("add", dtypes.float32, vector, factor=True),
    ):
        dtype = spec.operands[0].dtype
        arrays, strides = scan_arrays(dtype, 5, 37)
        patterns = [(37, 1), (1, 5), (37, 1), (37, 1)]
        assert strides == patterns
        work = Work(spec, (5, 37), tuple(strides), (0,) * 4)
        check_plain(placed(work), arrays)


def test_float32_sums_have_the_order_of_numpy() -> None:
    f32 = dtypes.float32
    steps = (Load("x", 0), Scan("t", "x", "add", f32), Store("t", 1))
    spec = LoopSpec("sums", 1, 1, "inner", (Operand(f32, ("s", 1)), Operand(f32, ("s", 1))), steps)
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    x[2, :3] = -0.0
    (_, got) = run_native(spec, x.shape, [x.ravel(), 0 * x.ravel()], [(1000, 1), (1000, 1)])
    wanted = np.cumsum(x, 1)
    assert np.array_equal(got.reshape(x.shape).view(np.int32), wanted.view(np.int32))


def test_sums_over_rows_take_running_totals() -> None:
    f64 = dtypes.float64
    operands = (Operand(f64, ("s", 1)), Operand(f64, (0, 1)))
    steps = (
        *(Load("x", 0), Scan("t", "x", "add", f64), Scan("u", "t", "max", f64)),
        *(Call("v", "mul", ("u", "u"), f64), Reduce("c", "v", "add", f64, outer=True, operand=1)),
    )
    spec = LoopSpec("columns", 1, 1, "inner", operands, steps)
    x = np.random.default_rng(0).standard_normal((6, 37))
    (_, got) = run_native(spec, x.shape, [x.ravel(), np.zeros(37)], [(37, 1), (0, 1)], (0, 37), parts=1)
    running = np.maximum.accumulate(np.cumsum(x, 1), 1)
    np.testing.assert_allclose(got, (running**2).sum(0), rtol=1e-14)


def test_text_and_refusal() -> None:
    for factor in (False, True):
        spec = scan_spec("add", dtypes.float32, "inner", factor)
        assert parse(str(spec)) == spec
    steps = (Load("x", 0), Scan("t", "x", "add", dtypes.float32), Store("t", 0))
    with pytest.raises(SpecError, match="one inner axis"):
        LoopSpec("two", 0, 2, "inner", (Operand(dtypes.float32, ("s", 1)),), steps)


def test_one_element_of_a_row_of_running_totals_takes_the_walk() -> None:
    f32, int64 = dtypes.float32, dtypes.int64
    operands = (Operand(f32, ("s", 1)), Operand(int64, (0, 1)), Operand(int64, (1, 0)), Operand(f32, (1, 0)))
    steps = (
        *(Load("x", 0), Index("i", 1), Load("at", 2), Literal("zero", 0.0, f32)),
        *(Scan("t", "x", "add", f32), Call("here", "eq", ("i", "at"), dtypes.bool_)),
        *(Call("v", "where", ("here", "t", "zero"), f32), Reduce("y", "v", "add", f32), Store("y", 3)),
    )
    spec = LoopSpec("one", 1, 1, "inner", operands, steps)
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    at = np.array([0, 7, 39])
    arrays = [x.ravel(), np.zeros(1, np.int64), at, np.zeros(3, np.float32)]
    got = run_native(spec, x.shape, arrays, [(40, 1), (0, 1), (1, 0), (1, 0)])
    np.testing.assert_array_equal(got[3], np.cumsum(x, 1)[np.arange(3), at])
