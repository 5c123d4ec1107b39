"""Matrix products, and products summed over several axes.

Vectors, einsum and linear layers are composites above; window.py says what a convolution sums over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.arithmetic import mul
from compiler.ops.movement import reshape, swap_last
from compiler.ops.op import Op, Sample, broadcast_shapes, element_type
from compiler.ops.reduction import sum
from compiler.types import TensorType
from kernels import dtypes
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


class Product(Op):
    """A sum of products, which a kernel finishes tile by tile, with the pointwise work that follows."""


def _matmul(a: Array, b: Array) -> Array:
    if (a.dtype is not b.dtype and a.dtype != b.dtype) or a.ndim < 2 or b.ndim < 2:
        raise TypeError("matmul operands differ")  # `infer` says it better
    dtype = dtypes.OF_NUMPY[a.dtype]
    if dtype.compute is None and a.ndim == 2 == b.ndim and type(a) is np.ndarray:
        return a.dot(b)  # the same routine of BLAS, 0.5 µs sooner
    if dtype.compute is None or (dtype is dtypes.float16 and arrays.is_device(a)):
        return arrays.row_major(np.matmul(a, b))  # of float16 cuBLAS adds in float32 too
    wide = dtype.compute.numpy
    return arrays.row_major(np.matmul(a.astype(wide), b.astype(wide)), a.dtype)


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
matmul: Product = Product(
    "matmul",
    _matmul,
    _matmul_type,
    (lambda g, out, a, b: matmul(g, swap_last(b)), lambda g, out, a, b: matmul(swap_last(a), g)),
    samples=(Sample(((2, 3), (3, 4))), Sample(((2, 1, 2, 3), (5, 3, 1)))),
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


def _dot_type(a: TensorType, b: TensorType) -> TensorType:
    if len(a.shape) != 1 or a != b:
        raise RuntimeError(f"dot needs two vectors of one size and dtype, got {a} and {b}")
    return TensorType((), a.dtype)


def _dot(a: Array, b: Array) -> Array:
    if a.ndim != 1 or a.shape != b.shape or a.dtype != b.dtype:
        raise TypeError("dot operands differ")  # `infer` says it better
    if type(a) is np.ndarray and dtypes.OF_NUMPY[a.dtype].compute is None:
        return np.asarray(a.dot(b))
    return _matmul(a.reshape(1, -1), b.reshape(-1, 1)).reshape(())


def _dot_as_others(a: Any, b: Any) -> Any:
    """A product of one row and one column; of integers, whose products have no kernel, a sum."""
    n = a.shape[0]
    if not element_type(a.dtype).is_floating_point:
        return reshape(sum(mul(a, b), axes=(0,)), shape=())
    return reshape(matmul(reshape(a, shape=(1, n)), reshape(b, shape=(n, 1))), shape=())


# dot(a, b): the sum of products of two vectors. Its gradients are products of numbers, which are no sums.
dot: Op = Op(
    "dot",
    _dot,
    _dot_type,
    (lambda g, out, a, b: mul(g, b), lambda g, out, a, b: mul(g, a)),
    decompose=_dot_as_others,
    samples=(Sample(((4,), (4,))),),
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)


# Elements of the rows that are gathered at a time: 16 MB of float32.
_GATHERED = 1 << 22


def _contract(a: Array, b: Array, *, depth: int) -> Array:
    if a.dtype != b.dtype:
        raise TypeError("contract operands differ")  # `infer` says it better
    batch = np.broadcast_shapes(a.shape[: -1 - depth], b.shape[: -1 - depth])
    m, k, n = a.shape[-1 - depth], a.shape[a.ndim - depth :], b.shape[-1]
    a = np.broadcast_to(a, (*batch, m, *k))
    size = math.prod(k)
    right = b.reshape(*b.shape[: -1 - depth], size, n)
    out = arrays.namespace(a).empty((*batch, m, n), a.dtype)
    step = max(1, _GATHERED // max(1, size * m * math.prod(batch[1:]))) if batch else 1
    for start in range(0, batch[0] if batch else 1, step):
        part = slice(start, start + step) if batch else ...
        lines = a[part].reshape(*out[part].shape[:-1], size)
        np.matmul(lines, right[part] if right.ndim == out.ndim and len(right) > 1 else right, out=out[part])
    return out


def _contract_type(a: TensorType, b: TensorType, *, depth: int) -> TensorType:
    if len(b.shape) < depth + 1 or a.shape[len(a.shape) - depth :] != b.shape[-1 - depth : -1]:
        raise RuntimeError(f"{a} and {b} cannot be summed over {depth} axes")
    if a.dtype is not b.dtype:
        raise RuntimeError(f"expected both factors to have the same dtype, got {a} and {b}; cast one first")
    batch = broadcast_shapes(a.shape[: -1 - depth], b.shape[: -1 - depth])
    return TensorType((*batch, a.shape[-1 - depth], b.shape[-1]), a.dtype)


# contract(a, b, depth=): a (..., m, k..) by b (..., k.., n), summed over the `depth` axes k; leading axes
# broadcast. What other ops are decomposed into, after their gradients: it has none. Factors have no 16-bit
# dtype.
contract: Product = Product(
    "contract",
    _contract,
    _contract_type,
    samples=(
        Sample(((2, 3, 1, 2), (3, 1, 2, 6)), {"depth": 3}),
        Sample(((2, 3, 2, 3), (2, 3, 6)), {"depth": 2}),
        Sample(((2, 1, 3, 4), (2, 4, 5)), {"depth": 1}),
    ),
    categories=(dtypes.FLOATING,),
)
