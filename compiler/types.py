"""What the compiler knows of a value before it runs: shape and dtype.

Knows nothing of memory; strides and addresses appear when kernels are planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels import dtypes
from kernels.dtypes import DType


@dataclass(frozen=True, init=False)
class TensorType:
    """Shape and dtype of one value; prints as `float32[64, 10]`."""

    shape: tuple[int, ...]
    dtype: DType

    # One for each op of a recording: what `dataclass` writes for a frozen class takes twice as long.
    def __init__(self, shape: tuple[int, ...], dtype: DType) -> None:
        fields = self.__dict__
        fields["shape"] = shape
        fields["dtype"] = dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes when stored contiguously."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


def type_of_array(array: np.ndarray[Any, Any]) -> TensorType:
    """The type of a NumPy array."""
    return TensorType(array.shape, dtypes.of_numpy(array.dtype))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
