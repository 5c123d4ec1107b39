"""Normalising layers against NumPy float64, their gradients and running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.capture_check import Twins, World
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


def test_batch_norm_of_an_empty_batch_leaves_the_statistics() -> None:
    m = nn.BatchNorm1d(2)
    assert m(fw.ones(0, 2)).shape == (0, 2)
    assert m.running_mean.tolist() == [0, 0] and m.running_var.tolist() == [1, 1]


@pytest.mark.parametrize("layer", [nn.BatchNorm2d, nn.BatchNorm3d])
def test_batch_norm_of_images(layer: Any) -> None:
    dimensions = int(layer.__name__[-2])
    x = RNG.standard_normal((2, 3, *(2, 4, 3)[:dimensions])) * 2 + 1
    axes = (0, *range(2, x.ndim))
    m = layer(3, momentum=0.3).double()
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), normalised(x, axes), rtol=1e-9)
    np.testing.assert_allclose(m.running_mean.numpy(), 0.3 * x.mean(axes), rtol=1e-9)
    np.testing.assert_allclose(m.running_var.numpy(), 0.7 + 0.3 * x.var(axes, ddof=1), rtol=1e-9)
    assert m.num_batches_tracked.item() == 1
    assert repr(m).startswith(f"{layer.__name__}(3, eps=1e-05, momentum=0.3, affine=True")
    with pytest.raises(ValueError, match=rf"expected {x.ndim}D input \(got 3D input\)"):
        m(fw.ones(2, 3, 4))


@pytest.mark.parametrize("layer", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_instance_norm(layer: Any) -> None:
    dimensions = int(layer.__name__[-2])
    x = RNG.standard_normal((2, 3, *(2, 4, 3)[-dimensions:])) * 2 + 1
    axes = tuple(range(2, x.ndim))
    plain = layer(3)
    assert list(plain.state_dict()) == []
    wanted = normalised(x, axes)
    for mode in (True, False):
        np.testing.assert_allclose(plain.train(mode)(fw.tensor(x)).numpy(), wanted, rtol=1e-9)
    np.testing.assert_allclose(plain(fw.tensor(x[0])).numpy(), wanted[0], rtol=1e-9)
    m = layer(3, momentum=0.3, affine=True, track_running_stats=True).double()
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), wanted, rtol=1e-9)
    mean, variance = x.mean(axes).mean(0), x.var(axes, ddof=1).mean(0)
    np.testing.assert_allclose(m.running_mean.numpy(), 0.3 * mean, rtol=1e-9)
    np.testing.assert_allclose(m.running_var.numpy(), 0.7 + 0.3 * variance, rtol=1e-9)
    lifted = [r.numpy().reshape(1, 3, *(1 for _ in axes)) for r in (m.running_mean, m.running_var)]
    evaluated = (x - lifted[0]) / np.sqrt(lifted[1] + 1e-5)
    np.testing.assert_allclose(m.eval()(fw.tensor(x)).detach().numpy(), evaluated, rtol=1e-9)
    assert m.num_batches_tracked.item() == 0


def test_instance_norm_without_momentum_keeps_the_running_statistics() -> None:
    m = nn.InstanceNorm1d(2, momentum=None, track_running_stats=True)
    m(fw.randn(3, 2, 4))
    assert m.running_mean.tolist() == [0, 0] and m.running_var.tolist() == [1, 1]


def test_instance_norm_errors_and_gradients() -> None:
    with pytest.raises(ValueError, match=r"expected 3D or 4D input \(got 2D input\)"):
        nn.InstanceNorm2d(3)(fw.ones(3, 2))
    with pytest.raises(ValueError, match=r"size at dim=1 to match num_features \(3\), but got: 4"):
        nn.InstanceNorm1d(3, affine=True)(fw.ones(2, 4, 5))
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        nn.InstanceNorm1d(3)(fw.ones(2, 3, 1))
    with pytest.raises(RuntimeError, match="when use_input_stats is false"):
        F.instance_norm(fw.ones(2, 3, 4), use_input_stats=False)
    x, w, b = RNG.standard_normal((2, 2, 3)), RNG.standard_normal(2), RNG.standard_normal(2)
    check_gradients(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b, tolerance=1e-5)


def test_weights_of_another_size_are_no_broadcast() -> None:
    one, three = fw.ones(4, 1), fw.ones(3)
    with pytest.raises(RuntimeError, match="running_mean should contain 1 elements not 3"):
        nn.BatchNorm1d(3)(one)
    with pytest.raises(RuntimeError, match="weight should contain 2 elements not 1"):
        F.batch_norm(fw.ones(4, 2), None, None, fw.ones(1), training=True)
    for norm in (F.layer_norm, F.rms_norm):
        with pytest.raises(
            RuntimeError, match=r"weight to be of same shape .* \[3\] and normalized_shape = \[1\]"
        ):
            norm(one, (1,), three)
    with pytest.raises(
        RuntimeError, match=r"bias to be a vector .* of shape \[3\] and input of shape \[4, 1, 2\]"
    ):
        F.group_norm(fw.ones(4, 1, 2), 1, None, three)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        F.group_norm(fw.ones(1, 2), 2)


@pytest.mark.parametrize(
    "make", [lambda: nn.BatchNorm2d(2), lambda: nn.InstanceNorm2d(2, affine=True, track_running_stats=True)]
)
def test_norms_of_images_replay(make: Any) -> None:
    def world() -> World:
        m = make()

        def step(x: fw.Tensor) -> fw.Tensor:
            out = m(x)
            (out * out * x).sum().backward()
            return out.detach()

        return step, lambda: [*m.buffers(), *(p.grad for p in m.parameters())]

    twins = Twins(world, rtol=1e-4)
    for batch in (2, 2, 3):
        twins.call(fw.randn(batch, 2, 3, 3))
    for m in (twins.eager, twins.compiled.function):
        m.__closure__[0].cell_contents.momentum = 0.5
    twins.call(fw.randn(3, 2, 3, 3))
    twins.expect("replay")
