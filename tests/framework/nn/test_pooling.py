"""Pooling against loops over windows in float64: values, positions, ties, nan, gradients, captures."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.capture_check import check, grad_of
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(13)
NAN, INF = float("nan"), float("inf")


def starts(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> list[int]:
    """Where the windows of one axis begin."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = -(-room // stride) + 1 if ceil else room // stride + 1
    found = [i * stride - padding for i in range(count)]
    return [s for s in found if s < size] if ceil else found


def windows(shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    """For every window, by its number: the positions inside the input, row by row."""
    axes = [
        [[s + k * d for k in range(n)] for s in starts(size, n, step, p, d, ceil)]
        for size, n, step, p, d in zip(shape, kernel, stride, padding, dilation, strict=True)
    ]
    for number in itertools.product(*(range(len(axis)) for axis in axes)):
        every = itertools.product(*(axis[i] for axis, i in zip(axes, number, strict=True)))
        yield number, [p for p in every if all(0 <= i < n for i, n in zip(p, shape, strict=True))]


def expected_max(x: Any, found: list[Any]) -> tuple[Any, Any]:
    """Maxima and flat positions: the first of equal elements, the last nan."""
    rank = len(found[0][0])
    spatial = x.shape[x.ndim - rank :]
    out = [max(n[i] for n, _ in found) + 1 for i in range(rank)]
    values, places = np.zeros((*x.shape[:-rank], *out)), np.zeros((*x.shape[:-rank], *out), np.int64)
    for outer in np.ndindex(x.shape[:-rank]):
        for number, inside in found:
            best = inside[0]
            for p in inside[1:]:
                if x[outer + p] > x[outer + best] or np.isnan(x[outer + p]):
                    best = p
            values[outer + number], places[outer + number] = (
                x[outer + best],
                np.ravel_multi_index(best, spatial),
            )
    return values, places


Setting = tuple[tuple[int, ...], Any, Any, Any, Any, bool]

# Shape of the pooled axes, kernel, stride, padding, dilation, ceil_mode.
SETTINGS: list[Setting] = [
    ((6,), (2,), (2,), (0,), (1,), False),
    ((7,), (3,), (2,), (1,), (1,), False),
    ((8,), (3,), (2,), (1,), (2,), True),
    ((7,), (2,), (3,), (0,), (1,), True),
    ((5,), (3,), (1,), (1,), (1,), False),
    ((4, 6), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((5, 7), (3, 2), (2, 3), (1, 1), (1, 2), False),
    ((5, 4), (3, 3), (2, 2), (1, 0), (1, 1), True),
    ((6, 5), (1, 5), (4, 1), (0, 2), (1, 1), False),
]


def pooled(name: str, setting: Setting) -> Any:
    return getattr(F, f"{name}_pool{len(setting[0])}d")


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_max_pool(setting: Setting, special: bool) -> None:
    shape, kernel, stride, padding, dilation, ceil = setting
    x = RNG.integers(-2, 3, (2, 3, *shape)).astype(np.float64)
    if special:
        x[RNG.random(x.shape) < 0.15] = NAN
        x[RNG.random(x.shape) < 0.5] = -INF
    wanted, places = expected_max(x, list(windows(*setting)))
    t = fw.tensor(x).requires_grad_()
    values, indices = pooled("max", setting)(t, kernel, stride, padding, dilation, ceil, True)
    np.testing.assert_array_equal(values.detach().numpy(), wanted)
    np.testing.assert_array_equal(indices.numpy(), places)
    assert indices.dtype is fw.int64
    g = RNG.standard_normal(wanted.shape)
    values.backward(fw.tensor(g))
    gradient = np.zeros((6, np.prod(shape)))
    np.add.at(gradient, (np.arange(6)[:, None], places.reshape(6, -1)), g.reshape(6, -1))
    np.testing.assert_allclose(grad_of(t).numpy(), gradient.reshape(x.shape), rtol=1e-12)
    plain = pooled("max", setting)(fw.tensor(x[0]), kernel, stride, padding, dilation, ceil)
    np.testing.assert_array_equal(plain.numpy(), wanted[0])


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("setting", [s for s in SETTINGS if set(s[4]) == {1}], ids=str)
def test_avg_pool(setting: Setting, include: bool) -> None:
    shape, kernel, stride, padding, dilation, ceil = setting
    x = RNG.standard_normal((2, 2, *shape))
    padded = tuple(n + 2 * p for n, p in zip(shape, padding, strict=True))
    # The same windows over the padded input: every element of them counts.
    counted = list(windows(padded, kernel, stride, (0,) * len(shape), dilation, ceil))
    out = pooled("avg", setting)(fw.tensor(x), kernel, stride, padding, ceil, include).numpy()
    found = list(windows(*setting))
    assert out.shape[2:] == tuple(n + 1 for n in found[-1][0])
    sizes = dict(counted)
    for number, inside in found:
        count = len(sizes[number]) if include else len(inside)
        total = sum(x[:, :, *p] for p in inside)
        np.testing.assert_allclose(out[:, :, *number], total / count, rtol=1e-10)
    check_gradients(lambda t: pooled("avg", setting)(t, kernel, stride, padding, ceil, include), x[:1, :1])


def test_avg_pool_divisor_and_integers() -> None:
    x = fw.arange(16.0).reshape(1, 4, 4)
    assert F.avg_pool2d(x, 2, divisor_override=-1).tolist() == [[[-10.0, -18.0], [-42.0, -50.0]]]
    assert F.avg_pool2d(x.long(), 2).tolist() == [[[2, 4], [10, 12]]]
    assert F.avg_pool2d(-x.long(), 2).tolist() == [[[-2, -4], [-10, -12]]]
    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        F.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        F.avg_pool2d(x.int(), 2)


def test_max_pool_of_integers() -> None:
    x = -fw.arange(16).reshape(1, 4, 4)
    assert F.max_pool2d(x, 2, padding=1).tolist() == [[[0, -1, -3], [-4, -5, -7], [-12, -13, -15]]]
    with pytest.raises(NotImplementedError, match="max_pool2d"):
        F.max_pool2d(x > 0, 2)


def test_16_bit_is_averaged_in_32() -> None:
    x = fw.tensor(RNG.standard_normal((1, 1, 64)).astype(np.float32)).half()
    out = F.avg_pool1d(x, 64)
    assert out.dtype is fw.float16
    assert out.item() == np.float16(x.float().numpy().mean())
    assert F.max_pool1d(x, 64).item() == x.float().numpy().max()


def bounds(size: int, count: int) -> list[tuple[int, int]]:
    """The adaptive windows of one axis."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


ADAPTIVE = [((6,), 3), ((7,), 3), ((5,), 5), ((3,), 5), ((4, 6), 1), ((5, 7), (2, 3)), ((4, 5), (None, 2))]


@pytest.mark.parametrize(("shape", "size"), ADAPTIVE)
def test_adaptive_pools(shape: tuple[int, ...], size: Any) -> None:
    sizes = size if isinstance(size, tuple) else (size,) * len(shape)
    axes = [bounds(n, n if c is None else c) for n, c in zip(shape, sizes, strict=True)]
    found = [
        (number, list(itertools.product(*(range(*axis[i]) for axis, i in zip(axes, number, strict=True)))))
        for number in itertools.product(*(range(len(axis)) for axis in axes))
    ]
    x = RNG.standard_normal((2, 2, *shape))
    mean, maximum = (getattr(F, f"adaptive_{n}_pool{len(shape)}d") for n in ("avg", "max"))
    out = mean(fw.tensor(x), size).numpy()
    for number, inside in found:
        np.testing.assert_allclose(out[:, :, *number], np.mean([x[:, :, *p] for p in inside], 0), rtol=1e-10)
    check_gradients(lambda t: mean(t, size), x[:1, :1])
    check_gradients(lambda t: maximum(t, size), x[:1, :1])
    x = np.round(x)
    x[RNG.random(x.shape) < 0.1] = NAN
    wanted, places = expected_max(x, found)
    values, indices = maximum(fw.tensor(x), size, True)
    np.testing.assert_array_equal(values.numpy(), wanted)
    np.testing.assert_array_equal(indices.numpy(), places)


def test_adaptive_to_nothing() -> None:
    x = fw.ones(1, 3, 4)
    assert F.adaptive_avg_pool2d(x, (0, 2)).shape == (1, 0, 2)
    values, indices = F.adaptive_max_pool2d(x, (2, 0), True)
    assert values.shape == indices.shape == (1, 2, 0)


def test_empty_batch() -> None:
    assert F.max_pool2d(fw.ones(0, 2, 4, 4), 2).shape == (0, 2, 2, 2)
    assert F.adaptive_avg_pool1d(fw.ones(0, 2, 5), 2).shape == (0, 2, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda t: F.max_pool2d(t, 2),
        lambda t: F.max_pool2d(t, 3, 2, 1),
        lambda t: F.avg_pool2d(t, 2),
        lambda t: F.avg_pool2d(t, 3, 1, 1, count_include_pad=False),
        lambda t: F.adaptive_max_pool2d(t, 3),
    ],
)
def test_second_derivatives(function: Any) -> None:
    def gradient(x: fw.Tensor, differentiable: bool) -> fw.Tensor:
        (g,) = fw.autograd.grad((function(x) ** 3).sum(), x, create_graph=differentiable)
        return g

    x = RNG.standard_normal((1, 1, 4, 5))
    t, weights = fw.tensor(x).requires_grad_(), RNG.standard_normal(x.shape)
    (second,) = fw.autograd.grad((gradient(t, True) * fw.tensor(weights)).sum(), t)
    step = 1e-6
    wanted = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[i] += step
        low[i] -= step
        ends = [gradient(fw.tensor(end).requires_grad_(), False).numpy() for end in (high, low)]
        wanted[i] = ((ends[0] - ends[1]) * weights).sum() / (2 * step)
    np.testing.assert_allclose(second.numpy(), wanted, rtol=1e-5, atol=1e-5)


IMAGE, SOUND = fw.ones(1, 1, 8, 8), fw.ones(1, 1, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.max_pool2d(IMAGE[0, 0], 2), "Expected 3D or 4D"),
        (lambda: F.avg_pool1d(SOUND[0, 0], 2), "Expected 2D or 3D"),
        (lambda: F.max_pool2d(IMAGE, 9), "Output size is too small"),
        (lambda: F.max_pool2d(IMAGE, 3, padding=2), "at most half of kernel size, but got pad=2"),
        (lambda: F.max_pool1d(SOUND, 3, padding=-1), "non-negative"),
        (lambda: F.max_pool2d(IMAGE, 3, stride=0), "stride must be greater than zero"),
        (lambda: F.max_pool2d(IMAGE, 0), "kernel_size must be greater than zero"),
        (lambda: F.max_pool2d(IMAGE, 2, dilation=0), "dilation must be greater than zero"),
        (
            lambda: F.max_pool2d(IMAGE, (1, 2, 3)),
            "kernel_size must either be a single int, or a tuple of 2 ints",
        ),
        (lambda: F.max_pool2d(IMAGE[:, :0], 2), "non-zero size for non-batch dimensions"),
        (lambda: F.adaptive_avg_pool2d(IMAGE[0, 0], 2), "Expected 3D or 4D"),
        (lambda: F.adaptive_avg_pool2d(IMAGE, -1), "greater than or equal to 0 but received"),
        (lambda: F.adaptive_max_pool2d(IMAGE, (1, 2, 3)), "output_size must be 2"),
    ],
)
def test_wrong_input(call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


def test_adaptive_pools_need_floats() -> None:
    with pytest.raises(NotImplementedError, match="adaptive_max_pool1d"):
        F.adaptive_max_pool1d(SOUND.long(), 2)


def test_modules() -> None:
    x = fw.tensor(RNG.standard_normal((2, 3, 6, 7)))
    row = x[:, :, 0]
    pairs: list[tuple[nn.Module, fw.Tensor, Any, str]] = [
        (
            nn.MaxPool2d(2),
            x,
            F.max_pool2d(x, 2),
            "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False",
        ),
        (
            nn.MaxPool1d(3, 2, 1, ceil_mode=True),
            row,
            F.max_pool1d(row, 3, 2, 1, ceil_mode=True),
            "kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=True",
        ),
        (nn.AvgPool1d(2), row, F.avg_pool1d(row, 2), "kernel_size=(2,), stride=(2,), padding=(0,)"),
        (
            nn.AvgPool2d(3, 2, 1, count_include_pad=False, divisor_override=5),
            x,
            F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
            "kernel_size=3, stride=2, padding=1",
        ),
        (nn.AdaptiveAvgPool1d(3), row, F.adaptive_avg_pool1d(row, 3), "output_size=3"),
        (nn.AdaptiveAvgPool2d((None, 3)), x, F.adaptive_avg_pool2d(x, (6, 3)), "output_size=(None, 3)"),
        (nn.AdaptiveMaxPool1d(3), row, F.adaptive_max_pool1d(row, 3), "output_size=3"),
        (nn.AdaptiveMaxPool2d(3), x, F.adaptive_max_pool2d(x, 3), "output_size=3"),
    ]
    for m, given, wanted, text in pairs:
        np.testing.assert_array_equal(m(given).numpy(), wanted.numpy())
        assert repr(m) == f"{type(m).__name__}({text})"
    values, indices = nn.MaxPool2d(2, return_indices=True)(x)
    np.testing.assert_array_equal(
        x.flatten(2).gather(2, indices.flatten(2)).numpy(), values.flatten(2).numpy()
    )
    assert len(nn.AdaptiveMaxPool1d(2, return_indices=True)(row)) == 2


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.max_pool2d(x, 2, 1, dilation=2, return_indices=True)[0],
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_max_pool2d(x, (2, 3)),
    ],
)
def test_gradients_replay(pool: Any) -> None:
    def run(x: fw.Tensor) -> fw.Tensor:
        out = pool(x)
        (out * out).sum().backward()
        return out.detach()

    values = np.round(RNG.standard_normal((2, 2, 7, 5)) * 2)
    values[0, 0, 2:4, 1] = NAN
    odd = fw.tensor(values).float().requires_grad_()
    check(run, (odd,), (fw.randn(2, 2, 7, 5).requires_grad_(),), (fw.randn(3, 2, 7, 5).requires_grad_(),))


def test_pooling_of_growing_images_replays() -> None:
    sizes = [(2, 1, 6, 6), (2, 1, 8, 6), (3, 1, 9, 7), (1, 1, 4, 4)]
    calls = [(fw.randn(*shape).requires_grad_(),) for shape in sizes]

    def run(x: fw.Tensor) -> fw.Tensor:
        out = F.avg_pool2d(F.max_pool2d(x, 2), 3, 1, 1)
        out.sum().backward()
        return out.detach()

    check(run, *calls)
