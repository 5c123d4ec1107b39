"""Loop nests as Triton kernels against the reference, in the interpreter: every class of loop, every dtype.

Sizes are such that there are several programs and the last one's tile is not full. Words are in
test_gpu_vocabulary.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.dtypes import DTYPES, DType
from kernels.errors import SpecError
from kernels.gpu import interpret, tiles
from kernels.gpu.checked import HazardError, Memory, OutOfBoundsError
from kernels.gpu.interpret import interpreting
from kernels.gpu.render import launch_of
from kernels.spec import Call, Index, Literal, Load, LoopSpec, Operand, Reduce, Step, Store
from tests.kernels.cpu.native import Array, assert_near, plain
from tests.kernels.cpu.test_loop import (
    by_name,
    columns_spec,
    combines,
    pointwise,
    random_spec,
    rows_spec,
    softmax_spec,
)
from tests.kernels.gpu.interpreted import check, run_interpreted, run_reference, work_of

S = "s"
ALL = tuple(DTYPES.values())
NUMERIC = tuple(d for d in ALL if d is not dtypes.bool_)
F32, I64 = dtypes.float32, dtypes.int64
# Two lengths of rows: kept in registers, and walked.
SHORT_ROW, LONG_ROW = 70, tiles.LONGEST_ROW + 100


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


# Pointwise loops over several axes ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_broadcast_and_transposed_operands(dtype: DType) -> None:
    # Contiguous, transposed, broadcast along each axis, one number; the output is transposed as well.
    spec = pointwise(dtype, 3, [(S, S, 1), (1, S, S), (0, S, 0), (S, 0, 1), (0, 0, 0), (1, S, S)])
    for a, b, n in ((70, 2, 35), (1, 3, 300), (2, 1, 5)):
        sizes = [a * b * n, a * b * n, b, a * n, 1, a * b * n]
        strides = [(b * n, n, 1), (1, a * n, a), (0, 1, 0), (n, 0, 1), (0, 0, 0), (1, a * n, a)]
        check(spec, (a, b, n), [plain(dtype, size, i) for i, size in enumerate(sizes)], strides)


def test_contiguous_operands_are_walked_as_one_axis() -> None:
    spec = pointwise(F32, 3, [(S, S, 1), (S, S, 1), (S, S, 1)])
    strides = [(35, 7, 1)] * 3
    source = launch_of(work_of(spec, (9, 5, 7), strides)).source
    assert "p2: float32[1]" in source and "//" not in source
    check(spec, (9, 5, 7), [plain(F32, 315, i) for i in range(3)], strides)


@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 2048])
def test_every_edge_of_a_tile(n: int) -> None:
    spec = pointwise(F32, 1, [(1,), (S,), (1,)])
    check(spec, (n,), [plain(F32, n), plain(F32, 2 * n, 1), np.zeros(n + 3, np.float32)], [(1,), (2,), (1,)])


def test_negative_strides_gaps_and_offsets() -> None:
    # A flipped axis starts at its end; a step of 2 leaves gaps, which must stay as they were.
    spec = pointwise(F32, 2, [(S, S), (S, S)])
    x, y = plain(F32, 3 * 400), plain(F32, 7 * 400, 1)
    got = run_interpreted(work_of(spec, (3, 400), [(400, -1), (800, 2)]), [x, y], [399, 3])
    wanted = y.copy()
    wanted[3:2403].reshape(3, 400, 2)[..., 0] = x.reshape(3, 400)[:, ::-1]
    np.testing.assert_array_equal(got[1], wanted)


def test_many_axes_are_the_programs() -> None:
    spec = pointwise(F32, 4, [(S, S, S, 1), (S, 0, S, 0), (1, S, S, S)])
    strides = [(60, 20, 5, 1), (4, 0, 1, 0), (1, 2 * 4 * 5, 2 * 5, 2)]
    check(spec, (2, 3, 4, 5), [plain(F32, 120), plain(F32, 8, 1), np.zeros(120, np.float32)], strides)


def test_one_operand_read_and_written() -> None:
    steps = (Load("x", 0), Load("y", 1), Call("z", "sub", ("x", "y"), F32), Store("z", 0))
    spec = LoopSpec("update", 2, 0, "rows", (Operand(F32, (S, 1)), Operand(F32, (S, 0))), steps)
    check(spec, (4, 300), [plain(F32, 1200), plain(F32, 4, 1)], [(300, 1), (1, 0)])


def test_what_all_rows_share_is_stored_once() -> None:
    # A number and a value of each row, beside elements; that two programs store one element would be noticed.
    steps = (
        *(Load("a", 0), Call("e", "neg", ("a",), F32), Store("e", 1)),
        *(Load("r", 2), Call("s", "add", ("r", "e"), F32), Store("s", 3)),
        *(Load("x", 4), Call("y", "mul", ("x", "s"), F32), Store("y", 5)),
    )
    patterns = [(0, 0), (0, 0), (1, 0), (1, 0), (S, 1), (S, 1)]
    spec = LoopSpec("shared", 2, 0, "rows", tuple(Operand(F32, p) for p in patterns), steps)
    for rows, n in ((3, 2000), (100, 9)):
        sizes = [1, 1, rows, rows, rows * n, rows * n]
        strides = [(0, 0), (0, 0), (1, 0), (1, 0), (n, 1), (n, 1)]
        check(spec, (rows, n), [plain(F32, size, i) for i, size in enumerate(sizes)], strides)


def test_no_axes_at_all() -> None:
    steps = (Load("x", 0), Call("y", "exp", ("x",), F32), Store("y", 1))
    spec = LoopSpec("number", 0, 0, "rows", (Operand(F32, ()), Operand(F32, ())), steps)
    check(spec, (), [plain(F32, 1), plain(F32, 1)], [(), ()])


# Reductions over the inner axes -------------------------------------------------------------------


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_row_reductions(dtype: DType, vector: str) -> None:
    inner = 2 if dtype is F32 else 1
    spec = rows_spec(dtype, vector, inner)
    # Rows of which several are in a tile, one row in a tile, and rows longer than a tile; nothing to reduce.
    for rows, size in ((300, 5), (3, SHORT_ROW), (2, 5000), (70, 90), (3, 0)):
        extents = (rows, 2, size) if inner == 2 else (rows, size)
        count = size * (2 if inner == 2 else 1)
        if vector == "inner":
            strides = (count, size, 1) if inner == 2 else (count, 1)
        else:
            strides = (1, size * rows, rows) if inner == 2 else (1, rows)
        x = plain(dtype, rows * count)
        if dtype.is_floating_point:
            # Near 1, so that the rounding of a product depends little on its order.
            x = np.exp(x.astype(np.float64) / 500).astype(dtype.numpy)
        outputs = [np.zeros(rows, dtype.numpy) for _ in combines(dtype)]
        work = work_of(spec, extents, [strides, *[(1, *(0,) * inner)] * len(outputs)])
        got, wanted = run_interpreted(work, [x, *outputs]), run_reference(work, [x, *outputs])
        for name, a, b in zip(combines(dtype), got[1:], wanted[1:], strict=True):
            rounded = dtype.is_floating_point and name in ("add", "mul")
            assert_near(a, b, 250 if rounded else 0, f"{name} of {dtype.name} along {vector} over {extents}")


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", [F32, dtypes.float64], ids=by_name)
def test_extrema_of_special_values(dtype: DType, vector: str) -> None:
    spec = rows_spec(dtype, vector, 1)
    nan, inf = np.nan, np.inf
    rows = np.array([[1, nan, 2], [inf, 1, 2], [-inf, -inf, -inf], [nan, nan, nan], [-0.0, -0.0, -0.0]] * 100)
    memory = (rows if vector == "inner" else rows.T).astype(dtype.numpy)
    strides = [(3, 1) if vector == "inner" else (1, 500), *[(1, 0)] * 4]
    check(
        spec,
        rows.shape,
        [memory.reshape(-1).copy(), *(np.zeros(500, dtype.numpy) for _ in range(4))],
        strides,
    )


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", [F32, dtypes.float64, dtypes.bfloat16], ids=by_name)
def test_several_phases_over_a_row(dtype: DType, vector: str) -> None:
    spec = softmax_spec(dtype, vector)
    for rows, size in ((300, 7), (3, SHORT_ROW), (2, LONG_ROW), (65, 100)):
        strides = [(size, 1)] * 2 if vector == "inner" else [(1, rows)] * 2
        x = plain(dtype, rows * size) * np.asarray(4, dtype.numpy)
        arrays = [x, np.zeros_like(x), np.zeros(rows, dtype.numpy)]
        # A sum of 16484 exponentials is off by some ulp.
        check(spec, (rows, size), arrays, [*strides, (1, 0)], ulps=40)


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_a_sum_of_exponentials_beside_its_maximum(vector: str) -> None:
    # One loop over a long row finds both; -inf may come first, last, or alone, and so may NaN and inf.
    inf, n = np.inf, LONG_ROW
    x = plain(F32, 6 * n).reshape(6, n)
    x[0, : n // 2], x[1, n // 2 :], x[2], x[3, n // 2], x[4, 1], x[5, n - 1] = (
        -inf,
        -inf,
        -inf,
        inf,
        np.nan,
        200,
    )
    spec, extents = softmax_spec(F32, vector), (6, n)
    strides = [(n, 1)] * 2 if vector == "inner" else [(1, 6)] * 2
    memory = (x if vector == "inner" else x.T).reshape(-1).copy()
    assert launch_of(work_of(spec, extents, [*strides, (1, 0)])).source.count("for start in") == 2
    check(
        spec, extents, [memory, np.zeros_like(memory), np.zeros(6, np.float32)], [*strides, (1, 0)], ulps=60
    )


def test_a_row_replaced_by_what_depends_on_all_of_it() -> None:
    # The store waits for the last loop that reads the operand.
    steps = (
        *(Load("x", 0), Call("one", "mul", ("x", "x"), F32), Store("one", 0)),
        *(Reduce("t", "x", "max", F32), Call("y", "sub", ("x", "t"), F32), Store("y", 1)),
    )
    spec = LoopSpec("wait", 1, 1, "inner", (Operand(F32, (S, 1)), Operand(F32, (S, 1))), steps)
    for n in (1, SHORT_ROW, LONG_ROW):
        check(spec, (3, n), [plain(F32, 3 * n), np.zeros(3 * n, np.float32)], [(n, 1), (n, 1)])


def test_rows_that_registers_do_not_hold_are_walked() -> None:
    # Of two operands, and of twenty, each less the maximum of them all.
    for count, walked in ((2, False), (20, True)):
        names = [f"x{i}" for i in range(count)]
        steps: list[Step] = [Load(name, i) for i, name in enumerate(names)]
        for i, name in enumerate(names[1:], 1):
            steps.append(Call(f"m{i}", "maximum", (f"m{i - 1}" if i > 1 else "x0", name), F32))
        steps.append(Reduce("most", f"m{count - 1}", "max", F32))
        for i, name in enumerate(names):
            steps += [Call(f"y{i}", "sub", (name, "most"), F32), Store(f"y{i}", i)]
        spec = LoopSpec("wide", 1, 1, "inner", (Operand(F32, (S, 1)),) * count, tuple(steps))
        strides = [(5000, 1)] * count
        assert ("for start in" in launch_of(work_of(spec, (2, 5000), strides)).source) == walked
        check(spec, (2, 5000), [plain(F32, 10000, i) for i in range(count)], strides)


def test_rows_of_several_axes() -> None:
    spec = LoopSpec(
        "several", 3, 1, "inner",
        (Operand(F32, (S, S, S, 1)), Operand(F32, (1, S, S, 0))),
        (Load("x", 0), Reduce("t", "x", "max", F32), Store("t", 1)),
    )  # fmt: skip
    for a, b, c, n in ((3, 2, 5, 40), (2, 3, 300, 6)):
        strides = [(b * c * n, c * n, n, 1), (1, a * c, a, 0)]
        check(spec, (a, b, c, n), [plain(F32, a * b * c * n), np.zeros(a * b * c, np.float32)], strides)


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_a_value_that_is_the_same_everywhere_is_reduced(vector: str) -> None:
    # A number and one of each row: summed as often as there are elements, be the tile full or not.
    f64 = dtypes.float64
    operands = (Operand(f64, (1, 0)), Operand(f64, (1, 0)), Operand(f64, (1, 0)), Operand(f64, (0, 0)))
    steps = (
        *(Load("x", 0), Literal("two", 2.0, f64)),
        *(Reduce("a", "two", "add", f64), Store("a", 1)),
        *(Reduce("b", "x", "add", f64), Store("b", 2)),
        Reduce("c", "two", "add", f64, outer=True, operand=3),
    )
    for rows, size in ((7, 32), (300, 5), (2, 20000)):
        arrays = [np.full(rows, 1.5), np.zeros(rows), np.zeros(rows), np.zeros(2)]
        strides = [(1, 0), (1, 0), (1, 0), (0, 0)]
        whole = LoopSpec("everywhere", 1, 1, vector, operands, steps)
        alone = LoopSpec("everywhere", 1, 1, vector, operands[:3], steps[:-1])
        parts = run_interpreted(work_of(whole, (rows, size), strides, (0, 0, 0, 1), parts=2), arrays)
        assert parts[3].sum() == 2.0 * rows
        for got in (parts, run_interpreted(work_of(alone, (rows, size), strides[:3]), arrays[:3])):
            np.testing.assert_array_equal(got[1], np.full(rows, 2.0 * size))
            np.testing.assert_array_equal(got[2], np.full(rows, 1.5 * size))


# Reductions over the rows -------------------------------------------------------------------------


def combined(name: str, parts: Array) -> Array:
    """Parts as one, exactly."""
    combine: Any = {"add": np.add, "max": np.maximum, "min": np.minimum}[name]
    return combine.reduce(parts.astype(np.float64), 0)


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_column_reductions(dtype: DType) -> None:
    # Beside each row's sum, so that a program does whole rows: in registers, or in memory if they are long.
    name = "max" if dtype is dtypes.bool_ else "add" if dtype.is_floating_point else "min"
    spec = columns_spec(dtype, name)
    for rows, size, parts in ((50, 60, 3), (7, 300, 2), (3, LONG_ROW, 2), (2, 9, 5)):
        x = plain(dtype, rows * size)
        outputs = [np.zeros(n, dtype.numpy) for n in (parts * size, rows, parts)]
        work = work_of(spec, (rows, size), [(size, 1), (0, 1), (1, 0), (0, 0)], (0, size, 0, 1), parts)
        got = run_interpreted(work, [x, *outputs])
        table = x.reshape(rows, size)
        # Sums of rows are rounded before they are summed; totals in memory are rounded at each row.
        tolerance = {2: 3e-2, 4: 1e-5, 8: 1e-12}.get(dtype.itemsize, 0) if dtype.is_floating_point else 0
        for a, wanted in (
            (combined(name, got[1].reshape(parts, size)), combined(name, table)),
            (got[2].astype(np.float64), combined(name, table.T)),
            (combined(name, got[3].reshape(parts, 1)), combined(name, table.reshape(-1, 1))),
        ):
            np.testing.assert_allclose(a, wanted, tolerance, tolerance * np.sqrt(x.size))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("dtype", [F32, dtypes.bfloat16, I64], ids=by_name)
def test_sums_down_the_columns_alone(dtype: DType, rows: int) -> None:
    # Programs share the columns, and each element is stored as well; rows of one axis, and of two.
    inner = Operand(dtype, (0,) * rows + (1,))
    each = Operand(dtype, (S,) * rows + (1,))
    steps = (Load("x", 0), Call("y", "add", ("x", "x"), dtype.arithmetic), Store("y", 1),
             Reduce("t", "y", "add", dtype, outer=True, operand=2))  # fmt: skip
    spec = LoopSpec("columns", rows, 1, "inner", (each, each, inner), steps)
    for n, size, parts in ((40, 150, 3), (6, 70, 4)):
        x = np.random.default_rng(n).integers(-4, 5, n * size * rows).astype(dtype.numpy)
        # The second of two row axes is not next to the first.
        extents = (n, size) if rows == 1 else (n, 2, size)
        strides = (size, 1) if rows == 1 else (size, n * size, 1)
        arrays = [x, np.zeros_like(x), np.zeros(parts * size, dtype.numpy)]
        columns = (0,) * rows + (1,)
        got = run_interpreted(
            work_of(spec, extents, [strides, strides, columns], (0, 0, size), parts), arrays
        )
        np.testing.assert_array_equal(got[1].astype(np.float64), 2 * x.astype(np.float64))
        np.testing.assert_array_equal(
            combined("add", got[2].reshape(parts, size)), 2 * combined("add", x.reshape(-1, size))
        )


@pytest.mark.parametrize("dtype", [F32, dtypes.bfloat16, I64, dtypes.bool_], ids=by_name)
def test_a_whole_tensor_reduced(dtype: DType) -> None:
    name = "max" if dtype is dtypes.bool_ else "add"
    steps = (Load("x", 0), Reduce("t", "x", name, dtype, outer=True, operand=1))
    spec = LoopSpec("whole", 1, 0, "rows", (Operand(dtype, (1,)), Operand(dtype, (0,))), steps)
    for size, parts in ((0, 1), (1, 2), (5000, 3), (9000, 2)):
        x = np.zeros(size, dtype.numpy)
        x[::100] = 1
        got = run_interpreted(
            work_of(spec, (size,), [(1,), (0,)], (0, 1), parts), [x, np.zeros(parts, dtype.numpy)]
        )
        assert combined(name, got[1]) == (min(-(-size // 100), 1) if name == "max" else -(-size // 100))


def test_float32_sums_stay_accurate() -> None:
    x = np.random.default_rng(0).random(1_000_000, np.float32)
    steps = (Load("x", 0), Reduce("t", "x", "add", F32), Store("t", 1))
    spec = LoopSpec("sum", 1, 1, "inner", (Operand(F32, (S, 1)), Operand(F32, (1, 0))), steps)
    got = run_interpreted(work_of(spec, (1, x.size), [(x.size, 1), (1, 0)]), [x, np.zeros(1, np.float32)])
    np.testing.assert_allclose(got[1][0], x.astype(np.float64).sum(), rtol=1e-6)


# Indexed loads and stores -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_loads_at_computed_positions(dtype: DType) -> None:
    # take(x, index, axis 0): rows of a table; the index is one per row.
    operands = (Operand(I64, (1, 0)), Operand(dtype, (0, 1)), Operand(dtype, (S, 1)))
    steps = (Load("i", 0), Load("x", 1, "i"), Store("x", 2))
    spec = LoopSpec("take", 2, 0, "rows", operands, steps)
    for n in (7, 300):
        arrays = [np.array([5, 0, 0, 3] * 9), plain(dtype, 6 * n), np.zeros(36 * n, dtype.numpy)]
        check(spec, (36, n), arrays, [(1, 0), (0, 1), (n, 1)], (0, n, 0))


def test_an_index_per_element_from_a_strided_operand() -> None:
    # gather along axis 0 of a transposed table, with int32 positions converted first.
    operands = (Operand(dtypes.int32, (S, 1)), Operand(F32, (0, S)), Operand(F32, (S, 1)))
    steps = (Load("i", 0), Call("p", "cast", ("i",), I64), Load("x", 1, "p"), Store("x", 2))
    spec = LoopSpec("gather", 2, 0, "rows", operands, steps)
    index = np.random.default_rng(0).integers(0, 6, 900).astype(np.int32)
    arrays = [index, plain(F32, 1800), np.zeros(900, np.float32)]
    check(spec, (3, 300), arrays, [(300, 1), (0, 6), (300, 1)], (0, 1, 0))


def test_one_position_for_a_row_or_for_all() -> None:
    patterns = [(I64, (0, 0)), (F32, (0, 0)), (I64, (1, 0)), (F32, (0, 0)), (F32, (S, 1)), (F32, (S, 1))]
    steps = (
        *(Load("one", 0), Load("a", 1, "one"), Load("each", 2), Load("b", 3, "each"), Load("x", 4)),
        *(Reduce("t", "x", "max", F32), Call("c", "add", ("a", "b"), F32), Call("d", "sub", ("c", "t"), F32)),
        *(Call("e", "add", ("d", "x"), F32), Store("e", 5)),
    )
    spec = LoopSpec("uniform", 1, 1, "inner", tuple(Operand(d, p) for d, p in patterns), steps)
    for rows, n in ((3, SHORT_ROW), (300, 9), (2, LONG_ROW)):
        each = np.random.default_rng(rows).integers(0, 9, rows)
        arrays = [
            np.array([2]),
            plain(F32, 9),
            each,
            plain(F32, 9),
            plain(F32, rows * n),
            np.zeros(rows * n, "f4"),
        ]
        strides = [(0, 0), (0, 0), (1, 0), (0, 0), (n, 1), (n, 1)]
        check(spec, (rows, n), arrays, strides, (0, 3, 0, 1, 0, 0))


@pytest.mark.parametrize("dtype", NUMERIC, ids=by_name)
def test_adding_at_computed_positions(dtype: DType) -> None:
    operands = (Operand(dtype, (1,)), Operand(I64, (1,)), Operand(dtype, (0,)))
    steps = (Load("x", 0), Load("i", 1), Store("x", 2, "i"))
    spec = LoopSpec("scatter", 1, 0, "rows", operands, steps)
    # What has less than 4 bytes is added one after the other, which the interpreter takes its time for.
    n = 600 if dtype.itemsize >= 4 else 40
    index = np.random.default_rng(n).integers(0, 4, n)
    x = np.random.default_rng(1).integers(0, 9, n).astype(dtype.numpy)
    check(spec, (n,), [x, index, np.ones(4, dtype.numpy)], [(1,), (1,), (0,)], (0, 0, 1))


def test_rows_added_to_a_table() -> None:
    # The gradient of an embedding; and one number added as often as there are rows.
    operands = (Operand(F32, (S, 1)), Operand(I64, (1, 0)), Operand(F32, (0, 1)))
    steps = (Load("x", 0), Load("i", 1), Store("x", 2, "i"))
    spec = LoopSpec("table", 2, 0, "rows", operands, steps)
    x = np.random.default_rng(0).integers(0, 5, 40 * 70).astype(np.float32)
    arrays = [x, np.arange(40) % 6, np.zeros(6 * 70, np.float32)]
    check(spec, (40, 70), arrays, [(70, 1), (1, 0), (0, 1)], (0, 0, 70))
    one = LoopSpec("one", 1, 0, "rows", (Operand(F32, (0,)), Operand(I64, (0,)), Operand(F32, (0,))), steps)
    got = run_interpreted(
        work_of(one, (600,), [(0,)] * 3, (0, 0, 1)),
        [np.ones(1, np.float32), np.array([2]), np.zeros(4, np.float32)],
    )
    np.testing.assert_array_equal(got[2], [0, 0, 600, 0])


def test_narrow_integers_are_not_added_inside_rows() -> None:
    operands = (Operand(dtypes.int8, (S, 1)), Operand(I64, (1, 0)), Operand(dtypes.int8, (0, 0)))
    steps = (Load("x", 0), Load("i", 1), Reduce("t", "x", "add", dtypes.int8), Store("t", 2, "i"))
    spec = LoopSpec("narrow", 1, 1, "inner", operands, steps)
    with pytest.raises(SpecError, match="narrow adds int8 at computed positions"):
        launch_of(work_of(spec, (3, 4), [(4, 1), (1, 0), (0, 0)], (0, 0, 1)))


def test_indices_without_memory() -> None:
    operands = (Operand(I64, (S, 1)), Operand(I64, (0, S)), Operand(I64, (S, 1)))
    steps = (Index("a", 0), Index("b", 1), Call("c", "sub", ("a", "b"), I64), Store("c", 2))
    spec = LoopSpec("iota", 2, 0, "rows", operands, steps)
    check(
        spec, (3, 300), [np.array([3]), np.array([-4]), np.zeros(900, np.int64)], [(400, 1), (0, 7), (300, 1)]
    )


# Random loops -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed: int) -> None:
    spec = random_spec(seed)
    for a, b, n in ((3, 2, 70), (1, 1, 1), (5, 3, 7)):
        strides = [(b * n, n, 1), (0, 1, b), (1, 0, 0), (0, 0, 1), (0, 0, 0)]
        sizes = [a * b * n, b * n, a, n, 1]
        arrays = [np.round(plain(dtypes.float64, size, seed + i), 1) for i, size in enumerate(sizes)]
        for _ in spec.operands[len(sizes) :]:
            strides.append((b * n, n, 1))
            arrays.append(np.zeros(a * b * n))
        check(spec, (a, b, n), arrays, strides)


# Flags, widths, alignment, text -------------------------------------------------------------------


def copy_work(n: int = 1000) -> Any:
    return work_of(pointwise(F32, 1, [(1,), (1,)]), (n,), [(1,), (1,)])


@pytest.mark.parametrize("flag", [(0, 0), (1, 0), (0, 1)])
def test_a_flag_keeps_a_kernel_from_doing_anything(flag: tuple[int, int]) -> None:
    x, y, flags = plain(F32, 1000), np.zeros(1000, np.float32), np.array(flag, bool)
    launch = launch_of(copy_work(), flags=2)
    assert [p.type for p in launch.pointers] == ["*fp32", "*fp32", "*i1", "*i1"]
    pointers = [x.ctypes.data, y.ctypes.data, flags.ctypes.data, flags.ctypes.data + 1]
    interpret.run(launch, pointers, Memory([x, y, flags]))
    np.testing.assert_array_equal(y, 0 if any(flag) else x)


def test_sizes_of_one_class_share_machine_code() -> None:
    code = launch_of(copy_work(1 << 20)).code
    assert launch_of(copy_work(1 << 21)).code == code
    assert launch_of(copy_work((1 << 20) + 1)).code != code
    assert launch_of(copy_work(1 << 20), [16, 4]).code != code
    assert launch_of(copy_work(1 << 20)).aligned([16, 4]) == launch_of(copy_work(1 << 20), [16, 4])


def test_full_tiles_need_no_mask() -> None:
    assert "inside" not in launch_of(copy_work(4096)).source
    assert "inside" in launch_of(copy_work(4097)).source


def test_offsets_beyond_32_bits() -> None:
    near, far = (
        work_of(pointwise(F32, 2, [(S, 1), (S, 1)]), (3, 300), [(s, 1), (300, 1)]) for s in (400, 2**30)
    )
    assert {p.type for p in launch_of(near).parameters[2:]} == {"i32"}
    assert {p.type for p in launch_of(far).parameters[2:]} == {"i64"}
    assert "to(tl.int64)" in launch_of(far).source


def test_source_says_what_it_computes() -> None:
    source = launch_of(work_of(softmax_spec(F32, "inner"), (3, 9), [(9, 1), (9, 1), (1, 0)])).source
    assert "#     e = exp(d): float32" in source
    assert "softmax" not in source, "the name makes no kernel of its own"


# What the interpreter notices ---------------------------------------------------------------------


def test_faults_are_noticed() -> None:
    """Each fault that is put into a kernel's text or sizes makes its test fail, in the way that it should."""
    work, x, y = copy_work(), plain(F32, 1000), np.zeros(1000, np.float32)
    launch, pointers = launch_of(work), [x.ctypes.data, y.ctypes.data]

    def faulty(old: str, new: str) -> None:
        assert old in launch.source
        interpret.run(replace(launch, source=launch.source.replace(old, new)), pointers, Memory([x, y]))

    with pytest.raises(
        OutOfBoundsError, match=r"loads bytes 3072 to 4096 of float32\[1000\], which has 4000"
    ):
        faulty("i0 < n0", "i0 < n0 + 24")
    with pytest.raises(HazardError, match="writes what another wrote"):
        faulty("tl.store(p1 + i0", "tl.store(p1 + i0 % 256")
    with pytest.raises(HazardError, match="writes one element twice at once"):
        faulty("tl.store(p1 + i0", "tl.store(p1 + i0 // 2")
    with pytest.raises(HazardError, match="writes what another read"):
        faulty("tl.store(p1 + i0, x0, inside0)", "tl.store(p0 + i0 - 256, x0, inside0 & (i0 >= 256))")
    with pytest.raises(HazardError, match="reads again what it wrote"):
        faulty("x0, inside0)", "x0, inside0)\n    x0 = tl.load(p1 + i0, inside0)")
    faulty("i0 < n0", "i0 < n0 - 1")
    assert (y[:-1] == x[:-1]).all() and y[-1] == 0, "the fault that no check can see is in the result"
