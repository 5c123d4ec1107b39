"""Comparing whole tensors: equal, allclose, isclose, isin.

Elementwise comparisons are in elementwise.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.access import beside, host
from framework.elementwise import abs as absolute
from framework.elementwise import add, bitwise_and, bitwise_or, eq, isfinite, isnan, le, mul, sub
from framework.promotion import as_operand, convert, promoted
from framework.tensor import Tensor, concrete, wrap
from framework.transfer import moved_to
from kernels import dtypes
from kernels.gpu import arrays, ordering


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are the same."""
    return input.shape == other.shape and bool(eq(input, other).all())


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Whether |input - other| <= atol + rtol * |other|, elementwise; equal infinities are close."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"{input.dtype.name} did not match {other.dtype.name}; convert one of them")
    close = eq(input, other)
    if equal_nan:
        close = bitwise_or(close, bitwise_and(isnan(input), isnan(other)))
    if input.dtype is dtypes.bool_:
        return close
    wide = (convert(x, dtypes.float64) if not x.dtype.is_floating_point else x for x in (input, other))
    x, y = wide
    gap = absolute(sub(x, y))
    within = le(gap, add(mul(absolute(y), rtol), atol))
    return bitwise_or(close, bitwise_and(within, isfinite(gap)))


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close; see `isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element occurs among `test_elements`."""
    x, y = promoted(as_operand(elements), as_operand(test_elements))
    if isinstance(x, Tensor) and x.is_cuda:
        among = concrete(moved_to(y, x)) if isinstance(y, Tensor) else np.asarray(y)
        return wrap(_occurs(concrete(x), among, invert))
    among, wanted = (host(v) if isinstance(v, Tensor) else np.asarray(v) for v in (x, y))
    found = np.asarray(np.isin(among, wanted, invert=invert))
    return beside(x, found) if isinstance(x, Tensor) else wrap(found)


@arrays.located
def _occurs(x: Any, among: Any, invert: bool) -> Any:
    """Whether each element is one of others, on a GPU; nan is none."""
    flat = arrays.put(among, x.device.id).reshape(-1)
    if not flat.size:
        return arrays.namespace(x).full(x.shape, invert, np.bool_)
    ordered = flat[ordering.order(flat, 0)].astype(x.dtype)
    near = np.minimum(ordering.searched(ordered, x, False), flat.size - 1)
    wide = dtypes.of_numpy(x.dtype).arithmetic.numpy
    found = ordered[near].astype(wide) == x.astype(wide)
    return ~found if invert else found


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is floating."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex: there are no complex dtypes."""
    return False


def is_nonzero(input: Tensor) -> bool:
    """Whether the one element is nonzero."""
    return bool(input)


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.numel()
