"""Arithmetic: sums, products, quotients, extrema and rounding.

Transcendental functions are in math.py. Gradients come in the output's broadcast shape; who asks sums them
down.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ops.compare import eq, le, lt, where
from compiler.ops.creation import zeros
from compiler.ops.op import Check, Elementwise, dtype_of, elementwise
from kernels import dtypes

_NUMERIC = (dtypes.INTEGER, dtypes.FLOATING)
_FLOATING = (dtypes.FLOATING,)


def _zero_divisor(x: Any, y: Any) -> Any:
    dtype = dtype_of(x) or dtype_of(y)
    return None if dtype is None or dtype.is_floating_point else eq(y, 0)


_DIVISOR = Check(
    _zero_divisor,
    lambda x, y: RuntimeError(
        f"ZeroDivisionError: integer division or remainder by zero, at {np.sum(np.equal(y, 0))} of "
        f"{np.size(y)} divisors; "
        "replace the zeros, or cast to a floating dtype for inf and nan"
    ),
)

add: Elementwise = elementwise(
    "add",
    body=lambda k, x, y: k.add(x, y),
    grads=(lambda g, out, x, y: g, lambda g, out, x, y: g),
    commutative=True,
    unit=-0.0,
)
sub: Elementwise = elementwise(
    "sub",
    body=lambda k, x, y: k.sub(x, y),
    grads=(lambda g, out, x, y: g, lambda g, out, x, y: neg(g)),
    unit=0.0,
    categories=_NUMERIC,
)
mul: Elementwise = elementwise(
    "mul",
    body=lambda k, x, y: k.mul(x, y),
    grads=(lambda g, out, x, y: mul(g, y), lambda g, out, x, y: mul(g, x)),
    commutative=True,
    unit=1.0,
)
div: Elementwise = elementwise(
    "div",
    body=lambda k, x, y: k.div(x, y),
    grads=(lambda g, out, x, y: div(g, y), lambda g, out, x, y: neg(mul(g, div(out, y)))),
    unit=1.0,
    categories=_FLOATING,
    domain=(0.5, 3.0),
)
neg: Elementwise = elementwise(
    "neg", body=lambda k, x: k.neg(x), grads=(lambda g, out, x: neg(g),), categories=_NUMERIC
)
abs: Elementwise = elementwise(
    "abs", body=lambda k, x: k.abs(x), grads=(lambda g, out, x: mul(g, sign(x)),), categories=_NUMERIC
)
square: Elementwise = elementwise(
    "square", body=lambda k, x: k.mul(x, x), grads=(lambda g, out, x: mul(g, mul(x, 2)),), categories=_NUMERIC
)
reciprocal: Elementwise = elementwise(
    "reciprocal",
    body=lambda k, x: k.div(1, x),
    grads=(lambda g, out, x: neg(mul(g, mul(out, out))),),
    categories=_FLOATING,
    domain=(0.5, 3.0),
)

floor_div: Elementwise = elementwise(
    "floor_div",
    body=lambda k, x, y: k.floor_div(x, y),
    grads=(lambda g, out, x, y: zeros(g, g.shape), lambda g, out, x, y: zeros(g, g.shape)),
    check=_DIVISOR,
    domain=(0.5, 3.0),
    categories=_NUMERIC,
)
remainder: Elementwise = elementwise(
    "remainder",
    body=lambda k, x, y: k.remainder(x, y),
    grads=(lambda g, out, x, y: g, lambda g, out, x, y: neg(mul(g, floor_div(x, y)))),
    check=_DIVISOR,
    domain=(0.5, 3.0),
    categories=_NUMERIC,
)
fmod: Elementwise = elementwise(
    "fmod",
    body=lambda k, x, y: k.fmod(x, y),
    grads=(lambda g, out, x, y: g, lambda g, out, x, y: neg(mul(g, trunc(div(x, y))))),
    check=_DIVISOR,
    domain=(0.5, 3.0),
    categories=_NUMERIC,
)


def _winner(g: Any, loses: Any, ties: Any) -> Any:
    # Where a NaN makes both comparisons false the gradient flows to both operands, as in PyTorch.
    return where(loses, 0.0, where(ties, mul(g, 0.5), g))


maximum: Elementwise = elementwise(
    "maximum",
    body=lambda k, x, y: k.maximum(x, y),
    grads=(
        lambda g, out, x, y: _winner(g, lt(x, y), eq(x, y)),
        lambda g, out, x, y: _winner(g, lt(y, x), eq(x, y)),
    ),
    commutative=True,
)
minimum: Elementwise = elementwise(
    "minimum",
    body=lambda k, x, y: k.minimum(x, y),
    grads=(
        lambda g, out, x, y: _winner(g, lt(y, x), eq(x, y)),
        lambda g, out, x, y: _winner(g, lt(x, y), eq(x, y)),
    ),
    commutative=True,
)
# NaN and -0.0 pass, as in PyTorch.
relu: Elementwise = elementwise(
    "relu",
    body=lambda k, x: k.where(k.lt(x, 0), 0, x),
    grads=(lambda g, out, x: where(le(out, 0), 0.0, g),),
    categories=_NUMERIC,
)


def _sign(k: Any, x: Any) -> Any:
    positive, negative = k.gt(x, 0), k.lt(x, 0)
    either = k.or_(positive, negative)
    # Both selections have an operand of x's dtype, so the numbers need none; NaN ends as 0, as in PyTorch.
    one = k.where(either, k.where(either, 1, x), 0)
    return k.where(negative, k.neg(one), one)


sign: Elementwise = elementwise(
    "sign", body=_sign, grads=(lambda g, out, x: zeros(g, g.shape),), categories=_NUMERIC
)
floor: Elementwise = elementwise(
    "floor", body=lambda k, x: k.floor(x), grads=(lambda g, out, x: zeros(g, g.shape),), categories=_FLOATING
)
ceil: Elementwise = elementwise(
    "ceil", body=lambda k, x: k.ceil(x), grads=(lambda g, out, x: zeros(g, g.shape),), categories=_FLOATING
)
trunc: Elementwise = elementwise(
    "trunc", body=lambda k, x: k.trunc(x), grads=(lambda g, out, x: zeros(g, g.shape),), categories=_FLOATING
)
# Halves go to even.
round: Elementwise = elementwise(
    "round", body=lambda k, x: k.round(x), grads=(lambda g, out, x: zeros(g, g.shape),), categories=_FLOATING
)
