"""Ops without inputs: constants and index grids.

Random values are in random.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.ir import Value
from compiler.ops.op import Op, Sample, dtype_of, typed_number
from compiler.types import TensorType
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import arrays


def _full(*, shape: tuple[int, ...], value: float, dtype: DType, xp: Any = np) -> Any:
    number = typed_number(value, dtype)
    if xp is not np:
        return xp.full(shape, number.item(), dtype.numpy)
    if type(value) is int and value == 0:
        return np.zeros(shape, dtype.numpy)
    made = np.empty(shape, dtype.numpy)
    made[...] = number
    return made


def _iota(*, shape: tuple[int, ...], axis: int, dtype: DType, xp: Any = np) -> Any:
    out = xp.empty(shape, dtype.numpy)
    out[...] = xp.arange(shape[axis]).astype(dtype.numpy).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return out


# full(shape=, value=a Python number, dtype=).
full: Op = Op(
    "full",
    _full,
    lambda *, shape, value, dtype: TensorType(shape, dtype),
    samples=(Sample((), {"shape": (2, 3), "value": -1.5, "dtype": dtypes.float32}),),
)
# iota(shape=, axis=, dtype=): every element is its index along `axis`.
iota: Op = Op(
    "iota",
    _iota,
    lambda *, shape, axis, dtype: TensorType(shape, dtype),
    samples=(Sample((), {"shape": (2, 3, 2), "axis": 1, "dtype": dtypes.int64}),),
)


def created(like: Any, op: Op, **attrs: Any) -> Any:
    """The result of `op`, which has no inputs, of the kind of `like` and where that is: a Tensor, an IR value
    or an array."""
    hook = getattr(type(like), "__create_op__", None)
    if hook is not None:
        return hook(like, op, attrs)
    hook = getattr(type(like), "__apply_op__", None)
    if hook is not None:
        return hook(op, (), attrs)
    return op.trace(**attrs) if isinstance(like, Value) else create(op, attrs, arrays.number_of(like))


def create(op: Op, attrs: Mapping[str, Any], number: int | None) -> Any:
    """The array that `op`, which has no inputs, makes on GPU `number`, or on the host."""
    if number is None:
        return op.compute(**attrs)
    with arrays.there(number):
        return op.eager(xp=arrays.engine().xp, **attrs)


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of the kind and dtype of `like` in `shape`: a gradient's where nothing flows."""
    return created(like, full, shape=tuple(shape), value=0, dtype=dtype_of(like))


def full_like(x: Any, value: float) -> Any:
    """`value` in the shape and dtype of `x`, of its kind; reads nothing of `x`."""
    return created(x, full, shape=tuple(x.shape), value=value, dtype=dtype_of(x))
