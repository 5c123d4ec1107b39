"""Losses of continuous targets and probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(5)
X, T = RNG.standard_normal((3, 4)) * 2, RNG.standard_normal((3, 4))
D = X - T
P, Q = RNG.uniform(0.05, 0.95, (3, 4)), RNG.uniform(0, 1, (3, 4))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


ENTROPY = -(Q * np.log(P) + (1 - Q) * np.log1p(-P))
CASES = [
    ("mse", nn.MSELoss, F.mse_loss, {}, X, T, D * D),
    ("l1", nn.L1Loss, F.l1_loss, {}, X, T, np.abs(D)),
    (
        "smooth_l1",
        nn.SmoothL1Loss,
        F.smooth_l1_loss,
        {"beta": 0.7},
        X,
        T,
        np.where(np.abs(D) < 0.7, 0.5 * D * D / 0.7, np.abs(D) - 0.35),
    ),
    ("smooth_l1 beta 0", nn.SmoothL1Loss, F.smooth_l1_loss, {"beta": 0.0}, X, T, np.abs(D)),
    (
        "huber",
        nn.HuberLoss,
        F.huber_loss,
        {"delta": 0.7},
        X,
        T,
        np.where(np.abs(D) <= 0.7, 0.5 * D * D, 0.7 * (np.abs(D) - 0.35)),
    ),
    ("kl", nn.KLDivLoss, F.kl_div, {}, X, Q, Q * (np.log(Q) - X)),
    ("kl log", nn.KLDivLoss, F.kl_div, {"log_target": True}, X, T, np.exp(T) * (T - X)),
    ("bce", nn.BCELoss, F.binary_cross_entropy, {}, P, Q, ENTROPY),
    (
        "bce logits",
        nn.BCEWithLogitsLoss,
        F.binary_cross_entropy_with_logits,
        {},
        X,
        Q,
        -(Q * np.log(sigmoid(X)) + (1 - Q) * np.log(sigmoid(-X))),
    ),
]


@pytest.mark.parametrize(
    ("name", "layer", "function", "options", "x", "t", "expected"), CASES, ids=[c[0] for c in CASES]
)
def test_values_reductions_and_gradients(
    name: str, layer: Any, function: Any, options: dict[str, Any], x: Any, t: Any, expected: Any
) -> None:
    a, b = fw.tensor(x), fw.tensor(t)
    np.testing.assert_allclose(function(a, b, reduction="none", **options).numpy(), expected, rtol=1e-9)
    assert function(a, b, reduction="sum", **options).item() == pytest.approx(expected.sum())
    assert layer(**options)(a, b).item() == pytest.approx(expected.mean())
    check_gradients(lambda x, t: function(x, t, **options), x, t)
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        function(a, b, reduction="average", **options)


def test_kl_div_of_zero_targets_and_batchmean() -> None:
    target = fw.tensor([[0.0, 1.0]]).requires_grad_()
    out = F.kl_div(fw.tensor([[-1.0, -2.0]]), target, reduction="none")
    assert out.tolist() == [[0.0, 2.0]]
    out.sum().backward()
    assert np.isfinite(target.grad.numpy()).all()
    expected = (Q * (np.log(Q) - X)).sum() / 3
    assert F.kl_div(fw.tensor(X), fw.tensor(Q), reduction="batchmean").item() == pytest.approx(expected)


@pytest.mark.parametrize("bad", [1.5, -0.1, math.nan])
def test_bce_rejects_values_outside_the_unit_interval(bad: float) -> None:
    for x, t in (([0.5], [bad]), ([bad], [0.5])):
        with pytest.raises(RuntimeError, match="should be between 0 and 1"):
            F.binary_cross_entropy(fw.tensor(x), fw.tensor(t))


def test_bce_at_the_ends_is_bounded() -> None:
    x = fw.tensor([0.0, 1.0, 0.0, 1.0]).requires_grad_()
    out = F.binary_cross_entropy(x, fw.tensor([0.0, 1.0, 1.0, 0.0]), reduction="none")
    assert out.tolist() == [0.0, 0.0, 100.0, 100.0]
    out.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 0, -1e12, 1e12], rtol=1e-6)


def test_bce_weights() -> None:
    w = RNG.uniform(0.5, 2, 4)
    out = nn.BCELoss(weight=fw.tensor(w))(fw.tensor(P), fw.tensor(Q))
    assert out.item() == pytest.approx((ENTROPY * w).mean())
    pos = RNG.uniform(0.5, 3, 4)
    expected = -(pos * Q * np.log(sigmoid(X)) + (1 - Q) * np.log(sigmoid(-X))) * w
    m = nn.BCEWithLogitsLoss(weight=fw.tensor(w), pos_weight=fw.tensor(pos), reduction="none")
    np.testing.assert_allclose(m(fw.tensor(X), fw.tensor(Q)).numpy(), expected, rtol=1e-9)
    check_gradients(
        lambda x: F.binary_cross_entropy_with_logits(x, fw.tensor(Q), pos_weight=fw.tensor(pos)), X
    )


def test_bce_with_logits_is_stable() -> None:
    x = fw.tensor([-1000.0, 1000.0, 0.0]).requires_grad_()
    out = F.binary_cross_entropy_with_logits(x, fw.tensor([1.0, 1.0, 1.0]), reduction="none")
    np.testing.assert_allclose(out.detach().numpy(), [1000, 0, math.log(2)], rtol=1e-6)
    out.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [-1, 0, -0.5], atol=1e-7)


def test_shape_errors_and_warning() -> None:
    for function in (F.binary_cross_entropy, F.binary_cross_entropy_with_logits):
        with pytest.raises(ValueError, match=r"[tT]arget size"):
            function(fw.full((2,), 0.5), fw.full((2, 1), 0.5))
    with pytest.warns(UserWarning, match="different to the input size"):
        F.mse_loss(fw.ones(2, 1), fw.ones(2))
    with pytest.raises(ValueError, match="negative values for beta"):
        F.smooth_l1_loss(fw.ones(1), fw.ones(1), beta=-1.0)
    with pytest.raises(ValueError, match="non-positive values for delta"):
        F.huber_loss(fw.ones(1), fw.ones(1), delta=0.0)
