"""Running totals as Triton kernels: in one tile, in stretches with a carry, across and along the lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu.render import launch_of
from kernels.gpu.tiles import LONGEST_ROW
from kernels.spec import COMBINE
from tests.kernels.gpu.interpreted import check, run_interpreted, run_reference, work_of
from tests.kernels.specs import scan_arrays, scan_spec

pytest.importorskip("triton")

FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTEGERS = (dtypes.int64, dtypes.int32, dtypes.uint8, dtypes.bool_)


def held(dtype: DType, vector: str, rows: int, size: int, combine: str, factor: bool = False) -> None:
    """A kernel gives what the reference does, floats within the rounding of sums in another order."""
    spec = scan_spec(combine, dtype, vector, factor)
    arrays, strides = scan_arrays(dtype, rows, size)
    if dtype.is_floating_point:
        arrays[0] = np.where(arrays[0] == arrays[0], arrays[0], 0)
    if not dtype.is_floating_point or combine in ("max", "min"):
        check(spec, (rows, size), arrays, strides)
        return
    work = work_of(spec, (rows, size), strides)
    got = run_interpreted(work, arrays)
    wanted = run_reference(work, arrays)
    epsilon = {4: 1e-6, 8: 1e-14, 2: 1e-2}[dtype.itemsize]
    for a, b in zip(got, wanted, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(a, b, epsilon, epsilon * max(np.abs(b).max(), 1e-3) * 10)


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=lambda d: d.name)
def test_rows_in_a_tile(dtype: DType, vector: str) -> None:
    for combine in ("max",) if dtype is dtypes.bool_ else COMBINE:
        for rows, size in ((3, 37), (5, 1), (70, 8)):
            held(dtype, vector, rows, size, combine)


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int64, dtypes.bool_], ids=lambda d: d.name)
def test_rows_in_stretches(dtype: DType, vector: str) -> None:
    for combine in ("max",) if dtype is dtypes.bool_ else ("add", "min"):
        held(dtype, vector, 2, LONGEST_ROW + 37, combine)


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("size", [37, LONGEST_ROW + 37])
def test_what_came_before_times_a_factor(vector: str, size: int) -> None:
    held(dtypes.float32, vector, 3, size, "add", factor=True)


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_sizes_that_vary(vector: str) -> None:
    spec = scan_spec("add", dtypes.int64, vector)
    sources = set()
    for rows, size in ((3, 37), (9, 40), (2, 5)):
        arrays, strides = scan_arrays(dtypes.int64, rows, size)
        work = replace(work_of(spec, (rows, size), strides), varying=frozenset((0, 1)))
        for got, wanted in zip(run_interpreted(work, arrays), run_reference(work, arrays), strict=True):
            np.testing.assert_array_equal(got, wanted)
        sources.add(launch_of(work).source)
    assert len(sources) == 1
