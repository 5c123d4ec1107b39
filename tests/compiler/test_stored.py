"""Plans on disk: the same request gives the same plan without being planned, another request another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compiler import binding, stored
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value, constant
from compiler.ops import add, cast, exp, matmul, mul, sum, swap_last, take
from compiler.plan import Plan, Request
from compiler.program import Executable
from compiler.types import TensorType
from compiler.where import made_at
from kernels import dtypes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, with plans in it."""
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))
    monkeypatch.delenv("TRACEFUSE_PLANS")
    return tmp_path


def request_of(links: int = 20, rows: int = 6, scale: float = 0.5, line: str = "user.py:3") -> Request:
    """A chain with products, views, an index, constants and a write: every kind of row a plan's file has."""
    x = Input(TensorType((rows, 4), dtypes.float32), name="x")
    weight = Input(TensorType((4, 4), dtypes.float32), name="weight")
    index = Input(TensorType((rows,), dtypes.int64), name="index")
    table = constant(np.arange(20, dtype=np.float32).reshape(5, 4))
    with made_at(line):
        h: Value = take.trace(table, index, axis=0)
        for _ in range(links):
            h = exp.trace(
                mul.trace(add.trace(matmul.trace(x, swap_last(weight)), mul.trace(h, 0.01)), -scale)
            )
        total = sum.trace(cast.trace(h, dtype=dtypes.float64), axes=(0,))
    return Request(Graph((x, weight, index), (total, mul.trace(weight, 2.0))), writes=())


def written(request: Request) -> Request:
    """The same with its last output written to the weight."""
    return replace(request, writes=((1, request.graph.outputs[-1]),))


def refuse(request: Request) -> tuple[Request, Plan]:
    raise AssertionError("planned again")


def test_a_stored_plan_is_the_plan(folder: Path) -> None:
    request = written(request_of())
    made, plan = stored.planned(request, binding._plan)
    read_request, read = stored.planned(written(request_of()), refuse)
    assert len(list(folder.glob("*.plan"))) == 1
    assert [k.spec for k in read.kernels] == [k.spec for k in plan.kernels]
    assert [k.work() for k in read.kernels] == [k.work() for k in plan.kernels]
    assert [[n.where for n in k.nodes] for k in read.kernels] == [
        [n.where for n in k.nodes] for k in plan.kernels
    ]
    assert str(read_request.graph) == str(made.graph)
    assert read.levels == plan.levels and read.arena_bytes == plan.arena_bytes
    assert list(read.arena.values()) == list(plan.arena.values())
    for mine, theirs in zip(read.constants.values(), plan.constants.values(), strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)


def test_a_stored_plan_runs(folder: Path) -> None:
    arrays = [
        np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4),
        np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4),
        np.array([0, 4, 2, 1, 3, 3]),
    ]
    first = Executable(request_of())(*arrays)
    second = Executable(request_of())(*arrays)
    assert len(list(folder.glob("*.plan"))) == 1
    expected = evaluate(request_of().graph, arrays)
    for a, b, c in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(b, c, rtol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        lambda: request_of(links=21),
        lambda: request_of(rows=7),
        lambda: request_of(scale=0.25),
        lambda: request_of(line="user.py:4"),
        lambda: written(request_of()),
        lambda: replace(request_of(), strides={0: (1, 6)}),
    ],
    ids=["nodes", "sizes", "a number", "a line", "a write", "a layout"],
)
def test_another_request_is_another_plan(other: Callable[[], Request]) -> None:
    stored.planned(request_of(), binding._plan)
    with pytest.raises(AssertionError, match="planned again"):
        stored.planned(other(), refuse)


def test_what_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.planned(request_of(links=2), binding._plan)
    large = request_of()
    big = add.trace(constant(np.zeros((4, 1 << 13), np.float32)), 1.0)
    stored.planned(Request(Graph(large.graph.inputs, (*large.graph.outputs, big))), binding._plan)
    monkeypatch.setenv("TRACEFUSE_PLANS", "0")
    stored.planned(request_of(), binding._plan)
    assert not list(folder.glob("*.plan"))


def test_other_code_makes_other_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    stored.planned(request_of(), binding._plan)
    monkeypatch.setattr(stored, "_code_digest", lambda: "another version")
    with pytest.raises(AssertionError, match="planned again"):
        stored.planned(request_of(), refuse)
