"""The scalar vocabulary: what one element of a kernel may compute, and its meaning in NumPy.

A loop body is a function over an abstract `k: Scalars[T]`. `T` is an ndarray in the meaning below, a named
register of generated source in a back end, a counter in a cost model. Nothing here knows ops or tensors.

Rules every back end keeps: elements are bool, integers, float32 or float64 (16-bit floats are widened before
and rounded after); Python numbers are weak (they take the dtype of the other operand); integers wrap at their
width; no fused multiply-add and no reassociation across vocabulary calls; NaN, infinities and signed zero
survive.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

from kernels import memory
from kernels.dtypes import DType
from kernels.philox import random_bits

T = TypeVar("T")
# Functions worth keeping in memory rather than computing again: some ten instructions and more.
EXPENSIVE = frozenset(
    "exp expm1 log log1p sin cos tanh erf sigmoid pow fmod floor_div remainder random_bits".split()
)


class Scalars(Protocol[T]):
    """What one element of a kernel may compute. Operands are elements or Python numbers, at least one an
    element.
    """

    # Arithmetic, on any numeric dtype; `div` is for floating dtypes only.
    def add(self, x: Any, y: Any) -> T: ...
    def sub(self, x: Any, y: Any) -> T: ...
    def mul(self, x: Any, y: Any) -> T: ...
    def div(self, x: Any, y: Any) -> T: ...
    def neg(self, x: T) -> T: ...
    def abs(self, x: T) -> T: ...
    # Quotient rounded to minus infinity and its remainder. Integers: a zero divisor is checked before the
    # kernel, and min // -1 is min. Floats: the bits of `float_floor_div` and `float_remainder` below.
    def floor_div(self, x: Any, y: Any) -> T: ...
    def remainder(self, x: Any, y: Any) -> T: ...
    # C's remainder, with the sign of x.
    def fmod(self, x: Any, y: Any) -> T: ...
    # NaN from either operand wins.
    def maximum(self, x: Any, y: Any) -> T: ...
    def minimum(self, x: Any, y: Any) -> T: ...

    # Floating functions; ulp bounds of the CPU back end are in kernels/cpu/vector_math.py.
    def sqrt(self, x: T) -> T: ...
    def rsqrt(self, x: T) -> T: ...
    def exp(self, x: T) -> T: ...
    def expm1(self, x: T) -> T: ...
    def log(self, x: T) -> T: ...
    def log1p(self, x: T) -> T: ...
    def sin(self, x: T) -> T: ...
    def cos(self, x: T) -> T: ...
    def tanh(self, x: T) -> T: ...
    def erf(self, x: T) -> T: ...
    def sigmoid(self, x: T) -> T: ...
    def pow(self, x: Any, y: Any) -> T: ...
    def floor(self, x: T) -> T: ...
    def ceil(self, x: T) -> T: ...
    def trunc(self, x: T) -> T: ...
    def round(self, x: T) -> T: ...

    # Comparisons give bool elements.
    def eq(self, x: Any, y: Any) -> T: ...
    def ne(self, x: Any, y: Any) -> T: ...
    def lt(self, x: Any, y: Any) -> T: ...
    def le(self, x: Any, y: Any) -> T: ...
    def gt(self, x: Any, y: Any) -> T: ...
    def ge(self, x: Any, y: Any) -> T: ...

    # Bits, for integers and bool. Shifts by the width or more give 0 (or the sign); by less than 0, 0 (or the
    # sign).
    def and_(self, x: Any, y: Any) -> T: ...
    def or_(self, x: Any, y: Any) -> T: ...
    def xor(self, x: Any, y: Any) -> T: ...
    def invert(self, x: T) -> T: ...
    def shift_left(self, x: Any, y: Any) -> T: ...
    def shift_right(self, x: Any, y: Any) -> T: ...

    # Selection and conversion. Float to integer truncates; the conversion of NaN or out-of-range values is
    # the CPU's.
    def where(self, condition: T, x: Any, y: Any) -> T: ...
    def cast(self, x: T, dtype: DType) -> T: ...

    # Element `i` of random stream (seed, offset): see kernels/philox.py. `seed`, `offset`, `i` are int64
    # elements.
    def random_bits(self, seed: T, offset: T, i: T) -> T: ...


def float_floor_div(k: Any, x: Any, y: Any) -> Any:
    """Floor division of floats as PyTorch defines it, from other words: the exact remainder goes first, so 1
    // 0.1 is 9.
    """
    remainder = k.fmod(x, y)
    quotient = k.div(k.sub(x, remainder), y)
    quotient = k.where(_other_sign(k, remainder, y), k.sub(quotient, 1), quotient)
    floored = k.floor(quotient)
    floored = k.where(k.gt(k.sub(quotient, floored), 0.5), k.add(floored, 1), floored)
    exact = k.div(x, y)
    # A zero takes the sign of the exact quotient, which is finite there.
    return k.where(k.eq(y, 0), exact, k.where(k.eq(quotient, 0), k.mul(exact, 0), floored))


def float_remainder(k: Any, x: Any, y: Any) -> Any:
    """The remainder of floats with the sign of `y`, from other words; a zero keeps the sign of `x`, as in
    PyTorch.
    """
    remainder = k.fmod(x, y)
    return k.where(_other_sign(k, remainder, y), k.add(remainder, y), remainder)


def _other_sign(k: Any, remainder: Any, y: Any) -> Any:
    return k.and_(k.ne(remainder, 0), k.xor(k.lt(remainder, 0), k.lt(y, 0)))


# Integers of the size of floating elements.
_BITS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}


@lru_cache(256)
def _element(x: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A whole number as an array without axes, which np.where takes in a third less time."""
    return np.asarray(x).astype(dtype)


def _is_zero(x: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number, or an array of this dtype without axes, is 0 and not -0.0."""
    if type(x) is np.ndarray:
        return x.dtype is dtype and not x.ndim and not any(x.tobytes())
    return type(x) is int and x == 0


class NumpyScalars:
    """The vocabulary on ndarrays: eager values, and the oracle of every back-end test.

    Division by zero and overflow are silent here; callers hold `np.errstate(all="ignore")`.
    """

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.true_divide)
    neg = staticmethod(np.negative)
    abs = staticmethod(np.abs)
    fmod = staticmethod(np.fmod)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    sqrt = staticmethod(np.sqrt)
    exp = staticmethod(np.exp)
    expm1 = staticmethod(np.expm1)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    sin = staticmethod(np.sin)
    cos = staticmethod(np.cos)
    tanh = staticmethod(np.tanh)
    pow = staticmethod(np.power)
    floor = staticmethod(np.floor)
    ceil = staticmethod(np.ceil)
    trunc = staticmethod(np.trunc)
    round = staticmethod(np.rint)
    eq = staticmethod(np.equal)
    ne = staticmethod(np.not_equal)
    lt = staticmethod(np.less)
    le = staticmethod(np.less_equal)
    gt = staticmethod(np.greater)
    ge = staticmethod(np.greater_equal)
    and_ = staticmethod(np.bitwise_and)
    or_ = staticmethod(np.bitwise_or)
    xor = staticmethod(np.bitwise_xor)
    invert = staticmethod(np.invert)
    random_bits = staticmethod(random_bits)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        bits = _BITS.get(y.dtype) if type(y) is np.ndarray else None
        if bits is not None:
            if y.size > 2048 and _is_zero(x, y.dtype):
                # Half the time of np.where at 4096 elements, a quarter at 65536. Of bits, that nothing is a
                # NaN.
                return self._kept(y, self.invert(condition), bits)
            if type(x) is int:
                x = _element(x, y.dtype)
        return np.where(condition, x, y)

    def _kept(self, x: Any, condition: Any, bits: np.dtype[Any]) -> Any:
        """Floating `x` where `condition` holds, zeros elsewhere; `bits` are integers of its size."""
        if condition.shape != x.shape:
            return np.multiply(x.view(bits), condition).view(x.dtype)
        ones = condition.astype(bits)
        return np.multiply(x.view(bits), ones, ones).view(x.dtype)

    def floor_div(self, x: Any, y: Any) -> Any:
        return float_floor_div(self, x, y) if np.result_type(x, y).kind == "f" else np.floor_divide(x, y)

    def remainder(self, x: Any, y: Any) -> Any:
        return float_remainder(self, x, y) if np.result_type(x, y).kind == "f" else np.remainder(x, y)

    def rsqrt(self, x: Any) -> Any:
        return 1 / np.sqrt(x)

    def sigmoid(self, x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def erf(x: Any) -> Any:
        from scipy.special import erf  # 0.15 s to import: only a use pays

        return erf(x)

    @staticmethod
    def cast(x: Any, dtype: DType) -> Any:
        return np.asarray(x).astype(dtype.numpy)

    @staticmethod
    def shift_left(x: Any, y: Any) -> Any:
        kind = np.result_type(x, y)
        bits = 8 * kind.itemsize
        return np.where((y >= 0) & (y < bits), np.left_shift(x, np.clip(y, 0, bits - 1)), 0).astype(kind)

    @staticmethod
    def shift_right(x: Any, y: Any) -> Any:
        kind = np.result_type(x, y)
        bits = 8 * kind.itemsize
        inside = (y >= 0) & (y < bits)
        # PyTorch fills with the sign for any amount outside the width: -1 >> 70 is -1, and 255 >> 8 is 0.
        return np.where(
            inside | (kind.kind == "i"), np.right_shift(x, np.where(inside, y, bits - 1)[()]), 0
        ).astype(kind)


def _into_reused(ufunc: np.ufunc, result: np.dtype[Any] | None = None) -> Any:
    """`ufunc` with its result in reused memory, of the dtype of its operands or of `result`."""

    def function(*operands: Any) -> Any:
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        if not arrays:
            return ufunc(*operands)
        shape = arrays[0].shape
        if len(arrays) > 1 and arrays[1].shape != shape:
            shape = np.broadcast_shapes(*(x.shape for x in arrays))
        return ufunc(*operands, out=memory.empty(shape, result or arrays[0].dtype))

    return staticmethod(function)


class PooledScalars(NumpyScalars):
    """The vocabulary on large ndarrays: each result is in memory that an earlier one gave back."""

    add, sub, mul, div = (_into_reused(f) for f in (np.add, np.subtract, np.multiply, np.true_divide))
    neg, abs, sqrt, fmod = (_into_reused(f) for f in (np.negative, np.absolute, np.sqrt, np.fmod))
    maximum, minimum = _into_reused(np.maximum), _into_reused(np.minimum)
    exp, expm1, log, log1p = (_into_reused(f) for f in (np.exp, np.expm1, np.log, np.log1p))
    sin, cos, tanh, pow = (_into_reused(f) for f in (np.sin, np.cos, np.tanh, np.power))
    floor, ceil, trunc, round = (_into_reused(f) for f in (np.floor, np.ceil, np.trunc, np.rint))
    eq, ne = _into_reused(np.equal, np.dtype(bool)), _into_reused(np.not_equal, np.dtype(bool))
    lt, le = _into_reused(np.less, np.dtype(bool)), _into_reused(np.less_equal, np.dtype(bool))
    gt, ge = _into_reused(np.greater, np.dtype(bool)), _into_reused(np.greater_equal, np.dtype(bool))

    def _kept(self, x: Any, condition: Any, bits: np.dtype[Any]) -> Any:
        """As above, without a second large array."""
        return self.mul(x.view(bits), condition).view(x.dtype)

    def rsqrt(self, x: Any) -> Any:
        return self.div(1, self.sqrt(x))

    def sigmoid(self, x: Any) -> Any:
        return self.div(1, self.add(1, self.exp(self.neg(x))))
