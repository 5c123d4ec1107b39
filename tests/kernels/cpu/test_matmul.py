"""Matrix-product kernels: every tail, stride pattern and storage type against the NumPy oracle."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kernels import dtypes
from kernels.cpu import engine, matmul
from kernels.cpu.target import lanes
from kernels.dtypes import DType
from kernels.errors import SpecError
from kernels.reference import run_matmul
from kernels.spec import BLOCKS, LINES, PACKED, PRODUCT, SLICES, Call, MatmulSpec, Operand, Store
from tests.kernels.specs import epilogue_spec

LANES = lanes()
SIZES = (0, 1, 3, 8, 17, 64, 100)
ROW_MAJOR, TRANSPOSED, ANY = ("s", 1), (1, "s"), ("s", "s")


@cache
def kernel(spec: MatmulSpec) -> Any:
    machine = engine.load(engine.Request("matmul", matmul.render(spec, LANES), "kernel"))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(machine.address)


def product(a: Any = ROW_MAJOR, b: Any = ROW_MAJOR, dtype: DType = dtypes.float32, **kept: Any) -> MatmulSpec:
    """A spec that only stores the product; `stored` is the dtype of A, B and C in memory."""
    batch, stored = kept.get("batch", 0), kept.get("stored", dtype)
    operands = tuple(Operand(stored, ("s",) * batch + s) for s in (a, b, ROW_MAJOR))
    steps = (Store(PRODUCT, 2),)
    if stored is not dtype:
        steps = (Call("rounded", "cast", (PRODUCT,), stored), Store("rounded", 2))
    rows, vectors = kept.get("block", (4, 2))
    return MatmulSpec("product", batch, dtype, rows, vectors, operands, steps, walk=kept.get("walk", BLOCKS))


def laid_out(random: np.random.Generator, shape: Sequence[int], strides: Any, dtype: DType) -> np.ndarray:
    """A random array whose last two strides are as a spec says; a general one steps over elements."""
    *batch, rows, columns = shape
    if strides[-2:] == TRANSPOSED:
        return random.normal(size=(*batch, columns, rows)).astype(dtype.numpy).swapaxes(-1, -2)
    if strides[-2:] == ANY:
        return random.normal(size=(*batch, 2 * rows, 3 * columns)).astype(dtype.numpy)[..., ::2, ::3]
    return random.normal(size=shape).astype(dtype.numpy)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


def run(spec: MatmulSpec, extents: Sequence[int], arrays: Sequence[np.ndarray], ranges: Any = None) -> None:
    """Run the kernel of `spec` on arrays with the spec's axes, over whole or given ranges of units."""
    table = np.zeros(spec.table_size, np.int64)
    count = len(arrays)
    table[:count] = [x.ctypes.data for x in arrays]
    table[count : count + len(extents)] = extents
    for (operand, axis), slot in spec.stride_slots.items():
        table[slot] = strides_of(arrays[operand])[axis]
    size = matmul.scratch_bytes(spec, extents, LANES)
    scratch = np.full(size + 64, 0xFF, np.uint8)  # NaN in every float type: nothing may come from here
    for start, stop in ranges or [(0, matmul.units(spec, extents, LANES))]:
        kernel(spec)(table.ctypes.data, start, stop, 0, scratch.ctypes.data)
    assert (scratch[size:] == 0xFF).all(), "the kernel wrote past its scratch memory"


def expected(spec: MatmulSpec, extents: Sequence[int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the oracle makes of copies of the arrays."""
    flat, views = [], []
    for array in arrays:
        span = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides_of(array), strict=True) if n)
        flat.append(np.zeros(span, array.dtype))
        views.append(np.lib.stride_tricks.as_strided(flat[-1], array.shape, array.strides))
        views[-1][...] = array
    run_matmul(spec, extents, flat, [strides_of(x) for x in arrays])
    return views


def check(spec: MatmulSpec, extents: Sequence[int], arrays: Sequence[np.ndarray], ranges: Any = None) -> None:
    want = expected(spec, extents, arrays)
    run(spec, extents, arrays, ranges)
    tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-13}
    for got, right in zip(arrays, want, strict=True):
        bound = tolerance[got.itemsize] if got.dtype.itemsize in tolerance else 0
        scale = 1 + np.sqrt(np.prod(extents[spec.batch + 2 :]))
        got, right = got.astype(np.float64), right.astype(np.float64)
        message = f"{spec}\nextents {extents}"
        np.testing.assert_allclose(got, right, rtol=bound, atol=bound * scale, err_msg=message)


@pytest.mark.parametrize("b", [(0, 1, 2, 3), (1, 2, 3, 0), (3, 1, 2, 0)], ids=["rows", "transposed", "any"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("m", [1, 3, 9, 40])
def test_several_axes_summed_over(dtype: DType, b: tuple[int, ...], m: int) -> None:
    """As in a convolution: A is a window that slides over a larger array, B is shared by the batch."""
    random = np.random.default_rng(m)
    for n, (rows, columns, channels) in itertools.product((1, 5, 70), ((3, 2, 4), (1, 1, 1), (2, 3, 17))):
        batch = 3
        image = random.normal(size=(batch + rows - 1, m + columns - 1, channels)).astype(dtype.numpy)
        one, two, three = image.strides
        windows = np.lib.stride_tricks.as_strided(
            image, (batch, m, rows, columns, channels), (one, two, one, two, three)
        )
        order = np.argsort(b)
        sizes = (rows, columns, channels, n)
        taps = random.normal(size=[sizes[i] for i in order]).astype(dtype.numpy).transpose(b)
        taps = np.broadcast_to(taps, (batch, *sizes))
        kinds = tuple(tuple(s if s in (0, 1) else "s" for s in strides_of(x)[1:]) for x in (windows, taps))
        operands = (
            Operand(dtype, ("s", *kinds[0])),
            Operand(dtype, (0, *kinds[1])),
            Operand(dtype, ("s", "s", 1)),
        )
        spec = MatmulSpec("windows", 1, dtype, 4, 2, operands, (Store(PRODUCT, 2),), depth=3)
        result = np.full((batch, m, n), np.nan, dtype.numpy)
        check(spec, (batch, m, n, rows, columns, channels), [windows, taps, result])


def check_product(spec: MatmulSpec, m: int, n: int, k: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    a, b, c = spec.operands
    arrays = [
        laid_out(random, (m, k), a.strides, a.dtype),
        laid_out(random, (k, n), b.strides, b.dtype),
        np.full((m, n), np.nan, np.float64).astype(c.dtype.numpy),
    ]
    check(spec, (m, n, k), arrays)


@pytest.mark.parametrize("b", [ROW_MAJOR, TRANSPOSED, ANY], ids=["rows", "transposed", "any"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=["float32", "float64"])
def test_every_tail(dtype: DType, b: Any) -> None:
    spec = product(ROW_MAJOR, b, dtype)
    for m, n, k in itertools.product(SIZES, SIZES, SIZES):
        check_product(spec, m, n, k, seed=m + n + k)


@pytest.mark.parametrize("stored", [dtypes.bfloat16, dtypes.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    "a, b", [(ROW_MAJOR, TRANSPOSED), (TRANSPOSED, ROW_MAJOR), (ANY, ANY)], ids=["nt", "tn", "any"]
)
def test_half_storage(stored: DType, a: Any, b: Any) -> None:
    spec = product(a, b, stored=stored)
    for m, n, k in itertools.product((1, 17, 64), (3, 33, 64), (0, 1, 17, 64)):
        check_product(spec, m, n, k)


@pytest.mark.parametrize("a", [TRANSPOSED, ANY], ids=["transposed", "any"])
def test_strides_of_the_left_operand(a: Any) -> None:
    spec = product(a)
    for m, n, k in itertools.product((1, 5, 64), (1, 33, 64), (0, 1, 17, 64)):
        check_product(spec, m, n, k)


@pytest.mark.parametrize("b", [ROW_MAJOR, TRANSPOSED, ANY], ids=["rows", "transposed", "any"])
@pytest.mark.parametrize("a", [ROW_MAJOR, TRANSPOSED], ids=["rows", "transposed"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=["float32", "float64"])
def test_every_walk_gives_the_same_bits(dtype: DType, a: Any, b: Any) -> None:
    random = np.random.default_rng(0)
    for m, n, k in (
        (1, 300, 257),
        (3, 1030, 65),
        (9, 2100, 32),
        (40, 33, 1024),
        (200, 100, 1100),
        (5, 64, 2049),
    ):
        left, right = laid_out(random, (m, k), a, dtype), laid_out(random, (k, n), b, dtype)
        results = []
        for walk in (BLOCKS, PACKED, SLICES, LINES)[: 4 if b is ROW_MAJOR else 3]:
            results.append(np.full((m, n), np.nan, dtype.numpy))
            check(product(a, b, dtype, walk=walk), (m, n, k), [left, right, results[-1]])
        # Dot products along k are trees.
        tree = b is TRANSPOSED and a is ROW_MAJOR and m <= matmul.DOT_ROWS
        for other in () if tree else results[1:]:
            np.testing.assert_array_equal(results[0], other)


def test_how_sizes_are_walked() -> None:
    rows, columns = (Operand(dtypes.float32, strides) for strides in (ROW_MAJOR, TRANSPOSED))

    def walk(m: int, n: int, *k: int, a: Operand = rows, b: Operand = rows, block: Any = (4, 4)) -> str:
        return matmul.walk(m, n, k, (a, b), block, 16)

    assert walk(1, 2048, 2048, block=(1, 6)) == LINES
    assert walk(9, 2048, 2048, block=(9, 2)) == BLOCKS
    assert walk(1, 64, 64) == walk(1, 2048, 2048, b=columns) == walk(64, 64, 512) == BLOCKS
    assert walk(64, 2048, 512) == walk(64, 64, 512, b=columns) == PACKED
    assert walk(64, 2048, 2048) == walk(64, 2048, 2048, b=columns) == SLICES
    assert walk(64, 65, 3, 2048) == walk(64, 65, 2048, a=Operand(dtypes.bfloat16, ROW_MAJOR)) == PACKED


@pytest.mark.parametrize(
    "made", [{"b": TRANSPOSED, "walk": LINES}, {"stored": dtypes.float16, "walk": SLICES}, {"walk": "anyhow"}]
)
def test_a_walk_that_the_operands_do_not_allow(made: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="walk"):
        product(**made)


def test_infinity_and_nan_stay_in_their_row_and_column() -> None:
    """Padded rows and columns hold copies: they must not leak into what is stored."""
    spec = product()
    a, b, c = np.ones((17, 5), "f"), np.ones((5, 35), "f"), np.zeros((17, 35), "f")
    a[16], b[:, 34] = np.inf, np.nan
    check(spec, (17, 35, 5), [a, b, c])
    assert np.isinf(c[16, :34]).all() and np.isnan(c[:, 34]).all() and np.isfinite(c[:16, :34]).all()


@pytest.mark.parametrize("b", [ROW_MAJOR, TRANSPOSED], ids=["rows", "transposed"])
def test_batches_broadcast(b: Any) -> None:
    spec = product(b=b, batch=2)
    random = np.random.default_rng(0)
    for m, n, k in ((5, 40, 17), (64, 7, 8)):
        a = np.broadcast_to(laid_out(random, (3, 1, m, k), ROW_MAJOR, dtypes.float32), (3, 4, m, k))
        right = np.broadcast_to(laid_out(random, (1, 4, k, n), b, dtypes.float32), (3, 4, k, n))
        check(spec, (3, 4, m, n, k), [a.view(), right.view(), np.zeros((3, 4, m, n), "f")])


def test_operand_constant_over_a_batch() -> None:
    """Strides known to be 0 when the kernel is built: one weight for a batch of inputs."""
    operands = (
        Operand(dtypes.float32, ("s", "s", 1)),
        Operand(dtypes.float32, (0, 1, "s")),
        Operand(dtypes.float32, ("s", "s", 1)),
    )
    spec = MatmulSpec("shared", 1, dtypes.float32, 4, 2, operands, (Store(PRODUCT, 2),))
    random = np.random.default_rng(0)
    weight = laid_out(random, (17, 40), TRANSPOSED, dtypes.float32)
    a = random.normal(size=(3, 20, 17)).astype("f")
    c = np.zeros((3, 20, 40), "f")
    run(spec, (3, 20, 40, 17), [a, np.broadcast_to(weight, (3, 17, 40)), c])
    np.testing.assert_allclose(c, a @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [10, 64, 300])
def test_an_expensive_epilogue_is_shared_by_rows(n: int) -> None:
    f = dtypes.float32
    operands = tuple(Operand(f, s) for s in (ROW_MAJOR, ROW_MAJOR, ROW_MAJOR))
    spec = MatmulSpec("expensive", 0, f, 4, 2, operands, (Call("y", "erf", (PRODUCT,), f), Store("y", 2)))
    random = np.random.default_rng(n)
    for m in (1, 31, 64, 130):
        a, b = random.normal(size=(m, 20)).astype("f"), random.normal(size=(20, n)).astype("f")
        check(spec, (m, n, 20), [a, b, np.zeros((m, n), "f")])
    panels = -(-n // (2 * LANES))
    assert (matmul.units(spec, (64, n, 20), LANES) > panels) == (panels < matmul.FEW_UNITS)


def test_epilogue_with_broadcast_operands_and_several_stores() -> None:
    random = np.random.default_rng(0)
    sizes = [*itertools.product((BLOCKS,), (1, 6, 40), (1, 16, 33, 70), (0, 5, 64))]
    sizes += [(LINES, 1, 1030, 65), (LINES, 6, 300, 250), (SLICES, 40, 33, 1100), (SLICES, 6, 16, 0)]
    for walk, m, n, k in sizes:
        spec = replace(epilogue_spec(), walk=walk)
        bias, row = random.normal(size=n).astype("f"), random.normal(size=m).astype("f")
        arrays = [
            random.normal(size=(m, k)).astype("f"),
            random.normal(size=(k, n)).astype("f"),
            np.broadcast_to(bias, (m, n)),
            np.zeros((n, m), "f").T,
            np.broadcast_to(row[:, None], (m, n)),
            random.normal(size=(m, n)).astype("f"),
            np.zeros((m, n), np.bool_),
        ]
        check(spec, (m, n, k), arrays)


def test_division_into_units_changes_no_bit() -> None:
    spec, random = product(b=TRANSPOSED), np.random.default_rng(0)
    m, n, k = 300, 100, 70
    a, b = random.normal(size=(m, k)).astype("f"), laid_out(random, (k, n), TRANSPOSED, dtypes.float32)
    count = matmul.units(spec, (m, n, k), LANES)
    whole, parts = np.zeros((m, n), "f"), np.full((m, n), np.nan, "f")
    run(spec, (m, n, k), [a, b, whole])
    run(spec, (m, n, k), [a, b, parts], [(0, 1), (1, 3), (5, count), (3, 3), (3, 5)])
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_allclose(whole, a @ b, rtol=1e-4, atol=1e-4)
    other = np.zeros((m, n), "f")
    run(product(b=TRANSPOSED, block=(5, 1)), (m, n, k), [a, b, other])
    np.testing.assert_array_equal(whole, other)


@pytest.mark.parametrize("rows", [1, 3])
def test_units_of_a_sweep_are_one_or_many(rows: int) -> None:
    spec, random = product(walk=LINES, block=(rows, 2)), np.random.default_rng(0)
    m, n, k = rows, 4 * matmul.SWEEP_COLUMNS - 5, 70
    a, b = random.normal(size=(m, k)).astype("f"), random.normal(size=(k, n)).astype("f")
    assert matmul.units(spec, (m, n, k), LANES) == 4
    results = []
    for ranges in ([(0, 4)], [(0, 1), (1, 3), (3, 4)], [(1, 4), (0, 1)]):
        results.append(np.full((m, n), np.nan, "f"))
        run(spec, (m, n, k), [a, b, results[-1]], ranges)
        np.testing.assert_array_equal(results[-1], results[0])
    np.testing.assert_allclose(results[0], a @ b, rtol=1e-4, atol=1e-4)


def test_a_range_writes_only_its_own_units() -> None:
    spec = product()
    m, n, k = 300, 100, 3
    a, b, c = np.ones((m, k), "f"), np.ones((k, n), "f"), np.full((m, n), -1, "f")
    run(spec, (m, n, k), [a, b, c], [(1, 2)])
    assert 0 < (c == k).sum() < m * n and ((c == k) | (c == -1)).all()


@pytest.mark.parametrize("lanes_", [8, 16])
@pytest.mark.parametrize("float64", [False, True])
def test_blocks_fit_the_registers(lanes_: int, float64: bool) -> None:
    for m, n in itertools.product((1, 2, 5, 8, 10, 64, 1000), (1, 10, 16, 64, 100, 1000)):
        rows, vectors = matmul.block(m, n, lanes_, float64)
        registers = (rows * vectors + vectors) * (1 + float64)
        assert 1 <= rows <= matmul.MOST_ROWS and registers < (32 if lanes_ == 16 else 16)


def test_blocks_waste_little() -> None:
    assert matmul.block(64, 10, 16, False)[1] == 1
    assert matmul.block(10, 64, 16, False)[0] == 10
    assert matmul.block(26, 32, 16, False, many=True) == (13, 2)
    for m, n in ((64, 64), (128, 512), (256, 1024)):
        rows, vectors = matmul.block(m, n, 16, False)
        assert m % rows == 0 and n % (16 * vectors) == 0 and rows * vectors >= 16
