"""Elementwise functions against NumPy in float64, and the kinds of input they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import framework as fw

_X = np.array([-2.5, -1.0, -0.5, -0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 7.0])
_Y = np.array([1.5, -2.0, 0.5, 3.0, -0.3, 2.0, 1.0, -1.0, 0.25, 3.0])

UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs, "neg": np.negative, "sign": np.sign, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square, "reciprocal": np.reciprocal, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor,
    "ceil": np.ceil, "trunc": np.trunc, "round": np.round, "frac": lambda x: x - np.trunc(x),
    "sigmoid": special.expit, "erf": special.erf, "erfc": special.erfc, "logit": special.logit,
    "lgamma": special.gammaln, "digamma": special.digamma, "erfinv": special.erfinv,
    "relu": lambda x: np.maximum(x, 0), "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "logical_not": np.logical_not, "signbit": np.signbit, "deg2rad": np.deg2rad, "rad2deg": np.rad2deg,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "maximum": np.maximum,
    "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "remainder": np.remainder,
    "floor_divide": np.floor_divide, "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "hypot": np.hypot, "atan2": np.arctan2,
    "logaddexp": np.logaddexp, "xlogy": special.xlogy, "copysign": np.copysign, "heaviside": np.heaviside,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    with np.errstate(all="ignore"):
        expected = UNARY[name](_X)
    x = fw.tensor(_X)
    np.testing.assert_allclose(getattr(fw, name)(x).numpy(), expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(getattr(x, name)().numpy(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    with np.errstate(all="ignore"):
        expected = BINARY[name](_X[:, None], _Y)
    got = getattr(fw, name)(fw.tensor(_X[:, None]), fw.tensor(_Y))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sin", "sigmoid", "reciprocal", "log", "erf", "asin"])
def test_integers_become_floats(name: str) -> None:
    assert getattr(fw, name)(fw.tensor([0, 1])).dtype is fw.float32


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "abs", "neg", "sign", "square", "relu"])
def test_integers_stay(name: str) -> None:
    assert getattr(fw, name)(fw.tensor([3, -2])).dtype is fw.int64


def test_sixteen_bits_round_once() -> None:
    x = fw.tensor([1.0, 2.0, 3.0], dtype=fw.bfloat16)
    assert (x / 3).tolist() == [0.333984375, 0.66796875, 1.0]
    assert x.exp().dtype is fw.bfloat16


def test_clamp_forms() -> None:
    x = fw.tensor([-1.0, 0.5, 2.0])
    assert x.clamp(max=1).tolist() == [-1, 0.5, 1]
    assert x.clip(fw.tensor([0.0, 1.0, 0.0]), 1).tolist() == [0, 1, 1]
    assert fw.tensor([1, 5]).clamp(min=1.5).dtype is fw.float32


def test_alpha_value_and_decimals() -> None:
    x = fw.tensor([1.0, 2.0])
    assert fw.add(x, x, alpha=3).tolist() == [4, 8]
    assert fw.rsub(x, 5).tolist() == [4, 3]
    assert fw.addcmul(x, x, x, value=0.5).tolist() == [1.5, 4]
    assert fw.round(fw.tensor([1.25, 2.349]), decimals=1).tolist() == pytest.approx([1.2, 2.3])
    assert fw.nan_to_num(fw.tensor([float("nan"), float("inf")]), 1.0, 2.0).tolist() == [1, 2]


def test_lerp_is_exact_at_both_ends() -> None:
    a, b = fw.tensor([0.1, 1e8]), fw.tensor([0.7, 1.0])
    assert fw.lerp(a, b, 0.0).equal(a) and fw.lerp(a, b, 1.0).equal(b)
    assert fw.lerp(a, b, fw.tensor([0.0, 1.0])).tolist() == [a[0].item(), b[1].item()]


def test_comparison_with_nothing_is_false() -> None:
    assert (fw.tensor([1]) == None) is False  # noqa: E711
    assert (fw.tensor([1]) != "a") is True
