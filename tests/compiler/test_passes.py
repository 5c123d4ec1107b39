"""Every pass keeps every value, bit for bit; and each rule does what its docstring says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Apply, Graph, Input, Value, constant
from compiler.passes import (
    PIPELINE,
    decompose,
    hoist_views,
    join_products,
    merge_duplicates,
    recompute,
    recomputing,
    settle_views,
    simplify,
)
from compiler.passes.decompose import decomposed, picked, wide_scatter
from compiler.passes.layout import LAYOUT_RULES
from compiler.passes.pads import sum_of_pads
from compiler.passes.rewrite import _dispatch, _pattern, fixpoint, on, rewrite
from compiler.passes.simplify import RULES
from compiler.passes.views import (
    implicit_expand,
    sink_expand,
    split_rows,
    spread_lines,
    squeeze_last,
    transposed_product,
    up,
)
from compiler.types import TensorType
from kernels import dtypes
from kernels.dtypes import DType
from tests.compiler.random_graphs import random_graph

Array = np.ndarray[Any, Any]
PASSES = (decompose, simplify, merge_duplicates, hoist_views, settle_views)
F32, I64, BOOL = dtypes.float32, dtypes.int64, dtypes.bool_


def an_input(*shape: int, dtype: DType = F32, name: str = "x") -> Input:
    return Input(TensorType(shape, dtype), name=name)


def keeps_values(run: Callable[[Graph], Graph], graph: Graph, arrays: list[Array]) -> Graph:
    """The graph after a pass, whose outputs have the types and the bits they had."""
    after = run(graph)
    assert after.inputs == graph.inputs
    assert [v.type for v in after.outputs] == [v.type for v in graph.outputs]
    for got, wanted in zip(evaluate(after, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=f"before\n{graph}\nafter\n{after}")
        if wanted.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
    return after


@pytest.mark.parametrize("number", range(len(PASSES)), ids=[f.__name__ for f in PASSES])
def test_a_pass_keeps_values(number: int) -> None:
    for seed in range(150):
        # Sums are left out: a view hoisted above one may add in another order.
        graph, arrays = random_graph(seed, (F32, dtypes.float64, I64)[seed % 3], nodes=16)
        keeps_values(PASSES[number], graph, arrays)


def test_the_pipeline_keeps_values_and_settles() -> None:
    for seed in range(60):
        graph, arrays = random_graph(seed, (F32, I64)[seed % 2], nodes=25)
        sizes = []
        for _ in range(3):
            for run in PIPELINE:
                graph = keeps_values(run, graph, arrays)
            sizes.append(len(graph.nodes))
        # Merged duplicates may set a view free to travel that was shared before, once.
        assert sizes[1] == sizes[2]


@pytest.mark.parametrize("dtype", [F32, I64, BOOL, dtypes.bfloat16], ids=lambda d: d.name)
def test_decompositions_of_every_dtype(dtype: DType) -> None:
    x = an_input(3, 4, dtype=dtype)
    outputs = tuple(
        op.trace(x, axis=axis, keepdim=k)
        for op in (ops.argmax, ops.argmin)
        for axis in (0, 1)
        for k in (False, True)
    )
    array = np.random.default_rng(0).integers(0, 2, (3, 4)).astype(dtype.numpy)
    after = keeps_values(decompose, Graph((x,), outputs), [array])
    assert all(v.op.decompose is None for v in after.nodes if isinstance(v, Apply))


# Single rules -------------------------------------------------------------------------------------

x, y = an_input(3, 4), an_input(3, 4, name="y")
i = an_input(3, 4, dtype=I64, name="i")
b = an_input(3, 4, dtype=BOOL, name="b")
row = an_input(4, name="row")


def simplified(value: Value) -> Value:
    """What a value becomes."""
    return simplify(Graph((x, y, i, b, row), (value,))).outputs[0]


def title(value: Value) -> str:
    """A value's last line of text, as a test's name."""
    return str(Graph((x, y, i, b, row), (value,))).splitlines()[-2].partition(" = ")[2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ops.mul.trace(x, 1.0), x),
        (ops.mul.trace(1.0, x), x),
        (ops.mul.trace(i, 1), i),
        (ops.div.trace(x, 1.0), x),
        (ops.add.trace(x, -0.0), x),
        (ops.add.trace(i, 0), i),
        (ops.sub.trace(x, 0.0), x),
        (ops.pow.trace(x, 1.0), x),
        (ops.shift_left.trace(i, 0), i),
        (ops.cast.trace(x, dtype=F32), x),
        (ops.reshape.trace(x, shape=(3, 4)), x),
        (ops.expand.trace(x, shape=(3, 4)), x),
        (ops.slice.trace(x, starts=(0, 0), stops=(3, 4), steps=(1, 1)), x),
        (ops.permute.trace(x, axes=(0, 1)), x),
        (ops.permute.trace(ops.permute.trace(x, axes=(1, 0)), axes=(1, 0)), x),
        (ops.reshape.trace(ops.reshape.trace(x, shape=(12,)), shape=(3, 4)), x),
        (ops.sum.trace(x, axes=()), x),
        (ops.mul.trace(x, ops.full.trace(shape=(3, 4), value=1, dtype=F32)), x),
    ],
    ids=title,
)
def test_what_changes_nothing_goes(before: Value, after: Value) -> None:
    assert simplified(before) is after


@pytest.mark.parametrize(
    "value",
    [
        ops.add.trace(x, 0.0),  # -0.0 + 0.0 is 0.0
        ops.sub.trace(x, -0.0),
        ops.sub.trace(0.0, x),
        ops.div.trace(1.0, x),
        ops.mul.trace(x, 0.0),  # nan stays nan
        ops.mul.trace(row, ops.full.trace(shape=(3, 4), value=1, dtype=F32)),  # gives the shape
        ops.cast.trace(x, dtype=dtypes.float64),
        ops.flip.trace(x, axes=(1,)),
        ops.slice.trace(x, starts=(0, 0), stops=(3, 4), steps=(1, 2)),
        ops.sum.trace(x, axes=(1,)),
    ],
    ids=title,
)
def test_what_changes_something_stays(value: Value) -> None:
    kept = simplified(value)
    assert isinstance(kept, Apply) and isinstance(value, Apply)
    assert kept.op is value.op


def test_constants_are_folded() -> None:
    folded = simplified(ops.exp.trace(ops.mul.trace(constant(np.float32(2)), constant(np.float32(3)))))
    assert str(Graph((), (folded,))).startswith("%0: float32[] = const 403.4")


def test_a_view_of_a_filled_tensor_is_filled() -> None:
    full = ops.full.trace(shape=(2, 3), value=5, dtype=F32)
    kept = simplified(ops.permute.trace(ops.reshape.trace(full, shape=(3, 2)), axes=(1, 0)))
    assert isinstance(kept, Apply) and kept.op is ops.full and kept.shape == (2, 3)


def test_equal_applications_become_one() -> None:
    one, two = (ops.exp.trace(ops.add.trace(x, y)) for _ in range(2))
    graph = merge_duplicates(Graph((x, y), (ops.mul.trace(one, two), one)))
    assert [v.op.name for v in graph.nodes if isinstance(v, Apply)] == ["add", "exp", "mul"]
    different = Graph((x,), (ops.sum.trace(x, axes=(0,)), ops.sum.trace(x, axes=(1,))))
    assert merge_duplicates(different) is different


def test_numbers_that_differ_only_in_sign_or_dtype_stay_apart() -> None:
    graph = merge_duplicates(Graph((x,), (ops.mul.trace(x, 0.0), ops.mul.trace(x, -0.0))))
    assert sum(isinstance(v, Apply) for v in graph.nodes) == 2
    array = np.ones((3, 4), np.float32)
    plus, minus = evaluate(graph, [array])
    assert not np.signbit(plus).any() and np.signbit(minus).all()


def test_views_reach_memory() -> None:
    value = ops.permute.trace(ops.exp.trace(ops.add.trace(x, row)), axes=(1, 0))
    graph = hoist_views(Graph((x, row), (ops.relu.trace(value),)))
    names = [v.op.name for v in graph.nodes if isinstance(v, Apply)]
    assert names.index("exp") > max(n for n, name in enumerate(names) if name in ("permute", "expand"))
    assert sum(name in ("exp", "relu", "add") for name in names) == 3


def test_an_expensive_value_is_not_computed_twice_for_a_view() -> None:
    value = ops.exp.trace(x)
    graph = hoist_views(Graph((x,), (value, ops.add.trace(ops.permute.trace(value, axes=(1, 0)), 1.0))))
    assert sum(v.op is ops.exp for v in graph.nodes if isinstance(v, Apply)) == 1


def test_nothing_to_do_gives_the_same_graph() -> None:
    graph = Graph((x, y), (ops.exp.trace(ops.add.trace(x, y)),))
    for run in PASSES:
        assert run(graph) is graph


def test_rules_that_undo_each_other_are_noticed() -> None:
    def swap(node: Apply) -> Value | None:
        return None

    graph = Graph((x, y), (ops.add.trace(x, y),))
    assert fixpoint(graph, (swap,)) is graph
    assert rewrite(graph, (lambda node: node.inputs[0],)).outputs == (x,)


def ops_of(graph: Graph) -> list[str]:
    """The names of a graph's applications, sorted."""
    return sorted(v.op.name for v in graph.nodes if isinstance(v, Apply))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_of_pads_are_concatenations(axis: int) -> None:
    sizes = [(2, 3, 4), (2, 3, 4), (2, 3, 4)]
    pieces = [an_input(*size, name=f"x{i}") for i, size in enumerate(sizes)]
    total: Value | None = None
    starts = (0, 2 * sizes[0][axis], sizes[0][axis])  # all but the last fourth
    for x, start in zip(pieces, starts, strict=True):
        around = 4 * x.shape[axis] - x.shape[axis] - start
        low = tuple(start if a == axis else 0 for a in range(3))
        high = tuple(around if a == axis else 0 for a in range(3))
        padded = ops.pad.trace(x, low=low, high=high, value=0)
        total = padded if total is None else ops.add.trace(total, padded)
    assert total is not None
    arrays = [np.random.default_rng(0).normal(size=x.shape).astype(np.float32) for x in pieces]
    arrays[0][0, 0, 0] = -0.0  # which a sum with zeros makes 0.0
    after = keeps_values(hoist_views, Graph(tuple(pieces), (total,)), arrays)
    assert ops_of(after) == ["add", "add", "add", "concatenate", "full"]


def test_pads_that_overlap_stay_sums() -> None:
    x = an_input(3)
    padded = [ops.pad.trace(x, low=(n,), high=(2 - n,), value=0) for n in (0, 2)]
    graph = Graph((x,), (ops.add.trace(*padded),))
    assert ops_of(keeps_values(hoist_views, graph, [np.arange(3, dtype=np.float32)])) == ["add", "pad", "pad"]


def test_a_loop_over_time_becomes_few_products() -> None:
    times, batch, width = 5, 8, 16
    kinds = [(batch, times, width), (width, width), (width, width)]
    x, w, u = (
        an_input(*shape, dtype=dtypes.float64, name=name) for shape, name in zip(kinds, "xwu", strict=True)
    )
    h: Value = ops.full.trace(shape=(batch, width), value=0.5, dtype=dtypes.float64)
    inputs, states = [], []
    for t in range(times):
        region = {"starts": (0, t, 0), "stops": (batch, t + 1, width), "steps": (1, 1, 1)}
        inputs.append(ops.reshape.trace(ops.slice.trace(x, **region), shape=(batch, width)))
        states.append(h)
        h = ops.tanh.trace(ops.add.trace(ops.matmul.trace(inputs[-1], w), ops.matmul.trace(h, u)))
    g: Value = ops.full.trace(shape=(batch, width), value=1.0, dtype=dtypes.float64)
    sums: list[Value | None] = [None, None, None]
    for t in reversed(range(times)):
        parts = [ops.matmul.trace(ops.permute.trace(y, axes=(1, 0)), g) for y in (inputs[t], states[t])]
        parts.append(ops.sum.trace(g, axes=(0,)))
        sums = [p if s is None else ops.add.trace(s, p) for s, p in zip(sums, parts, strict=True)]
        g = ops.matmul.trace(g, ops.permute.trace(u, axes=(1, 0)))
    graph = merge_duplicates(Graph((x, w, u), (h, *(s for s in sums if s is not None))))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) / 4 for shape in kinds]
    after = join_products(graph)
    for got, wanted in zip(evaluate(after, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    # x @ w and its gradient are one product each, and so is the gradient of u; h @ u and g @ u wait in turn.
    assert ops_of(after).count("matmul") == 1 + times + (times - 1)
    assert ops_of(after).count("contract") == 2
    assert ops_of(after).count("sum") == 1


def test_products_that_wait_for_each_other_stay_apart() -> None:
    # a @ w is needed for b @ v and that for c @ w, so that a and c, or b and d, may be stacked, but not both.
    a, w, v, d = (an_input(2, 2, name=name) for name in "awvd")
    p = ops.matmul.trace(a, w)
    q = ops.matmul.trace(p, v)
    graph = Graph((a, w, v, d), (ops.matmul.trace(q, w), ops.matmul.trace(d, v), ops.matmul.trace(d, w)))
    arrays = [np.random.default_rng(0).normal(size=(2, 2)).astype(np.float32) for _ in range(4)]
    after = join_products(graph)
    for got, wanted in zip(evaluate(after, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert ops_of(after).count("matmul") == 3


def test_a_view_behind_a_long_chain_rises_to_its_input() -> None:
    x = an_input(4, 8)
    y: Value = x
    for _ in range(150):
        y = ops.exp.trace(ops.mul.trace(y, -0.5))
    graph = Graph((x,), (ops.permute.trace(y, axes=(1, 0)),))
    after = keeps_values(hoist_views, graph, [np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)])
    last = after.outputs[0]
    assert isinstance(last, Apply) and last.op is ops.exp
    assert sum(isinstance(v, Apply) and v.op is ops.permute for v in after.nodes) == 1


def test_views_between_the_ops_of_a_chain_cancel() -> None:
    x = an_input(4, 8)
    y: Value = x
    for _ in range(60):
        y = ops.permute.trace(ops.mul.trace(y, y), axes=(1, 0))
    graph = Graph((x,), (y,))
    after = keeps_values(hoist_views, graph, [np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)])
    assert not any(isinstance(v, Apply) and v.op is ops.permute for v in after.nodes)
    assert len(after.nodes) == 61


def test_rules_that_undo_each_other_are_an_error() -> None:
    x = an_input(3)

    def there_and_back(node: Apply) -> Value | None:
        return (ops.exp if node.op is ops.log else ops.log).trace(x)

    with pytest.raises(AssertionError, match="undo each other"):
        rewrite(Graph((x,), (ops.exp.trace(x),)), (there_and_back,))


def test_a_layout_that_has_lost_its_axes_is_gone() -> None:
    x = an_input(2, 3, 4)
    laid = ops.channels_first.trace(x, axes=(2, 0, 1))
    total = ops.reshape.trace(ops.sum.trace(laid, axes=(0, 1, 2)), shape=())
    graph = Graph((x,), (ops.eq.trace(total, 0.0), ops.where.trace(ops.eq.trace(total, 1.0), total, 2.0)))
    after = keeps_values(hoist_views, graph, [np.arange(24, dtype=np.float32).reshape(2, 3, 4)])
    assert not any(isinstance(v, Apply) and v.op is ops.channels_first for v in after.nodes)


# Computed again -------------------------------------------------------------------------------------


def products_of(graph: Graph) -> int:
    return sum(isinstance(n, Apply) and n.op is ops.matmul for n in graph.nodes)


def scores_and_gradient(rows: int, width: int, loss: bool = True) -> tuple[Graph, list[Array]]:
    """A product, weights made of it, what they weigh, and a gradient that waits for that, or for nothing."""
    x, y = an_input(rows, width), an_input(rows, width, name="y")
    scores = ops.matmul.trace(x, ops.swap_last(y))
    e = ops.exp.trace(ops.sub.trace(scores, ops.amax.trace(scores, axes=(1,))))
    shares = ops.div.trace(e, ops.sum.trace(e, axes=(1,)))
    out = ops.matmul.trace(shares, y)
    late = ops.matmul.trace(ops.swap_last(shares), ops.tanh.trace(out) if loss else x)
    rng = np.random.default_rng(rows)
    arrays = [rng.standard_normal((rows, width)).astype(np.float32) for _ in range(2)]
    return Graph((x, y), (out, late)), arrays


def test_recompute_computes_large_products_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arrays = scores_and_gradient(2100, 8)
    # 18 MB are kept as they are.
    monkeypatch.setattr(recomputing, "KEPT", 18 << 20)
    assert recompute(graph) is graph
    monkeypatch.setattr(recomputing, "KEPT", 16 << 20)
    after = keeps_values(recompute, graph, arrays)
    assert (products_of(graph), products_of(after)) == (3, 4)
    # Of what is as large as the scores, nothing is read by both halves.
    shared = [n for n in after.nodes if n.type.size == 2100**2 and len(after.users[n]) > 2]
    assert not shared


@pytest.mark.parametrize(
    ("rows", "width", "loss"), [(500, 8, True), (2100, 140, True), (2100, 8, False)],
    ids=["small", "deep", "nothing late"],
)  # fmt: skip
def test_recompute_leaves_the_rest(
    rows: int, width: int, loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputing, "KEPT", 0)
    graph, _ = scores_and_gradient(rows, width, loss)
    assert recompute(graph) is graph


@pytest.mark.parametrize("seed", range(40))
def test_a_rule_that_is_not_asked_has_no_answer(seed: int) -> None:
    plain = (*LAYOUT_RULES, implicit_expand, sink_expand, squeeze_last, spread_lines, *RULES)
    plain = (*plain, decomposed, picked, wide_scatter)
    sharing = (up, transposed_product, sum_of_pads, split_rows)
    candidates = _dispatch(plain, sharing)
    graph, _ = random_graph(seed, F32, nodes=30, exact=False)
    for run in (*PIPELINE[:1], lambda g: g, *PIPELINE[1:4]):
        graph = run(graph)
        for node in graph.nodes:
            if isinstance(node, Apply):
                asked, shared = candidates[_pattern(node)]
                assert all(rule(node) is None for rule in plain if rule not in asked)
                assert all(rule(node, lambda _: False) is None for rule in sharing if rule not in shared)


def test_a_rule_is_asked_about_the_ops_it_names_only() -> None:
    x = an_input(3)
    asked: list[str] = []

    @on(ops.exp, over=(ops.neg, Input))
    @on(ops.log)
    def rule(node: Apply) -> Value | None:
        asked.append(f"{node.op.name} {len(asked)}")
        return None

    y = ops.neg.trace(x)
    outputs = (ops.exp.trace(y), ops.exp.trace(x), ops.log.trace(y), ops.exp.trace(ops.exp.trace(y)))
    graph = Graph((x,), outputs)
    assert rewrite(graph, (rule,)) is graph
    assert asked == ["exp 0", "exp 1", "log 2", "exp 3"]
