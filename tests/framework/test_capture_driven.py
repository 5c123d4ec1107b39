"""Driven calls: Python runs each time, whatever it does; the tensor work between reads is compiled and found
again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.capture import book, driver
from framework.capture.compile import CompiledFunction, CompileError
from framework.tensor import wrap
from tests.framework.capture_check import Twins, World, grad_of, nothing

pytestmark = pytest.mark.replays


def stretches(twins: Twins) -> int:
    """How many programs the driven calls have."""
    return len(twins.compiled.explain().stretches)


def driven(make: Callable[[], World], *calls: tuple[Any, ...], rtol: float = 1e-5) -> Twins:
    """Run each call five times; driven, and the last round makes no program."""
    twins = Twins(make, rtol)
    made = []
    for _ in range(5):
        for args in calls:
            twins.call(*args)
        made.append(stretches(twins))
    twins.expect("driven", 0)
    assert made[-1] == made[-2], str(twins.compiled.explain())
    assert not any(s.failure for s in twins.compiled.explain().stretches)
    return twins


def stateless(function: Callable[..., Any]) -> Callable[[], World]:
    return lambda: (function, nothing)


def trainer(use: Callable[..., Any]) -> Callable[[], World]:
    """A world of a model, its optimizer and a log; `use(model, optimizer, log, x, y)` is compiled."""

    def make() -> World:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = fw.optim.AdamW(model.parameters(), lr=0.05)
        log: list[Any] = []

        def step(x: fw.Tensor, y: fw.Tensor) -> Any:
            return use(model, optimizer, log, x, y)

        return step, lambda: (list(model.parameters()), log)

    return make


X, Y = fw.rand(5, 4), fw.tensor([0, 2, 1, 0, 2])


def test_a_value_read_after_the_step() -> None:
    def use(model: Any, optimizer: Any, log: list[Any], x: fw.Tensor, y: fw.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.append(loss.item())
        return log[-1]

    driven(trainer(use), (X, Y))


def test_a_value_read_between_forward_and_backward() -> None:
    def use(model: Any, optimizer: Any, log: list[Any], x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        log.append(f"{loss.item():.3f}")
        if loss.isfinite():
            loss.backward()
            optimizer.step()
        return loss

    driven(trainer(use), (X, Y))


def test_both_paths_of_a_branch_on_a_value_are_kept() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        return x * 2 if x.sum() > 0 else (x - 1).exp()

    driven(stateless(function), (X,), (-X,))


def test_a_loop_until_a_value_is_small() -> None:
    def function(x: fw.Tensor) -> tuple[fw.Tensor, int]:
        count = 0
        while x.norm() > 0.5:
            x = x * 0.5
            count += 1
        return x, count

    driven(stateless(function), (X,), (X * 10,))


def test_prints_happen_at_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    @fw.compile
    def function(x: fw.Tensor) -> fw.Tensor:
        y = x + 1
        print("seen", y.sum().item(), y)
        return y * 2

    function(fw.ones(2))
    function(fw.ones(2) * 2)
    assert capsys.readouterr().out == "seen 4.0 tensor([2., 2.])\nseen 6.0 tensor([3., 3.])\n"


def test_python_and_numpy_draws() -> None:
    def make() -> World:
        python, numbers = random.Random(0), np.random.default_rng(0)
        return lambda x: x * python.random() + float(numbers.normal()) + fw.rand(5, 4), nothing

    twins = Twins(make)
    for _ in range(20):
        twins.call(X)
    # A number that keeps changing becomes an input of the program.
    assert stretches(twins) <= 3


def test_numbers_that_change() -> None:
    def make() -> World:
        calls: list[int] = []

        def function(x: fw.Tensor, scale: float) -> fw.Tensor:
            calls.append(1)
            return (x * scale - len(calls)) ** 2 + x.long() * len(calls)

        return function, lambda: calls

    twins = Twins(make)
    for number in range(20):
        twins.call(X, number / 3)
    assert stretches(twins) <= 4, str(twins.compiled.explain())


def test_zeros_and_ones_of_every_kind_are_told_apart() -> None:
    numbers = (0.0, -0.0, 0, False, 1, 1.0, True, float("nan"), 2**53 + 1, 0.0, True, -0.0)

    def make() -> World:
        left = list(numbers)

        def function(x: fw.Tensor) -> tuple[Any, ...]:
            number = left.pop(0)
            whole = fw.full((2,), number)
            return 1 / (x * number), whole, x + number, 1 / whole

        return function, lambda: left

    twins = Twins(make)
    for _ in numbers:
        twins.call(fw.ones(3))


def test_memory_of_another_layout_is_written() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> None:
        print(end="")
        y.copy_(x)

    compiled = CompiledFunction(function)
    x = fw.arange(12).reshape(3, 4) * 1.0
    for order in ("C", "F", "C"):
        y = wrap(np.zeros((3, 4), np.float32, order))  # type: ignore[call-overload]
        compiled(x, y)
        assert y.tolist() == x.tolist()


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None
        self.table: dict[str, Any] = {}


def test_attributes_items_and_globals_are_assigned() -> None:
    def make() -> World:
        counter = Counter()

        def function(x: fw.Tensor) -> fw.Tensor:
            counter.calls += 1
            counter.last = x * counter.calls
            counter.table[f"call {counter.calls % 2}"] = counter.last.sum().item()
            return counter.last + 1

        return function, lambda: (counter.calls, counter.last, counter.table)

    driven(make, (X,))


def test_items_of_tensors_are_assigned() -> None:
    def make() -> World:
        cache = fw.zeros(3, 4)

        def function(x: fw.Tensor, position: int) -> fw.Tensor:
            cache[position] = x[0] * 2
            x[1:3, ::2] = 0.5
            x[:, 1] += cache[0].sum()
            return x @ cache.T

        return function, lambda: cache

    driven(make, (X, 0), (X, 2), (X, 1))


def test_memory_that_an_array_shares() -> None:
    seen: list[float] = []

    def make() -> World:
        state = fw.zeros(3)
        array = state.numpy()
        given = np.ones(3, np.float32)
        other = fw.from_numpy(given)

        def function(x: fw.Tensor) -> list[float]:
            state.add_(x[0, :3])
            other[1:].mul_(2)
            seen.append(float(array.sum() + given.sum()))
            given[0] += 1
            return [seen[-1], float(other.sum())]

        return function, lambda: (state, other)

    driven(make, (X,))


def test_overlapping_and_reinterpreted_memory() -> None:
    def function(x: fw.Tensor, log: list[Any]) -> tuple[Any, ...]:
        log.append(1)
        window = x.as_strided((3, 2), (2, 1))
        bits = x.view(fw.int32)
        x.mul_(2)
        first = window.sum()
        x.data.add_(1)
        part = x[2:]
        part.zero_()
        return first, window.clone(), bits.clone(), x.detach(), part

    twins = Twins(stateless(function))
    for _ in range(3):
        twins.call(fw.rand(8), [])
    base = fw.rand(8)
    twins.compiled(base[:6], [])
    twins.compiled(base[2:], [])


def test_results_and_saved_values_have_memory_of_their_own() -> None:
    kept: list[fw.Tensor] = []

    @fw.compile
    def function(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        kept.append(x + 1)
        return kept[-1], x + 1

    first, second = function(fw.ones(3))
    first.zero_()
    assert second.tolist() == [2.0] * 3
    function(fw.zeros(3))
    assert kept[0].tolist() == [0.0] * 3 and kept[1].tolist() == [1.0] * 3


def test_gradients_of_leaves_that_share_one_are_apart() -> None:
    def make() -> World:
        a, b = fw.ones(3).requires_grad_(), fw.ones(3).requires_grad_()

        def function(x: fw.Tensor) -> float:
            print(end="")
            a.grad = b.grad = None
            (a + b + x[0, :3]).sum().backward()
            grad_of(a).mul_(2)
            return grad_of(b).sum().item()

        return function, lambda: (a, b)

    driven(make, (X,))


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_exception_leaves_what_eager_leaves(when: str) -> None:
    def use(model: Any, optimizer: Any, log: list[Any], x: fw.Tensor, y: fw.Tensor) -> None:
        log.append(1)
        if when == "before":
            x @ x
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if when == "between":
            nn.functional.embedding(y + 9, model[0].weight)
        optimizer.step()
        if when == "after":
            raise KeyError("user")

    make = trainer(use)
    fw.manual_seed(0)
    eager, look = make()
    fw.manual_seed(0)
    function, look_compiled = make()
    compiled = CompiledFunction(function)
    for _ in range(3):
        errors = []
        for call in (eager, compiled):
            with pytest.raises((RuntimeError, IndexError, KeyError)) as caught:
                call(X, Y)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
        for mine, theirs in zip(look()[0], look_compiled()[0], strict=True):
            np.testing.assert_allclose(mine.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)
            assert (mine.grad is None) is (theirs.grad is None)


def test_bad_input_raises_at_its_line_before_what_follows() -> None:
    log: list[str] = []

    @fw.compile
    def function(table: fw.Tensor, index: fw.Tensor) -> None:
        log.append("before")
        table.add_(1)
        picked = table[index * 2]
        log.append("after")
        table.sub_(picked.sum())

    table = fw.zeros(4)
    with pytest.raises(IndexError, match="out of bounds"):
        function(table, fw.tensor([1, 2]))
    assert log == ["before"] and table.tolist() == [1.0] * 4


def test_an_interrupt_leaves_what_was_done() -> None:
    @fw.compile
    def function(x: fw.Tensor) -> None:
        print(end="")
        x.add_(1)
        raise KeyboardInterrupt

    x = fw.zeros(3)
    for wanted in (1.0, 2.0):
        with pytest.raises(KeyboardInterrupt):
            function(x)
        assert x.tolist() == [wanted] * 3
    assert (fw.ones(2) + 1).tolist() == [2.0, 2.0]


def test_a_loop_over_steps_repeats_its_stretches() -> None:
    def use(model: Any, optimizer: Any, log: list[Any], x: fw.Tensor, y: fw.Tensor) -> None:
        print(end="")
        for _ in range(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            log.append(loss.detach())

    twins = driven(trainer(use), (X, Y), rtol=1e-3)
    assert stretches(twins) <= 12, str(twins.compiled.explain())


def test_more_work_than_one_stretch_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_DEFERRED", 50)

    def function(x: fw.Tensor, log: list[int]) -> fw.Tensor:
        log.append(0)
        y = x
        for _ in range(150):
            y = (y + x).sin()
        return y

    driven(stateless(function), (X, []))


def test_programs_past_the_limit_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MADE_AT_ONCE", 1)
    monkeypatch.setattr(book, "MOST_PROGRAMS", 3)
    twins = Twins(stateless(lambda x, log: (log.append(1), (x * 2).sum(0), x.add_(1))[1:]))
    for rows, programs in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 3), (4, 3), (4, 3), (2, 3)):
        twins.call(fw.rand(rows, 4), [])
        assert stretches(twins) == programs
    assert twins.compiled.explain().interpreted == 4


def test_a_function_that_never_repeats_itself_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MOST_NODES", 20)
    twins = Twins(stateless(lambda x, log: (log.append(1), (x * 2 + 1).exp().sum(0))[1]))
    for rows in (*range(1, 9), 3):
        twins.call(fw.rand(rows, 4), [])
    assert stretches(twins) < 8


def test_a_compiled_function_inside_replays() -> None:
    inner = fw.compile(lambda x: (x * 2).sin())

    def function(x: fw.Tensor, log: list[Any]) -> fw.Tensor:
        log.append(x.sum().item())
        return inner(x + 1) * 3

    driven(stateless(function), (X, []))
    assert inner.explain().mode == "replay"


def test_recursion() -> None:
    @fw.compile
    def function(x: fw.Tensor, depth: int) -> fw.Tensor:
        print(end="")
        return x if depth == 0 else function(x * 2, depth - 1) + depth

    for _ in range(2):
        assert function(fw.ones(2), 3).tolist() == [14.0, 14.0]


def test_hooks_custom_functions_and_second_derivatives() -> None:
    class Cube(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            ctx.save_for_backward(x)
            ctx.note = "cube"
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            (x,) = ctx.saved_tensors
            assert ctx.note == "cube"
            return g * 3 * x * x

    def make() -> World:
        seen: list[float] = []

        def function(x: fw.Tensor) -> tuple[fw.Tensor, ...]:
            y = Cube.apply(x)
            y.register_hook(lambda g: seen.append(g.sum().item()))
            (first,) = fw.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = fw.autograd.grad(first.sin().sum(), x)
            return first.detach(), second

        return function, lambda: seen

    driven(make, (fw.rand(4).requires_grad_(),))


def test_saved_values_changed_in_place_are_noticed() -> None:
    def function(x: fw.Tensor, log: list[Any]) -> None:
        log.append(1)
        y = x * 2
        z = y * y
        y.add_(1)
        z.sum().backward()

    compiled = CompiledFunction(function)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            compiled(fw.rand(4).requires_grad_(), [])


def test_a_value_frozen_by_an_in_place_op_keeps() -> None:
    def make() -> World:
        state = fw.rand(4)

        def function(w: fw.Tensor) -> fw.Tensor:
            print(end="")
            with fw.no_grad():
                state.mul_(0.5)
            y = w * 2
            y.mul_(y.sigmoid() + state)
            (g,) = fw.autograd.grad(y.sum(), w)
            return g

        return function, lambda: state

    driven(make, (fw.rand(4).requires_grad_(),))


def test_strict_names_the_line_and_the_way_out() -> None:
    @fw.compile(strict=True)
    def function(x: fw.Tensor) -> fw.Tensor:
        y = x + 1
        print("loud")
        return y

    with pytest.raises(CompileError, match=r"\w+.py:\d+: print is called.*without strict=True"):
        function(fw.ones(2))


def test_strict_refuses_a_generator_function() -> None:
    @fw.compile(strict=True)
    def function(x: fw.Tensor) -> Any:
        yield x + 1

    with pytest.raises(CompileError, match=r"test_capture_driven.py:\d+: function is a generator function"):
        function(fw.ones(2))


def test_a_generator_function_yields_as_ever() -> None:
    @fw.compile
    def function(x: fw.Tensor) -> Any:
        yield x + 1
        yield x + 2

    assert [y.tolist() for y in function(fw.ones(1))] == [[2.0], [3.0]]
    assert "generator function" in str(function.explain())


def test_the_reason_and_the_stretches_are_explained() -> None:
    @fw.compile
    def function(x: fw.Tensor) -> float:
        y = (x * 2).sum()
        return y.item() + 1

    function(fw.ones(2))
    function(fw.ones(2))
    explanation = function.explain()
    assert explanation.mode == "driven"
    assert "test_capture_driven.py:" in explanation.driven[0]
    (stretch,) = explanation.stretches
    assert stretch.where.startswith("test_capture_driven.py:") and stretch.runs == 2 and stretch.kernels > 0
    assert f"stretch up to {stretch.where}: {stretch.ops} ops" in str(explanation)


def test_a_copying_reshape_sees_a_write_that_waits() -> None:
    def make() -> World:
        history, index, mean = fw.full((3, 4), 1.0), fw.tensor([0, 1, 2]), fw.zeros(4)

        def function(x: fw.Tensor) -> tuple[fw.Tensor, float]:
            history.mul_(0.5)
            picked = nn.functional.embedding(index, history.repeat(2, 1))
            total = float(x.sum())
            mean.copy_(picked.mean(0))
            return mean * 1, total

        return function, lambda: (history, mean)

    driven(make, (X,))


def test_a_backward_of_a_value_kept_before_it_was_written() -> None:
    def outcome(wrap: Callable[[Any], Any]) -> list[Any]:
        w = (fw.arange(6.0) - 2.5).requires_grad_()
        log: list[int] = []

        def function(x: fw.Tensor) -> fw.Tensor:
            log.append(1)
            v = w * x
            v.abs_()
            v.sum().backward()
            return v.detach()

        f = wrap(function)
        return [(f(fw.full((6,), k)).tolist(), grad_of(w).tolist()) for k in (0.5, 2.0, 3.0)]

    assert outcome(CompiledFunction) == outcome(lambda f: f)


def test_a_write_through_data_changes_what_was_saved() -> None:
    def make() -> World:
        weight = fw.tensor([0.1, 0.5, 0.9], requires_grad=True)
        log: list[int] = []

        def function(x: fw.Tensor) -> fw.Tensor:
            log.append(1)
            y = (weight * x).tanh()  # its gradient reads y
            y.data.mul_(0.5)
            y.sum().backward()
            return y.detach()

        return function, lambda: grad_of(weight)

    twins = Twins(make)
    for _ in range(3):
        twins.call(fw.ones(3))


def test_an_interpreted_stretch_keeps_what_it_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "MADE_AT_ONCE", 0)

    def make() -> World:
        weight = fw.tensor([-0.5, 0.5, 2.0], requires_grad=True)
        log: list[float] = []

        def function(x: fw.Tensor) -> fw.Tensor:
            y = weight * x
            log.append(y.sum().item())
            y.abs_()  # its gradient reads what y was
            log.append(y.sum().item())
            y.sum().backward()
            return y.detach()

        return function, lambda: grad_of(weight)

    twins = Twins(make)
    for _ in range(3):
        twins.call(fw.ones(3))
