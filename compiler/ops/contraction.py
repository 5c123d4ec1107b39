"""Matrix products.

One op; vectors, einsum and linear layers are composites above.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ops.movement import swap_last
from compiler.ops.op import Op, Sample, broadcast_shapes
from compiler.types import TensorType
from kernels import dtypes

Array = np.ndarray[Any, Any]


def _matmul(a: Array, b: Array) -> Array:
    if a.dtype != b.dtype or a.ndim < 2 or b.ndim < 2:
        raise TypeError("matmul operands differ")  # `infer` says it better
    wide = dtypes.of_numpy(a.dtype).arithmetic.numpy
    out = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    return np.ascontiguousarray(out, a.dtype)


def _matmul_type(a: TensorType, b: TensorType) -> TensorType:
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied: {a} and {b} need rank 2 or more and equal "
            f"inner sizes; "
            "transpose or unsqueeze one"
        )
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, got {a} and {b}; cast one first")
    return TensorType((*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)


# matmul(a, b): rows of `a` (..., m, k) by columns of `b` (..., k, n); leading axes broadcast. 16-bit floats
# are
# multiplied and added in float32 and rounded once. A broadcast operand's gradient keeps all leading axes.
matmul: Op = Op(
    "matmul",
    _matmul,
    _matmul_type,
    (lambda g, out, a, b: matmul(g, swap_last(b)), lambda g, out, a, b: matmul(swap_last(a), g)),
    samples=(Sample(((2, 3), (3, 4))), Sample(((2, 1, 2, 3), (5, 3, 1)))),
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)
