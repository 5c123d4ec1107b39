"""cross_entropy and nll_loss: targets of every kind, weights, ignored and bad targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(11)
X = RNG.standard_normal((5, 3))
T = np.array([0, 2, 1, 2, 2])
W = np.array([0.5, 2.0, 1.5])


def logs(x: Any, axis: int = 1) -> Any:
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def test_class_indices() -> None:
    each = -logs(X)[np.arange(5), T]
    a, t = fw.tensor(X), fw.tensor(T)
    np.testing.assert_allclose(F.cross_entropy(a, t, reduction="none").numpy(), each, rtol=1e-12)
    assert nn.CrossEntropyLoss()(a, t).item() == pytest.approx(each.mean())
    assert F.cross_entropy(a, t, reduction="sum").item() == pytest.approx(each.sum())
    assert nn.NLLLoss()(fw.tensor(logs(X)), t).item() == pytest.approx(each.mean())
    assert F.cross_entropy(a[0], fw.tensor(2)).item() == pytest.approx(-logs(X)[0, 2])


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weights_and_smoothing(smoothing: float) -> None:
    lp = logs(X)
    picked, even = -lp[np.arange(5), T] * W[T], -(lp * W).sum(1)
    each = (1 - smoothing) * picked + smoothing / 3 * even
    options: dict[str, Any] = {"weight": fw.tensor(W), "label_smoothing": smoothing}
    out = F.cross_entropy(fw.tensor(X), fw.tensor(T), reduction="none", **options)
    np.testing.assert_allclose(out.numpy(), each, rtol=1e-12)
    assert F.cross_entropy(fw.tensor(X), fw.tensor(T), **options).item() == pytest.approx(
        each.sum() / W[T].sum()
    )
    check_gradients(lambda x: F.cross_entropy(x, fw.tensor(T), **options), X)


def test_more_dimensions() -> None:
    x, t = RNG.standard_normal((2, 3, 4, 5)), RNG.integers(0, 3, (2, 4, 5))
    expected = -np.take_along_axis(logs(x), t[:, None], 1)[:, 0]
    out = F.cross_entropy(fw.tensor(x), fw.tensor(t), reduction="none")
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12)
    check_gradients(lambda x: F.cross_entropy(x, fw.tensor(t[:, :2, :2])), x[:, :, :2, :2])


def test_probability_targets() -> None:
    q = RNG.dirichlet([1, 1, 1], 5)
    each = -(logs(X) * q).sum(1)
    a, t = fw.tensor(X), fw.tensor(q)
    np.testing.assert_allclose(F.cross_entropy(a, t, reduction="none").numpy(), each, rtol=1e-12)
    assert F.cross_entropy(a, t).item() == pytest.approx(each.mean())
    smooth = -(logs(X) * (q * 0.8 + 0.2 / 3) * W).sum(1).mean()
    assert F.cross_entropy(a, t, fw.tensor(W), label_smoothing=0.2).item() == pytest.approx(smooth)
    check_gradients(F.cross_entropy, X, q)
    with pytest.raises(RuntimeError, match="ignore_index is not supported"):
        F.cross_entropy(a, t, ignore_index=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_ignored_targets_count_for_nothing(smoothing: float) -> None:
    x = fw.tensor(X).requires_grad_()
    t = np.where(T == 2, -100, T)
    out = F.cross_entropy(x, fw.tensor(t), label_smoothing=smoothing)
    keep = t >= 0
    lp = logs(X)[keep]
    each = -(1 - smoothing) * lp[np.arange(keep.sum()), t[keep]] - smoothing / 3 * lp.sum(1)
    assert out.item() == pytest.approx(each.mean())
    out.backward()
    assert (x.grad.numpy()[~keep] == 0).all() and (x.grad.numpy()[keep] != 0).all()
    assert F.cross_entropy(x, fw.tensor(T), ignore_index=2).item() == pytest.approx(
        -logs(X)[[0, 2], T[[0, 2]]].mean()
    )


def test_every_target_ignored() -> None:
    x = fw.tensor(X[:2]).requires_grad_()
    t = fw.tensor([-100, -100])
    assert F.cross_entropy(x, t, reduction="none").tolist() == [0, 0]
    assert F.cross_entropy(x, t, reduction="sum").item() == 0
    assert math.isnan(F.cross_entropy(x, t).item())
    F.cross_entropy(x, t, reduction="sum").backward()
    assert (x.grad.numpy() == 0).all()


@pytest.mark.parametrize("bad", [3, -1, 10**12])
def test_target_out_of_range_raises(bad: int) -> None:
    for weight in (None, fw.ones(3)):
        with pytest.raises(IndexError):
            F.cross_entropy(fw.ones(2, 3), fw.tensor([0, bad]), weight)


def test_masked_logits_keep_other_classes_finite() -> None:
    x = fw.tensor([[0.0, -math.inf, 1.0]]).requires_grad_()
    F.cross_entropy(x, fw.tensor([0])).backward()
    assert np.isfinite(x.grad.numpy()).all() and x.grad.numpy()[0, 1] == 0


def test_errors() -> None:
    x = fw.ones(2, 3)
    with pytest.raises(ValueError, match=r"input batch_size \(2\) to match target batch_size \(3\)"):
        F.cross_entropy(x, fw.tensor([0, 1, 2]))
    with pytest.raises(RuntimeError, match="class indices of dtype int64"):
        F.cross_entropy(x, fw.tensor([0, 1], dtype=fw.int32))
    with pytest.raises(RuntimeError, match="Expected target size"):
        F.cross_entropy(fw.ones(2, 3, 4), fw.zeros(2, 5, dtype=fw.int64))
    with pytest.raises(RuntimeError, match="label_smoothing must be between"):
        F.cross_entropy(x, fw.tensor([0, 1]), label_smoothing=1.5)
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        F.cross_entropy(x, fw.tensor([0, 1]), reduction="average")


def test_16_bit_logits_round_once() -> None:
    x = X.astype(np.float16)
    out = F.cross_entropy(fw.tensor(x), fw.tensor(T))
    assert out.dtype is fw.float16
    assert out.item() == np.float16(-logs(x.astype(np.float64))[np.arange(5), T].mean())


def test_a_program_computes_the_exponentials_of_a_loss_once() -> None:
    x = fw.tensor(X, requires_grad=True)

    @fw.compile
    def step(t: fw.Tensor) -> fw.Tensor:
        x.grad = None
        loss = F.cross_entropy(x, t)
        loss.backward()
        return loss

    step(fw.tensor(T))
    assert str(step.graph).count("= exp(") == 1
    assert x.grad is not None
    expected = (np.exp(logs(X)) - np.eye(3)[T]) / len(T)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-12)


def test_the_logarithm_of_softmax_keeps_its_result_alone() -> None:
    x = fw.tensor(X, requires_grad=True)
    h = x * 1.0
    out = F.log_softmax(h, 1)
    with fw.no_grad():
        h.zero_()  # its gradient does not read it
    out.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 1 - 3 * np.exp(logs(X)), rtol=1e-9, atol=1e-12)
