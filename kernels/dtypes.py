"""The one dtype table: size, category, NumPy spelling and the dtype arithmetic runs in.

Knows nothing of promotion between tensors; that is the framework's.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BOOL, INTEGER, FLOATING = 0, 1, 2


class DType:
    """An element type. Instances are singletons: compare with `is`.

    `category` orders bool < integer < floating; `compute` is the dtype arithmetic on it runs in
    (float32 for the 16-bit storage types, None for the dtype itself).
    """

    __slots__ = ("__weakref__", "category", "compute", "name", "numpy")

    def __init__(self, name: str, numpy: np.dtype[Any], category: int, compute: DType | None = None) -> None:
        self.name = name
        self.numpy = numpy
        self.category = category
        self.compute = compute

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_floating_point(self) -> bool:
        """Whether this is a floating dtype, as `torch.dtype.is_floating_point`."""
        return self.category == FLOATING

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.category != BOOL and self.numpy.kind != "u"

    @property
    def arithmetic(self) -> DType:
        """The dtype one operation on this dtype computes in before rounding back."""
        return self.compute or self

    def __repr__(self) -> str:
        return f"framework.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (self.name,)


bool_ = DType("bool", np.dtype(np.bool_), BOOL)
uint8 = DType("uint8", np.dtype(np.uint8), INTEGER)
int8 = DType("int8", np.dtype(np.int8), INTEGER)
int16 = DType("int16", np.dtype(np.int16), INTEGER)
int32 = DType("int32", np.dtype(np.int32), INTEGER)
int64 = DType("int64", np.dtype(np.int64), INTEGER)
float32 = DType("float32", np.dtype(np.float32), FLOATING)
float64 = DType("float64", np.dtype(np.float64), FLOATING)
float16 = DType("float16", np.dtype(np.float16), FLOATING, float32)
bfloat16 = DType("bfloat16", np.dtype(ml_dtypes.bfloat16), FLOATING, float32)

DTYPES: dict[str, DType] = {
    d.name: d for d in (bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64)
}
# By NumPy's dtype, of those that we store.
OF_NUMPY = {d.numpy: d for d in DTYPES.values()}


def named(name: str) -> DType:
    """The dtype called `name`, e.g. "float32". Raises KeyError when there is none."""
    return DTYPES[name]


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The DType of a NumPy dtype. Raises TypeError, naming what exists, for one we do not store."""
    try:
        return OF_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"no tensor dtype for NumPy {dtype}; there are {', '.join(DTYPES)}") from None
