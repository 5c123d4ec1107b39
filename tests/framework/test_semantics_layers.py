"""The reference semantics of layers, losses and optimizers: values read off PyTorch 2.13, eager and
compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from tests.framework.capture_check import grad_of

nan, inf = float("nan"), float("inf")
Run = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["eager", "compiled", "replayed"])
def run(request: pytest.FixtureRequest) -> Run:
    """How a function is called; "replayed" means that its program runs for the second time."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        if request.param == "eager":
            return function
        compiled = fw.compile(function)
        if request.param == "compiled":
            return compiled

        def second(*args: Any) -> Any:
            compiled(*[x.detach().clone().requires_grad_(x.requires_grad) for x in args])
            return compiled(*args)

        return second

    return wrap


def is_(got: fw.Tensor, wanted: Any, rtol: float = 0.0) -> None:
    np.testing.assert_allclose(
        got.detach().numpy(), np.asarray(wanted, got.detach().numpy().dtype), rtol=rtol
    )


IGNORED = fw.tensor([-100, -100])


@pytest.mark.parametrize(("reduction", "wanted"), [("mean", nan), ("sum", 0.0), ("none", [0.0, 0.0])])
def test_cross_entropy_of_ignored_targets(run: Run, reduction: str, wanted: Any) -> None:
    is_(run(lambda x, t: F.cross_entropy(x, t, reduction=reduction))(fw.ones(2, 3), IGNORED), wanted)


def test_the_gradient_of_an_ignored_row_is_zero(run: Run) -> None:
    def function(x: fw.Tensor, t: fw.Tensor) -> fw.Tensor:
        F.cross_entropy(x, t).backward()
        return grad_of(x) * 1

    gradient = run(function)(fw.zeros(2, 2).requires_grad_(), fw.tensor([0, -100]))
    is_(gradient, [[-0.5, 0.5], [0, 0]])


def test_cross_entropy_with_smoothing_and_weights(run: Run) -> None:
    def function(x: fw.Tensor, t: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
        return F.cross_entropy(x, t, weight=w, label_smoothing=0.1, ignore_index=1)

    x = np.array([[1.0, 2.0, 0.5], [0.1, 0.2, 0.3], [2.0, -1.0, 0.0]])
    w, t = np.array([1.0, 2.0, 0.5]), np.array([0, 1, 2])
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    kept = t != 1
    picked = -logs[np.arange(3), t] * w[t] * kept
    smooth = -(logs * w).sum(1) * kept
    wanted = (0.9 * picked.sum() + 0.1 / 3 * smooth.sum()) / (w[t] * kept).sum()
    got = run(function)(fw.tensor(x).float(), fw.tensor(t), fw.tensor(w).float())
    is_(got, wanted, rtol=1e-5)


def test_layer_norm_of_a_constant_row_is_zero(run: Run) -> None:
    is_(run(lambda x: F.layer_norm(x, (4,)))(fw.full((2, 4), 3.7)), np.zeros((2, 4)))


@pytest.mark.parametrize("width", [2, 3, 8, 17, 64, 1000])
def test_softmax_of_rows_with_minus_infinity(run: Run, width: int) -> None:
    x = np.where(np.arange(width) % 2 == 1, -inf, 0.0).astype(np.float32)
    rows = np.stack([x, np.full(width, -inf, np.float32), np.zeros(width, np.float32)])
    got = run(lambda x: F.softmax(x, -1))(fw.tensor(rows))
    wanted = [np.where(x == 0, 1 / ((width + 1) // 2), 0), np.full(width, nan), np.full(width, 1 / width)]
    is_(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(("p", "wanted"), [(1.0, [0.0] * 3), (0.0, [1.0, inf, nan])])
def test_dropout_of_everything_and_nothing(run: Run, p: float, wanted: list[float]) -> None:
    x = fw.tensor([1.0, inf, nan]) if p == 0 else fw.tensor([1.0, 2.0, 3.0])
    is_(run(lambda x: F.dropout(x, p))(x), wanted)


def test_relu_and_clamp_pass_nan_on(run: Run) -> None:
    is_(run(lambda x: F.relu(x) + x.clamp(0, 1))(fw.tensor([nan, -1.0, 2.0])), [nan, 0, 3])


STEPS: dict[str, tuple[Callable[[Any], optim.Optimizer], list[float]]] = {
    "amsgrad": (lambda p: optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1), [0.9, 0.9310642, 0.9376421]),
    "adamw": (lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1), [0.89, 0.9177104, 0.9222024]),
    "nesterov": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        [0.791, 1.066871, 1.0270034],
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("compiled", [False, True])
def test_three_steps_of_an_optimizer(name: str, compiled: bool) -> None:
    make, wanted = STEPS[name]
    p = nn.Parameter(fw.ones(1))
    optimizer = make([p])

    def step(g: fw.Tensor) -> None:
        optimizer.zero_grad()
        (p * g).sum().backward()
        optimizer.step()

    function = fw.compile(step, strict=True) if compiled else step
    for g, value in zip((1.0, -2.0, 0.5), wanted, strict=True):
        function(fw.full((1,), g))
        assert p.item() == pytest.approx(value, abs=2e-7)
