"""Run any loop spec in NumPy: the meaning of a spec, and the oracle of every back end's tests.

Slow on purpose; knows no threads and no vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels import dtypes
from kernels.scalar import NumpyScalars
from kernels.spec import (
    COMBINE,
    Call,
    Index,
    Literal,
    Load,
    LoopSpec,
    MatmulSpec,
    Reduce,
    Scan,
    Store,
    identity,
)

_UFUNC = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def run(
    spec: LoopSpec,
    extents: Sequence[int],
    arrays: Sequence[np.ndarray[Any, Any]],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> None:
    """Execute `spec` on flat `arrays` (one per operand, written in place); `strides` in elements, one per
    axis.

    Operands start at `offsets` in their arrays. An outer reduction writes one slice: the whole loop is a
    single part.
    """
    extents, values = tuple(extents), {}
    inner_axes = tuple(range(spec.rows, spec.axes))
    places = [
        o + _addresses(extents, s) for o, s in zip(offsets or (0,) * len(strides), strides, strict=True)
    ]
    k = NumpyScalars()

    def address(operand: int, index: str | None) -> Any:
        place = places[operand]
        return place if index is None else place + values[index] * (index_strides or [])[operand]

    with np.errstate(all="ignore"):
        for step in spec.steps:
            match step:
                case Load(out, operand, index):
                    values[out] = _held(arrays[operand][address(operand, index)])
                case Literal(out, value, dtype):
                    values[out] = _held(np.asarray(value).astype(dtype.numpy))
                case Index(out, operand):
                    values[out] = arrays[operand].reshape(-1)[0] + places[operand]
                case Call(out, function, inputs, dtype):
                    operands = [values[x] for x in inputs]
                    if function == "cast":
                        values[out] = _held(k.cast(operands[0], dtype))
                    else:
                        values[out] = np.asarray(getattr(k, function)(*operands), dtype.arithmetic.numpy)
                case Reduce(out, value, combine, dtype, outer, operand):
                    full = np.broadcast_to(values[value], _full(extents, spec, outer, values[value]))
                    axes = tuple(range(spec.rows)) if outer else inner_axes
                    wide = full.astype(np.float64) if dtype.is_floating_point and combine == "add" else full
                    initial = identity(combine, dtype)
                    result = (
                        _UFUNC[combine]
                        .reduce(wide, axis=axes, keepdims=True, initial=initial)
                        .astype(dtype.numpy)
                    )
                    if outer:
                        arrays[operand][places[operand][(slice(0, 1),) * spec.rows]] = result
                    else:
                        values[out] = _held(result)
                case Scan(out, value, combine, dtype, factor):
                    shape = np.broadcast_shapes(np.shape(values[value]), (1,) * spec.rows + extents[-1:])
                    terms = np.broadcast_to(values[value], shape)
                    if factor:
                        shape = np.broadcast_shapes(shape, np.shape(values[factor]))
                        found = _recurrence(*(np.broadcast_to(values[x], shape) for x in (factor, value)))
                    else:
                        found = _UFUNC[combine].accumulate(terms, -1, dtype=terms.dtype)
                    values[out] = _held(found)
                case Store(value, operand, index):
                    place = np.asarray(address(operand, index))
                    shape = np.broadcast_shapes(place.shape, np.shape(values[value]))
                    if index is not None:  # as often as the loop comes here, however often at one place
                        shape = np.broadcast_shapes(shape, (*extents[: spec.rows], *(1,) * spec.inner))
                    if index is None:
                        arrays[operand][np.broadcast_to(place, shape)] = np.broadcast_to(values[value], shape)
                    else:
                        np.add.at(
                            arrays[operand],
                            np.broadcast_to(place, shape),
                            np.broadcast_to(values[value], shape),
                        )
    assert set(COMBINE) == set(_UFUNC)


def run_matmul(
    spec: MatmulSpec,
    extents: Sequence[int],
    arrays: Sequence[np.ndarray[Any, Any]],
    strides: Sequence[Sequence[int]],
    offsets: Sequence[int] | None = None,
) -> None:
    """Execute `spec` on flat `arrays` as `run` does: sums over k in float64, rounded once to the product's
    dtype.
    """
    batch, (m, n, *k) = tuple(extents[: spec.batch]), extents[spec.batch :]
    offsets = offsets or (0,) * len(strides)
    a = arrays[0][np.broadcast_to(offsets[0] + _addresses((*batch, m, *k), strides[0]), (*batch, m, *k))]
    b = arrays[1][np.broadcast_to(offsets[1] + _addresses((*batch, *k, n), strides[1]), (*batch, *k, n))]
    a, b = a.reshape(*batch, m, math.prod(k)), b.reshape(*batch, math.prod(k), n)
    strides = [(0,) * (spec.batch + 2)] * 2 + list(strides[2:])  # no step of the epilogue reads A or B
    with np.errstate(all="ignore"):
        product = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(spec.dtype.numpy)
    shape = (*batch, m, n)
    contiguous = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    run(spec.epilogue, shape, [*arrays, product.reshape(-1)], [*strides, contiguous], offsets=[*offsets, 0])


def _recurrence(factor: np.ndarray[Any, Any], value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """factor * before + value along the last axis, one after the other."""
    found = value.copy()
    for i in range(1, value.shape[-1]):
        before = found[..., i - 1]
        found[..., i] = np.where(before == 0, value[..., i], factor[..., i] * before + value[..., i])
    return found


def _held(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A value as kernels hold it: a 16-bit float in float32, to be rounded again when it is stored."""
    return x.astype(dtypes.of_numpy(x.dtype).arithmetic.numpy, copy=False)


def _full(extents: tuple[int, ...], spec: LoopSpec, outer: bool, value: Any) -> tuple[int, ...]:
    """The shape a value is reduced from: a row-level value has no inner extent when reduced over the rows."""
    shape = np.shape(value)
    inner = extents[spec.rows :]
    if outer and all(s == 1 for s in shape[spec.rows :]):
        inner = (1,) * spec.inner
    return (*extents[: spec.rows], *inner)


def _addresses(extents: tuple[int, ...], strides: Sequence[int]) -> Any:
    place: Any = np.zeros((1,) * len(extents), np.int64)
    for axis, (extent, stride) in enumerate(zip(extents, strides, strict=True)):
        if stride:
            place = place + (np.arange(extent) * stride).reshape(
                [-1 if a == axis else 1 for a in range(len(extents))]
            )
    return place
