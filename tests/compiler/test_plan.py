"""Plans as data: memory that is never shared by two live values, levels that respect every conflict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value
from compiler.levels import ALIGNMENT, accesses
from compiler.lower import Buffer
from compiler.plan import Plan, Request
from compiler.types import TensorType
from kernels import dtypes
from tests.compiler.random_graphs import random_graph
from tests.compiler.simulate import planned, simulate

Array = np.ndarray[Any, Any]


def lives(plan: Plan) -> dict[Buffer, tuple[int, int]]:
    """First and last level at which each buffer is touched."""
    found: dict[Buffer, tuple[int, int]] = {}
    for kernel, level in zip(plan.kernels, plan.levels, strict=True):
        for buffer in {b.root for b in set[Any]().union(*accesses(kernel))}:
            first, last = found.get(buffer, (level, level))
            found[buffer] = (min(first, level), max(last, level))
    return found


def check_memory(plan: Plan) -> None:
    """Buffers alive together lie apart, inside the arena, on cache lines."""
    alive = lives(plan)
    placed = [(o, o + b.type.nbytes, alive[b]) for b, o in plan.arena.items() if b in alive]
    for number, (start, end, (first, last)) in enumerate(placed):
        assert start % ALIGNMENT == 0 and end <= plan.arena_bytes
        for other_start, other_end, (other_first, other_last) in placed[:number]:
            together = first <= other_last and other_first <= last
            assert not together or end <= other_start or other_end <= start
    outside = {*plan.inputs, *plan.outputs, *plan.constants}
    assert not outside & set(plan.arena)
    assert set(alive) <= outside | set(plan.arena)


def check_order(plan: Plan) -> None:
    """Whatever a kernel reads was written at a lower level, and no kernel touches what another of its level
    writes.
    """
    written = {*plan.inputs, *plan.constants}
    for level in sorted(set(plan.levels)):
        together = [accesses(k) for k, own in zip(plan.kernels, plan.levels, strict=True) if own == level]
        for number, (reads, writes) in enumerate(together):
            assert all(overlap({b}, written | writes) for b in reads), "memory is read before it is written"
            for other_reads, other_writes in together[:number]:
                assert not overlap(writes, other_reads | other_writes) and not overlap(other_writes, reads)
        for _, writes in together:
            written |= writes


def overlap(some: Iterable[Buffer], others: set[Buffer]) -> bool:
    """Whether buffers share memory: the same, or one a part of the other."""
    around = {b for other in others for b in other.around}
    return any(b in around or not others.isdisjoint(b.around) for b in some)


@pytest.mark.parametrize(("seed", "nodes"), [(0, 20), (20, 20), (40, 20), (200, 25), (270, 25), (2000, 50)])
def test_random_plans(seed: int, nodes: int) -> None:
    for number in range(seed, seed + 20):
        dtype = (dtypes.float32, dtypes.float64, dtypes.int64)[number % 3]
        graph, arrays = random_graph(number, dtype, nodes=nodes)
        plan = planned(Request(graph))
        check_memory(plan)
        check_order(plan)
        for got, wanted in zip(simulate(plan, arrays, number), evaluate(graph, arrays), strict=True):
            np.testing.assert_array_equal(
                got.reshape(wanted.shape), wanted, err_msg=f"seed {number}\n{graph}"
            )


@pytest.mark.parametrize("seed", range(1000, 1060, 20))
def test_random_plans_with_writes(seed: int) -> None:
    for number in range(seed, seed + 20):
        graph, arrays = random_graph(number, dtypes.float64, nodes=12)
        writes = random_writes(graph, np.random.default_rng(number))
        everything = Graph(graph.inputs, (*graph.outputs, *(v for _, v in writes)))
        plan = planned(Request(everything, writes))
        check_memory(plan)
        after = [x.copy() for x in arrays]
        got = simulate(plan, after, number)
        wanted = evaluate(everything, arrays)
        expected = list(arrays)
        for (target, _), value in zip(writes, wanted[len(graph.outputs) :], strict=True):
            expected[target] = value
        for a, b in zip([*got, *after], [*wanted[: len(graph.outputs)], *expected], strict=True):
            np.testing.assert_array_equal(a.reshape(b.shape), b, err_msg=f"seed {number}\n{everything}")


def random_writes(graph: Graph, rng: np.random.Generator) -> tuple[tuple[int, Value], ...]:
    """New values for some inputs: any of the right shape, views of inputs and inputs included."""
    writes = []
    for number, x in enumerate(graph.inputs):
        fitting = [v for v in graph.nodes if v.type == x.type and v is not x]
        if rng.random() < 0.8:
            base = fitting[rng.integers(len(fitting))] if fitting and rng.random() < 0.5 else x
            kind = rng.integers(4)
            if kind == 0:
                base = ops.add.trace(base, x)
            elif kind == 1:
                base = ops.flip.trace(base, axes=(x.ndim - 1,))
            elif kind == 2:
                base = ops.sub.trace(base, 1.0)
            if base is not x:
                writes.append((number, base))
    return tuple(writes)


def test_an_update_needs_no_memory_of_its_own() -> None:
    kind = TensorType((1000,), dtypes.float32)
    x, g = Input(kind, name="x"), Input(kind, name="g")
    new = ops.sub.trace(x, ops.mul.trace(g, 0.1))
    plan = planned(Request(Graph((x, g), (new,)), ((0, new),)))
    assert len(plan.kernels) == 1
    assert plan.arena_bytes == 0


def test_a_returned_value_is_computed_in_the_callers_memory() -> None:
    x = Input(TensorType((64, 64), dtypes.float32), name="x")
    y = ops.matmul.trace(x, x)
    plan = planned(Request(Graph((x,), (y, ops.reshape.trace(ops.exp.trace(x), shape=(4096,))))))
    assert len(plan.kernels) == 2
    assert plan.arena_bytes == 0


def test_independent_kernels_share_a_launch() -> None:
    x = Input(TensorType((64, 64), dtypes.float32), name="x")
    products = [ops.matmul.trace(x, ops.mul.trace(x, float(n))) for n in range(2, 6)]
    plan = planned(Request(Graph((x,), tuple(products))))
    assert len(set(plan.levels)) == 2


def test_memory_is_reused_along_a_chain() -> None:
    x = Input(TensorType((64, 64), dtypes.float32), name="x")
    y: Value = x
    for _ in range(10):
        y = ops.matmul.trace(y, x)
    assert planned(Request(Graph((x,), (y,)))).arena_bytes <= 2 * x.type.nbytes


def test_an_index_computed_in_the_kernel_that_gathers() -> None:
    # What the index is made of has another reader in the kernel; the index itself needs no memory.
    x = Input(TensorType((3, 4), dtypes.float32), name="x")
    index = ops.remainder.trace(ops.cast.trace(ops.abs.trace(x), dtype=dtypes.int64), 4)
    whole = ops.cast.trace(
        ops.cast.trace(ops.minimum.trace(x, 9.0), dtype=dtypes.int32), dtype=dtypes.float32
    )
    graph = Graph((x,), (ops.minimum.trace(ops.gather.trace(x, index, axis=1), whole),))
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    (got,) = simulate(planned(Request(graph)), [array])
    np.testing.assert_array_equal(got.reshape(3, 4), evaluate(graph, [array])[0])


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_reshape_of_views_of_views_is_a_copy(order: tuple[int, ...]) -> None:
    x = Input(TensorType((3, 4), dtypes.float32), name="x")
    turned = ops.flip.trace(ops.permute.trace(x, axes=order), axes=(0,))
    graph = Graph(
        (x,), (ops.reshape.trace(turned, shape=(12,)), ops.neg.trace(ops.reshape.trace(turned, shape=(2, 6))))
    )
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for got, wanted in zip(simulate(planned(Request(graph)), [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


def test_a_join_copies_nothing_that_is_computed() -> None:
    x = Input(TensorType((6, 8), dtypes.float32), name="x")
    halves = [ops.exp.trace(x), ops.matmul.trace(x, ops.reshape.trace(x, shape=(8, 6)))]
    whole = ops.concatenate.trace(
        ops.pad.trace(halves[1], low=(1, 0), high=(1, 2), value=3), *halves[:1], axis=0
    )
    graph = Graph((x,), (whole,))
    plan = planned(Request(graph))
    # exp, the product, and three edges of the pad: rows before and after, columns after.
    assert len(plan.kernels) == 5 and set(plan.levels) == {0}
    assert plan.arena_bytes == 0
    check_order(plan)
    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    (got,) = simulate(plan, [array])
    np.testing.assert_array_equal(got.reshape(whole.shape), evaluate(graph, [array])[0])


def test_a_piece_of_two_joins_is_in_both() -> None:
    x = Input(TensorType((2, 3), dtypes.float32), name="x")
    a, b, c = ops.exp.trace(x), ops.sin.trace(x), ops.cos.trace(x)
    graph = Graph((x,), tuple(ops.concatenate.trace(*pair, axis=1) for pair in ((a, b), (a, c), (b, a))))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for got, wanted in zip(simulate(planned(Request(graph)), [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-6)


def test_steps_of_a_loop_are_one_spec_and_nothing_else_is() -> None:
    """Offsets may differ between kernels of one spec; numbers, and which operands are one, may not."""
    x = Input(TensorType((6, 8), dtypes.float32), name="x")
    rows = [ops.slice.trace(x, starts=(i, 0), stops=(i + 1, 8), steps=(1, 1)) for i in range(6)]
    alike = [ops.sin.trace(ops.mul.trace(a, b)) for a, b in zip(rows[:3], rows[3:], strict=True)]
    twice = ops.sin.trace(ops.mul.trace(rows[0], rows[0]))
    scaled = [ops.sin.trace(ops.mul.trace(rows[0], number)) for number in (0.0, -0.0)]
    request = Request(Graph((x,), (*alike, twice, *scaled)))
    plan = planned(request)
    specs = [k.spec for k in plan.kernels]
    assert specs[0] is specs[1] is specs[2]
    assert len({id(spec) for spec in specs}) == len({spec.digest for spec in specs}) == 4
    arrays = [np.linspace(-3, 3, 48, dtype=np.float32).reshape(6, 8)]
    for made, expected in zip(simulate(plan, arrays), evaluate(request.graph, arrays), strict=True):
        np.testing.assert_allclose(made, expected.reshape(-1), rtol=1e-5)
