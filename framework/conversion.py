"""Converting tensors: dtype, device and layout.

Promotion inside operations is promotion.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.sizes import resolve_sharing
from framework.access import over
from framework.creation import clone
from framework.cuda import is_available as available
from framework.device import device, number_of
from framework.layout import answered, is_row_major
from framework.promotion import convert
from framework.storage import root_of
from framework.tensor import Tensor, concrete, way_to
from framework.transfer import moved
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import arrays


def to(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(other)`; the tensor itself when nothing
    changes."""
    if len(args) == 1 and type(args[0]) is DType and not kwargs:
        return convert(input, args[0])
    dtype, where, copy = _target(args, kwargs)
    made = input
    if where is not None:
        made = moved(made, number_of(where))
    if dtype is not None and dtype is not input.dtype:
        return convert(made, dtype)
    return clone(input) if copy and made is input else made


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DType | None, Any, bool]:
    dtype, copy = kwargs.get("dtype"), bool(kwargs.get("copy", False))
    where = kwargs.get("device")
    flags = []
    for x in args:
        if isinstance(x, DType):
            dtype = x
        elif isinstance(x, Tensor):
            dtype, where = x.dtype, x.device
        elif isinstance(x, bool):
            flags.append(x)
        elif isinstance(x, str | device | int):
            where = x
        elif x is not None:
            raise TypeError(f"to() takes a dtype, a device or a Tensor, got {type(x).__name__}")
    if dtype is not None and not isinstance(dtype, DType):
        raise TypeError(f"to() needs a framework dtype, got {dtype!r}; use e.g. framework.float32")
    # The flags are (non_blocking, copy), in this order.
    return dtype, where, copy or (len(flags) > 1 and flags[1])


def type_(input: Tensor, dtype: Any = None) -> Any:
    """The type's name, or the tensor converted to a dtype or to a type's name."""
    if dtype is None:
        return f"framework.{_TYPE_NAMES[input.dtype.name]}"
    if isinstance(dtype, DType):
        return convert(input, dtype)
    name = str(dtype).rpartition(".")[2]
    for dtype_name, type_name in _TYPE_NAMES.items():
        if name == type_name:
            return convert(input, dtypes.named(dtype_name))
    raise ValueError(f"invalid type: {dtype!r}; pass a dtype, or one of {', '.join(_TYPE_NAMES.values())}")


_TYPE_NAMES = {
    "bool": "BoolTensor",
    "uint8": "ByteTensor",
    "int8": "CharTensor",
    "int16": "ShortTensor",
    "int32": "IntTensor",
    "int64": "LongTensor",
    "float16": "HalfTensor",
    "bfloat16": "BFloat16Tensor",
    "float32": "FloatTensor",
    "float64": "DoubleTensor",
}


def type_as(input: Tensor, other: Tensor) -> Tensor:
    """`input` in the dtype and on the device of `other`."""
    return to(input, other)


def cpu(input: Tensor) -> Tensor:
    """The tensor on the CPU; itself where it is there."""
    return moved(input, None)


def cuda(input: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """The tensor on a GPU, the current one unless `device` names another; itself where it is there. Raises
    RuntimeError, saying what is missing."""
    where = "cuda" if device is None else device
    number = number_of(where)
    if number is None:
        raise ValueError(f"cuda() needs a GPU, got device {where!r}; use cpu()")
    return moved(input, number)


def contiguous(input: Tensor, memory_format: Any = None) -> Tensor:
    """The tensor itself when it is row-major, else a row-major copy."""
    if input._data is not None:
        return input if input.is_contiguous() else clone(input)
    in_order, condition = resolve_sharing(
        "contiguous() is the tensor itself", answered, is_row_major, way_to(input)
    )
    made = input if in_order else clone(input)
    if condition is not None:
        condition.about = input, made
    return made


def pin_memory(input: Tensor) -> Tensor:
    """A copy in page-locked memory, from and to which GPUs copy fastest; the tensor itself without a GPU."""
    if is_pinned(input) or not available():
        return input
    data = concrete(input)
    if arrays.is_device(data):
        raise RuntimeError(f"cannot pin '{input.device}' memory: only dense CPU tensors can be pinned")
    known = arrays.engine()
    memory = known.facts(known.current).pinned(max(data.nbytes, 1))
    made = memory[: data.nbytes].view(data.dtype).reshape(data.shape)
    made[...] = data
    return over(made)


def is_pinned(input: Tensor) -> bool:
    """Whether the memory is page-locked, by `pin_memory`."""
    data = input._data
    return isinstance(data, np.ndarray) and getattr(root_of(data).base, "page_locked", False)


class Info:
    """Limits of a dtype, read from NumPy's."""

    def __init__(self, limits: Any, dtype: DType) -> None:
        self.dtype = dtype.name
        self.bits: int = 8 * dtype.itemsize
        self.limits = limits


class finfo(Info):  # noqa: N801 -- PyTorch's name
    """Limits of a floating dtype: eps, max, min, tiny, resolution. Raises TypeError for others."""

    def __init__(self, dtype: DType = dtypes.float32) -> None:
        if not dtype.is_floating_point:
            raise TypeError(
                f"finfo() requires a floating point input type, got {dtype}. Use iinfo to handle it"
            )
        super().__init__(dtypes.ml_dtypes.finfo(dtype.numpy), dtype)
        self.eps, self.max, self.min = (float(x) for x in (self.limits.eps, self.limits.max, self.limits.min))
        self.tiny = self.smallest_normal = float(self.limits.smallest_normal)
        self.resolution = float(self.limits.resolution)

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo(Info):  # noqa: N801
    """Limits of an integer dtype: max, min. Raises TypeError for others."""

    def __init__(self, dtype: DType) -> None:
        if dtype.category != dtypes.INTEGER:
            raise TypeError(f"iinfo() requires an integer input type, got {dtype}. Use finfo to handle it")
        super().__init__(np.iinfo(dtype.numpy), dtype)
        self.max, self.min = int(self.limits.max), int(self.limits.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
