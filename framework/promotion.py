"""Type promotion: the dtype an operation on mixed operands computes in, as PyTorch defines it.

Tensors with dimensions decide first; 0-d tensors, then Python numbers, count only when theirs is a higher
category (bool < integer < floating).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ops.compare import cast
from compiler.ops.op import RuntimeOperand
from framework.access import keep_in_step
from framework.apply import apply_op
from framework.state import ambient
from framework.tensor import Tensor, wrap
from kernels import dtypes
from kernels.dtypes import BOOL, FLOATING, INTEGER, DType

Number = bool | int | float
# As a tuple: a union type would be built anew by each isinstance that names one.
OPERANDS = (Tensor, int, float)


def promote_types(a: DType, b: DType) -> DType:
    """The smallest dtype that holds values of both: int8 and uint8 give int16, float16 and bfloat16 give
    float32."""
    if a is b:
        return a
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.category == FLOATING:
        return dtypes.float32 if a.itemsize == b.itemsize else max(a, b, key=_itemsize)
    if a.itemsize == b.itemsize:
        return dtypes.int16
    return max(a, b, key=_itemsize)


def _itemsize(dtype: DType) -> int:
    return dtype.itemsize


def can_cast(source: DType, target: DType) -> bool:
    """Whether a result of `source` may be stored as `target`: the category must not sink."""
    return source.category <= target.category


def number_dtype(number: Number) -> DType:
    """The dtype a Python number brings: bool, int64, or the default floating dtype."""
    if isinstance(number, bool):
        return dtypes.bool_
    return dtypes.int64 if isinstance(number, int) else ambient.default_dtype


def result_type(*operands: Any) -> DType:
    """The dtype that arithmetic on tensors and Python numbers gives."""
    by_rank: list[DType | None] = [None, None, None]
    for x in operands:
        if isinstance(x, Tensor):
            rank, dtype = (0 if x.ndim else 1), x.dtype
        elif isinstance(x, DType):
            rank, dtype = 0, x
        else:
            rank, dtype = 2, number_dtype(x)
        known = by_rank[rank]
        by_rank[rank] = dtype if known is None else promote_types(known, dtype)
    with_dimensions, scalar, number = by_rank
    dtype = _combine(with_dimensions, _combine(scalar, number))
    if dtype is None:
        raise ValueError("result_type needs at least one operand")
    return dtype


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return higher or lower
    return lower if lower.category > higher.category else higher


def convert(t: Tensor, dtype: DType) -> Tensor:
    """`t` in `dtype`; itself when it is already."""
    if t.dtype is dtype:
        return t
    made = apply_op(cast, (t,), {"dtype": dtype})
    if made._node is not None:
        made._node.label = "ToCopyBackward0"
    return made


def as_operand(x: Any) -> Any:
    """A Tensor or Python number of what a user passed. Raises TypeError for anything else."""
    if isinstance(x, OPERANDS):
        return x
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.ndarray):
        return keep_in_step(wrap(x))
    raise TypeError(
        f"an operand must be a Tensor or a number, got {type(x).__name__}; convert it with tensor()"
    )


def promoted(*operands: Any) -> tuple[Any, ...]:
    """Operands ready for a primitive op: tensors of one dtype, and numbers, which take that dtype."""
    # The usual cases: tensors of one dtype, and numbers of no higher category.
    dtype, least = None, BOOL
    for x in operands:
        kind = type(x)
        if kind is float:
            least = FLOATING
        elif kind is int:
            least = max(least, INTEGER)
        elif not isinstance(x, Tensor) or (dtype is not None and x.dtype is not dtype):
            break
        else:
            dtype = x.dtype
    else:
        if dtype is not None and dtype.category >= least:
            return operands
    operands = tuple(as_operand(x) for x in operands)
    dtype = result_type(*operands)
    return tuple(convert(x, dtype) if isinstance(x, Tensor) else x for x in _with_a_tensor(operands, dtype))


def _with_a_tensor(operands: tuple[Any, ...], dtype: DType) -> tuple[Any, ...]:
    if any(isinstance(x, Tensor) for x in operands):
        return operands
    return (scalar(operands[0], dtype), *operands[1:])


def promoted_to_float(*operands: Any) -> tuple[Any, ...]:
    """As `promoted`, with integers and bool raised to the default floating dtype."""
    operands = promoted(*operands)
    first = next(x for x in operands if isinstance(x, Tensor))
    if first.dtype.category == FLOATING:
        return operands
    return tuple(convert(x, ambient.default_dtype) if isinstance(x, Tensor) else x for x in operands)


def scalar(number: Number | RuntimeOperand, dtype: DType | None = None) -> Tensor:
    """A 0-d tensor of a Python number."""
    if isinstance(number, RuntimeOperand):
        return wrap(number.typed(dtype or ambient.default_dtype))
    return wrap(np.asarray(number).astype((dtype or number_dtype(number)).numpy))


__all__ = [
    "BOOL",
    "FLOATING",
    "INTEGER",
    "OPERANDS",
    "Number",
    "as_operand",
    "can_cast",
    "convert",
    "number_dtype",
    "promote_types",
    "promoted",
    "promoted_to_float",
    "result_type",
    "scalar",
]
