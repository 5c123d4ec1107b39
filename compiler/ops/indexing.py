"""Reading and accumulating at computed positions.

Indices are int64 and in [0, size): wrapping of negative ones is the framework's. A bad index raises before
any work.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ops.bits import bitwise_or
from compiler.ops.compare import eq, ge, lt, where
from compiler.ops.creation import created, iota, zeros
from compiler.ops.facts import Check, Index, Sample
from compiler.ops.op import Op
from compiler.sizes import known_equal, same_shape
from compiler.types import TensorType, type_of_array
from kernels import dtypes
from kernels.gpu import arrays
from kernels.gpu.ordering import add_rows

Array = np.ndarray[Any, Any]


def _outside(x: Any, index: Any, *_: Any, axis: int) -> Any:
    if type(index) is np.ndarray and index.dtype is _INT64:
        return np.greater_equal(index.view(np.uint64), x.shape[axis])  # as unsigned what is negative is large
    return bitwise_or(lt(index, 0), ge(index, x.shape[axis]))


_INT64 = np.dtype(np.int64)


def _index_error(x: Array, index: Array, *_: Any, axis: int) -> IndexError:
    size = x.shape[axis]
    bad = index[(index < 0) | (index >= size)]
    return IndexError(
        f"index {int(bad[0])} is out of range for axis {axis} of size {size}, as are {bad.size - 1} "
        f"others of "
        f"{index.size}; indices must be in [0, {size})"
    )


_IN_RANGE = Check(_outside, _index_error)


def _need_int64(name: str, index: TensorType) -> None:
    if index.dtype is not dtypes.int64:
        raise RuntimeError(f"{name} needs int64 indices, got {index}; cast them first")


def _gather_type(x: TensorType, index: TensorType, *, axis: int) -> TensorType:
    _need_int64("gather", index)
    _need_inside("gather", x, index, axis)
    return TensorType(index.shape, x.dtype)


def _need_inside(name: str, x: TensorType, index: TensorType, axis: int) -> None:
    sizes = list(zip(index.shape, x.shape, strict=False))
    if len(index.shape) != len(x.shape) or any(
        not known_equal(i, s) and i > s for a, (i, s) in enumerate(sizes) if a != axis
    ):
        raise RuntimeError(
            f"{name} along axis {axis} needs an index of the operand's rank and no larger elsewhere, got "
            f"index {index} for {x}"
        )


def _scatter_add_type(x: TensorType, index: TensorType, source: TensorType, *, axis: int) -> TensorType:
    _need_int64("scatter_add", index)
    _need_inside("scatter_add", x, index, axis)
    if source != TensorType(index.shape, x.dtype):
        raise RuntimeError(
            f"scatter_add needs a source of the index's shape and dtype {x.dtype.name}, got {source}"
        )
    return x


def _take_type(x: TensorType, index: TensorType, *, axis: int) -> TensorType:
    _need_int64("take", index)
    return TensorType((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)


def _take_add_type(x: TensorType, index: TensorType, source: TensorType, *, axis: int) -> TensorType:
    needed = _take_type(x, index, axis=axis)
    if source != needed:
        raise RuntimeError(f"take_add of indices {index} into {x} needs a source {needed}, got {source}")
    return x


def elementwise_positions(shape: tuple[int, ...], index: Array, axis: int) -> Array:
    """Flat position in `shape` of every element of a gather-like `index`, which lies inside."""
    arange, total, step = arrays.namespace(index).arange, 0, 1
    for a in range(len(shape) - 1, -1, -1):
        along = (1,) * a + (index.shape[a],) + (1,) * (len(shape) - a - 1)
        total = (index if a == axis else arange(index.shape[a]).reshape(along)) * step + total
        step *= shape[a]
    return total  # type: ignore[return-value]


def _row_positions(shape: tuple[int, ...], index: Array, axis: int) -> Array:
    """Flat position in `shape` of every element of a take-like read."""
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    outer = int(np.prod(shape[:axis], dtype=np.int64))
    arange = arrays.namespace(index).arange
    rows = arange(outer)[:, None] * shape[axis] + index.reshape(1, -1)
    return rows[:, :, None] * inner + arange(inner)


def _accumulate(x: Array, positions: Array, source: Array) -> Array:
    """`x` with `source` added at flat positions, in row-major order of `source`; 16-bit floats round once."""
    if arrays.is_device(x):
        return _accumulate_there(x, positions, source)
    wide = dtypes.of_numpy(x.dtype).arithmetic.numpy
    out = x.astype(wide, order="C").reshape(-1)
    # Flat operands take NumPy's fast path of add.at: 8 times faster than rows.
    np.add.at(out, positions.reshape(-1), source.astype(wide).reshape(-1))
    return out.reshape(x.shape).astype(x.dtype, copy=False)


# What CuPy adds at positions in: other integers in wider ones, signed as unsigned, whose bits are the same.
_ADDED_IN = {"i8": "u8", "u1": "u4", "i1": "u4", "i2": "u4"}


def _accumulate_there(x: Array, positions: Array, source: Array) -> Array:
    """The same on a GPU."""
    wide = dtypes.of_numpy(x.dtype).arithmetic.numpy
    if wide.kind == "f":
        return _rows_there(x, positions.reshape(-1), source, (1, x.size, 1))
    to = np.dtype(_ADDED_IN.get(wide.str[1:], wide))
    out = arrays.row_major(x).astype(to).reshape(-1)
    arrays.engine().xp.add.at(out, positions.reshape(-1), source.astype(to).reshape(-1))
    return out.reshape(x.shape).astype(x.dtype)


def _rows_there(x: Array, index: Array, source: Array, around: tuple[int, int, int]) -> Array:
    """`x` of floats, as an array of three axes, with `source` added at positions of the middle one."""
    wide = dtypes.of_numpy(x.dtype).arithmetic.numpy
    out = arrays.row_major(x).astype(wide).reshape(around)
    add_rows(out, index, arrays.row_major(source, wide))
    return out.reshape(x.shape).astype(x.dtype, copy=False)


def _gather(x: Array, index: Array, *, axis: int) -> Array:
    last = index.ndim == x.ndim == axis + 1 and index.shape[:axis] == x.shape[:axis]
    if not last or index.dtype is not _INT64:
        _gather_type(type_of_array(x), type_of_array(index), axis=axis)
    elif x.size and type(x) is np.ndarray:
        # Along the last axis, as a loss picks its targets: half the time.
        rows = np.arange(0, x.size, x.shape[axis]).reshape((*x.shape[:axis], 1))
        return x.reshape(-1).take(index + rows)
    return arrays.row_major(np.take(x, elementwise_positions(x.shape, index, axis)))


def _scatter_add(x: Array, index: Array, source: Array, *, axis: int) -> Array:
    _scatter_add_type(type_of_array(x), type_of_array(index), type_of_array(source), axis=axis)
    return _accumulate(x, elementwise_positions(x.shape, index, axis), source)


def _take(x: Array, index: Array, *, axis: int) -> Array:
    if index.dtype is not _INT64:
        _take_type(type_of_array(x), type_of_array(index), axis=axis)
    if type(x) is np.ndarray:
        return np.asarray(x.take(index, axis))
    return arrays.row_major(np.take(x, index, axis))


def _take_add(x: Array, index: Array, source: Array, *, axis: int) -> Array:
    _take_add_type(type_of_array(x), type_of_array(index), type_of_array(source), axis=axis)
    if arrays.is_device(x) and dtypes.of_numpy(x.dtype).is_floating_point:
        around = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
        return _rows_there(x, index.reshape(-1), source, around)
    return _accumulate(x, _row_positions(x.shape, index, axis), source)


def _gather_gradient(g: Any, out: Any, x: Any, index: Any, axis: int) -> Any:
    shape = tuple(x.shape)
    if same_shape(tuple(index.shape), (*shape[:axis], 1, *shape[axis + 1 :])):
        # One element read per row (a loss's target): a comparison fuses where a scatter would be a kernel of
        # its own.
        position = created(g, iota, shape=shape, axis=axis, dtype=dtypes.int64)
        return where(eq(position, index), g, 0.0)
    return scatter_add(zeros(g, x.shape), index, g, axis=axis)


# gather(x, index, axis=): out[i][j] = x[index[i][j]][j] for axis 0, as torch.gather.
gather: Op = Op(
    "gather",
    _gather,
    _gather_type,
    (_gather_gradient, None),
    check=_IN_RANGE,
    samples=(
        Sample(((3, 4), Index((2, 4), 3)), {"axis": 0}),
        Sample(((3, 4), Index((3, 1), 4)), {"axis": 1}),
        Sample(((3, 4), Index((2, 7), 4)), {"axis": 1}),
    ),
)
# scatter_add(x, index, source, axis=): `x` with every source[i][j] added to x[index[i][j]][j] (axis 0).
scatter_add: Op = Op(
    "scatter_add",
    _scatter_add,
    _scatter_add_type,
    (
        lambda g, out, x, index, source, axis: g,
        None,
        lambda g, out, x, index, source, axis: gather(g, index, axis=axis),
    ),
    check=_IN_RANGE,
    samples=(
        Sample(((3, 4), Index((5, 4), 3), (5, 4)), {"axis": 0}),
        Sample(((3, 4), Index((2, 7), 4), (2, 7)), {"axis": 1}),
    ),
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)
# take(x, index, axis=): an index of any shape replaces `axis` (embedding, index_select).
take: Op = Op(
    "take",
    _take,
    _take_type,
    (lambda g, out, x, index, axis: take_add(zeros(g, x.shape), index, g, axis=axis), None),
    check=_IN_RANGE,
    samples=(
        Sample(((3, 4), Index((2, 5), 3)), {"axis": 0}),
        Sample(((3, 4), Index((), 4)), {"axis": 1}),
        Sample(((3,), Index((), 3)), {"axis": 0}),
    ),
)
# take_add(x, index, source, axis=): `x` with `source` added where take would read; repeated indices
# accumulate.
take_add: Op = Op(
    "take_add",
    _take_add,
    _take_add_type,
    (
        lambda g, out, x, index, source, axis: g,
        None,
        lambda g, out, x, index, source, axis: take(g, index, axis=axis),
    ),
    check=_IN_RANGE,
    samples=(
        Sample(((3, 4), Index((2, 5), 3), (2, 5, 4)), {"axis": 0}),
        Sample(((2, 3, 4), Index((5,), 3), (2, 5, 4)), {"axis": 1}),
    ),
    categories=(dtypes.INTEGER, dtypes.FLOATING),
)
