"""Reductions over dimensions, and what is made of them: moments, norms, softmax, cumulative sums.

Sorting and searching are in sorting.py.
"""

from __future__ import annotations

import builtins
import math
from functools import cache
from typing import Any, NamedTuple

from compiler.dims import is_symbolic
from compiler.ops import movement, reduction, statistics
from compiler.ops.indexing import gather
from compiler.ops.op import Op
from compiler.sizes import any_symbolic, largest
from compiler.types import TensorType
from framework.apply import apply_op, apply_reshaped
from framework.elementwise import abs as absolute
from framework.elementwise import (
    add,
    div,
    eq,
    exp,
    isnan,
    labelled,
    log,
    lt,
    maximum,
    minimum,
    ne,
    pow,
    sign,
    sqrt,
    square,
    sub,
    where,
)
from framework.graph import shape_of
from framework.promotion import FLOATING, convert
from framework.size import axis_index, axis_indices
from framework.state import ambient
from framework.tensor import Tensor
from framework.views import reshape, squeeze
from kernels import dtypes
from kernels.dtypes import DType

# What a sum keeps.
_REAL = {d.numpy for d in dtypes.DTYPES.values() if d.category == FLOATING}


class Extremum(NamedTuple):
    """Values and their positions along a dimension."""

    values: Tensor
    indices: Tensor

    def __repr__(self) -> str:
        return f"framework.return_types.{self.kind}(\nvalues={self.values!r},\nindices={self.indices!r})"

    @property
    def kind(self) -> str:
        """Name of the function whose result this is."""
        return type(self).__name__.lower()


def _reduced(op: Op, x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    if op is reduction.sum and axes and not keepdim:
        return apply_reshaped(op, x, {"axes": axes}, _dropped(x, axes))
    kept = apply_op(op, (x,), {"axes": axes})
    if keepdim or not axes:
        return kept
    # The kept form is a temporary nobody else has, so its row-major reshape need not be a view of it.
    out = apply_op(movement.reshape, (kept,), {"shape": _dropped(x, axes)}, alone=True)
    if kept._memory is not None:  # the gradient reads it, and must see that the result was written to
        out._memory = kept._memory
    return labelled(_gradient_name(op.name), out)


@cache
def _gradient_name(name: str) -> str:
    """How PyTorch spells the gradient of a reduction that drops its axes."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return f"{title}Backward{1 if name in ('sum', 'mean', 'prod') else 0}"


def _dropped(x: Tensor, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of `x` without `axes`."""
    shape = shape_of(x)
    return () if len(axes) == len(shape) else tuple([n for i, n in enumerate(shape) if i not in axes])


@cache
def _every(rank: int) -> dict[str, Any]:
    """All axes of a tensor of `rank`, as attributes."""
    return {"axes": tuple(range(rank))}


def _own(t: Tensor, name: str) -> Tensor:
    if t._data is None:
        ambient.tracer.part(t)
    t._base, t._view = None, ()
    return labelled(_gradient_name(name), t)


def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Sum over `dim` (all when None); bool and integers give int64."""
    data = input._data
    if (
        dim is None
        and dtype is None
        and data is not None
        and data.ndim
        and not keepdim
        and data.dtype in _REAL
    ):
        return labelled("SumBackward0", apply_reshaped(reduction.sum, input, _every(data.ndim), ()))
    if dtype is None and input.dtype.category != FLOATING:
        dtype = dtypes.int64
    x = input if dtype is None else convert(input, dtype)
    out = _reduced(reduction.sum, x, axis_indices(dim, x.ndim), keepdim)
    return labelled("SumBackward0" if dim is None else "SumBackward1", out)


def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Product over `dim` (all when None); bool and integers give int64."""
    if dtype is None and input.dtype.category != FLOATING:
        dtype = dtypes.int64
    x = input if dtype is None else convert(input, dtype)
    out = _reduced(reduction.prod, x, axis_indices(dim, x.ndim), keepdim)
    return labelled("ProdBackward0", out) if dim is None else out


def _count(x: Tensor, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[i] for i in axes)


def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Average over `dim` (all when None); nan over nothing. Raises RuntimeError for integers without a
    dtype."""
    x = input if dtype is None else convert(input, dtype)
    if x.dtype.category != FLOATING:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
            "dtype. "
            f"Got: {x.dtype.name}; pass dtype=float32 or convert with float()"
        )
    axes = axis_indices(dim, x.ndim)
    out = div(_reduced(reduction.sum, x, axes, keepdim), _count(x, axes))
    return labelled("MeanBackward0" if dim is None else "MeanBackward1", out)


def _moments(x: Tensor, axes: tuple[int, ...], correction: float) -> tuple[Tensor, Tensor]:
    """Variance and mean, kept dimensions. Two passes: the one-pass formula cancels."""
    if x.dtype.category != FLOATING:
        raise RuntimeError(
            f"std and var only support floating point dtypes, got {x.dtype}; convert with float()"
        )
    count = _count(x, axes)
    average = div(apply_op(reduction.sum, (x,), {"axes": axes}), count)
    total = apply_op(reduction.sum, (square(sub(x, average)),), {"axes": axes})
    divisor = largest(count - correction, 0) if is_symbolic(count) else builtins.max(count - correction, 0)
    return div(total, divisor), average


def _correction(unbiased: bool | None, correction: float | None) -> float:
    if correction is not None:
        return correction
    return 1 if unbiased is None or unbiased else 0


def _without(t: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    return (
        t
        if keepdim or not axes
        else labelled(
            "VarBackward0", apply_op(movement.reshape, (t,), {"shape": _dropped(t, axes)}, alone=True)
        )
    )


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Variance over `dim`, dividing by count - correction (1)."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = axis_indices(dim, input.ndim)
    variance, _ = _moments(input, axes, _correction(unbiased, correction))
    return labelled("VarBackward0", _without(variance, axes, keepdim))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Standard deviation over `dim`: the root of `var`, without its overflow."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = axis_indices(dim, input.ndim)
    return labelled(
        "StdBackward0", _without(_deviation(input, axes, _correction(unbiased, correction)), axes, keepdim)
    )


def _deviation(x: Tensor, axes: tuple[int, ...], correction: float) -> Tensor:
    if x.dtype is not dtypes.float32:
        return sqrt(_moments(x, axes, correction)[0])
    # std([1e30, 2e30]) is 7e29, but its square exceeds float32: PyTorch accumulates in double.
    return convert(sqrt(_moments(convert(x, dtypes.float64), axes, correction)[0]), dtypes.float32)


def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Variance and mean over `dim`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = axis_indices(dim, input.ndim)
    variance, average = _moments(input, axes, _correction(unbiased, correction))
    return _without(variance, axes, keepdim), _without(average, axes, keepdim)


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over `dim`."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


def _extreme(op: Op, input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    axes = axis_indices(dim, input.ndim)
    if ambient.tracer is not None:
        reduction.require_elements(TensorType(tuple(input.shape), input.dtype), axes)
    return _reduced(op, input, axes, keepdim)


def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """Largest element over `dim`; tied elements share the gradient."""
    return _extreme(reduction.amax, input, dim, keepdim)


def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """Smallest element over `dim`; tied elements share the gradient."""
    return _extreme(reduction.amin, input, dim, keepdim)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest and largest element over `dim`."""
    where_ = () if dim is None else dim
    return amin(input, where_, keepdim), amax(input, where_, keepdim)


def _position(op: Op, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if dim is None:
        if input.numel() == 0:
            raise IndexError(
                f"{op.name}(): Expected reduction dim to be specified for input.numel() == 0. Specify it."
            )
        flat = apply_op(op, (reshape(input, (-1,)),), {"axis": 0, "keepdim": False})
        return reshape(flat, (1,) * input.ndim) if keepdim else flat
    if input.ndim == 0:
        axis_index(dim, 0)
        return apply_op(op, (reshape(input, (1,)),), {"axis": 0, "keepdim": False})
    return apply_op(op, (input,), {"axis": axis_index(dim, input.ndim), "keepdim": keepdim})


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first largest element, or of the first nan; over all elements when `dim` is None."""
    return _position(reduction.argmax, input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the first smallest element, or of the first nan; over all elements when `dim` is None."""
    return _position(reduction.argmin, input, dim, keepdim)


class Max(Extremum):
    """Result of max over a dimension."""


class Min(Extremum):
    """Result of min over a dimension."""


def _extremum(find: Op, input: Tensor, dim: int, keepdim: bool, kind: type[Extremum]) -> Extremum:
    if input.ndim == 0:
        return kind(add(input, 0), _position(find, input, dim, keepdim))
    axis = axis_index(dim, input.ndim)
    indices = apply_op(find, (input,), {"axis": axis, "keepdim": True})
    values = labelled(f"{kind.__name__}Backward0", apply_op(gather, (input, indices), {"axis": axis}))
    if keepdim:
        return kind(values, indices)
    return kind(_own(squeeze(values, axis), kind.__name__), _own(squeeze(indices, axis), kind.__name__))


def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element; with `dim` (values, indices) along it; with a tensor `dim` the larger of two
    elements."""
    if dim is None:
        _require_elements("max", input)
        return labelled("MaxBackward1", amax(input))
    return (
        maximum(input, dim)
        if isinstance(dim, Tensor)
        else _extremum(reduction.argmax, input, dim, keepdim, Max)
    )


def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element; with `dim` (values, indices) along it; with a tensor `dim` the smaller of two
    elements."""
    if dim is None:
        _require_elements("min", input)
        return labelled("MinBackward1", amin(input))
    return (
        minimum(input, dim)
        if isinstance(dim, Tensor)
        else _extremum(reduction.argmin, input, dim, keepdim, Min)
    )


def _require_elements(name: str, input: Tensor) -> None:
    if input.numel() == 0:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction "
            "dim with the "
            "'dim' argument."
        )


def any(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether any element over `dim` is nonzero."""
    return _reduced(reduction.any, _truth(input), axis_indices(dim, input.ndim), keepdim)


def all(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether every element over `dim` is nonzero."""
    return _reduced(reduction.all, _truth(input), axis_indices(dim, input.ndim), keepdim)


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype is dtypes.bool_ else ne(x, 0)


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """Number of nonzero elements over `dim`."""
    return sum(ne(input, 0), dim)


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    """The p-norm over `dim` (all when None); "fro" is the 2-norm. Its gradient at 0 is 0."""
    x = input if dtype is None else convert(input, dtype)
    if x.dtype.category != FLOATING:
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point tensor as input. Got {x.dtype.name}"
        )
    if p is None or p == "fro" or p == 2:
        return labelled("LinalgVectorNormBackward0", _two_norm(x, axis_indices(dim, x.ndim), keepdim))
    if not isinstance(p, int | float):
        raise RuntimeError(f"norm order must be a number or 'fro', got {p!r}")
    return labelled("LinalgVectorNormBackward0", _p_norm(x, float(p), dim, keepdim))


def _two_norm(x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    total = _reduced(reduction.sum, square(x), axes, keepdim)
    # sqrt' is infinite at 0: there the norm is constant, with gradient 0.
    zero = eq(total, 0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, total)))


def _p_norm(x: Tensor, p: float, dim: Any, keepdim: bool) -> Tensor:
    magnitude = absolute(x)
    if math.isinf(p):
        return (amax if p > 0 else amin)(magnitude, () if dim is None else dim, keepdim)
    if p == 0:
        return sum(absolute(sign(x)), dim, keepdim)
    if p == 1:
        return sum(magnitude, dim, keepdim)
    total = sum(pow(magnitude, p), dim, keepdim)
    zero = eq(total, 0)
    return where(zero, 0.0, pow(where(zero, 1.0, total), 1 / p))


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return norm(sub(input, other), p)


def _floating(input: Tensor, dtype: DType | None) -> Tensor:
    if dtype is None and input.dtype.category != FLOATING:
        dtype = ambient.default_dtype
    return input if dtype is None else convert(input, dtype)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) over `dim` without overflow; -inf over nothing."""
    x = _floating(input, None)
    axes = axis_indices(dim, x.ndim)
    count = _count(x, axes)
    if not is_symbolic(count) and count == 0:
        return log(sum(exp(x), axes, keepdim))
    top = _finite_top(x, axes)
    kept = add(log(apply_op(reduction.sum, (exp(sub(x, top)),), {"axes": axes})), top)
    return labelled("LogsumexpBackward0", _without(kept, axes, keepdim))


def _finite_top(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The largest element, 0 where it is infinite: inf - inf would be nan. No gradient: any shift gives one
    result."""
    top = apply_op(reduction.amax, (x.detach(),), {"axes": axes})
    return where(lt(absolute(top), math.inf), top, where(isnan(top), top, 0.0))


def _softmax_axis(x: Tensor, dim: int) -> tuple[int, ...]:
    return (axis_index(dim, x.ndim),) if x.ndim else ()


def softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """exp(input) divided by its sum over `dim`; a row that is all -inf gives nan."""
    x = _floating(input, dtype)
    axes = _softmax_axis(x, dim)
    if not any_symbolic(x.shape) and x.numel() == 0:
        return exp(x)
    return apply_op(statistics.softmax, (x,), {"axes": axes})


def log_softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Logarithm of `softmax`, without its underflow."""
    x = _floating(input, dtype)
    axes = _softmax_axis(x, dim)
    if not any_symbolic(x.shape) and x.numel() == 0:
        return exp(x)
    return apply_op(statistics.log_softmax, (x,), {"axes": axes})


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Sum over `dim` with nan counted as 0."""
    return sum(where(isnan(input), 0, input), dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """Average over `dim` of the elements that are not nan."""
    return div(nansum(input, dim, keepdim, dtype=dtype), sum(eq(input, input), dim, keepdim))
