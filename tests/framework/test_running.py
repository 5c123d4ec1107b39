"""Running totals: NumPy's numbers, PyTorch's dtypes, gradients where elements are 0, and one kernel each in a
compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from compiler.ops import running
from framework.capture.compile import CompiledFunction

RNG = np.random.default_rng(0)
FUNCTIONS: dict[str, Callable[[Any, int], Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
}


def outputs(result: Any) -> list[np.ndarray[Any, Any]]:
    return [x.numpy() for x in (result if isinstance(result, tuple) else (result,))]


def compiled(function: Callable[..., Any]) -> CompiledFunction:
    """The function compiled; the test fails where it is driven."""
    return CompiledFunction(function, strict=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 37), (3, 20, 4), (7,), (3, 1), (3, 0), (0, 3)], ids=str)
def test_compiled_as_eager(name: str, shape: tuple[int, ...]) -> None:
    x = fw.tensor(RNG.standard_normal(shape).astype(np.float32))
    for dim in (0, -1, len(shape) // 2):
        function = compiled(lambda x, dim=dim: FUNCTIONS[name](x, dim))
        wanted = outputs(FUNCTIONS[name](x, dim))
        for _ in range(2):
            for got, eager in zip(outputs(function(x)), wanted, strict=True):
                assert got.dtype == eager.dtype and got.shape == eager.shape
                if name == "logcumsumexp":  # exp and log are not NumPy's
                    np.testing.assert_allclose(got, eager, rtol=1e-5, atol=1e-6)
                else:
                    np.testing.assert_array_equal(got, eager)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    x = fw.tensor([[1, 0, 1, 1], [0, 0, 1, 1]]).to(getattr(fw, dtype))
    for name in ("cumsum", "cumprod", "cummax"):
        eager = FUNCTIONS[name](x, 1)
        floating = x.dtype.is_floating_point
        first = eager if name != "cummax" else eager[0]
        assert first.dtype == (x.dtype if floating or name == "cummax" else fw.int64)
        function = compiled(lambda x, name=name: FUNCTIONS[name](x, 1))
        for got, wanted in zip(outputs(function(x)), outputs(eager), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert x.cumsum(0, dtype=fw.float64).dtype == fw.float64
    assert x.cumprod(0, dtype=fw.int32).tolist() == [[1, 0, 1, 1], [0, 0, 1, 1]]


def test_integers_wrap_and_numbers_stay() -> None:
    x = fw.tensor([2**62, 2**62, 1])
    np.testing.assert_array_equal(x.cumsum(0).numpy(), np.cumsum(x.numpy()))
    assert fw.tensor(3.0).cumsum(0).item() == fw.tensor(3.0).cumprod(-1).item() == 3.0
    with pytest.raises(IndexError):
        fw.tensor([1.0]).cumsum(1)
    with pytest.raises(IndexError):
        fw.tensor(1.0).cumprod(1)


def test_running_extrema_of_nan_and_equal_ones() -> None:
    nan = float("nan")
    x = fw.tensor([[1.0, 3.0, 3.0, 2.0], [1.0, nan, 5.0, nan]])
    for function in (lambda x: x.cummax(1), compiled(lambda x: x.cummax(1))):
        values, indices = function(x)
        np.testing.assert_array_equal(values.numpy(), [[1, 3, 3, 3], [1, nan, nan, nan]])
        assert indices.tolist() == [[0, 1, 2, 2], [0, 1, 1, 3]]


def test_a_softmax_of_running_sums_is_one_kernel() -> None:
    function = compiled(lambda x: fw.softmax((x * 2).cumsum(1), 1) + 1)
    x = fw.tensor(RNG.standard_normal((8, 100)).astype(np.float32))
    for _ in range(2):
        got = function(x)
    assert len(function.kernels) == 1
    np.testing.assert_allclose(got.numpy(), (fw.softmax((x * 2).cumsum(1), 1) + 1).numpy(), rtol=1e-5)


def test_along_columns_and_in_one_long_row() -> None:
    def step(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor, fw.Tensor]:
        totals = x.cumsum(0)
        return totals.exp(), totals.sum(0), (x.reshape(-1) * 0.5).cumsum(0).abs()

    function = compiled(step)
    x = fw.tensor(RNG.standard_normal((300, 70)).astype(np.float32))
    for _ in range(2):
        got = function(x)
    for a, b in zip(got, step(x), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=1e-4)


def test_sums_over_rows_of_running_totals() -> None:
    function = compiled(lambda x: (x.cumsum(1) * 0.1).sum(0))
    for shape in ((5, 37), (2000, 40)):
        x = fw.tensor(RNG.standard_normal(shape).astype(np.float32))
        function(x)
        wanted = (np.cumsum(x.numpy().astype(np.float64), 1) * 0.1).sum(0)
        np.testing.assert_allclose(function(x).numpy(), wanted, rtol=1e-3, atol=1e-3)


def test_other_sizes() -> None:
    function = compiled(lambda x: x.cumsum(1) / (x * x).cumprod(0).logcumsumexp(1))
    for rows, size in ((3, 8), (4, 9), (5, 33), (2, 2), (6, 1)):
        x = fw.tensor(RNG.uniform(0.5, 1.5, (rows, size)).astype(np.float32))
        wanted = x.cumsum(1) / (x * x).cumprod(0).logcumsumexp(1)
        np.testing.assert_allclose(function(x).numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def slope(function: Callable[[fw.Tensor], fw.Tensor], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gradient by central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = x.copy()
            moved[place] += step
            ends.append(function(fw.tensor(moved)).item())
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


X = np.array([[0.5, 0.0, 2.0, -1.0, 3.0], [0.0, 2.0, 0.0, 0.0, 1.5], [1.0, -2.0, 0.3, 0.7, 0.0]])
W = fw.tensor(RNG.standard_normal(X.shape))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_gradients_where_elements_are_zero(name: str, dim: int) -> None:
    def loss(x: fw.Tensor) -> fw.Tensor:
        return (FUNCTIONS[name](x, dim) * W).sum()

    def gradient(x: fw.Tensor) -> fw.Tensor:
        return fw.autograd.grad(loss(x), [x])[0]

    def second(x: fw.Tensor) -> fw.Tensor:
        (first,) = fw.autograd.grad(loss(x), [x], create_graph=True)
        return fw.autograd.grad((first * W).sum(), [x])[0] if first.requires_grad else first * 0

    def first_sum(x: fw.Tensor) -> fw.Tensor:
        (first,) = fw.autograd.grad(loss(x.requires_grad_()), [x])
        return (first * W).sum()

    x = fw.tensor(X).requires_grad_()
    np.testing.assert_allclose(gradient(x).numpy(), slope(loss, X), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(second(x).numpy(), slope(first_sum, X), rtol=1e-5, atol=1e-6)
    for function in (gradient, second):
        native = compiled(function)
        for _ in range(2):
            np.testing.assert_allclose(native(x).numpy(), function(x).numpy(), rtol=1e-10, atol=1e-12)


def test_gradients_of_extrema_go_where_they_were() -> None:
    x = fw.tensor([[1.0, 3.0, 3.0, 2.0]], requires_grad=True)
    weights = fw.tensor([[1.0, 2.0, 4.0, 8.0]])

    def gradient(x: fw.Tensor) -> fw.Tensor:
        return fw.autograd.grad((x.cummax(1).values * weights).sum(), [x])[0]

    assert gradient(x).tolist() == compiled(gradient)(x).tolist() == [[1.0, 2.0, 12.0, 0.0]]


def test_logarithms_of_what_is_infinite_or_far_apart() -> None:
    inf, nan = float("inf"), float("nan")
    x = np.array([[-inf, -inf, -300.0, 0.0, 300.0, -800.0], [0.0, inf, 1.0, -inf, nan, 1.0]])
    with np.errstate(all="ignore"):
        wanted = np.logaddexp.accumulate(x, 1)
    for function in (lambda x: x.logcumsumexp(1), compiled(lambda x: x.logcumsumexp(1))):
        np.testing.assert_allclose(function(fw.tensor(x)).numpy(), wanted, rtol=1e-12, atol=1e-15)
    assert fw.tensor([1.0, 2.0], dtype=fw.float16).logcumsumexp(0).dtype == fw.float16
    assert fw.tensor([0, 0]).logcumsumexp(0).dtype == fw.float32


def test_long_recurrences_double() -> None:
    size = running.ONE_BY_ONE + 100
    factor, x = RNG.uniform(-1, 1, (2, size)), RNG.standard_normal((2, size))
    got = running.recurrence(factor, x, axis=1)
    short = running.recurrence(factor[:, :100], x[:, :100], axis=1)
    np.testing.assert_allclose(got[:, :100], short, rtol=1e-10, atol=1e-12)
    before = np.concatenate([np.zeros((2, 1)), got[:, :-1]], 1)
    np.testing.assert_allclose(got, factor * before + x, rtol=1e-10, atol=1e-12)
