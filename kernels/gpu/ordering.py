"""Order, running totals and sums at positions of arrays on a GPU: what CuPy's functions leave open.

Its sort is stable, and is given integers alone here, so that the order of NaN and of zeros is the host's; its
sums at positions are atomic, and those of ours in order. Takes and gives CuPy's arrays on the current GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kernels.gpu import arrays

Array = Any


def keys(x: Array) -> Array:
    """Integers in the order of the elements: NaN is the largest, and 0.0 and -0.0 are one."""
    if x.dtype.kind in "iu":
        return x
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    bits, xp = np.dtype(f"i{x.dtype.itemsize}"), arrays.engine().xp
    top, infinity = np.iinfo(bits).max, np.array(np.inf, x.dtype).view(bits)[()]
    words = arrays.row_major(x).view(bits)
    size = words & bits.type(top)
    return xp.where(size > infinity, bits.type(top), xp.where(words < 0, -size, size))


def order(x: Array, axis: int, descending: bool = False) -> Array:
    """Positions that put the elements in order along an axis; equal ones keep theirs. NaN is the largest."""
    xp = arrays.engine().xp
    if not x.size:
        return xp.zeros(x.shape, np.int64)
    found = keys(x)
    return arrays.row_major(xp.argsort(~found if descending else found, axis), np.int64)


def order_of_rows(x: Array) -> Array:
    """Positions that put the rows of a matrix in order, by their first element, then by their second, ..."""
    xp = arrays.engine().xp
    if not x.size:
        return xp.arange(len(x))
    return xp.lexsort(arrays.row_major(keys(x).T[::-1])).astype(np.int64, copy=False)


def running(combine: str, x: Array, axis: int) -> Array:
    """Each element combined with all before it along an axis, by a ufunc of CuPy's, in steps that double
    (Hillis and Steele, 1986): always in the same order, but in another than one after the other."""
    xp = arrays.engine().xp
    if combine == "add" and x.dtype == np.int64:
        return xp.cumsum(x, axis)
    function, step, size = getattr(xp, combine), 1, x.shape[axis]
    x = arrays.copied(x)
    while step < size:
        joined = function(_part(x, axis, 0, size - step), _part(x, axis, step, size))
        x = xp.concatenate([_part(x, axis, 0, step), joined], axis)
        step *= 2
    return x


def _part(x: Array, axis: int, start: int, stop: int) -> Array:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def searched(edges: Array, values: Array, right: bool) -> Array:
    """Where each value would be inserted into its row of ordered edges; a single row serves all values.

    `edges` is [n] or [rows, n], `values` of any shape or [rows, m].
    """
    xp, size = arrays.engine().xp, edges.shape[-1]
    kind = np.result_type(edges.dtype, values.dtype)
    known, wanted = keys(edges.astype(kind)).reshape(-1), keys(values.astype(kind))
    first = 0 if edges.ndim == 1 else xp.arange(edges.shape[0])[:, None] * size
    low, high = (xp.full(values.shape, n, np.int64) for n in (0, size))
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        there = xp.take(known, xp.minimum(middle, size - 1) + first)
        above = (there <= wanted if right else there < wanted) & (low < high)
        low, high = xp.where(above, middle + 1, low), xp.where(above, high, middle)
    return low


def starts(ordered: Array) -> Array:
    """Whether each element of a vector, equal ones side by side, is another than the one before."""
    xp = arrays.engine().xp
    return xp.concatenate([xp.ones(min(len(ordered), 1), np.bool_), ordered[1:] != ordered[:-1]])


def replace_rows(out: Array, index: Array, source: Array) -> None:
    """Put rows of `source` at positions of a vector into `out`; of those put at one, the last stays."""
    if not len(index):
        return
    found = order(index, 0)
    there = index[found]
    last = arrays.engine().xp.flip(starts(arrays.engine().xp.flip(there)))
    out[there[last]] = source[found[last]]


# What one thread does for element `i` of [outer, count, inner]: the first of those with its position adds
# them all. C as well as CUDA, so that any compiler can check it.
BODY = """
    long long c = i % inner, q = i / inner, r = q % count, o = q / count, place = at[r];
    if (r == 0 || at[r - 1] != place) {
        long long target = (o * length + place) * inner + c;
        T total = out[target];
        for (long long k = r; k < count && at[k] == place; ++k)
            total += source[(o * count + order[k]) * inner + c];
        out[target] = total;
    }
"""
# The same for products.
PRODUCTS = BODY.replace("+=", "*=")


@cache
def _in_order(xp: Any, body: str) -> Callable[..., None]:
    given = "raw int64 at, raw int64 order, raw T source, int64 count, int64 inner, int64 length"
    name = "tracefuse_add_in_order" if body is BODY else "tracefuse_multiply_in_order"
    return xp.ElementwiseKernel(given, "raw T out", body, name)


def add_rows(out: Array, index: Array, source: Array) -> None:
    """Add to floats `out` [outer, length, inner] at positions of a vector `index` [count] of its middle axis
    what `source` [outer, count, inner] has, in its order. All are row-major."""
    xp, (outer, length, inner), count = arrays.engine().xp, out.shape, len(index)
    if not source.size:
        return
    if not hasattr(xp, "ElementwiseKernel"):
        rows = xp.arange(outer)[:, None] * length + index
        positions = (rows[:, :, None] * inner + xp.arange(inner)).reshape(-1)
        xp.add.at(out.reshape(-1), positions, source.reshape(-1))
        return
    found = order(index, 0)
    flat = source.reshape(-1), out.reshape(-1)
    _in_order(xp, BODY)(index[found], found, flat[0], count, inner, length, flat[1], size=source.size)


def multiply_at(out: Array, index: Array, source: Array) -> None:
    """Multiply numbers of a vector `out` at positions by those of `source`, in its order."""
    xp, count = arrays.engine().xp, len(index)
    if not count:
        return
    found = order(index, 0)
    at, factors = index[found], source[found]
    if hasattr(xp, "ElementwiseKernel"):
        _in_order(xp, PRODUCTS)(at, found, source, count, 1, len(out), out, size=count)
        return
    # What comes first at each position, then what comes second, ...
    first = starts(at)
    (begins,) = xp.nonzero(first)
    turn = xp.arange(count) - begins[xp.cumsum(first.astype(np.int64), 0) - 1]
    for number in range(int(turn.max()) + 1):
        now = turn == number
        out[at[now]] = out[at[now]] * factors[now]
