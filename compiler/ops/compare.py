"""Comparisons, selection and conversion of elements.

Knows nothing of arithmetic; the other families build their gradients on it.
"""

from __future__ import annotations

from compiler.ops.op import Elementwise, element_type, elementwise
from kernels import dtypes

eq: Elementwise = elementwise("eq", body=lambda k, x, y: k.eq(x, y), result=dtypes.bool_, commutative=True)
ne: Elementwise = elementwise("ne", body=lambda k, x, y: k.ne(x, y), result=dtypes.bool_, commutative=True)
lt: Elementwise = elementwise("lt", body=lambda k, x, y: k.lt(x, y), result=dtypes.bool_)
le: Elementwise = elementwise("le", body=lambda k, x, y: k.le(x, y), result=dtypes.bool_)
gt: Elementwise = elementwise("gt", body=lambda k, x, y: k.gt(x, y), result=dtypes.bool_)
ge: Elementwise = elementwise("ge", body=lambda k, x, y: k.ge(x, y), result=dtypes.bool_)

# where(condition, x, y). The branch not taken gets an exact zero, so an infinite derivative there becomes
# nan: PyTorch's
# documented trap, kept.
where: Elementwise = elementwise(
    "where",
    body=lambda k, condition, x, y: k.where(condition, x, y),
    grads=(
        None,
        lambda g, out, condition, x, y: where(condition, g, 0.0),
        lambda g, out, condition, x, y: where(condition, 0.0, g),
    ),
    condition=True,
)

# cast(x, dtype=DType). A 16-bit target is reached through float32, as in PyTorch.
cast: Elementwise = elementwise(
    "cast",
    body=lambda k, x, *, dtype: k.cast(x, dtype.arithmetic),
    grads=(lambda g, out, x, dtype: cast(g, dtype=element_type(x.dtype)),),
    attrs={"dtype": dtypes.float64},
)
