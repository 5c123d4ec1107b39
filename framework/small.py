"""Elementwise ops on small arrays, where what is done around the arithmetic takes longer than it.

What apply.py does in general is done here in one step for one or two operands in memory, of one dtype; all
else goes there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ops.op import Elementwise, owned, typed_number
from compiler.ops.quiet import quiet
from framework.apply import record_real
from framework.state import ambient, unusual
from framework.tensor import Tensor
from kernels import dtypes
from kernels.memory import LARGE

_new = object.__new__
ndarray = np.ndarray
_NOTHING: dict[str, Any] = {}
# By the type of a Python number, the dtypes that it does not change.
_KEPT = {
    float: {d.numpy: d for d in dtypes.DTYPES.values() if d.category == dtypes.FLOATING},
    int: {d.numpy: d for d in dtypes.DTYPES.values() if d.category != dtypes.BOOL},
}


def unary(op: Elementwise, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`op` on a small tensor of a dtype that it keeps, `otherwise` of anything else."""

    def function(input: Any) -> Any:
        if isinstance(input, Tensor) and not (unusual.threads and ambient.detour is not None):
            array = input._data
            if array is not None:
                compute = op.direct.get(array.dtype)
                if compute is not None and array.nbytes < LARGE:
                    try:
                        made = quiet(compute, array)
                    except (RuntimeError, ValueError, TypeError):
                        return otherwise(input)  # it is done in another context
                    out = _new(Tensor)
                    out._data = made if type(made) is ndarray and made.flags.c_contiguous else owned(made)
                    if input._node is not None or input._requires_grad or input._base is not None:
                        record_real(op, input, None, _NOTHING, out)
                    return out
        return otherwise(input)

    return _called(function, op.name, otherwise)


def binary(op: Elementwise, otherwise: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`op` on two small tensors of one dtype, or one and a number that takes it, `otherwise` of anything
    else."""

    def function(input: Any, other: Any) -> Any:
        if unusual.threads and ambient.detour is not None:
            return otherwise(input, other)
        x, y = input, other
        left = x._data if isinstance(x, Tensor) else None
        right = y._data if isinstance(y, Tensor) else None
        if left is None:
            if right is None:
                return otherwise(input, other)
            x = left = weak(x, right.dtype)
        elif right is None:
            y = right = weak(y, left.dtype)
        if left is None or right is None:
            return otherwise(input, other)
        dtype = left.dtype
        compute = op.direct.get(dtype)
        if compute is None or right.dtype is not dtype or left.nbytes + right.nbytes >= LARGE:
            return otherwise(input, other)
        try:
            made = quiet(compute, left, right)
        except (ValueError, RuntimeError, TypeError):
            return otherwise(input, other)  # it is said in our words, or done in another context
        out = _new(Tensor)
        out._data = made if type(made) is ndarray and made.flags.c_contiguous else owned(made)
        if op.grads:
            record_real(op, x, y, _NOTHING, out)
        return out

    return _called(function, op.name, otherwise)


def _called(function: Callable[..., Any], name: str, like: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = like.__doc__
    return function


def weak(number: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """A Python number in a dtype that it does not change, None for any other operand."""
    kept = _KEPT.get(type(number))
    found = None if kept is None else kept.get(dtype)
    return None if found is None else typed_number(number, found)
