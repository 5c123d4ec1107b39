"""Loop nests as machine code against the reference: every class of loop, every dtype, every edge of a vector.

One kernel serves all extents: a new kernel costs a tenth of a second, a call nothing. Words are in
test_vocabulary.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import dtypes
from kernels.cpu import loop
from kernels.cpu.target import lanes
from kernels.dtypes import DTYPES, DType
from kernels.errors import SpecError
from kernels.spec import COMBINE, Call, Index, Literal, Load, LoopSpec, Operand, Reduce, Step, Store
from tests.kernels.cpu.native import (
    EXTENTS,
    Array,
    assert_near,
    check,
    drawn,
    plain,
    run_native,
    run_reference,
)

S = "s"
ALL = tuple(DTYPES.values())
NUMERIC = tuple(d for d in ALL if d is not dtypes.bool_)
# NumPy is within 4 ulp of the true value, we are within 1.5.
FUNCTION_ULPS = 6


def by_name(dtype: DType) -> str:
    return dtype.name


# Pointwise loops over several axes ----------------------------------------------------------------


def pointwise(dtype: DType, rows: int, patterns: list[tuple[Any, ...]]) -> LoopSpec:
    """The sum of the inputs, stored to the last pattern."""
    steps: list[Step] = [Load(f"x{i}", i) for i in range(len(patterns) - 1)]
    total = "x0"
    for i in range(1, len(patterns) - 1):
        steps.append(Call(f"t{i}", "add", (total, f"x{i}"), dtype.arithmetic))
        total = f"t{i}"
    steps.append(Store(total, len(patterns) - 1))
    return LoopSpec("axes", rows, 0, "rows", tuple(Operand(dtype, p) for p in patterns), tuple(steps))


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_broadcast_and_transposed_operands(dtype: DType) -> None:
    # Contiguous, transposed, broadcast along each axis, one number; the output is transposed as well.
    spec = pointwise(dtype, 3, [(S, S, 1), (1, S, S), (0, S, 0), (S, 0, 1), (0, 0, 0), (1, S, S)])
    for a, b in ((1, 1), (2, 3), (5, 1)):
        for n in EXTENTS:
            sizes = [a * b * n, a * b * n, b, a * n, 1, a * b * n]
            strides = [(b * n, n, 1), (1, a * n, a), (0, 1, 0), (n, 0, 1), (0, 0, 0), (1, a * n, a)]
            arrays = [plain(dtype, size, i) for i, size in enumerate(sizes)]
            check(spec, (a, b, n), arrays, strides)


def test_negative_strides_and_gaps() -> None:
    # A flipped axis starts at its end; a step of 2 leaves gaps, which must stay as they were.
    spec = pointwise(dtypes.float32, 2, [(S, S), (S, S)])
    for n in EXTENTS[1:]:
        x, y = plain(dtypes.float32, 6 * n), plain(dtypes.float32, 6 * n, 1)
        check(spec, (3, n), [x, y], [(n, 1), (2 * n, 2)])
        # The reference wraps negative addresses as NumPy does, so it needs no offset.
        reversed_x = x.reshape(6, n)[:3, ::-1].reshape(-1).copy()
        native = run_native(spec, (3, n), [reversed_x, y], [(n, 1), (2 * n, 2)])[1]
        np.testing.assert_array_equal(native.reshape(3, n, 2)[..., 0], x.reshape(6, n)[:3, ::-1])


def test_one_operand_read_and_written() -> None:
    f32 = dtypes.float32
    steps = (Load("x", 0), Load("y", 1), Call("z", "sub", ("x", "y"), f32), Store("z", 0))
    spec = LoopSpec("update", 2, 0, "rows", (Operand(f32, (S, 1)), Operand(f32, (S, 0))), steps)
    for n in EXTENTS:
        check(spec, (4, n), [plain(f32, 4 * n), plain(f32, 4, 1)], [(n, 1), (1, 0)])


def test_a_scalar_computed_once_serves_every_element() -> None:
    f32 = dtypes.float32
    operands = (Operand(f32, (0,)), Operand(f32, (1,)), Operand(f32, (1,)), Operand(f32, (0,)))
    steps = (
        Load("a", 0),
        Call("e", "exp", ("a",), f32),
        Load("x", 1),
        Call("y", "mul", ("x", "e"), f32),
        Store("y", 2),
    )
    spec = LoopSpec("scalar", 1, 0, "rows", (*operands[:3],), steps)
    assert spec.levels == {"a": 0, "e": 0, "x": 1, "y": 1}
    for n in EXTENTS:
        check(
            spec,
            (n,),
            [np.array([0.5], np.float32), plain(f32, n), np.zeros(n, np.float32)],
            [(0,), (1,), (1,)],
            ulps=2,
        )


# Reductions over the inner axes -------------------------------------------------------------------


def combines(dtype: DType) -> list[str]:
    """Combinations defined on a dtype."""
    return ["max", "min"] if dtype is dtypes.bool_ else list(COMBINE)


def rows_spec(dtype: DType, vector: str, inner: int) -> LoopSpec:
    """Each row combined in every way."""
    pattern = (S, *(S,) * (inner - 1), 1) if vector == "inner" else (1, *(S,) * inner)
    steps: list[Step] = [Load("x", 0)]
    operands = [Operand(dtype, pattern)]
    for name in combines(dtype):
        steps += [Reduce(f"all_{name}", "x", name, dtype), Store(f"all_{name}", len(operands))]
        operands.append(Operand(dtype, (1, *(0,) * inner)))
    return LoopSpec(f"rows_{vector}", 1, inner, vector, tuple(operands), tuple(steps))


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_row_reductions(dtype: DType, vector: str) -> None:
    inner = 2 if dtype is dtypes.float32 else 1
    spec = rows_spec(dtype, vector, inner)
    for rows, size in [(3, n) for n in EXTENTS] + [(n, 5) for n in EXTENTS]:
        extents = (rows, 2, size) if inner == 2 else (rows, size)
        count = size * (2 if inner == 2 else 1)
        if vector == "inner":
            strides = (count, size, 1) if inner == 2 else (count, 1)
        else:
            strides = (1, size * rows, rows) if inner == 2 else (1, rows)
        outputs = [np.zeros(rows, dtype.numpy) for _ in combines(dtype)]
        x = plain(dtype, rows * count)
        if dtype.is_floating_point:
            # Near 1, so that the rounding of a product does not depend on its order by more than a few ulp.
            x = np.exp(x.astype(np.float64) / 50).astype(dtype.numpy)
        got = run_native(spec, extents, [x, *outputs], [strides, *[(1, *(0,) * inner)] * len(outputs)])
        wanted = run_reference(spec, extents, [x, *outputs], [strides, *[(1, *(0,) * inner)] * len(outputs)])
        for name, a, b in zip(combines(dtype), got[1:], wanted[1:], strict=True):
            # Sums of narrower floats run in float64 and round once; all else rounds at each of 100 steps.
            ulps = 0 if name in ("max", "min") else 1 if name == "add" and dtype is not dtypes.float64 else 60
            assert_near(a, b, ulps, f"{name} of {dtype.name} along {vector} over {extents}")


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_extrema_of_special_values(vector: str) -> None:
    spec = rows_spec(dtypes.float64, vector, 1)
    nan, inf = np.nan, np.inf
    rows = np.array([[1, nan, 2], [inf, 1, 2], [-inf, -inf, -inf], [nan, nan, nan], [-0.0, -0.0, -0.0]] * 7)
    memory = rows if vector == "inner" else rows.T
    strides = (3, 1) if vector == "inner" else (1, 35)
    outputs = [np.zeros(35) for _ in COMBINE]
    got = run_native(spec, rows.shape, [memory.reshape(-1).copy(), *outputs], [strides, *[(1, 0)] * 4])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got[1], rows.sum(1))
        np.testing.assert_array_equal(got[2], rows.prod(1))
    np.testing.assert_array_equal(got[3], rows.max(1))
    np.testing.assert_array_equal(got[4], rows.min(1))


def softmax_spec(dtype: DType, vector: str, out: int = 1) -> LoopSpec:
    """exp(x - max) / sum: three loops over a row, the exponential kept in between."""
    pattern, wide = ((S, 1) if vector == "inner" else (1, S)), dtype.arithmetic
    steps = (
        Load("x", 0),
        Reduce("m", "x", "max", dtype),
        Call("d", "sub", ("x", "m"), wide),
        Call("e", "exp", ("d",), wide),
        Reduce("t", "e", "add", wide),
        Call("y", "div", ("e", "t"), wide),
        Store("y", out),
        Call("l", "log1p", ("t",), wide),
        Store("l", 2),
    )
    return LoopSpec(
        "softmax",
        1,
        1,
        vector,
        (Operand(dtype, pattern), Operand(dtype, pattern), Operand(dtype, (1, 0))),
        steps,
    )


@pytest.mark.parametrize("vector", ["inner", "rows"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16], ids=by_name)
def test_several_loops_over_a_row(dtype: DType, vector: str) -> None:
    spec = softmax_spec(dtype, vector)
    needs_scratch = loop.scratch_bytes(spec, (3, 100), lanes()) > 0
    assert needs_scratch == (dtype.compute is not None), "the exponential waits in the result's own memory"
    for rows, size in [(3, n) for n in EXTENTS[1:]] + [(n, 5) for n in EXTENTS]:
        strides = [(size, 1)] * 2 if vector == "inner" else [(1, rows)] * 2
        x = plain(dtype, rows * size) * np.asarray(4, dtype.numpy)
        arrays = [x, np.zeros_like(x), np.zeros(rows, dtype.numpy)]
        got = check(spec, (rows, size), arrays, [*strides, (1, 0)], ulps=FUNCTION_ULPS + 2)
        sums = got[1].reshape((rows, size) if vector == "inner" else (size, rows)).astype(np.float64)
        np.testing.assert_allclose(
            sums.sum(1 if vector == "inner" else 0), 1, rtol=3e-2 if dtype.compute else 1e-5
        )


def test_several_loops_over_a_row_in_place() -> None:
    spec = softmax_spec(dtypes.float32, "inner", out=0)
    assert loop.scratch_bytes(spec, (3, 100), lanes()) > 0, "the operands are still to be read"
    for size in EXTENTS[1:]:
        x = plain(dtypes.float32, 3 * size)
        arrays = [x, np.zeros_like(x), np.zeros(3, np.float32)]
        check(spec, (3, size), arrays, [(size, 1), (size, 1), (1, 0)], ulps=FUNCTION_ULPS + 2)


def test_a_row_replaced_by_what_depends_on_all_of_it() -> None:
    # The store waits for the last loop that reads the operand.
    f32, pattern = dtypes.float32, (S, 1)
    steps = (
        Load("x", 0),
        Call("one", "mul", ("x", "x"), f32),
        Store("one", 0),
        Reduce("t", "x", "add", f32),
        Call("y", "sub", ("x", "t"), f32),
        Store("y", 1),
    )
    spec = LoopSpec("wait", 1, 1, "inner", (Operand(f32, pattern), Operand(f32, pattern)), steps)
    for n in EXTENTS[1:]:
        x = plain(f32, 3 * n)
        got = run_native(spec, (3, n), [x, np.zeros_like(x)], [(n, 1), (n, 1)])
        np.testing.assert_array_equal(got[0], x * x)
        rows = x.reshape(3, n)
        np.testing.assert_allclose(got[1].reshape(3, n), rows - rows.sum(1, keepdims=True), atol=1e-4)


# Reductions over the rows -------------------------------------------------------------------------


def columns_spec(dtype: DType, name: str) -> LoopSpec:
    """Columns combined over the rows, beside each row's sum and the combination of those."""
    steps = (
        Load("x", 0),
        Reduce("column", "x", name, dtype, outer=True, operand=1),
        Reduce("row", "x", name, dtype),
        Store("row", 2),
        Reduce("whole", "row", name, dtype, outer=True, operand=3),
    )
    operands = (
        Operand(dtype, (S, 1)),
        Operand(dtype, (0, 1)),
        Operand(dtype, (1, 0)),
        Operand(dtype, (0, 0)),
    )
    return LoopSpec("columns", 1, 1, "inner", operands, steps)


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_column_reductions(dtype: DType) -> None:
    name = "max" if dtype is dtypes.bool_ else "add" if dtype.is_floating_point else "min"
    spec = columns_spec(dtype, name)
    for rows, size in [(7, n) for n in EXTENTS] + [(n, 5) for n in EXTENTS]:
        x = plain(dtype, rows * size)
        arrays = [x, *(np.zeros(n, dtype.numpy) for n in (size, rows, 1))]
        strides = [(size, 1), (0, 1), (1, 0), (0, 0)]
        got = run_native(spec, (rows, size), arrays, strides, (0, size, 0, 1), parts=1)
        table = x.reshape(rows, size)
        exact = table.astype(np.float64) if dtype.is_floating_point else table
        combine: Callable[..., Any] = {"add": np.add, "max": np.maximum, "min": np.minimum}[name].reduce
        initial = {} if name == "add" else {"initial": np.iinfo(dtype.numpy).max if name == "min" else False}
        for a, wanted in zip(
            got[1:],
            (combine(exact, 0, **initial), combine(exact, 1, **initial), combine(exact, None, **initial)),
            strict=True,
        ):
            _assert_sums(a, np.asarray(wanted).reshape(-1), dtype, 4.0 * max(rows, size))


def _assert_sums(got: Array, wanted: Array, dtype: DType, size: float) -> None:
    if not dtype.is_floating_point:
        np.testing.assert_array_equal(got, wanted)
        return
    epsilon = {dtypes.float64: 2e-16, dtypes.float32: 1e-7, dtypes.float16: 1e-3, dtypes.bfloat16: 8e-3}[
        dtype
    ]
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2 * epsilon, atol=2 * epsilon * size)


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_column_sums_add_up(parts: int) -> None:
    f32 = dtypes.float32
    spec = columns_spec(f32, "add")
    rows, size = 12, 19
    x = plain(f32, rows * size)
    arrays = [x, np.zeros(parts * size, np.float32), np.zeros(rows, np.float32), np.zeros(parts, np.float32)]
    got = run_native(
        spec, (rows, size), arrays, [(size, 1), (0, 1), (1, 0), (0, 0)], (0, size, 0, 1), parts=parts
    )
    each = x.reshape(parts, rows // parts, size).astype(np.float64)
    np.testing.assert_allclose(got[1].reshape(parts, size), each.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[3], each.sum((1, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.bool_], ids=by_name)
def test_a_whole_tensor_reduced(dtype: DType) -> None:
    name = "max" if dtype is dtypes.bool_ else "add"
    steps = (Load("x", 0), Reduce("t", "x", name, dtype, outer=True, operand=1))
    spec = LoopSpec("whole", 1, 0, "rows", (Operand(dtype, (1,)), Operand(dtype, (0,))), steps)
    for size in (*EXTENTS, 5000):
        x = plain(dtype, size)
        (_, got) = run_native(spec, (size,), [x, np.zeros(1, dtype.numpy)], [(1,), (0,)], (0, 1), parts=1)
        wanted = x.any() if name == "max" else x.astype(np.float64).sum()
        _assert_sums(got, np.array([wanted]), dtype, max(size, 1))


@pytest.mark.parametrize("vector", ["inner", "rows"])
def test_a_value_that_is_the_same_everywhere_is_reduced(vector: str) -> None:
    # A number and one of each row: summed as often as there are elements, not lanes.
    f64 = dtypes.float64
    operands = (Operand(f64, (1, 0)), Operand(f64, (1, 0)), Operand(f64, (1, 0)), Operand(f64, (0, 0)))
    steps = (
        *(Load("x", 0), Literal("two", 2.0, f64)),
        *(Reduce("a", "two", "add", f64), Store("a", 1)),
        *(Reduce("b", "x", "mul", f64), Store("b", 2)),
        Reduce("c", "two", "add", f64, outer=True, operand=3),
    )
    spec = LoopSpec("everywhere", 1, 1, vector, operands, steps)
    for rows, size in [(3, n) for n in EXTENTS] + [(n, 2) for n in EXTENTS]:
        x = np.full(rows, 1.01)
        arrays = [x, np.zeros(rows), np.zeros(rows), np.zeros(1)]
        got = run_native(spec, (rows, size), arrays, [(1, 0), (1, 0), (1, 0), (0, 0)], (0, 0, 0, 1), parts=1)
        np.testing.assert_array_equal(got[1], np.full(rows, 2.0 * size))
        np.testing.assert_allclose(got[2], 1.01**size, rtol=1e-13)
        assert got[3][0] == 2.0 * rows


# Indexed loads and stores -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_loads_at_computed_positions(dtype: DType) -> None:
    # take(x, index, axis 0): rows of a table; the index is one per row.
    operands = (Operand(dtypes.int64, (1, 0)), Operand(dtype, (0, 1)), Operand(dtype, (S, 1)))
    steps = (Load("i", 0), Load("x", 1, "i"), Store("x", 2))
    spec = LoopSpec("take", 2, 0, "rows", operands, steps)
    for n in EXTENTS:
        table = plain(dtype, 6 * n)
        index = np.array([5, 0, 0, 3])
        check(spec, (4, n), [index, table, np.zeros(4 * n, dtype.numpy)], [(1, 0), (0, 1), (n, 1)], (0, n, 0))


def test_an_index_per_element_from_a_strided_operand() -> None:
    # gather along axis 0 of a transposed table, with int32 positions converted first.
    operands = (
        Operand(dtypes.int32, (S, 1)),
        Operand(dtypes.float32, (0, S)),
        Operand(dtypes.float32, (S, 1)),
    )
    steps = (Load("i", 0), Call("p", "cast", ("i",), dtypes.int64), Load("x", 1, "p"), Store("x", 2))
    spec = LoopSpec("gather", 2, 0, "rows", operands, steps)
    for n in EXTENTS:
        index = np.random.default_rng(n).integers(0, 6, 3 * n).astype(np.int32)
        arrays = [index, plain(dtypes.float32, 6 * n), np.zeros(3 * n, np.float32)]
        check(spec, (3, n), arrays, [(n, 1), (0, 6), (n, 1)], (0, 1, 0))


def test_one_position_for_a_row_or_for_all() -> None:
    i64, f32 = dtypes.int64, dtypes.float32
    operands = (
        Operand(i64, (0, 0)),
        Operand(f32, (0, 0)),
        Operand(i64, (1, 0)),
        Operand(f32, (0, 0)),
        Operand(f32, (S, 1)),
        Operand(f32, (S, 1)),
    )
    steps = (
        *(Load("one", 0), Load("a", 1, "one")),
        *(Load("each", 2), Load("b", 3, "each")),
        *(
            Load("x", 4),
            Reduce("t", "x", "max", f32),
            Call("c", "add", ("a", "b"), f32),
            Call("d", "sub", ("c", "t"), f32),
        ),
        *(Call("e", "add", ("d", "x"), f32), Store("e", 5)),
    )
    spec = LoopSpec("uniform", 1, 1, "inner", operands, steps)
    for n in EXTENTS[1:]:
        arrays = [
            np.array([2]),
            plain(f32, 9),
            np.array([0, 7, 8]),
            plain(f32, 9),
            plain(f32, 3 * n),
            np.zeros(3 * n, np.float32),
        ]
        check(spec, (3, n), arrays, [(0, 0), (0, 0), (1, 0), (0, 0), (n, 1), (n, 1)], (0, 3, 0, 1, 0, 0))


@pytest.mark.parametrize("dtype", [d for d in NUMERIC if d.compute is None], ids=by_name)
def test_adding_at_computed_positions(dtype: DType) -> None:
    operands = (Operand(dtype, (1,)), Operand(dtypes.int64, (1,)), Operand(dtype, (0,)))
    steps = (Load("x", 0), Load("i", 1), Store("x", 2, "i"))
    spec = LoopSpec("scatter", 1, 0, "rows", operands, steps)
    for n in EXTENTS:
        index = np.random.default_rng(n).integers(0, 4, n)
        arrays = [plain(dtype, n), index, plain(dtype, 4, 1)]
        check(spec, (n,), arrays, [(1,), (1,), (0,)], (0, 0, 1))


def test_indices_without_memory() -> None:
    i64 = dtypes.int64
    operands = (Operand(i64, (S, 1)), Operand(i64, (0, S)), Operand(i64, (S, 1)))
    steps = (Index("a", 0), Index("b", 1), Call("c", "sub", ("a", "b"), i64), Store("c", 2))
    spec = LoopSpec("iota", 2, 0, "rows", operands, steps)
    for n in EXTENTS:
        arrays = [np.array([3]), np.array([-4]), np.zeros(3 * n, np.int64)]
        check(spec, (3, n), arrays, [(10, 1), (0, 7), (n, 1)])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int32], ids=by_name)
@pytest.mark.parametrize("negated", [False, True])
def test_a_sum_of_the_one_element_that_a_row_names(dtype: DType, negated: bool) -> None:
    # The row is written over with what depends on the sum; what is not named may be NaN.
    i64 = dtypes.int64
    steps: list[Step] = [
        Load("x", 0),
        Index("at", 1),
        Load("position", 2),
        Call("here", "eq", ("at", "position"), dtypes.bool_),
        Literal("zero", 0, dtype),
        Call("one", "where", ("here", "x", "zero"), dtype),
        Call("minus", "neg", ("one",), dtype),
        Reduce("total", "minus" if negated else "one", "add", dtype),
        Call("less", "sub", ("x", "total"), dtype),
        Store("less", 0),
        Store("total", 3),
    ]
    operands = (Operand(dtype, (S, 1)), Operand(i64, (0, 1)), Operand(i64, (1, 0)), Operand(dtype, (1, 0)))
    spec = LoopSpec("picked", 1, 1, "inner", operands, tuple(steps))
    source = loop.render(spec, lanes())
    assert "range(place," in source and "reduce_add" not in source
    for n in EXTENTS:
        rows, first = n + 5, 2
        # One position before the row, every one in it, and some behind it.
        positions = np.arange(rows, dtype=np.int64) + first - 1
        arrays = [drawn(dtype, rows * n), np.array([first]), positions, plain(dtype, rows)]
        check(spec, (rows, n), arrays, [(n, 1), (0, 1), (1, 0), (1, 0)])


@pytest.mark.parametrize("change", ["combine", "other", "relation", "index"])
def test_sums_of_more_than_one_element_walk_the_row(change: str) -> None:
    f32, i64 = dtypes.float32, dtypes.int64
    steps: list[Step] = [
        Index("at", 0),
        Load("position", 1),
        Load("x", 2, index="position") if change == "index" else Load("x", 2),
        Call("here", "le" if change == "relation" else "eq", ("at", "position"), dtypes.bool_),
        Literal("other", 1.0 if change == "other" else 0.0, f32),
        Call("one", "where", ("here", "x", "other"), f32),
        Reduce("total", "one", "max" if change == "combine" else "add", f32),
        Store("total", 3),
    ]
    operands = (Operand(i64, (0, 1)), Operand(i64, (1, 0)), Operand(f32, (S, 1)), Operand(f32, (1, 0)))
    assert "place" not in loop.render(LoopSpec("walked", 1, 1, "inner", operands, tuple(steps)), lanes())


# Random loops -------------------------------------------------------------------------------------


def random_spec(seed: int) -> LoopSpec:
    """A loop of random exact words, row reductions and stores."""
    rng = np.random.default_rng(seed)
    f64 = dtypes.float64
    operands = [Operand(f64, p) for p in [(S, S, 1), (0, S, S), (S, 0, 0), (0, 0, 1), (0, 0, 0)]]
    steps: list[Step] = [Load(f"x{i}", i) for i in range(len(operands))]
    names = [s.out for s in steps if isinstance(s, Load)]
    for n in range(14):
        a, b = rng.choice(names, 2)
        if n in (4, 9):
            steps.append(Reduce(f"v{n}", str(a), str(rng.choice(["max", "min"])), f64))
        else:
            word = str(rng.choice(["add", "sub", "mul", "maximum", "minimum", "neg", "floor", "fmod"]))
            inputs = (str(a),) if word in ("neg", "floor") else (str(a), str(b))
            steps.append(Call(f"v{n}", word, inputs, f64))
        names.append(f"v{n}")
        if n % 5 == 3:
            steps.append(Store(f"v{n}", len(operands)))
            operands.append(Operand(f64, (S, S, 1)))
    return LoopSpec("random", 1, 2, "inner", tuple(operands), tuple(steps))


@pytest.mark.parametrize("seed", range(8))
def test_random_loops(seed: int) -> None:
    spec = random_spec(seed)
    for a, b, n in ((1, 1, 1), (3, 2, lanes() + 1), (2, 1, 100), (4, 3, lanes() - 1)):
        strides = [(b * n, n, 1), (0, 1, b), (1, 0, 0), (0, 0, 1), (0, 0, 0)]
        sizes = [a * b * n, b * n, a, n, 1]
        arrays = [np.round(plain(dtypes.float64, size, seed + i), 1) for i, size in enumerate(sizes)]
        for _ in spec.operands[len(sizes) :]:
            strides.append((b * n, n, 1))
            arrays.append(np.zeros(a * b * n))
        check(spec, (a, b, n), arrays, strides)


# The spec itself ----------------------------------------------------------------------------------


def test_a_spec_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="vector axis"):
        LoopSpec("bad", 1, 0, "inner", (), ())
    with pytest.raises(SpecError, match="one per axis"):
        LoopSpec("bad", 2, 0, "rows", (Operand(dtypes.float32, (1,)),), ())


def test_the_name_makes_no_kernel_of_its_own() -> None:
    one, two = (LoopSpec(name, 1, 0, "rows", (Operand(dtypes.float32, (1,)),), ()) for name in ("a", "b"))
    assert one.digest == two.digest
    assert loop.render(one, 8) == loop.render(two, 8)


def test_source_says_what_it_computes() -> None:
    text = loop.render(softmax_spec(dtypes.float32, "inner"), 8)
    assert "# " in text
    assert "e = exp(d): float32" in text
    compile(text, "kernel", "exec")


def test_what_is_added_at_one_place_is_added_for_every_row() -> None:
    one, none = Operand(dtypes.int64, (0,)), Operand(dtypes.float32, (0,))
    steps = (Load("x", 0), Load("i", 1), Store("x", 2, "i"))
    spec = LoopSpec("scatter", 1, 0, "rows", (none, one, none), steps)
    for n in (1, 19):
        arrays = [np.array([2.0], np.float32), np.array([1]), np.zeros(3, np.float32)]
        check(spec, (n,), arrays, [(0,), (0,), (0,)], (0, 0, 1))
