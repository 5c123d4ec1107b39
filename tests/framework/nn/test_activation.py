"""Activations against float64 formulas, their gradients (kinks included) and the layers that hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.finite_differences import check_gradients

POINTS = np.array([-30.0, -3.5, -0.95, -0.3, 0.2, 0.9, 2.0, 5.0, 30.0])
ERF = np.vectorize(math.erf)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


# Name, layer, function, float64 formula.
CASES = [
    ("relu", nn.ReLU(), F.relu, lambda x: np.maximum(x, 0)),
    ("relu6", nn.ReLU6(), F.relu6, lambda x: np.clip(x, 0, 6)),
    ("hardtanh", nn.Hardtanh(), F.hardtanh, lambda x: np.clip(x, -1, 1)),
    ("leaky_relu", nn.LeakyReLU(), F.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    (
        "elu",
        nn.ELU(1.5),
        lambda x: F.elu(x, 1.5),
        lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))),
    ),
    (
        "selu",
        nn.SELU(),
        F.selu,
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    ),
    (
        "celu",
        None,
        lambda x: F.celu(x, 0.7),
        lambda x: np.where(x > 0, x, 0.7 * np.expm1(np.minimum(x, 0) / 0.7)),
    ),
    ("gelu", nn.GELU(), F.gelu, lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2)))),
    (
        "gelu tanh",
        nn.GELU("tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    ("silu", nn.SiLU(), F.silu, lambda x: x * sigmoid(x)),
    ("mish", nn.Mish(), F.mish, lambda x: x * np.tanh(softplus(x))),
    ("hardswish", nn.Hardswish(), F.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("hardsigmoid", nn.Hardsigmoid(), F.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    ("tanh", nn.Tanh(), F.tanh, np.tanh),
    ("sigmoid", nn.Sigmoid(), F.sigmoid, sigmoid),
    ("logsigmoid", nn.LogSigmoid(), F.logsigmoid, lambda x: -softplus(-x)),
    ("softplus", nn.Softplus(), F.softplus, softplus),
    ("softplus beta", nn.Softplus(2.0), lambda x: F.softplus(x, 2.0), lambda x: softplus(2 * x) / 2),
    ("softsign", nn.Softsign(), F.softsign, lambda x: x / (1 + np.abs(x))),
    ("tanhshrink", None, F.tanhshrink, lambda x: x - np.tanh(x)),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("name", "layer", "function", "formula"), CASES, ids=IDS)
def test_values_and_gradients(name: str, layer: Any, function: Any, formula: Any) -> None:
    x = fw.tensor(POINTS)
    np.testing.assert_allclose(function(x).numpy(), formula(POINTS), rtol=1e-8, atol=1e-12)
    single = fw.tensor(POINTS, dtype=fw.float32)
    np.testing.assert_allclose(function(single).numpy(), formula(POINTS), rtol=2e-5, atol=1e-6)
    if layer is not None:
        np.testing.assert_array_equal(layer(x).numpy(), function(x).numpy())
    check_gradients(function, POINTS, tolerance=1e-5)


@pytest.mark.parametrize("function", [c[2] for c in CASES], ids=IDS)
def test_gradients_are_finite_far_out(function: Any) -> None:
    x = fw.tensor([-1e4, -200.0, 200.0, 1e4]).requires_grad_()
    function(x).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()


# Gradients at the kinks, read off PyTorch 2.13.
@pytest.mark.parametrize(
    ("function", "points", "expected"),
    [
        (F.relu, [0.0], [0.0]),
        (F.relu6, [0.0, 6.0], [0.0, 0.0]),
        (F.hardtanh, [-1.0, 1.0], [0.0, 0.0]),
        (F.leaky_relu, [0.0], [0.01]),
        (F.elu, [0.0], [1.0]),
        (F.logsigmoid, [0.0], [0.5]),
        (F.softplus, [0.0], [0.5]),
        (F.silu, [0.0], [0.5]),
        (F.gelu, [0.0], [0.5]),
    ],
)
def test_gradients_at_kinks(function: Any, points: list[float], expected: list[float]) -> None:
    x = fw.tensor(points).requires_grad_()
    function(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "function", [F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, F.hardtanh]
)
def test_nan_passes(function: Any) -> None:
    assert math.isnan(function(fw.tensor(math.nan)).item())


@pytest.mark.parametrize(
    "function",
    [F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.silu, F.mish, F.hardtanh, F.hardswish],
)
def test_in_place_forms(function: Any) -> None:
    x = fw.tensor(POINTS)
    expected, given = function(x).tolist(), x.clone()
    assert function(given, inplace=True) is given and given.tolist() == expected
    leaf = fw.tensor(POINTS).requires_grad_()
    function(leaf * 1.0, inplace=True).sum().backward()
    outer = fw.tensor(POINTS).requires_grad_()
    function(outer).sum().backward()
    np.testing.assert_allclose(leaf.grad.numpy(), outer.grad.numpy())


def test_softmax_values() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    e = np.exp(x)
    np.testing.assert_allclose(F.softmax(fw.tensor(x), 1).numpy(), e / e.sum(1, keepdims=True), rtol=1e-12)
    logs = np.log(e / e.sum(0, keepdims=True))
    np.testing.assert_allclose(nn.LogSoftmax(0)(fw.tensor(x)).numpy(), logs, rtol=1e-12)
    np.testing.assert_allclose(nn.Softmin(0)(fw.tensor(x)).numpy(), (1 / e) / (1 / e).sum(0), rtol=1e-12)
    check_gradients(lambda x: F.softmax(x, -1), x)
    check_gradients(lambda x: F.log_softmax(x, -1), x)


@pytest.mark.parametrize("width", [2, 17, 1000])
def test_softmax_with_infinities(width: int) -> None:
    row = np.zeros(width)
    row[0] = -np.inf
    out = F.softmax(fw.tensor(row), 0).numpy()
    assert out[0] == 0 and out[1] == pytest.approx(1 / (width - 1))
    assert np.isnan(F.softmax(fw.full((width,), -math.inf), 0).numpy()).all()


def test_softmax_dim_dtype_and_16_bit() -> None:
    assert F.softmax(fw.zeros(2, 2), dim=0, dtype=fw.float64).dtype is fw.float64
    assert nn.Softmax()(fw.zeros(2, 4)).tolist() == [[0.25] * 4] * 2
    x = np.random.default_rng(1).standard_normal((8, 33)).astype(np.float16)
    e = np.exp(x.astype(np.float64))
    out = F.softmax(fw.tensor(x), 1)
    assert out.dtype is fw.float16
    np.testing.assert_array_equal(out.numpy(), (e / e.sum(1, keepdims=True)).astype(np.float16))


def test_glu_and_prelu() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6))
    np.testing.assert_allclose(nn.GLU()(fw.tensor(x)).numpy(), x[:, :3] * sigmoid(x[:, 3:]), rtol=1e-12)
    with pytest.raises(RuntimeError, match="must be even"):
        F.glu(fw.ones(3))
    m = nn.PReLU(6).double()
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), np.where(x > 0, x, 0.25 * x), rtol=1e-6)
    check_gradients(F.prelu, x, np.full(6, 0.3))
    with pytest.raises(RuntimeError, match="6 channels"):
        F.prelu(fw.ones(2, 6), fw.ones(4))


def test_errors_and_printing() -> None:
    with pytest.raises(RuntimeError, match="none or tanh"):
        F.gelu(fw.ones(1), approximate="fast")
    with pytest.raises(ValueError, match="min_val cannot be greater"):
        F.hardtanh(fw.ones(1), 2.0, 1.0)
    assert repr(nn.LeakyReLU(0.2)) == "LeakyReLU(negative_slope=0.2)"
    assert repr(nn.ReLU(inplace=True)) == "ReLU(inplace=True)" and repr(nn.Tanh()) == "Tanh()"
    assert repr(nn.GELU()) == "GELU(approximate='none')" and repr(nn.Softmax(1)) == "Softmax(dim=1)"
