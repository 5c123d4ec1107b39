"""Values of arithmetic at the edges, read off PyTorch 2.13."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import ops

Array = np.ndarray[Any, Any]
INF, NAN = np.inf, np.nan


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def i32(*values: int) -> Array:
    return np.array(values, np.int32)


def gradients(op: ops.Op, *inputs: Array) -> list[Array]:
    """Every input's gradient for a seed of ones."""
    out = op(*inputs)
    rules = [op.gradient(i) for i in range(len(inputs))]
    return [rule(np.ones_like(out), out, *inputs) for rule in rules if rule is not None]


@pytest.mark.parametrize(
    ("x", "y", "quotient", "remainder", "fmod"),
    [
        (1.0, 0.1, 9.0, 0.1, 0.1),
        (0.5, 0.1, 4.0, 0.1, 0.1),
        (6.0, 0.2, 29.0, 0.2, 0.2),
        (INF, 1.0, NAN, NAN, NAN),
        (-INF, 1.0, NAN, NAN, NAN),
        (1.0, 0.0, INF, NAN, NAN),
        (-7.0, 3.0, -3.0, 2.0, -1.0),
        (7.0, -3.0, -3.0, -2.0, 1.0),
        (5.0, INF, 0.0, 5.0, 5.0),
        (-5.0, INF, -1.0, INF, -5.0),
    ],
)
def test_float_division(x: float, y: float, quotient: float, remainder: float, fmod: float) -> None:
    for op, expected in ((ops.floor_div, quotient), (ops.remainder, remainder), (ops.fmod, fmod)):
        np.testing.assert_allclose(op(f32(x), f32(y)), f32(expected), rtol=1e-6)


@pytest.mark.parametrize(("x", "y", "negative"), [(0.0, -2.0, True), (-0.0, 2.0, True), (0.5, 2.0, False)])
def test_a_zero_quotient_has_the_exact_sign(x: float, y: float, negative: bool) -> None:
    (out,) = ops.floor_div(f32(x), f32(y))
    assert out == 0
    assert np.signbit(out) == negative


def test_a_zero_remainder_has_the_sign_of_the_dividend() -> None:
    np.testing.assert_array_equal(np.signbit(ops.remainder(f32(-6.0, 6.0), f32(3.0, -3.0))), [True, False])


@given(x=st.integers(-(2**31), 2**31 - 1), y=st.integers(-(2**31), 2**31 - 1).filter(bool))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_integer_division_rounds_down(x: int, y: int) -> None:
    wrapped = i32(0) + np.array([x // y]).astype(np.int32)
    np.testing.assert_array_equal(ops.floor_div(i32(x), i32(y)), wrapped)
    np.testing.assert_array_equal(ops.remainder(i32(x), i32(y)), [x % y])


def test_the_lowest_integer_over_minus_one_wraps() -> None:
    assert ops.floor_div(i32(-(2**31)), i32(-1)).tolist() == [-(2**31)]
    assert ops.remainder(i32(-(2**31)), i32(-1)).tolist() == [0]
    assert ops.fmod(i32(-(2**31)), i32(-1)).tolist() == [0]


@pytest.mark.parametrize("op", [ops.floor_div, ops.remainder, ops.fmod], ids=lambda op: op.name)
def test_an_integer_zero_divisor_raises(op: ops.Op) -> None:
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError: .* at 1 of 2 divisors"):
        op(i32(1, 2), i32(1, 0))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        op(i32(1, 2), 0)
    op(f32(1.0), 0.0)


def test_integers_wrap() -> None:
    assert ops.add(i32(2**31 - 1), 1).tolist() == [-(2**31)]
    assert ops.sub(np.array([0], np.uint8), 1).tolist() == [255]
    assert ops.mul(np.array([2**62]), 4).tolist() == [0]
    assert ops.add(np.array([1], np.uint8), 300).tolist() == [45]


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum], ids=lambda op: op.name)
def test_nan_wins_from_either_side(op: ops.Op) -> None:
    assert np.isnan(op(f32(NAN, 1.0), f32(1.0, NAN))).all()


def test_relu_keeps_nan_and_the_sign_of_zero() -> None:
    out = ops.relu(f32(NAN, -0.0, -1.0, 2.0))
    np.testing.assert_array_equal(out, f32(NAN, 0, 0, 2))
    assert np.signbit(out[1])


def test_sign() -> None:
    np.testing.assert_array_equal(ops.sign(f32(NAN, -0.0, -INF, 1e-45)), f32(0, 0, -1, 1))
    np.testing.assert_array_equal(ops.sign(np.array([0, 7], np.uint8)), [0, 1])


def test_halves_round_to_even() -> None:
    out = ops.round(f32(0.5, 1.5, 2.5, -0.5))
    np.testing.assert_array_equal(out, f32(0, 2, 2, -0.0))
    assert np.signbit(out[3])


def test_division_is_correctly_rounded() -> None:
    assert ops.div(f32(11.0), f32(7.0)).item() == 1.5714285373687744


def test_gradients_at_kinks() -> None:
    one = f32(1.0)
    assert [g.tolist() for g in gradients(ops.maximum, one, one)] == [[0.5], [0.5]]
    assert [g.tolist() for g in gradients(ops.minimum, one, one)] == [[0.5], [0.5]]
    assert gradients(ops.relu, f32(-1, 0, 1))[0].tolist() == [0, 0, 1]
    assert gradients(ops.abs, f32(-2, 0, 2))[0].tolist() == [-1, 0, 1]
    assert gradients(ops.floor, f32(1.5))[0].tolist() == [0]


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum], ids=lambda op: op.name)
def test_a_nan_sends_the_gradient_both_ways(op: ops.Op) -> None:
    assert [g.tolist() for g in gradients(op, f32(NAN), f32(1.0))] == [[1], [1]]


def test_sixteen_bit_operations_round_once() -> None:
    x = np.array([1.0009766], np.float16)
    # In float16 steps 1 + exp(-x) would round before the division.
    expected = np.float16(1 / (1 + np.exp(-np.float32(x))))
    assert ops.sigmoid(x).item() == expected.item()
    half = ops.mul(np.array([3.0], ml_dtypes.bfloat16), 0.1)
    assert half.dtype == ml_dtypes.bfloat16


def test_mixed_dtypes_and_shapes_are_rejected() -> None:
    with pytest.raises(TypeError, match=r"add needs operands of one dtype, got float32\[1\], int32\[1\]"):
        ops.add(f32(1.0), i32(1))
    with pytest.raises(RuntimeError, match=r"\[2\] and \[3\] cannot be broadcast"):
        ops.add(f32(1, 2), f32(1, 2, 3))
