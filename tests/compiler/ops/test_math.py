"""Functions and their gradients at singular points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input
from compiler.types import TensorType
from kernels import dtypes
from tests.reverse_mode import pull_back

Array = np.ndarray[Any, Any]


def gradients(op: ops.Op, *inputs: Array) -> list[float]:
    """Every input's gradient for a seed of one."""
    out = op(*inputs)
    return [rule(np.ones_like(out), out, *inputs).item() for rule in op.grads if rule is not None]


def one(value: float) -> Array:
    return np.array([value])


def test_the_gradient_of_sqrt_at_zero_is_infinite() -> None:
    assert gradients(ops.sqrt, one(0.0)) == [np.inf]


def test_powers() -> None:
    assert ops.pow(one(0.0), one(0.0)).item() == 1
    assert np.isnan(ops.pow(one(-8.0), one(1 / 3))).all()
    assert ops.pow(np.array([3]), 4).item() == 81


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (0.0, 2.0, [0.0, 0.0]),
        (0.0, 0.0, [0.0, 0.0]),
        (0.0, 1.0, [1.0, 0.0]),
        (0.0, -1.0, [-np.inf, -np.inf]),
        (3.0, 0.0, [0.0, np.log(3.0)]),
        (np.nan, 0.0, [0.0, np.nan]),
        (-2.0, 2.0, [-4.0, np.nan]),
    ],
)
def test_gradients_of_pow(x: float, y: float, expected: list[float]) -> None:
    np.testing.assert_allclose(gradients(ops.pow, one(x), one(y)), expected)


def test_second_derivative_of_a_fourth_power() -> None:
    x, seed = (Input(TensorType((5,), dtypes.float64)) for _ in range(2))
    (first,) = pull_back(ops.pow(x, 4.0), seed, [x])
    (second,) = pull_back(first, seed, [x])
    (out,) = evaluate(Graph((x, seed), (second,)), [np.array([0.5, 1.5, 2.5, 3.5, 0.0]), np.ones(5)])
    np.testing.assert_allclose(out, [3, 27, 75, 147, 0], rtol=1e-14)


def test_second_derivatives_of_pow_at_exponent_zero_are_finite() -> None:
    x, seed = (Input(TensorType((1,), dtypes.float64)) for _ in range(2))
    (first,) = pull_back(ops.pow(x, 0.0), seed, [x])
    (second,) = pull_back(first, seed, [x])
    assert evaluate(Graph((x, seed), (second,)), [one(0.0), one(1.0)])[0].item() == 0


@pytest.mark.parametrize("exponent", [-1, np.array([2, -1])], ids=["number", "array"])
def test_a_negative_integer_power_raises(exponent: Any) -> None:
    with pytest.raises(RuntimeError, match=r"negative integer powers are not allowed, got exponent -1"):
        ops.pow(np.array([2, 3]), exponent)


def test_special_values() -> None:
    x = np.array([-np.inf, -0.0, np.inf, np.nan], np.float32)
    expected = {
        "exp": [0, 1, np.inf, np.nan],
        "expm1": [-1, -0.0, np.inf, np.nan],
        "log": [np.nan, -np.inf, np.inf, np.nan],
        "log1p": [np.nan, -0.0, np.inf, np.nan],
        "tanh": [-1, -0.0, 1, np.nan],
        "erf": [-1, -0.0, 1, np.nan],
        "sigmoid": [0, 0.5, 1, np.nan],
        "sqrt": [np.nan, -0.0, np.inf, np.nan],
        "rsqrt": [np.nan, -np.inf, 0, np.nan],
        "sin": [np.nan, -0.0, np.nan, np.nan],
    }
    for name, values in expected.items():
        out = ops.TABLE[name](x)
        np.testing.assert_array_equal(out, np.array(values, np.float32), err_msg=name)
        known = ~np.isnan(out)
        np.testing.assert_array_equal(
            np.signbit(out[known]), np.signbit(np.array(values)[known]), err_msg=name
        )
