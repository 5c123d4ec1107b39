"""Identities that raise when a value is outside what a composite needs.

A composite cannot branch on a value it reads; it passes its input through one of these instead.
"""

from __future__ import annotations

from typing import Any

from compiler.ops.bits import bitwise_and, invert
from compiler.ops.compare import ge, le
from compiler.ops.op import Check, Elementwise, elementwise
from kernels import dtypes


def _outside(x: Any) -> Any:
    # Written so that NaN, which compares false, is outside.
    return invert(bitwise_and(ge(x, 0.0), le(x, 1.0)))


def _error(x: Any) -> RuntimeError:
    bad = x[~((x >= 0) & (x <= 1))]
    return RuntimeError(
        f"all elements of input and target should be between 0 and 1, got {bad.size} outside, the first "
        f"{bad[0]}: apply sigmoid, or use binary_cross_entropy_with_logits"
    )


unit_interval: Elementwise = elementwise(
    "unit_interval",
    body=lambda k, x: x,
    grads=(lambda g, out, x: g,),
    check=Check(_outside, _error),
    domain=(0.0, 1.0),
    categories=(dtypes.FLOATING,),
)
