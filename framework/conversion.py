"""Converting tensors: dtype, device and layout.

Promotion inside operations is promotion.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.sizes import resolve_sharing
from framework.creation import clone
from framework.device import device, require_cpu
from framework.layout import answered, is_row_major
from framework.promotion import convert
from framework.tensor import Tensor, way_to
from kernels import dtypes
from kernels.dtypes import DType


def to(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(other)`; the tensor itself when nothing
    changes."""
    dtype, copy = _target(args, kwargs)
    if dtype is not None and dtype is not input.dtype:
        return convert(input, dtype)
    return clone(input) if copy else input


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DType | None, bool]:
    dtype, copy = kwargs.get("dtype"), bool(kwargs.get("copy", False))
    require_cpu(kwargs.get("device"))
    flags = []
    for x in args:
        if isinstance(x, DType):
            dtype = x
        elif isinstance(x, Tensor):
            dtype = x.dtype
        elif isinstance(x, str | device):
            require_cpu(x)
        elif isinstance(x, bool):
            flags.append(x)
        elif x is not None:
            raise TypeError(f"to() takes a dtype, a device or a Tensor, got {type(x).__name__}")
    if dtype is not None and not isinstance(dtype, DType):
        raise TypeError(f"to() needs a framework dtype, got {dtype!r}; use e.g. framework.float32")
    # The flags are (non_blocking, copy), in this order.
    return dtype, copy or (len(flags) > 1 and flags[1])


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
    """`input` in the dtype of `other`."""
    return convert(input, other.dtype)


def cpu(input: Tensor) -> Tensor:
    """The tensor on the CPU, where it is."""
    return input


def cuda(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Raises RuntimeError: there is no GPU memory here."""
    require_cpu("cuda")
    return input


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
    """The tensor itself: without a GPU nothing is gained by pinning."""
    return input


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
