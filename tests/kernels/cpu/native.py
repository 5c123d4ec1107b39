"""Run one loop spec natively, between guard bytes, and beside the reference; and data to run it on.

The allowed difference is the caller's; everything else must be equal bit for bit, guards included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels import dtypes, reference
from kernels.cpu import pool, runner
from kernels.cpu.runner import Program
from kernels.cpu.target import lanes
from kernels.dtypes import DType
from kernels.spec import Index, LoopSpec
from kernels.work import Work

Array = np.ndarray[Any, Any]
# Everything around the width of a vector, nothing at all, and many.
EXTENTS = (0, 1, lanes() - 1, lanes(), lanes() + 1, 100)
# Bytes around every array that no kernel may write.
_MARGIN = 256
_GUARD = 0xA5


def run_native(
    spec: LoopSpec,
    extents: Sequence[int],
    arrays: Sequence[Array],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    *,
    parts: int = 0,
) -> list[Array]:
    """The flat arrays after the compiled `spec` ran on copies of them."""
    indexed = tuple(index_strides or (0,) * len(arrays))
    work = Work(spec, tuple(extents), tuple(tuple(s) for s in strides), indexed, parts)
    program = Program([work], [0])
    guarded = [_between_guards(x) for x in arrays]
    counters = {s.operand for s in spec.steps if isinstance(s, Index)}
    for operand, (_, inside) in enumerate(guarded):
        place = int(inside[0]) if operand in counters else inside.ctypes.data
        program.table[program.pointer_slot(0, operand)] = place
    assert runner.native_run()(program.address, pool.address() if program.parallel else 0) == 0
    for number, (whole, inside) in enumerate(guarded):
        edges = whole[:_MARGIN], whole[_MARGIN + inside.nbytes :]
        assert all((edge == _GUARD).all() for edge in edges), f"{spec.name} wrote outside operand {number}"
    return [inside for _, inside in guarded]


def run_reference(
    spec: LoopSpec,
    extents: Sequence[int],
    arrays: Sequence[Array],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> list[Array]:
    """The flat arrays after the reference ran on copies of them."""
    copies = [x.copy() for x in arrays]
    reference.run(spec, extents, copies, strides, index_strides, offsets)
    return copies


def check(
    spec: LoopSpec,
    extents: Sequence[int],
    arrays: Sequence[Array],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    ulps: int = 0,
) -> list[Array]:
    """Both results agree on every operand: equal, or floats within `ulps`. Returns the native one."""
    got = run_native(spec, extents, arrays, strides, index_strides)
    wanted = run_reference(spec, extents, arrays, strides, index_strides)
    assert_all_near(got, wanted, ulps, f"of {spec} over {list(extents)}")
    return got


def assert_all_near(got: Sequence[Array], wanted: Sequence[Array], ulps: int, words: str) -> None:
    """`assert_near` of every operand."""
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert_near(a, b, ulps, f"operand {number} {words}")


def assert_near(got: Array, wanted: Array, ulps: int, words: str = "") -> None:
    """Equal elements, NaN and the sign of zero included; floats may be `ulps` apart."""
    assert got.dtype == wanted.dtype, words
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, wanted, words)
        return
    apart = np.abs(_ordered(got) - _ordered(wanted))
    nan = np.isnan(got)
    bad = (nan != np.isnan(wanted)) | (~nan & (apart > ulps))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        near = [x.reshape(-1)[first] for x in (got, wanted)]
        raise AssertionError(f"{bad.sum()} of {bad.size} differ, first {near} at {first}: {words}")


def _ordered(x: Array) -> Array:
    """Floats as integers whose differences are ulps; -0.0 is one below 0.0, so that 0 ulps tells them
    apart.
    """
    bits = (
        np.ascontiguousarray(x)
        .view(f"i{x.dtype.itemsize}")
        .astype(object if x.dtype.itemsize == 8 else np.int64)
    )
    lowest = -(2 ** (8 * x.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits - 1, bits)


def _between_guards(x: Array) -> tuple[Array, Array]:
    whole = np.full(x.nbytes + 2 * _MARGIN, _GUARD, np.uint8)
    inside = whole[_MARGIN : _MARGIN + x.nbytes].view(x.dtype)
    inside[:] = x
    return whole, inside


def drawn(dtype: DType, size: int, seed: int = 0) -> Array:
    """Random elements, with special ones among the first where a dtype has them."""
    rng = np.random.default_rng([seed, size])
    if dtype is dtypes.bool_:
        return rng.random(size) < 0.5
    if not dtype.is_floating_point:
        limits = np.iinfo(dtype.numpy)
        x = rng.integers(-9 if dtype.is_signed else 0, 10, size).astype(dtype.numpy)
        special = [limits.max, limits.min, 0, 1]
    else:
        x = rng.normal(0, 3, size).astype(dtype.numpy)
        special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 2.5, 0.5, 1e-5]
    count = min(size // 3, len(special))
    x[rng.permutation(size)[:count]] = np.array(special[:count]).astype(dtype.numpy)
    return x


def plain(dtype: DType, size: int, seed: int = 0) -> Array:
    """Small random elements, for reductions whose order is free."""
    rng = np.random.default_rng([seed, size])
    if dtype is dtypes.bool_:
        return rng.random(size) < 0.5
    return (
        rng.normal(0, 1, size).astype(dtype.numpy)
        if dtype.is_floating_point
        else rng.integers(0, 4, size).astype(dtype.numpy)
    )
