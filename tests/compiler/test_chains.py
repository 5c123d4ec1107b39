"""Kernels that run tile by tile: the bits of kernels that do not, without the memory between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import binding, ops, stored
from compiler.binding import Arena
from compiler.gpu.program import DeviceExecutable
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value
from compiler.ops.movement import swap_last
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType
from kernels import dtypes
from kernels.cpu import pool
from kernels.dtypes import DType
from kernels.gpu.emulator import Emulator
from kernels.spec import MatmulSpec
from kernels.varying import Varying
from tests.compiler.small_tiles import allow_small_chains

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 rows, and chains however little they save."""
    allow_small_chains(monkeypatch)


@pytest.fixture
def threads() -> Iterator[None]:
    before = pool.get_num_threads()
    yield
    pool.set_num_threads(before)


def softmax(x: Value) -> Value:
    e = ops.exp.trace(ops.sub.trace(x, ops.amax.trace(x, axes=(x.ndim - 1,))))
    return ops.div.trace(e, ops.sum.trace(e, axes=(x.ndim - 1,)))


def operands(
    batch: tuple[int, ...], rows: int, columns: int, width: int, dtype: DType = dtypes.float32
) -> tuple[list[Input], list[Array]]:
    """Query, key and value, and what they are."""
    rng = np.random.default_rng(rows * 1000 + columns)
    shapes = [(*batch, rows, width), (*batch, columns, width), (*batch, columns, width)]
    inputs = [Input(TensorType(s, dtype), name=n) for s, n in zip(shapes, "qkv", strict=True)]
    return inputs, [rng.standard_normal(s).astype(dtype.numpy) for s in shapes]


def attention(q: Value, k: Value, v: Value) -> Value:
    scores = ops.mul.trace(ops.matmul.trace(q, swap_last(k)), 1 / math.sqrt(q.shape[-1]))
    return ops.matmul.trace(softmax(scores), v)


def with_gradient(q: Value, k: Value, v: Value) -> tuple[Value, ...]:
    """Attention and what a gradient of it needs: sums over the rows, and over the columns."""
    shares = softmax(ops.matmul.trace(q, swap_last(k)))
    out = ops.matmul.trace(shares, v)
    grad = ops.matmul.trace(out, swap_last(v))
    inner = ops.sum.trace(ops.mul.trace(grad, shares), axes=(grad.ndim - 1,))
    scores = ops.mul.trace(ops.sub.trace(grad, inner), shares)
    values = ops.matmul.trace(swap_last(shares), out)
    return out, ops.matmul.trace(scores, k), ops.matmul.trace(swap_last(scores), q), values


def both(graph: Graph) -> tuple[Executable, Executable]:
    """The program with chains, and without."""
    chained, apart = Executable(Request(graph)), Executable(Request(graph), chains=False)
    assert not apart.plan.chains
    return chained, apart


SHAPES = [
    ((2, 3), 37, 41, 8), ((2, 3), 40, 17, 33), ((5,), 16, 300, 4), ((4,), 50, 1, 6), ((3, 2), 1, 20, 5),
    ((1, 4), 25, 25, 1), ((2, 2), 130, 256, 16), ((), 33, 9, 7),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "rows", "columns", "width"), SHAPES)
def test_a_chain_has_the_bits_of_its_kernels(
    batch: tuple[int, ...], rows: int, columns: int, width: int
) -> None:
    inputs, arrays = operands(batch, rows, columns, width)
    chained, apart = both(Graph(tuple(inputs), (attention(*inputs),)))
    (got,), (wanted,) = chained(*arrays), apart(*arrays)
    np.testing.assert_array_equal(got, wanted)
    (precise,) = evaluate(*as_float64(inputs, arrays, attention))
    np.testing.assert_allclose(got, precise, rtol=1e-4, atol=1e-5)


def test_chains_of_other_sizes_share_products() -> None:
    """With the bits of kernels that do not, whatever the last tile is."""
    varying, seen = Varying(), set[str]()
    for rows in (37, 33, 34, 40, 50, 130, 19, 65):
        inputs, arrays = operands((2, 3), rows, rows, 8)
        graph = Graph(tuple(inputs), (attention(*inputs),))
        chained, apart = Executable(Request(graph), varying=varying), Executable(Request(graph), chains=False)
        assert chained.plan.chains
        for got, wanted in zip(chained(*arrays), apart(*arrays), strict=True):
            np.testing.assert_array_equal(got, wanted)
        known = len(seen)
        seen |= {k.spec.digest for k in chained.plan.kernels if isinstance(k.spec, MatmulSpec)}
    assert known == len(seen)


def as_float64(inputs: list[Input], arrays: list[Array], function: Any) -> tuple[Graph, list[Array]]:
    wide = [Input(TensorType(x.shape, dtypes.float64), name=x.name) for x in inputs]
    made = function(*wide)
    return Graph(tuple(wide), made if isinstance(made, tuple) else (made,)), [a.astype("f8") for a in arrays]


def test_the_arena_holds_no_scores() -> None:
    inputs, arrays = operands((2, 3), 128, 256, 8)
    chained, apart = both(Graph(tuple(inputs), (attention(*inputs),)))
    assert apart.plan.arena_bytes >= 6 * 128 * 256 * 4
    assert chained.plan.arena_bytes == 0
    (chain,) = chained.plan.chains
    assert [link.number for link in chain.links] == [0, 1, 2] and len(set(chained.plan.levels)) == 1
    assert (chain.outer, chain.rows, chain.step, chain.units) == ((2, 3), 128, 16, 48)
    assert chained.program.scratch_bytes < 2 * 16 * (256 + 16) * 4 + 65536
    assert len(chained.kernels) == 3
    np.testing.assert_array_equal(chained(*arrays)[0], apart(*arrays)[0])


@pytest.mark.parametrize(("batch", "rows", "columns", "width"), SHAPES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_sums_over_rows_add_up_what_tiles_give(
    batch: tuple[int, ...], rows: int, columns: int, width: int, dtype: DType
) -> None:
    inputs, arrays = operands(batch, rows, columns, width, dtype)
    chained = Executable(Request(Graph(tuple(inputs), with_gradient(*inputs))))
    precise = evaluate(*as_float64(inputs, arrays, with_gradient))
    exact = 1e-12 if dtype is dtypes.float64 else 3e-5
    for got, wanted in zip(chained(*arrays), precise, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=exact * max(1.0, np.abs(wanted).max()))
    sums = [link.number for chain in chained.plan.chains for link in chain.links if link.sums]
    assert bool(sums) == (rows > 16)


def test_threads_change_no_bit(threads: None) -> None:
    inputs, arrays = operands((3, 3), 70, 50, 12)
    executable = Executable(Request(Graph(tuple(inputs), with_gradient(*inputs))))
    pool.set_num_threads(1)
    first = executable(*arrays)
    for count in (4, 2):
        pool.set_num_threads(count)
        for got, wanted in zip(executable(*arrays), first, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_special_values_go_through_a_chain() -> None:
    inputs, arrays = operands((2, 2), 40, 20, 8)
    mask = Input(TensorType((40, 20), dtypes.float32), name="mask")

    def masked(q: Value, k: Value, v: Value) -> Value:
        return ops.matmul.trace(softmax(ops.add.trace(ops.matmul.trace(q, swap_last(k)), mask)), v)

    hidden = np.zeros((40, 20), np.float32)
    hidden[3] = hidden[:, 5] = -np.inf  # a row that sees nothing is nan, a column nobody sees is nothing
    arrays[0][1, 1, 17] = np.nan
    arrays[2][0, 0, 5] = 7
    chained, apart = both(Graph((*inputs, mask), (masked(*inputs),)))
    assert chained.plan.chains
    (got,), (wanted,) = chained(*arrays, hidden), apart(*arrays, hidden)
    np.testing.assert_array_equal(got, wanted)
    assert np.isnan(got[:, :, 3]).all() and np.isnan(got[1, 1, 17]).all()
    assert np.isfinite(np.delete(got[0], 3, axis=1)).all()


# What is no chain -----------------------------------------------------------------------------------


def test_what_is_returned_is_in_memory() -> None:
    inputs, arrays = operands((2, 2), 40, 30, 8)
    scores = ops.matmul.trace(inputs[0], swap_last(inputs[1]))
    shares = softmax(scores)
    chained, apart = both(Graph(tuple(inputs), (ops.matmul.trace(shares, inputs[2]), shares)))
    # The scores are not returned: they alone are a tile's.
    (chain,) = chained.plan.chains
    assert len(chain.private) == 1
    for got, wanted in zip(chained(*arrays), apart(*arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_pieces_of_one_tensor_are_apart() -> None:
    """Gradients side by side in one tensor: two of them add up what tiles give."""
    inputs, arrays = operands((2, 2), 40, 40, 8)

    def joined(q: Value, k: Value, v: Value) -> Value:
        return ops.concatenate.trace(*with_gradient(q, k, v)[1:], axis=3)

    chained = Executable(Request(Graph(tuple(inputs), (joined(*inputs),))))
    assert sum(link.sums for chain in chained.plan.chains for link in chain.links) == 2
    (wanted,) = evaluate(*as_float64(inputs, arrays, joined))
    np.testing.assert_allclose(chained(*arrays)[0], wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())


def test_nothing_between_a_chain_needs_all_of_it() -> None:
    inputs, arrays = operands((2, 2), 40, 30, 8)
    scores = ops.matmul.trace(inputs[0], swap_last(inputs[1]))
    total = ops.sum.trace(ops.amax.trace(scores, axes=(3,)), axes=(0, 1, 2, 3))
    out = ops.matmul.trace(softmax(ops.mul.trace(scores, total)), inputs[2])
    graph = Graph(tuple(inputs), (out, total))
    chained, apart = both(graph)
    assert all({0, 1} - {link.number for link in c.links} for c in chained.plan.chains)
    for got, wanted, right in zip(chained(*arrays), apart(*arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-4)


def test_rows_that_read_other_rows_are_no_chain() -> None:
    """A transposed reader of square scores sees all rows; so do slices."""
    inputs, arrays = operands((3,), 32, 32, 8)
    scores = ops.matmul.trace(inputs[0], swap_last(inputs[1]))
    mixed = ops.add.trace(scores, swap_last(scores))
    out = ops.matmul.trace(softmax(mixed), inputs[2])
    chained, apart = both(Graph(tuple(inputs), (out,)))
    for chain in chained.plan.chains:
        # One head at a time at most, and what is written before it is read.
        assert chain.blocks == 1 or 0 not in {link.number for link in chain.links}
    np.testing.assert_array_equal(chained(*arrays)[0], apart(*arrays)[0])


# Programs -------------------------------------------------------------------------------------------


def test_layers_one_after_the_other() -> None:
    inputs, arrays = operands((2, 2), 40, 40, 8)
    x: Value = inputs[0]
    for _ in range(3):
        x = attention(x, x, inputs[2])
    chained, apart = both(Graph(tuple(inputs), (x,)))
    assert len(chained.plan.chains) >= 1
    np.testing.assert_array_equal(chained(*arrays)[0], apart(*arrays)[0])


def test_programs_of_one_arena_follow_it() -> None:
    inputs, arrays = operands((2, 2), 40, 30, 8)
    arena = Arena()
    first = Executable(Request(Graph(tuple(inputs), with_gradient(*inputs))), arena)
    before = first(*arrays)
    arena.reserve(1 << 22)
    for got, wanted in zip(first(*arrays), before, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_stored_plan_has_its_chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))
    monkeypatch.delenv("TRACEFUSE_PLANS", raising=False)
    monkeypatch.setattr(stored, "_FEWEST_NODES", 1)
    inputs, arrays = operands((2, 2), 40, 30, 8)
    request = Request(Graph(tuple(inputs), with_gradient(*inputs)))
    _, plan = stored.planned(request, binding._plan)

    def refuse(request: Request) -> Any:
        raise AssertionError("planned again")

    _, read = stored.planned(request, refuse)
    assert plan.chained is not None and read.chained is not None
    assert read.chained.chains == plan.chained.chains and read.chained.levels == plan.chained.levels
    assert read.chained.arena_bytes == plan.chained.arena_bytes
    for got, wanted in zip(Executable(request)(*arrays), Executable(request)(*arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_gpu_runs_a_chains_kernels_as_one() -> None:
    inputs, arrays = operands((2,), 20, 18, 4)
    graph = Graph(tuple(inputs), (attention(*inputs),))
    there = DeviceExecutable(Request(graph), Emulator())
    assert not there.plan.chains and len(there.program.launches) == 1
    np.testing.assert_allclose(
        there(*arrays)[0], Executable(Request(graph))(*arrays)[0], rtol=1e-4, atol=1e-5
    )


def test_an_edited_kernel_runs_in_its_chain(tmp_path: Path) -> None:
    inputs, arrays = operands((2, 2), 40, 30, 8)
    executable = Executable(Request(Graph(tuple(inputs), (attention(*inputs),))))
    (before,) = executable(*arrays)
    view = next(k for k in executable.kernels if "exp" in k.spec.name)
    path = view.edit(tmp_path / "edited.py")
    try:
        path.write_text(path.read_text().replace("div(", "mul("))
        assert not np.allclose(executable(*arrays)[0], before)
    finally:
        view.restore()
    np.testing.assert_array_equal(executable(*arrays)[0], before)
