"""Running totals along a dimension: sums, products, extrema with their positions, logarithms of sums.

Made of ops, so that a compiled function has them in its kernels. Totals over whole dimensions are reductions.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.ops import running
from compiler.ops.op import Op
from framework.access import beside
from framework.apply import apply_op
from framework.elementwise import exp, labelled, log, where
from framework.promotion import FLOATING, convert
from framework.reductions import Extremum
from framework.size import axis_index
from framework.state import no_grad
from framework.tensor import Tensor
from kernels import dtypes
from kernels.dtypes import DType


class Cummax(Extremum):
    """Result of cummax."""


class Cummin(Extremum):
    """Result of cummin."""


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running sums along `dim`; bool and integers give int64."""
    return _accumulated(input, dim, dtype, running.cumsum, "CumsumBackward0")


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running products along `dim`; bool and integers give int64."""
    return _accumulated(input, dim, dtype, running.cumprod, "CumprodBackward0")


def _accumulated(input: Tensor, dim: int, dtype: DType | None, op: Op, name: str) -> Tensor:
    if dtype is None and input.dtype.category != FLOATING:
        dtype = dtypes.int64
    x = input if dtype is None else convert(input, dtype)
    axis = axis_index(dim, x.ndim)
    return labelled(name, apply_op(op, (x,), {"axis": axis}) if x.ndim else x + 0)


def cummax(input: Tensor, dim: int) -> Extremum:
    """The largest value so far along `dim`, and where it was."""
    return _extrema(input, dim, running.cummax, Cummax)


def cummin(input: Tensor, dim: int) -> Extremum:
    """The smallest value so far along `dim`, and where it was."""
    return _extrema(input, dim, running.cummin, Cummin)


def _extrema(x: Tensor, dim: int, op: Op, kind: type[Extremum]) -> Extremum:
    axis = axis_index(dim, x.ndim)
    if x.ndim == 0:
        return kind(x + 0, beside(x, np.zeros((), np.int64)))
    values = labelled(f"{kind.__name__}Backward0", apply_op(op, (x,), {"axis": axis}))
    return kind(values, running.positions(x.detach(), values.detach(), axis))


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log of running sums of exp along `dim`, without overflow: each sum is kept over exp of the largest so
    far."""
    axis = axis_index(dim, input.ndim)
    if input.ndim == 0:
        return input + 0
    x = convert(input, input.dtype.arithmetic)
    with no_grad():
        top = apply_op(running.cummax, (x.detach(),), {"axis": axis})
        top = where(top.abs() == math.inf, 0, top)
        shrunk = exp(running.before(top, axis, 0) - top)
    total = apply_op(running.recurrence, (shrunk, exp(x - top)), {"axis": axis})
    result = log(total) + top
    dtype = input.dtype if input.dtype.is_floating_point else result.dtype
    return labelled("LogcumsumexpBackward0", convert(result, dtype))
