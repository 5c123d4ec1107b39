"""What `.item()` gives while a call is recorded: a number that recorded Python may hand on to its caller, and
nothing else.

A replay fills it in after the program has run. Whoever looks at it ends the recording.
"""

from __future__ import annotations

from typing import Any, NoReturn

from compiler.errors import TraceError
from framework.tensor import Tensor
from kernels.dtypes import BOOL, INTEGER

_REFUSED = (
    "bool float int index complex hash repr str format bytes len iter next contains getitem round trunc "
    "floor ceil neg pos abs invert divmod rdivmod pow rpow array reduce reduce_ex copy deepcopy call enter "
    "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod and rand or "
    "ror xor rxor lshift rlshift rshift rrshift matmul rmatmul"
).split()


class Item:
    """The value of the one element of `tensor`, once there is one."""

    __slots__ = ("kind", "tensor")
    # NumPy's operators leave the operation to this class, which refuses it.
    __array_ufunc__ = None

    def __init__(self, tensor: Any, kind: type) -> None:
        self.tensor, self.kind = tensor, kind

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.kind

    def __getattr__(self, name: str) -> NoReturn:
        refuse()


def refuse(*arguments: Any, **options: Any) -> NoReturn:
    """End the recording: Python looks at a value."""
    raise TraceError(
        "Python reads the value of a tensor: use where(condition, x, y) for a branch, or return the tensor "
        "or its item() and read that outside @compile"
    )


for _name in _REFUSED:
    setattr(Item, f"__{_name}__", refuse)


def item(t: Tensor, value: Tensor) -> Item:
    """What stands for `t.item()`; `value` is a tensor of its value now."""
    if t.numel() != 1:
        raise RuntimeError(f"a Tensor with {t.numel()} elements cannot be converted to Scalar")
    category = t.dtype.category
    return Item(value, bool if category == BOOL else int if category == INTEGER else float)
