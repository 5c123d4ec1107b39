"""The search for NaN and infinities: what is reported, where it is said to be, and what is not reported."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from compiler.program import Executable
from framework import nn
from framework.state import ambient, unusual


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the first line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"test_finite.py:{first + number}"


def forward_zero(x: fw.Tensor) -> fw.Tensor:
    """A log of zero in the forward pass."""
    scaled = x * 2
    return scaled.log().sum()


def backward_zero(x: fw.Tensor) -> fw.Tensor:
    """A square root of zero, whose gradient is infinite."""
    loss = x.sqrt().sum()
    loss.backward()
    return loss


def backward_nan(x: fw.Tensor) -> fw.Tensor:
    """A gradient of 0 times infinity."""
    root = x.sqrt()
    loss = (root * root * 0).sum()
    loss.backward()
    return loss


def masked(x: fw.Tensor) -> fw.Tensor:
    """An attention mask of -inf, with its gradient."""
    scores = x.masked_fill(fw.tensor([True, False, False]), float("-inf"))
    loss = (F.softmax(scores, -1) * x).sum()
    loss.backward()
    return loss


def zeros() -> fw.Tensor:
    """One zero among numbers."""
    return fw.tensor([1.0, 0.0, 2.0], requires_grad=True)


@pytest.fixture(params=["eager", "compiled", "driven"])
def form(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """What makes of a function its eager form, its compiled one, or one that is driven."""

    def driven(function: Callable[..., Any]) -> Callable[..., Any]:
        met = [0]

        def counted(*args: Any) -> Any:
            met.append(len(met))
            return function(*args)

        return fw.compile(counted)

    return {"eager": lambda f: f, "compiled": fw.compile, "driven": driven}[request.param]


def found(function: Callable[..., Any], wanted: bool | str = True) -> fw.NonFiniteError:
    """What a call that meets a zero raises."""
    with fw.config(check_finite=wanted), pytest.raises(fw.NonFiniteError) as caught:
        function(zeros())
    return caught.value


def test_log_of_zero_is_found_in_forward(form: Callable[[Any], Any]) -> None:
    function = form(forward_zero)
    error = found(function)
    assert (error.op, error.kind, error.finite) == ("log", "inf", (True,))
    assert error.where == line_of(forward_zero, "scaled.log")
    assert "1 of 3 elements of float32[3], first at [1]" in str(error)
    assert "there 0" in str(error)
    assert function(zeros()).item() == float("-inf")  # off again


def test_infinite_gradient_is_found_with_the_line_of_the_op(form: Callable[[Any], Any]) -> None:
    error = found(form(backward_zero))
    assert (error.op, error.kind) == ("sqrt", "inf")
    assert error.where == line_of(backward_zero, "loss.backward")
    assert error.made == line_of(backward_zero, "x.sqrt")


def test_nan_gradient_is_found(form: Callable[[Any], Any]) -> None:
    error = found(form(backward_nan), "nan")
    assert (error.op, error.kind) == ("sqrt", "nan")
    assert error.made == line_of(backward_nan, "x.sqrt")


def test_gradients_of_a_compiled_forward_are_looked_at() -> None:
    function = fw.compile(lambda x: x.sqrt().sum())
    loss = function(zeros())
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError, match="gradient of sqrt gives inf"):
        loss.backward()


@pytest.mark.parametrize("wanted", [True, "nan", "inf"])
def test_a_mask_of_infinities_is_not_reported(form: Callable[[Any], Any], wanted: bool | str) -> None:
    with fw.config(check_finite=wanted):
        assert form(masked)(zeros()).isfinite()


def test_a_row_that_is_all_masked_is_a_nan(form: Callable[[Any], Any]) -> None:
    error = found(form(lambda x: F.softmax(x.masked_fill(x < 9, float("-inf")), -1)), "nan")
    assert (error.op, error.kind, error.finite) == ("softmax", "nan", (False,))


def test_each_kind_can_be_chosen(form: Callable[[Any], Any]) -> None:
    with fw.config(check_finite="nan"):
        assert form(forward_zero)(zeros()).item() == float("-inf")
    with fw.config(check_finite="inf"):
        assert form(lambda x: (x / x).sum())(zeros()).isnan()
    assert found(form(lambda x: (x / x).sum()), "nan").op == "div"


def test_a_nan_that_was_there_is_said_to_have_been() -> None:
    given = fw.tensor([float("nan"), 1.0])
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError, match="was there before"):
        given[0:2] + 1
    with fw.config(check_finite=True):
        assert not given.isnan()[1]
        assert fw.where(given.isnan(), 0.0, given).sum().item() == 1.0
        assert given.masked_fill(fw.tensor([True, True]), float("nan")).isnan().all()


def test_the_module_of_an_op_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    with fw.no_grad():
        model[0].weight.fill_(3e38)
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError, match="inside Sequential > Linear"):
        model(fw.ones(1, 3))


def test_a_step_that_is_stopped_has_changed_nothing() -> None:
    weight = fw.ones(3, requires_grad=True)
    optimizer = fw.optim.SGD([weight], lr=0.1)

    @fw.compile
    def step(x: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = (weight * x).log().sum()
        loss.backward()
        optimizer.step()
        return loss

    step(fw.ones(3))
    before = weight.detach().clone()
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError):
        step(zeros().detach())
    assert fw.equal(weight, before)
    with fw.config(check_finite=True):
        step(fw.ones(3))
    assert not fw.equal(weight, before)


class _Broken(fw.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
        return fw.from_numpy(g.numpy() * np.float32("nan"))


def test_anomaly_detection_looks_at_gradients_alone() -> None:
    with fw.autograd.detect_anomaly():
        assert forward_zero(zeros()).item() == float("-inf")
        backward_zero(zeros())
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values in its 0th") as caught:
            backward_nan(zeros())
        with pytest.raises(RuntimeError, match="Function '_BrokenBackward' returned nan values"):
            _Broken.apply(zeros()).sum().backward()
    assert isinstance(caught.value, fw.NonFiniteError)
    assert caught.value.made == line_of(backward_nan, "x.sqrt")
    backward_nan(zeros())


def test_anomaly_detection_is_switched_as_pytorch_does() -> None:
    fw.autograd.set_detect_anomaly(True)
    assert fw.autograd.is_anomaly_enabled()
    with fw.autograd.set_detect_anomaly(False):
        assert not fw.autograd.is_anomaly_enabled()
    assert fw.autograd.is_anomaly_enabled()
    fw.autograd.set_detect_anomaly(False)
    assert not fw.autograd.is_anomaly_enabled()
    with fw.autograd.detect_anomaly(check_nan=False):
        backward_nan(zeros())


def test_second_derivatives_are_looked_at() -> None:
    x = zeros()
    (g,) = fw.autograd.grad((x + 1).sqrt().sum(), x, create_graph=True)
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError) as caught:
        fw.autograd.grad((x**3).sqrt().sum(), x, create_graph=True)
    assert caught.value.op == "sqrt"
    assert g.isfinite().all()


def test_nothing_is_looked_at_when_off_or_in_other_threads() -> None:
    before = unusual.threads
    with fw.config(check_finite=True):
        assert unusual.threads == before + 1
        assert ambient.watch is not None
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(forward_zero(zeros()).item()))
        thread.start()
        thread.join()
        assert results == [float("-inf")]
    assert unusual.threads == before
    assert ambient.watch is None and ambient.detour is None


def test_sizes_that_vary_are_looked_at() -> None:
    function = fw.compile(lambda x: (x * 2).log().sum())
    for size in (3, 4, 5):
        function(fw.ones(size))
    with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError, match="log gives -inf"):
        function(fw.zeros(6))


def test_bad_input_still_raises_what_it_raises() -> None:
    function = fw.compile(lambda x, i: x[i].log().sum())
    function(fw.ones(3), fw.tensor([0, 1]))
    with fw.config(check_finite=True), pytest.raises(IndexError):
        function(fw.ones(3), fw.tensor([0, 7]))


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="check_finite is True"):
        fw.config.check_finite = "both"
    with pytest.raises(ValueError, match="check_finite is True"), fw.config(check_finite="both"):
        pass
    assert fw.config.check_finite is False


def test_kernels_that_compute_what_their_ops_do_not_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    function = fw.compile(lambda x: x * 2 + 1)
    function(fw.ones(8))
    (program,) = [v.executable for v in function.variants]
    right, run, made = program.native, Executable.run, []

    def wrong(address: int, workers: int) -> int:
        failed = right(address, workers)
        made[0][2] = np.nan
        return failed

    def noted(self: Any, given: Any, outputs: Any) -> int:
        made[:] = outputs
        return run(self, given, outputs)

    monkeypatch.setattr(Executable, "run", noted)
    monkeypatch.setattr(program, "native", wrong)
    with (
        fw.config(check_finite=True),
        pytest.raises(fw.NonFiniteError, match="one by one, are finite"),
    ):
        function(fw.ones(8))


def test_what_a_library_masks_in_a_gradient_is_not_reported(form: Callable[[Any], Any]) -> None:
    # The rule of pow makes log(0) times 0, and masks it.
    def cubed(x: fw.Tensor, p: fw.Tensor) -> fw.Tensor:
        loss = (x**p).sum()
        loss.backward()
        return loss

    exponent = fw.tensor(3.0, requires_grad=True)
    with fw.config(check_finite=True):
        assert form(cubed)(zeros(), exponent).item() == 9.0
    assert exponent.grad is not None and exponent.grad.isfinite()


def test_pooling_over_its_padding_is_not_reported(form: Callable[[Any], Any]) -> None:
    with fw.config(check_finite=True):
        assert form(lambda x: F.max_pool1d(x, 2, padding=1))(fw.ones(1, 1, 4)).isfinite().all()
