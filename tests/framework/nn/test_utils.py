"""Gradient clipping and the parameter vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.capture.tracer import Tracer
from framework.nn import utils
from framework.state import ambient


def with_gradients() -> list[nn.Parameter]:
    a, b, c = nn.Parameter(fw.zeros(2)), nn.Parameter(fw.zeros(1)), nn.Parameter(fw.zeros(1))
    a.grad, b.grad = fw.tensor([3.0, -4.0]), fw.tensor([12.0])
    return [a, b, c]


@pytest.mark.parametrize(("order", "norm"), [(2.0, 13.0), (1.0, 19.0), (math.inf, 12.0)])
def test_clip_by_norm(order: float, norm: float) -> None:
    parameters = with_gradients()
    total = utils.clip_grad_norm_(parameters, norm / 2, norm_type=order)
    assert total.item() == pytest.approx(norm) and total.shape == ()
    np.testing.assert_allclose(parameters[0].grad.numpy(), [1.5, -2], rtol=1e-5)
    np.testing.assert_allclose(parameters[1].grad.numpy(), [6], rtol=1e-5)


def test_small_gradients_stay_and_identity_is_kept() -> None:
    parameters = with_gradients()
    grad = parameters[0].grad
    utils.clip_grad_norm_((p for p in parameters), 100.0)
    assert parameters[0].grad is grad and grad.tolist() == [3.0, -4.0]
    assert utils.clip_grad_norm_([nn.Parameter(fw.ones(1))], 1.0).item() == 0.0
    assert utils.clip_grad_norm_(parameters[1], 6.0).item() == 12.0


def test_non_finite_norm() -> None:
    p = nn.Parameter(fw.zeros(1))
    p.grad = fw.tensor([math.inf])
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad.item() == math.inf


def test_clip_by_value() -> None:
    parameters = with_gradients()
    utils.clip_grad_value_(parameters, 3.5)
    assert parameters[0].grad.tolist() == [3.0, -3.5] and parameters[1].grad.tolist() == [3.5]


def test_vector_round_trip() -> None:
    m = nn.Linear(2, 3)
    vector = utils.parameters_to_vector(m.parameters())
    assert vector.shape == (9,)
    utils.vector_to_parameters(vector * 0 + 2, m.parameters())
    assert m.weight.shape == (3, 2) and float(m.bias.detach().sum()) == 6.0 and m.weight.is_leaf
    with pytest.raises(RuntimeError, match="8 elements, the parameters 9"):
        utils.vector_to_parameters(fw.ones(8), m.parameters())


def test_dropping_gradients_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    p = nn.Parameter(fw.ones(2))
    p.grad = fw.ones(2)
    tracer = Tracer()
    monkeypatch.setattr(ambient, "tracer", tracer)
    utils.clear_gradients([p], set_to_none=True)
    assert tracer.gradients_read == {} and p.grad is None
