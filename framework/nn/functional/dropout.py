"""Dropout: zeroing by random numbers from the framework's generator, in program order."""

from __future__ import annotations

from typing import Any

from compiler.ops.compare import where
from framework.inplace import update
from framework.promotion import convert, result_type
from framework.random import rand_like
from framework.tensor import Tensor
from kernels import dtypes


def check_probability(p: float) -> None:
    """Raise ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(input: Tensor, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero each element with probability `p` (a number, or a 0-d tensor) and divide the rest by 1 - p.

    One uniform float32 is drawn per element; none in evaluation or at the number 0.
    """
    if not isinstance(p, Tensor):
        check_probability(p)
        if not training or p == 0:
            return input
    elif not training:
        return input
    if inplace:
        return update(input, dropout, (p, training), {}, "dropout_")
    drawn = rand_like(input, dtype=dtypes.float32)
    # At p = 1 the scale must stay finite: infinity times the zero gradient of a dropped element is NaN.
    if isinstance(p, Tensor):
        # A number without a dtype of its own, also beside a 0-d input.
        scale = convert(where(p < 1, 1 / (1 - p), 0.0), result_type(input, 1.0))
        p = convert(p, dtypes.float32)
    else:
        scale = 1 / (1 - p) if p < 1 else 0.0
    return where(drawn >= p, input * scale, 0.0)
