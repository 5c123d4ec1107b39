"""Planted faults of every kind: found by compare, named by line, made small by minify; nothing is changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler.binding
import compiler.compare
import framework as fw
import framework.nn.functional as F
from compiler.ir import Apply, Graph, Value
from compiler.minify import rebuilt
from compiler.ops import TABLE, Elementwise
from compiler.passes import PIPELINE
from framework import nn
from framework.inspect.code import array_code
from kernels.cpu import edits


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Edited files in a folder of the test's; none is left in force."""
    monkeypatch.setattr(edits, "folder", lambda: tmp_path)
    yield
    edits._edits.clear()


def line_of(function: Callable[..., Any], text: str) -> str:
    """Where a text stands in a function, as nodes name it."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{Path(__file__).name}:{number}"


def sketch(x: fw.Tensor, w: fw.Tensor, b: fw.Tensor) -> fw.Tensor:
    h = x @ w + b
    p = (h * 0.40625).tanh() * h
    return F.softmax(p, -1).log().sum()


def arguments() -> tuple[fw.Tensor, ...]:
    fw.manual_seed(0)
    return fw.randn(20, 9), fw.randn(9, 33), fw.randn(33)


def trained() -> tuple[Any, Any, Any]:
    """A compiled training step with random numbers in it, its optimizer and a batch."""
    fw.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.GELU(), nn.Dropout(0.5), nn.Linear(9, 4))
    optimizer = fw.optim.AdamW(model.parameters(), lr=0.01)

    @fw.compile
    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, optimizer, (fw.randn(8, 6), fw.randint(0, 4, (8,)))


def state(optimizer: Any) -> list[Any]:
    """Everything that a step changes."""
    found: list[Any] = [fw.get_rng_state().tolist(), len(optimizer.state)]
    for p in optimizer.param_groups[0]["params"]:
        found += [p.tolist(), p._version, None if p.grad is None else p.grad.tolist()]
        found += [x.tolist() for x in optimizer.state.get(p, {}).values()]
    return found


def test_a_training_step_agrees_and_is_not_made() -> None:
    step, optimizer, batch = trained()
    before = state(optimizer)
    assert before[1] == 0
    found = step.compare(*batch)
    assert found.agrees and found.nodes > 100 and found.kernels > 5, found
    assert state(optimizer) == before and not step.history, "nothing was recorded for good"
    twin, others, _ = trained()
    for seed in range(3):
        losses = []
        for function in (step, twin):
            fw.manual_seed(seed)
            losses.append(float(function(*batch)))
        assert losses[0] == losses[1]
        before = state(optimizer)
        assert step.compare(*batch).agrees
        assert state(optimizer) == before == state(others)
    assert step.variants[0].calls == 3


def test_a_gradient_that_is_kept_for_later_is_compared_too() -> None:
    f = fw.compile(lambda x: (x.sin() * x).sum())
    x = fw.randn(5, 7).requires_grad_()
    loss = f(x)
    assert f.compare(x).agrees
    loss.backward()
    assert np.allclose(x.grad.numpy(), (x.sin() + x * x.cos()).detach().numpy(), atol=1e-6)


def test_sizes_that_vary() -> None:
    f = fw.compile(lambda x: F.softmax(x * 2, -1).sum(0) / x.shape[0])
    for rows in (3, 5, 8):
        f(fw.randn(rows, 4))
    assert len(f.variants) == 2 and f.compare(fw.randn(11, 4)).agrees and f.compare(fw.randn(3, 4)).agrees


def plant(function: Any, kernel: int, old: str, new: str) -> Any:
    """Edit a kernel of a function that was called."""
    view = function.kernels[kernel]
    path = view.edit()
    head, body = path.read_text().split("def kernel")
    assert old in body
    path.write_text(f"{head}def kernel{body.replace(old, new)}")
    return view


def test_a_wrong_kernel_is_found_and_reduced() -> None:
    f, args = fw.compile(sketch), arguments()
    f(*args)
    view = plant(f, 1, " exp(", " expm1(")
    found = f.compare(*args).difference
    assert found is not None and found.where == line_of(sketch, "softmax") and "kernel 1" in found.looked_at
    small = f.minify(*args)
    assert small.reproduced and len(small.lines) <= 10 and small.where == found.where
    assert line_of(sketch, "softmax") in small.code and "tanh" not in small.code
    assert str(small).startswith(f"# {found.where}: ")
    view.restore()
    assert f.compare(*args).agrees and f.minify(*args).code == ""


def misread(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any, Any], Any]) -> None:
    """Let kernels compute a unary op wrongly, but not eager, which has the same body."""
    op = TABLE[name]
    assert isinstance(op, Elementwise) and op.direct is not None and op.functions, "made of the right body"
    right = op.body
    monkeypatch.setattr(op, "body", lambda k, x: change(k, right(k, x)))


@pytest.mark.parametrize("name", "exp log sin cos tanh sqrt erf sigmoid log1p expm1 abs neg".split())
def test_every_small_fault_of_a_word_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    misread(monkeypatch, name, lambda k, y: k.mul(y, 1.00048828125))

    function = getattr(fw, name)
    found = fw.compile(lambda x: F.softmax(function(x * 0.5 + 1) * x, -1)).compare(fw.rand(9, 33)).difference
    assert found is not None and found.op == name


def test_a_word_that_is_wrong_leaves_one_op(monkeypatch: pytest.MonkeyPatch) -> None:
    misread(monkeypatch, "tanh", lambda k, y: k.mul(y, 1.0009765625))
    f, args = fw.compile(sketch), arguments()
    found = f.compare(*args).difference
    assert found is not None and (found.op, found.where) == ("tanh", line_of(sketch, "tanh"))
    assert abs(found.apart.compiled / found.apart.eager - 1.0009765625) < 1e-6
    assert set(found.lines) == {line_of(sketch, "@ w"), line_of(sketch, "tanh")}
    small = f.minify(*args)
    assert small.reproduced
    assert small.lines == [
        "import framework as fw",
        "a = fw.ones((1, 1))",
        f"def f(a): return fw.tanh(a)  # {found.where}",
        "print(fw.compile(f).compare(a))",
    ]


def test_a_pass_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def mirror(graph: Graph) -> Graph:
        """Takes a - b for b - a."""
        changed: dict[Value, Value] = {
            n: n.with_inputs(n.inputs[::-1])
            for n in graph.nodes
            if isinstance(n, Apply) and n.op.name == "sub"
        }
        return rebuilt(graph, changed) if changed else graph

    # Once: a second time would undo it.
    pipeline = (*PIPELINE[:4], mirror, *PIPELINE[4:])
    monkeypatch.setattr(compiler.compare, "PIPELINE", pipeline)
    monkeypatch.setattr(compiler.binding, "PIPELINE", pipeline)

    def differing(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        z = x.exp() + y
        z = z - y * y
        return z.sum(0)

    f = fw.compile(differing)
    args = fw.randn(6, 5), fw.randn(6, 5)
    found = f.compare(*args).difference
    assert found is not None and found.looked_at == "the pass mirror"
    assert (found.op, found.where) == ("sub", line_of(differing, "z - y"))
    small = f.minify(*args)
    assert small.reproduced and len(small.lines) <= 6 and " - " in small.code and "exp" not in small.code


def test_the_gradients_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    misread(monkeypatch, "cos", lambda k, y: k.neg(y))
    f = fw.compile(lambda x: x.sin().sum())
    found = f.compare(fw.randn(5, 7).requires_grad_()).difference
    assert found is not None and found.op == "cos"


def test_a_driven_call_runs_once_and_leaves_tensors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[float] = []

    @fw.compile
    def driven(x: fw.Tensor) -> fw.Tensor:
        y = (x * 3).exp()
        log.append(y.sum().item())
        x.add_(1)
        return (y * 0.5).tanh() * fw.rand(4, 5)

    x = fw.randn(4, 5)
    before, offset = x.tolist(), fw.get_rng_state().tolist()
    found = driven.compare(x)
    assert found.agrees and found.kernels >= 2 and "its Python ran once" in str(found)
    assert len(log) == 1 and x.tolist() == before and fw.get_rng_state().tolist() == offset
    misread(monkeypatch, "tanh", lambda k, y: k.neg(y))
    driven.book.programs.clear()
    wrong = driven.compare(x).difference
    assert wrong is not None and wrong.op == "tanh" and driven.minify(x).reproduced


def test_what_was_recorded_is_not_what_the_function_does() -> None:
    f = fw.compile(lambda x: x * 2)
    x = fw.ones(3)
    f(x)
    f.function = lambda x: x * 3
    found = f.compare(x).difference
    assert found is not None and found.looked_at == "the recording: result 0"
    assert (found.apart.eager, found.apart.compiled) == (3.0, 2.0)
    assert f.minify(x).code == ""


def test_an_eager_error_is_raised_and_nothing_is_changed() -> None:
    f = fw.compile(lambda x, i: x.add_(1)[i])
    x = fw.zeros(3)
    assert f.compare(x, fw.tensor([0, 2])).agrees
    with pytest.raises(IndexError):
        f.compare(x, fw.tensor([0, 7]))
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "array",
    [
        np.ones((2, 3), np.float32),
        np.zeros(4, np.int32),
        np.arange(6).reshape(2, 3),
        np.array([True, False]),
        (np.arange(6, dtype=np.float32) / np.float32(6)).reshape(3, 2) - np.float32(0.5),
        np.array([[1.5, np.inf], [np.nan, -0.25]], np.float32),
        np.linspace(0, 1, 100).reshape(10, 10),
        np.float32(3.5).reshape(()),
        np.zeros((0, 2), np.float32),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_arrays_as_code(array: np.ndarray[Any, Any]) -> None:
    made = eval(array_code(array), {"fw": fw}).numpy()
    assert made.dtype == array.dtype and made.shape == array.shape and made.tobytes() == array.tobytes()
