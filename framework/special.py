"""Elementwise functions that no primitive op computes: inverse trigonometric and hyperbolic ones.

Values are NumPy's, gradients are made of ops; inside @compile the function that uses them runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan, pi, sqrt
from typing import Any

import numpy as np

from framework.apply import require_one_device
from framework.autograd import Function
from framework.elementwise import div, exp, labelled, mul, neg, reciprocal, rsqrt, square, sub, where
from framework.promotion import promoted_to_float
from framework.tensor import Tensor, concrete, wrap
from kernels.gpu.arrays import engine, is_device, located, row_major


@located
def _quiet(first: Any, ufunc: Any, *others: Any) -> Any:
    """A function of arrays, in float32 for 16-bit floats; where the arrays are."""
    wide = [a.astype(np.float32) if a.dtype.itemsize == 2 else a for a in (first, *others)]
    with np.errstate(all="ignore"):
        found = row_major(ufunc(*wide), first.dtype)
    return found.reshape(np.broadcast_shapes(first.shape, *(a.shape for a in others)))


def _function(name: str, ufunc: Any, slope: Callable[[Tensor], Tensor], doc: str) -> Callable[[Any], Tensor]:
    class Unary(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return wrap(_quiet(concrete(x), ufunc))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return mul(g, slope(x))

    def function(input: Any) -> Tensor:
        return labelled(f"{name.capitalize()}Backward0", Unary.apply(*promoted_to_float(input)))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


asin = _function("asin", np.arcsin, lambda x: rsqrt(sub(1, square(x))), "Inverse sine, in radians.")
acos = _function("acos", np.arccos, lambda x: neg(rsqrt(sub(1, square(x)))), "Inverse cosine, in radians.")
atan = _function("atan", np.arctan, lambda x: reciprocal(square(x) + 1), "Inverse tangent, in radians.")
asinh = _function("asinh", np.arcsinh, lambda x: rsqrt(square(x) + 1), "Inverse hyperbolic sine.")
acosh = _function("acosh", np.arccosh, lambda x: rsqrt(square(x) - 1), "Inverse hyperbolic cosine.")
atanh = _function("atanh", np.arctanh, lambda x: reciprocal(sub(1, square(x))), "Inverse hyperbolic tangent.")
arcsin, arccos, arctan = asin, acos, atan
arcsinh, arccosh, arctanh = asinh, acosh, atanh


class _Atan2(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(y, x)
        require_one_device((y, x))
        return wrap(_quiet(concrete(y), np.arctan2, concrete(x)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        y, x = ctx.saved_tensors
        scaled = div(g, square(x) + square(y))
        return mul(scaled, x), neg(mul(scaled, y))


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """Angle of the point (other, input), in (-pi, pi]."""
    return labelled("Atan2Backward0", _Atan2.apply(*promoted_to_float(input, other)))


arctan2 = atan2


def signbit(input: Tensor) -> Tensor:
    """Whether the sign bit is set: also for -0.0."""
    return wrap(_signs(concrete(input))) if input.is_floating_point() else input < 0


@located
def _signs(x: Any) -> Any:
    found = np.signbit(x if x.dtype.itemsize > 2 else x.astype(np.float32))
    return found if is_device(found) else np.asarray(found)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero."""
    return where(input > 0, 1, where(input == 0, values, where(input != input, input, 0)))


def copysign(input: Tensor, other: Any) -> Tensor:
    """The magnitude of `input` with the sign of `other`."""
    x, y = promoted_to_float(input, other)
    if isinstance(y, Tensor):
        return where(signbit(y), neg(x.abs()), x.abs())
    return neg(x.abs()) if np.signbit(y) else x.abs()


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input * 2 ** other."""
    return mul(input, 2.0**other)


def _scipy(name: str) -> Callable[..., Any]:
    """A function of scipy.special, imported when it is called, or of CuPy's form of it."""

    def call(*operands: Any) -> Any:
        if is_device(x := operands[-1]):
            # CuPy's take arrays alone.
            given = [engine().xp.full(x.shape, n, x.dtype) for n in operands[:-1]]
            return getattr(engine().special, name)(*given, x)
        from scipy import special  # 0.15 s to import: only a use pays

        return getattr(special, name)(*operands)

    return call


trigamma = _function(
    "trigamma", lambda x: _scipy("polygamma")(1, x), lambda x: x * nan, "Second derivative of lgamma."
)
digamma = _function("digamma", _scipy("digamma"), lambda x: trigamma(x), "Derivative of lgamma.")
lgamma = _function(
    "lgamma", _scipy("gammaln"), lambda x: digamma(x), "Logarithm of the absolute gamma function."
)
erfinv = _function(
    "erfinv",
    _scipy("erfinv"),
    lambda x: mul(exp(square(erfinv(x))), sqrt(pi) / 2),
    "Inverse of the error function.",
)
