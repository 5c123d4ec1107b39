"""Roots, exponentials, trigonometric functions and powers.

Elementary arithmetic is in arithmetic.py; error bounds belong to the back ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.arithmetic import add, div, mul, neg, sub
from compiler.ops.bits import bitwise_and
from compiler.ops.compare import eq, ge, lt, where
from compiler.ops.op import Check, Elementwise, dtype_of, elementwise
from kernels import dtypes

_NUMERIC = (dtypes.INTEGER, dtypes.FLOATING)
_FLOATING = (dtypes.FLOATING,)
_POSITIVE = (0.2, 3.0)

sqrt: Elementwise = elementwise(
    "sqrt",
    body=lambda k, x: k.sqrt(x),
    grads=(lambda g, out, x: div(g, mul(out, 2.0)),),
    categories=_FLOATING,
    domain=_POSITIVE,
)
rsqrt: Elementwise = elementwise(
    "rsqrt",
    body=lambda k, x: k.rsqrt(x),
    grads=(lambda g, out, x: mul(mul(g, -0.5), mul(out, mul(out, out))),),
    categories=_FLOATING,
    domain=_POSITIVE,
)
exp: Elementwise = elementwise(
    "exp", body=lambda k, x: k.exp(x), grads=(lambda g, out, x: mul(g, out),), categories=_FLOATING
)
expm1: Elementwise = elementwise(
    "expm1",
    body=lambda k, x: k.expm1(x),
    grads=(lambda g, out, x: mul(g, add(out, 1.0)),),
    categories=_FLOATING,
)
log: Elementwise = elementwise(
    "log",
    body=lambda k, x: k.log(x),
    grads=(lambda g, out, x: div(g, x),),
    categories=_FLOATING,
    domain=_POSITIVE,
)
log1p: Elementwise = elementwise(
    "log1p",
    body=lambda k, x: k.log1p(x),
    grads=(lambda g, out, x: div(g, add(x, 1.0)),),
    categories=_FLOATING,
    domain=(-0.8, 3.0),
)
sin: Elementwise = elementwise(
    "sin", body=lambda k, x: k.sin(x), grads=(lambda g, out, x: mul(g, cos(x)),), categories=_FLOATING
)
cos: Elementwise = elementwise(
    "cos", body=lambda k, x: k.cos(x), grads=(lambda g, out, x: neg(mul(g, sin(x))),), categories=_FLOATING
)
tanh: Elementwise = elementwise(
    "tanh",
    body=lambda k, x: k.tanh(x),
    grads=(lambda g, out, x: mul(g, sub(1.0, mul(out, out))),),
    categories=_FLOATING,
)
erf: Elementwise = elementwise(
    "erf",
    body=lambda k, x: k.erf(x),
    grads=(lambda g, out, x: mul(g, mul(exp(neg(mul(x, x))), 2.0 / math.sqrt(math.pi))),),
    categories=_FLOATING,
)
sigmoid: Elementwise = elementwise(
    "sigmoid",
    body=lambda k, x: k.sigmoid(x),
    grads=(lambda g, out, x: mul(g, mul(out, sub(1.0, out))),),
    categories=_FLOATING,
)


def _pow_gradient_of_base(g: Any, out: Any, x: Any, y: Any) -> Any:
    # At exponent 0 the gradient is 0 even where x ** -1 is infinite; replacing the exponent there too keeps
    # that inf out
    # of a second derivative.
    constant = eq(y, 0)
    return where(constant, 0.0, mul(g, mul(y, pow(x, sub(where(constant, 1.0, y), 1.0)))))


def _pow_gradient_of_exponent(g: Any, out: Any, x: Any, y: Any) -> Any:
    # 0 ** y does not change with y >= 0, though log(0) is infinite; log(1) is the 0 wanted there.
    flat = bitwise_and(eq(x, 0), ge(y, 0))
    return mul(g, mul(out, log(where(flat, 1.0, x))))


def _negative_power(x: Any, y: Any) -> Any:
    dtype = dtype_of(x) or dtype_of(y)
    return None if dtype is None or dtype.is_floating_point or not dtype.is_signed else lt(y, 0)


pow: Elementwise = elementwise(
    "pow",
    body=lambda k, x, y: k.pow(x, y),
    grads=(_pow_gradient_of_base, _pow_gradient_of_exponent),
    unit=1.0,
    check=Check(
        _negative_power,
        lambda x, y: RuntimeError(
            f"integers to negative integer powers are not allowed, got exponent {np.min(y)}; cast "
            f"the base to a "
            "floating dtype"
        ),
    ),
    categories=_NUMERIC,
    domain=_POSITIVE,
)
