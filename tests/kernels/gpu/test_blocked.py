"""Block specs in the interpreter beside NumPy, what their loops are, and what their machine code is like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels import dtypes
from kernels.blocks import BlockSpec, BlockStep, BlockWork, Dot, Total
from kernels.dtypes import DType
from kernels.files import reach
from kernels.gpu import interpret, specimens
from kernels.gpu.block_tiles import tile_of
from kernels.gpu.blocked import reads
from kernels.gpu.checked import Memory
from kernels.gpu.compile import ARCHITECTURES, triton_version
from kernels.gpu.render import launch_of
from kernels.gpu.report import report
from kernels.gpu.walks import Walks
from kernels.spec import Call, Load, Operand, Store

Array = np.ndarray[Any, Any]
needs_triton = pytest.mark.skipif(triton_version() is None, reason="Triton is not installed")
# Neither rows nor columns fill their blocks.
HEADS, ROWS, COLUMNS, WIDTH = 2, 70, 37, 20
SIZES = HEADS, ROWS, COLUMNS
F = dtypes.float32


def numbers(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def interpreted(work: BlockWork, given: list[Array]) -> list[Array]:
    """What a kernel leaves in the memory of operands that are not given: those that it stores."""
    arrays = [x.reshape(-1).copy() for x in given]
    kept = [reach(work, i)[1] + 1 for i in range(len(given), len(work.spec.operands))]
    arrays += [np.full(size, 77, np.float32) for size in kept]
    pointers = [x.ctypes.data for x in arrays]
    interpret.run(launch_of(work, [p & -p or 16 for p in pointers]), pointers, Memory(arrays))
    return arrays[len(given) :]


def same(got: Array, wanted: Array) -> None:
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 2e-5, 2e-5 * np.abs(wanted).max())


@needs_triton
def test_all_kinds_give_what_numpy_gives() -> None:
    query, gradient = (numbers(HEADS, ROWS, WIDTH, seed=i) for i in (0, 1))
    key, value = (numbers(HEADS, COLUMNS, WIDTH, seed=i) for i in (2, 3))
    q, k, v, g = (x.astype(np.float64) for x in (query, key, value, gradient))
    scores = q @ k.swapaxes(1, 2) * 0.125
    most = scores.max(-1, keepdims=True)
    total = np.exp(scores - most).sum(-1, keepdims=True)
    weights, above = np.exp(scores - most) / total, g @ v.swapaxes(1, 2)
    sums = (weights * above).sum(-1, keepdims=True)
    inner = weights * (above - sums) * 0.125
    (result,) = interpreted(specimens.forward(F, WIDTH, SIZES), [query, key, value])
    same(result, weights @ v)
    rows = [x.astype(np.float32) for x in (most, total, sums)]
    of_rows = specimens.of_rows(F, WIDTH, SIZES)
    of_query, found = interpreted(of_rows, [query, key, gradient, value, *rows[:2]])
    same(of_query, inner @ k)
    same(found, sums)
    of_columns = specimens.of_columns(F, WIDTH, SIZES)
    of_value, of_key = interpreted(of_columns, [key, query, value, gradient, *rows])
    same(of_value, weights.swapaxes(1, 2) @ g)
    same(of_key, inner.swapaxes(1, 2) @ q)


@needs_triton
def test_a_flag_stops_it() -> None:
    work = specimens.forward(F, WIDTH, SIZES)
    given = [numbers(HEADS, n, WIDTH, seed=0).reshape(-1) for n in (ROWS, COLUMNS, COLUMNS)]
    result, flag = np.full(HEADS * ROWS * WIDTH, 77, np.float32), np.array([True])
    arrays = [*given, result, flag]
    pointers = [x.ctypes.data for x in arrays]
    interpret.run(launch_of(work, flags=1), pointers, Memory(arrays))
    assert (result == 77).all()


# Loops ----------------------------------------------------------------------------------------------


def test_a_softmax_and_the_product_of_it_are_one_loop() -> None:
    spec = specimens.forward(F, WIDTH).spec
    loops = Walks(spec)
    assert len(loops.elements) == 1 and len(loops.online) == 2
    # What a row is divided by is applied to what came of it.
    product = next(s for s in spec.steps if isinstance(s, Total))
    assert [call.function for call in loops.online[product.out].rest] == ["div"]


def test_weights_that_are_stored_are_made_when_they_are_known_and_multiplied_there() -> None:
    work = specimens.forward(F, WIDTH)
    product = next(s for s in work.spec.steps if isinstance(s, Total))
    operands = (*work.spec.operands, Operand(F, ("s", "s", 1, 0)))
    steps = (*work.spec.steps, Store(product.value, len(operands) - 1))
    spec = replace(work.spec, operands=operands, steps=steps)
    loops = Walks(spec)
    assert len(loops.elements) == 2 and len(loops.online) == 1
    assert product in loops.elements[1] and product not in loops.elements[0]


def test_a_gradients_rows_are_walked_twice_and_its_columns_once() -> None:
    assert len(Walks(specimens.of_rows(F, WIDTH).spec).elements) == 2
    assert len(Walks(specimens.of_columns(F, WIDTH).spec).elements) == 1


# Machine code ---------------------------------------------------------------------------------------


def test_factors_are_read_by_every_block_that_walks_them() -> None:
    work = specimens.forward(F, 64)
    again = 1024 // tile_of(work).own
    assert reads(work, launch_of(work)) == [1, again, again, 1]


def test_cuts_are_no_larger_than_what_is_cut() -> None:
    tile = tile_of(specimens.forward(F, 32, (1, 20, 5)))
    assert (tile.own, tile.walked) == (32, 16)


@needs_triton
@pytest.mark.parametrize(
    "make, dtype, width, architectures",
    [
        (specimens.forward, dtypes.float16, 128, ARCHITECTURES),
        (specimens.forward, F, 64, ("sm_90",)),
        (specimens.of_rows, dtypes.float16, 64, ("sm_80", "gfx942")),
        (specimens.of_columns, dtypes.float16, 64, ("sm_80", "sm_90")),
        (specimens.of_columns, F, 64, ("sm_90",)),
    ],
)
def test_machine_code_is_as_it_should_be(
    make: Callable[..., BlockWork], dtype: DType, width: int, architectures: tuple[str, ...]
) -> None:
    for row in report([("blocks", make(dtype, width))], architectures):
        assert row.failed == () and row.found is not None and row.found.spilled == 0
        assert row.found.tensor or (dtype is F and row.architecture.startswith("sm_"))


@needs_triton
def test_float32_takes_tensor_cores_where_it_may() -> None:
    (row,) = report([("blocks", specimens.forward(F, 64))], ("sm_80",), tf32=True)
    assert row.failed == () and row.found is not None and row.found.tensor


@needs_triton
def test_what_lies_across_the_walk_is_read_in_128_bits_beside_tensor_cores() -> None:
    # As the weights that a gradient's columns take again, where they were kept.
    side, depth = 512, 32
    steps: tuple[BlockStep, ...] = (
        Dot("score", 0, 1, 2, F),
        Load("weight", 2),
        Call("product", "mul", ("score", "weight"), F),
        Total("total", "product", 1, 2, F, F),
        Store("total", 3),
    )
    operands = (("s", 0, 1), (0, "s", 1), (1, "s", 0), ("s", 0, 1))
    strides = ((depth, 0, 1), (0, depth, 1), (1, side, 0), (depth, 0, 1))
    spec = BlockSpec("across", 0, 1, tuple(Operand(F, x) for x in operands), steps)
    work = BlockWork(spec, (side, side, depth), strides)
    for row in report([("blocks", work)], ("sm_80", "sm_90"), tf32=True):
        assert row.failed == () and row.found is not None and row.found.tensor
