"""Normalising layers against NumPy float64, their gradients and running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(3)


def normalised(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_layer_norm_values() -> None:
    x = RNG.standard_normal((4, 2, 3)) * 5 + 100
    m = nn.LayerNorm((2, 3)).double()
    with fw.no_grad():
        m.weight.copy_(fw.tensor(RNG.standard_normal((2, 3))))
        m.bias.copy_(fw.tensor(RNG.standard_normal((2, 3))))
    expected = normalised(x, (1, 2)) * m.weight.detach().numpy() + m.bias.detach().numpy()
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), expected, rtol=1e-9)
    assert repr(m) == "LayerNorm((2, 3), eps=1e-05, elementwise_affine=True, bias=True)"
    assert (
        nn.LayerNorm(3, bias=False).bias is None and nn.LayerNorm(3, elementwise_affine=False).weight is None
    )


@pytest.mark.parametrize("value", [0.1, 1e6, 3.3e8, -7.7])
@pytest.mark.parametrize("width", [3, 768, 1000])
def test_layer_norm_of_a_constant_row_is_zero(value: float, width: int) -> None:
    assert np.abs(F.layer_norm(fw.full((2, width), value), (width,)).numpy()).max() <= 1e-6


def test_layer_norm_gradients() -> None:
    x, w, b = RNG.standard_normal((3, 4)), RNG.standard_normal(4), RNG.standard_normal(4)
    check_gradients(lambda x, w, b: F.layer_norm(x, (4,), w, b), x, w, b, tolerance=1e-5)


def test_layer_norm_rounds_16_bit_once() -> None:
    x = fw.tensor(RNG.standard_normal((4, 64)).astype(np.float32)).half()
    out = F.layer_norm(x, (64,))
    assert out.dtype is fw.float16
    expected = normalised(x.float().numpy().astype(np.float64), (1,)).astype(np.float16)
    assert np.abs(out.float().numpy() - expected.astype(np.float32)).max() <= 2e-3
    assert (out.numpy() == expected).mean() > 0.95


def test_layer_norm_shape_error() -> None:
    with pytest.raises(RuntimeError, match=r"expected input with shape \[\*, 3\]"):
        F.layer_norm(fw.ones(2, 4), (3,))


def test_rms_norm() -> None:
    x, w = RNG.standard_normal((3, 4)), RNG.standard_normal(4)
    out = F.rms_norm(fw.tensor(x), (4,), fw.tensor(w), eps=1e-6)
    np.testing.assert_allclose(
        out.numpy(), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w, rtol=1e-9
    )
    check_gradients(lambda x, w: F.rms_norm(x, (4,), w), x, w, tolerance=1e-5)
    assert nn.RMSNorm(4)(fw.zeros(2, 4)).tolist() == [[0.0] * 4] * 2


def test_group_norm() -> None:
    x = RNG.standard_normal((2, 6, 5))
    m = nn.GroupNorm(3, 6).double()
    expected = normalised(x.reshape(2, 3, 10), (2,)).reshape(2, 6, 5)
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="divisible"):
        nn.GroupNorm(4, 6)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6)])
def test_batch_norm_in_training(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape) * 2 + 3
    axes = (0,) if len(shape) == 2 else (0, 2)
    m = nn.BatchNorm1d(3).double()
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), normalised(x, axes), rtol=1e-9)
    np.testing.assert_allclose(m.running_mean.numpy(), 0.1 * x.mean(axes), rtol=1e-9)
    np.testing.assert_allclose(m.running_var.numpy(), 0.9 + 0.1 * x.var(axes, ddof=1), rtol=1e-9)
    assert m.num_batches_tracked.item() == 1
    m.eval()
    running = [m.running_mean.numpy().copy(), m.running_var.numpy().copy()]
    lifted = [r.reshape(1, 3, *(1 for _ in shape[2:])) for r in running]
    expected = (x - lifted[0]) / np.sqrt(lifted[1] + 1e-5)
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), expected, rtol=1e-9)
    np.testing.assert_array_equal(m.running_mean.numpy(), running[0])


def test_batch_norm_without_momentum_keeps_the_cumulative_average() -> None:
    m = nn.BatchNorm1d(2, momentum=None).double()
    batches = [RNG.standard_normal((4, 2)) for _ in range(3)]
    for x in batches:
        m(fw.tensor(x))
    np.testing.assert_allclose(m.running_mean.numpy(), np.mean([x.mean(0) for x in batches], 0), rtol=1e-9)
    np.testing.assert_allclose(
        m.running_var.numpy(), np.mean([x.var(0, ddof=1) for x in batches], 0), rtol=1e-9
    )


def test_batch_norm_options() -> None:
    plain = nn.BatchNorm1d(2, affine=False, track_running_stats=False).double().eval()
    assert list(plain.state_dict()) == [] and list(plain.parameters()) == []
    x = RNG.standard_normal((4, 2))
    np.testing.assert_allclose(plain(fw.tensor(x)).numpy(), normalised(x, (0,)), rtol=1e-9)
    assert list(nn.BatchNorm1d(2).state_dict()) == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
    m = nn.BatchNorm1d(2)
    m(fw.randn(4, 2))
    m.reset_running_stats()
    assert (
        m.running_mean.tolist() == [0, 0]
        and m.running_var.tolist() == [1, 1]
        and m.num_batches_tracked.item() == 0
    )


def test_batch_norm_errors() -> None:
    m = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        m(fw.ones(2))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        m(fw.ones(1, 2))
    assert m.running_mean.tolist() == [0, 0] and m.num_batches_tracked.item() == 0


def test_batch_norm_gradients() -> None:
    x, w, b = RNG.standard_normal((4, 2)), RNG.standard_normal(2), RNG.standard_normal(2)
    check_gradients(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), x, w, b, tolerance=1e-5)


def test_constant_channel_normalises_to_zero() -> None:
    out = F.batch_norm(fw.full((100, 2), 1e6 + 0.3), None, None, training=True)
    assert np.abs(out.numpy()).max() <= 1e-6
