"""Reductions: accuracy, empty axes, NaN, ties and zeros."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input
from compiler.ops.reduction import highest, lowest
from compiler.types import TensorType
from kernels import dtypes
from tests.reverse_mode import pull_back

Array = np.ndarray[Any, Any]
NAN = np.nan


def gradient(op: ops.Op, x: Array, axes: tuple[int, ...]) -> Array:
    """The gradient of `x` for a seed of ones."""
    out = op(x, axes=axes)
    return op.grads[0](np.ones_like(out), out, x, axes=axes)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("shape", "axes"), [((10**6, 2), (0,)), ((2, 10**6), (1,)), ((1000, 2, 1000), (0, 2))]
)
def test_float32_sums_are_accurate(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape, np.float32) + np.float32(0.1)
    np.testing.assert_allclose(ops.sum(x, axes=axes), x.sum(axes, np.float64, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_sums_round_once(dtype: Any) -> None:
    x = np.full((1, 4097), 0.25).astype(dtype)
    # Adding in float16 would stop at 512, in bfloat16 at 64.
    assert ops.sum(x, axes=(1,)).item() == np.float64(4097 / 4).astype(dtype).item()
    assert ops.sum(x, axes=(1,)).dtype == dtype


def test_empty_reductions() -> None:
    x = np.zeros((2, 0), np.float32)
    assert ops.sum(x, axes=(1,)).tolist() == [[0], [0]]
    assert ops.prod(x, axes=(1,)).tolist() == [[1], [1]]
    assert ops.amax(x, axes=(0,)).shape == (1, 0)
    for op in (ops.amax, ops.amin):
        with pytest.raises(IndexError, match="dim 1 to have non-zero size"):
            op(x, axes=(1,))
        # A softmax of nothing reduces nothing; who asks for the extremum itself is refused by the framework.
        assert op.trace(Input(TensorType((0, 0), dtypes.float32)), axes=(1,)).shape == (0, 1)
    for op in (ops.argmax, ops.argmin):
        with pytest.raises(IndexError, match="non-zero size"):
            op(x, axis=1, keepdim=False)


def test_extrema_propagate_nan() -> None:
    x = np.array([[1.0, NAN, 2.0]])
    assert np.isnan(ops.amax(x, axes=(1,))).all()
    assert np.isnan(ops.amin(x, axes=(1,))).all()


@pytest.mark.parametrize(
    ("values", "greatest", "least"),
    [
        ([1, NAN, 2], 1, 1),
        ([2, 1, 2, 1], 0, 1),
        ([-np.inf, -np.inf], 0, 0),
        ([NAN, NAN], 0, 0),
        ([np.inf, 3], 0, 1),
    ],
)
def test_positions_of_extrema(values: list[float], greatest: int, least: int) -> None:
    x = np.array(values, np.float32)
    symbol = Input(TensorType(x.shape, dtypes.float32))
    for op, expected in ((ops.argmax, greatest), (ops.argmin, least)):
        assert op(x, axis=0, keepdim=False).item() == expected
        made = op.decompose(symbol, axis=0, keepdim=False)  # type: ignore[misc]
        assert evaluate(Graph((symbol,), (made,)), [x])[0].item() == expected


def test_ties_share_the_gradient() -> None:
    assert gradient(ops.amax, np.array([2.0, 2.0, 1.0]), (0,)).tolist() == [0.5, 0.5, 0.0]
    assert gradient(ops.amin, np.array([2.0, 1.0, 1.0]), (0,)).tolist() == [0.0, 0.5, 0.5]
    assert gradient(ops.amax, np.ones((2, 2)), (0, 1)).tolist() == [[0.25, 0.25], [0.25, 0.25]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 2, 3], [6, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([4, 2, 3], [6, 12, 8]), ([5], [1]), ([], [])],
)
def test_gradient_of_prod_with_zeros(values: list[float], expected: list[float]) -> None:
    assert gradient(ops.prod, np.array(values, np.float64), (0,)).tolist() == expected


def test_gradient_of_prod_over_outer_axes() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 4))
    expected = ops.prod(x, axes=(0, 2)) / x
    np.testing.assert_allclose(gradient(ops.prod, x, (0, 2)), expected)


def test_second_derivative_of_prod_with_zeros() -> None:
    x, seed, weight = (Input(TensorType(shape, dtypes.float64)) for shape in ((3,), (1,), (3,)))
    (first,) = pull_back(ops.prod(x, axes=(0,)), seed, [x])
    (second,) = pull_back(ops.sum(ops.mul(first, weight), axes=(0,)), seed, [x])
    graph = Graph((x, seed, weight), (second,))
    rows = [evaluate(graph, [np.array([0.0, 0.0, 3.0]), np.ones(1), row])[0].tolist() for row in np.eye(3)]
    # The Hessian of a b c has a third factor at each off-diagonal place.
    assert rows == [[0, 3, 0], [3, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.DTYPES.values() if d is not dtypes.bool_], ids=lambda d: d.name
)
def test_identities_change_nothing(dtype: dtypes.DType) -> None:
    x = np.array([[3]]).astype(dtype.numpy)
    for op, combine in (
        (ops.sum, np.add),
        (ops.prod, np.multiply),
        (ops.amax, np.maximum),
        (ops.amin, np.minimum),
    ):
        identity = np.asarray(op.identity(dtype)).astype(dtype.numpy)
        assert combine(x, identity) == x
    assert lowest(dtypes.bool_) is False
    assert highest(dtypes.bool_) is True


def test_any_and_all_need_bool() -> None:
    assert ops.any(np.array([[False, True]]), axes=(1,)).tolist() == [[True]]
    assert ops.all(np.zeros((2, 0), np.bool_), axes=(1,)).tolist() == [[True], [True]]
    with pytest.raises(TypeError, match="need a bool operand"):
        ops.any.trace(Input(TensorType((2,), dtypes.int64)), axes=(0,))
