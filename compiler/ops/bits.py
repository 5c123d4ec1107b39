"""Bitwise operations on integers, logical ones on bool.

Nothing here has a gradient.
"""

from __future__ import annotations

from compiler.ops.op import Elementwise, elementwise
from kernels import dtypes

_BITS = (dtypes.BOOL, dtypes.INTEGER)
_INTEGERS = (dtypes.INTEGER,)

bitwise_and: Elementwise = elementwise(
    "bitwise_and", body=lambda k, x, y: k.and_(x, y), commutative=True, categories=_BITS
)
bitwise_or: Elementwise = elementwise(
    "bitwise_or", body=lambda k, x, y: k.or_(x, y), commutative=True, categories=_BITS
)
bitwise_xor: Elementwise = elementwise(
    "bitwise_xor", body=lambda k, x, y: k.xor(x, y), commutative=True, categories=_BITS
)
invert: Elementwise = elementwise("invert", body=lambda k, x: k.invert(x), categories=_BITS)
shift_left: Elementwise = elementwise(
    "shift_left", body=lambda k, x, y: k.shift_left(x, y), unit=0, categories=_INTEGERS
)
shift_right: Elementwise = elementwise(
    "shift_right", body=lambda k, x, y: k.shift_right(x, y), unit=0, categories=_INTEGERS
)
