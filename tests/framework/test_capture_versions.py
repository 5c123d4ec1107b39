"""Versions of what a compiled call writes to, and values saved for a backward that were changed since."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import grad_of
from tests.framework.test_capture_memory import numbers


def test_versions_count_as_eagers() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> None:
        x.add_(1)
        x.mul_(2)
        y[1:].add_(1)

    compiled = CompiledFunction(function)
    for _ in range(3):
        x, y, u, v = (numbers(4) for _ in range(4))
        compiled(x, y)
        function(u, v)
        assert (x._version, y._version) == (u._version, v._version)


def test_versions_of_what_the_function_holds() -> None:
    def world() -> tuple[Callable[[fw.Tensor], fw.Tensor], list[fw.Tensor]]:
        once, twice, whole = numbers(3), numbers(3), numbers(4, 3)
        row = whole[1]

        def function(x: fw.Tensor) -> fw.Tensor:
            once.add_(1)
            twice.mul_(0.5).add_(x.sum())
            row.mul_(2)
            whole[0].add_(1)
            return once + twice + whole.sum()

        return function, [once, twice, whole, row]

    (function, held), (same, kept) = world(), world()
    compiled = CompiledFunction(same)
    for rows in (2, 2, 3, 4, 2):
        before = held[1]._version
        function(numbers(rows)), compiled(numbers(rows))
        assert [t._version for t in kept] == [t._version for t in held]
        assert held[1]._version == before + 2


@pytest.mark.parametrize("through_view", [False, True])
def test_a_saved_value_changed_after_a_compiled_forward(through_view: bool) -> None:
    compiled = CompiledFunction(lambda y: (y * y).sum())
    for _ in range(3):
        y = numbers(3).requires_grad_() * 1
        loss = compiled(y)
        (y[1:] if through_view else y).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_saved_value_changed_inside() -> None:
    def function(x: fw.Tensor) -> None:
        y = x * 1
        z = (y * y).sum()
        y.add_(1)
        z.backward()

    compiled = CompiledFunction(function)
    for _ in range(2):
        x = numbers(3).requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            compiled(x)
        assert x.grad is None


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize("reduce", ["max", "amin", "softmax"])
@pytest.mark.parametrize("compiles", [False, True])
def test_a_saved_result_changed_inside(
    reduce: str, compiles: bool, prints: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def function(x: fw.Tensor) -> None:
        out = x.softmax(0) if reduce == "softmax" else getattr(x * 1, reduce)()
        if prints:
            print("begun")
        with fw.no_grad():
            out.mul_(2).clamp_(-4, 4)
        out.sum().backward()

    call = CompiledFunction(function) if compiles else function
    for _ in range(3):
        x = numbers(3).requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(x)
        assert x.grad is None
    assert capsys.readouterr().out == ("begun\n" * 3 if prints else "")


def test_a_saved_tensor_changed_by_a_compiled_call() -> None:
    update = CompiledFunction(lambda w: w.add_(1))
    for _ in range(3):
        w = numbers(3)
        x = fw.ones(3).requires_grad_()
        loss = (x * w).sum()
        update(w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_second_backward_raises() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss

    compiled = CompiledFunction(function)
    for _ in range(3):
        x = numbers(3).requires_grad_()
        loss = compiled(x)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        assert x.grad is not None and x.grad.tolist() == [0, 2, 4]


def test_a_write_through_data_is_not_counted() -> None:
    w = fw.ones(3).requires_grad_()
    f = CompiledFunction(lambda x: (w.data.mul_(x), x.data.add_(1))[0] * 1)
    for _ in range(3):
        x = fw.full((1,), 2.0)
        loss = w.square().sum()
        f(x)
        assert w._version == 0 and x._version == 0
        loss.backward()  # as no version tells of the write
    assert w.tolist() == [8.0] * 3


@pytest.mark.parametrize("prints", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_write_through_data_reaches_what_a_view_of_it_saved(inside: bool, prints: bool) -> None:
    def gradients(compiles: bool) -> list[fw.Tensor]:
        weight = (numbers(3, 3) + 1).requires_grad_()

        def function(x: fw.Tensor) -> fw.Tensor:
            y = F.linear(x, weight).tanh()
            if prints:
                print(end="")
            if inside:
                weight.data.mul_(0.5)
            return y.tanh()

        call = CompiledFunction(function) if compiles else function
        found = []
        for rows in (2, 2, 3, 4):
            x = (numbers(rows, 3) / 20).requires_grad_()
            loss = call(x).sum()
            if not inside:
                weight.data.mul_(0.5)
            loss.backward()
            found.append(grad_of(x))
        return found

    for got, wanted in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5)


def test_a_saved_tensor_whose_shape_changes_in_place() -> None:
    w = numbers(2, 2).requires_grad_() * 1
    loss = (w * w).sum()
    w.t_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    view = (numbers(2, 2).requires_grad_() * 1)[:1]
    before = view._version
    assert view.unsqueeze_(0).shape == (1, 1, 2) and view._version == before + 1
    view.sum().backward()
