"""Convolutions against sums written out in NumPy float64, their gradients, layouts and errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.capture_check import Twins, World, check
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(7)
Array = np.ndarray[Any, Any]
IMAGE, POINT, LINE = fw.ones(1, 3, 4, 4), fw.ones(1, 3, 1, 1), fw.ones(2, 3, 1)


def convolved(x: Array, w: Array, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """Every tap of the kernel times the part of the input that it meets."""
    places = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    inside, outside = w.shape[1], w.shape[0] // groups
    out = np.zeros((x.shape[0], w.shape[0], *places))
    for group, tap in itertools.product(range(groups), itertools.product(*map(range, w.shape[2:]))):
        corner = [t * d for t, d in zip(tap, dilation, strict=True)]
        met = tuple(slice(c, c + (p - 1) * s + 1, s) for c, p, s in zip(corner, places, stride, strict=True))
        part = x[(slice(None), slice(group * inside, (group + 1) * inside), *met)]
        rows = slice(group * outside, (group + 1) * outside)
        out[:, rows] += np.einsum("nc...,oc->no...", part, w[(rows, slice(None), *tap)])
    return out


def transposed(x: Array, w: Array, stride: Sequence[int], dilation: Sequence[int], groups: int) -> Array:
    """Every input element times the kernel, added where the kernel then lies."""
    inside, outside = w.shape[0] // groups, w.shape[1]
    size = [
        (n - 1) * s + d * (k - 1) + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], outside * groups, *size))
    for group, tap in itertools.product(range(groups), itertools.product(*map(range, w.shape[2:]))):
        corner = [t * d for t, d in zip(tap, dilation, strict=True)]
        met = tuple(
            slice(c, c + (n - 1) * s + 1, s) for c, n, s in zip(corner, x.shape[2:], stride, strict=True)
        )
        source = slice(group * inside, (group + 1) * inside)
        part = np.einsum("nc...,co->no...", x[:, source], w[(source, slice(None), *tap)])
        out[(slice(None), slice(group * outside, (group + 1) * outside), *met)] += part
    return out


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of input and weight, and the settings of a convolution of one to three dimensions."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    each = st.integers(1, 3)
    kernel = [draw(each) for _ in range(rank)]
    settings = {name: [draw(each) for _ in range(rank)] for name in ("stride", "dilation")}
    settings["padding"] = [draw(st.integers(0, 2)) for _ in range(rank)]
    size = [
        d * (k - 1) + 1 + draw(st.integers(0, 4)) for k, d in zip(kernel, settings["dilation"], strict=True)
    ]
    channels = groups * draw(st.sampled_from([1, 2, 5]))
    out = groups * draw(st.sampled_from([1, 2, 4]))
    x = (draw(st.integers(0, 3)), channels, *size)
    return x, (out, channels // groups, *kernel), {**settings, "groups": groups}


@given(cases())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_values(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    shape, kernel, options = case
    x, w, b = RNG.normal(size=shape), RNG.normal(size=kernel), RNG.normal(size=kernel[0])
    function = (F.conv1d, F.conv2d, F.conv3d)[len(shape) - 3]
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in options["padding"])])
    expected = convolved(padded, w, options["stride"], options["dilation"], options["groups"])
    expected += b.reshape(-1, *(1,) * (len(shape) - 2))
    out = function(fw.tensor(x), fw.tensor(w), fw.tensor(b), **options)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_transposed_values(stride: tuple[int, int], dilation: tuple[int, int], groups: int) -> None:
    x, w = RNG.normal(size=(2, 4, 3, 5)), RNG.normal(size=(4, 3, 2, 3))
    expected = transposed(x, w, stride, dilation, groups)
    out = F.conv_transpose2d(fw.tensor(x), fw.tensor(w), stride=stride, dilation=dilation, groups=groups)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-12)
    cut = F.conv_transpose2d(
        fw.tensor(x), fw.tensor(w), None, stride, 1, tuple(s - 1 for s in stride), groups, dilation
    )
    wider = np.pad(expected, [(0, 0), (0, 0), *((0, s - 1) for s in stride)])
    np.testing.assert_allclose(cut.numpy(), wider[:, :, 1:-1, 1:-1], atol=1e-12)


def test_transposed_of_one_and_three_dimensions() -> None:
    for rank, function in ((1, F.conv_transpose1d), (3, F.conv_transpose3d)):
        x, w = RNG.normal(size=(2, 2, *range(3, 3 + rank))), RNG.normal(size=(2, 3, *(2,) * rank))
        got = function(fw.tensor(x), fw.tensor(w), stride=2).numpy()
        np.testing.assert_allclose(got, transposed(x, w, (2,) * rank, (1,) * rank, 1), atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, "same", 2), (3, 2, 2)])
def test_gradients(stride: int, padding: Any, dilation: int, groups: int) -> None:
    x, w, b = RNG.normal(size=(2, 4, 6, 7)), RNG.normal(size=(4, 4 // groups, 3, 2)), RNG.normal(size=4)
    check_gradients(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, groups), x, w, b)


def test_gradients_of_transposes_and_other_ranks() -> None:
    x, w = RNG.normal(size=(2, 4, 3, 4)), RNG.normal(size=(4, 1, 3, 2))
    check_gradients(lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2), x, w)
    check_gradients(
        lambda x, w: F.conv1d(x, w, stride=2), RNG.normal(size=(2, 3, 9)), RNG.normal(size=(2, 3, 4))
    )
    check_gradients(F.conv3d, RNG.normal(size=(1, 2, 3, 4, 5)), RNG.normal(size=(2, 2, 2, 1, 3)))
    check_gradients(lambda x: F.unfold(x, (2, 3), padding=1), RNG.normal(size=(2, 2, 4, 4)))


def test_second_derivatives() -> None:
    x = fw.tensor(RNG.normal(size=(1, 2, 5, 5)), requires_grad=True)
    w = fw.tensor(RNG.normal(size=(2, 2, 3, 3)), requires_grad=True)
    (gx,) = fw.autograd.grad(F.conv2d(x, w, stride=2).square().sum(), x, create_graph=True)
    (gw,) = fw.autograd.grad(gx.square().sum(), w)
    step = 1e-6
    direction = RNG.normal(size=w.shape)

    def slope(weight: Array) -> float:
        moved = fw.tensor(weight)
        (g,) = fw.autograd.grad(F.conv2d(x, moved, stride=2).square().sum(), x)
        return g.square().sum().item()

    there, back = slope(w.detach().numpy() + step * direction), slope(w.detach().numpy() - step * direction)
    np.testing.assert_allclose((gw.numpy() * direction).sum(), (there - back) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((3, 1, 12, 12), lambda: nn.Conv2d(1, 8, 3)),
        ((2, 16, 9, 9), lambda: nn.Conv2d(16, 32, 3, padding=1)),
        ((2, 16, 8, 8), lambda: nn.Conv2d(16, 24, 3, 2, 1, bias=False)),
        ((2, 24, 7, 7), lambda: nn.Conv2d(24, 24, 3, padding="same", groups=24)),
        ((2, 12, 7, 7), lambda: nn.Conv2d(12, 8, 1, groups=4)),
        ((70, 8, 6, 6), lambda: nn.Conv2d(8, 16, 5, dilation=1, padding=2, padding_mode="reflect")),
        ((2, 6, 30), lambda: nn.Conv1d(6, 10, 5, 3, 2)),
        ((1, 3, 5, 6, 7), lambda: nn.Conv3d(3, 4, 2)),
        ((2, 8, 5, 5), lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1, 1)),
    ],
)
def test_compiled_as_eager(shape: tuple[int, ...], layer: Callable[[], nn.Module]) -> None:
    def make() -> World:
        fw.manual_seed(0)
        model = nn.Sequential(layer(), nn.ReLU(), nn.Flatten())

        def step(x: fw.Tensor) -> Any:
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return step, lambda: [p.grad for p in model.parameters()]

    twins = Twins(make)
    for scale in (1.0, -0.5):
        twins.call(fw.tensor(RNG.normal(size=shape) * scale, dtype=fw.float32, requires_grad=True))
    twins.expect("replay")


def test_a_network_stays_channels_last() -> None:
    fw.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    compiled = fw.compile(model)
    with fw.no_grad():
        compiled(fw.randn(2, 4, 9, 9))
    names = [k.kernel.spec.name for k in compiled.kernels]
    # Weights and the input are put in order, its edges filled, and nothing is between the two products.
    first = names.index("contract_add_relu")
    assert names[first:] == ["contract_add_relu", "contract_add_relu", "copy"], names
    assert sorted(names[:first]) == ["copy", *["fill"] * 4, "stored", "stored"]


@pytest.mark.parametrize("dtype", [fw.float16, fw.bfloat16, fw.float64])
def test_dtypes(dtype: fw.dtype) -> None:
    x, w = fw.randn(2, 8, 6, 6).to(dtype), fw.randn(4, 8, 3, 3).to(dtype)
    check(lambda x, w: F.conv2d(x, w, padding=1), (x, w))
    exact = convolved(x.double().numpy(), w.double().numpy(), (1, 1), (1, 1), 1)
    error = np.abs(F.conv2d(x, w).double().numpy() - exact).max()
    assert error <= np.abs(exact).max() * fw.finfo(dtype).eps


def test_varying_batch_sizes_and_images() -> None:
    fw.manual_seed(0)
    model = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    twins = Twins(lambda: (lambda x: model(x).relu().sum(0), lambda: None))
    for rows, size in ((2, 8), (3, 8), (1, 8), (5, 8), (2, 9), (2, 12), (4, 10)):
        twins.call(fw.randn(rows, 3, size, size))
    twins.expect("replay")


def test_no_images() -> None:
    x, w = fw.zeros(0, 3, 5, 5, requires_grad=True), fw.ones(2, 3, 3, 3, requires_grad=True)
    out = F.conv2d(x, w)
    out.sum().backward()
    assert tuple(out.shape) == (0, 2, 3, 3)
    assert w.grad is not None and w.grad.abs().sum().item() == 0


def test_layers() -> None:
    fw.manual_seed(0)
    m = nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 2), groups=2)
    assert [tuple(p.shape) for p in m.parameters()] == [(6, 2, 3, 5), (6,)]
    assert list(m.state_dict()) == ["weight", "bias"]
    bound = 1 / math.sqrt(2 * 3 * 5)
    assert m.weight.abs().max().item() <= bound and m.weight.abs().max().item() > 0.8 * bound
    assert repr(m) == "Conv2d(4, 6, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), groups=2)"
    assert tuple(m(fw.ones(4, 8, 8)).shape) == (6, 4, 4)  # an image alone
    t = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
    assert tuple(t.weight.shape) == (4, 6, 3, 3)
    assert tuple(t(fw.ones(1, 4, 5, 5), output_size=(10, 10)).shape) == (1, 6, 10, 10)
    with pytest.raises(ValueError, match="requested an output size"):
        t(fw.ones(1, 4, 5, 5), output_size=(12, 12))
    same = nn.Conv1d(2, 2, 4, padding="same", padding_mode="circular")
    x = RNG.normal(size=(1, 2, 6)).astype(np.float32)
    around = np.concatenate([x[..., -1:], x, x[..., :2]], -1)
    expected = F.conv1d(fw.tensor(around), same.weight, same.bias)
    np.testing.assert_allclose(same(fw.tensor(x)).detach().numpy(), expected.detach().numpy(), atol=1e-6)


def test_unfold() -> None:
    x = RNG.normal(size=(2, 3, 5, 6))
    columns = F.unfold(fw.tensor(x), (2, 3), dilation=(2, 1), padding=1, stride=2)
    w = RNG.normal(size=(4, 3, 2, 3))
    product = w.reshape(4, -1) @ columns.numpy()
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    np.testing.assert_allclose(product, convolved(padded, w, (2, 2), (2, 1), 1).reshape(2, 4, -1), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.conv2d(fw.ones(2, 3), POINT), RuntimeError, "Expected 3D .* or 4D"),
        (lambda: F.conv2d(IMAGE, fw.ones(1, 2, 1, 1)), RuntimeError, "to have 2 channels"),
        (lambda: F.conv2d(IMAGE, fw.ones(1, 3, 5, 5)), RuntimeError, "Kernel size can't be greater"),
        (lambda: F.conv2d(IMAGE, POINT.double()), RuntimeError, "should be the same"),
        (lambda: F.conv2d(IMAGE, POINT, stride=0), RuntimeError, "non-positive stride"),
        (lambda: F.conv2d(IMAGE, POINT, padding=-1), RuntimeError, "negative padding"),
        (lambda: F.conv2d(IMAGE, POINT, padding="some"), RuntimeError, "Invalid padding"),
        (lambda: F.conv2d(IMAGE, POINT, None, 2, "same"), RuntimeError, "strided"),
        (lambda: F.conv2d(IMAGE, POINT, stride=(1, 1, 1)), RuntimeError, "tuple of 2 ints"),
        (lambda: F.conv_transpose1d(fw.ones(1, 3, 4), LINE), RuntimeError, "to have 2 channels"),
        (lambda: F.conv_transpose1d(fw.ones(1, 2, 4), LINE, output_padding=1), RuntimeError, "smaller"),
        (lambda: nn.Conv2d(3, 4, 1, groups=2), ValueError, "in_channels must be divisible"),
        (lambda: nn.Conv2d(4, 4, 1, padding_mode="mirror"), ValueError, "padding_mode"),
        (lambda: nn.ConvTranspose2d(4, 4, 1, padding_mode="reflect"), ValueError, "Only"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
