"""Words of matrix products on NumPy vectors: the plain twin of `kernels.cpu.matmul_words`.

Each is made for one block shape, layout and set of dtypes. Sums run in the order of the machine code's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels import dtypes
from kernels.cpu.plain.lanes import fma
from kernels.cpu.plain.memory import current
from kernels.cpu.plain.vocabulary import LANES, read, to_register

Array = np.ndarray[Any, Any]
Word = Callable[..., None]


def _line(dtype: Any, address: int, count: int) -> Array:
    """`count` elements that lie next to each other, in the form that words take."""
    if count <= 0:
        return np.zeros(0, np.float32)
    return to_register(dtype, current().at(address, count, dtype.numpy))


def multiply(
    rows: int,
    vectors: int,
    dtype: str,
    left: str,
    contiguous: bool,
    packed: bool,
    depth: int = 1,
    sliced: bool = False,
) -> Word:
    """Word for a block of `rows` by `vectors` vectors of A @ B, summed in the order of k."""
    kind, stored = dtypes.named(dtype), dtypes.named(left)
    width = vectors * LANES

    def block(a: int, row: int, last: int, row_stride: int, step: int, b: int, b_step: int, columns: int,
              ahead: int, ahead_step: int, out: int, out_stride: int, k: int,
              *outer: int) -> None:  # fmt: skip
        starts = np.array([min(row + i, last) * row_stride for i in range(rows)])
        count = width if packed else max(min(width, columns), 0)
        b_step = width if packed else b_step
        step = 1 if contiguous else step
        total = np.zeros((rows, width), kind.numpy)
        outer, onto = (outer[1:], outer[0]) if sliced else (outer, 0)
        if onto:
            places = [out + i * out_stride * kind.itemsize for i in range(rows)]
            total = np.stack([current().at(place, width, kind.numpy) for place in places])

        def nest(axes: tuple[int, ...], start: int, line: int, total: Array) -> Array:
            if axes:
                extent, a_stride, b_stride = axes[:3]
                if packed:  # what the axes inside hold
                    b_stride = k * b_step * int(np.prod(axes[3::3], dtype=np.int64))
                for index in range(extent):
                    total = nest(axes[3:], start + index * a_stride, line + index * b_stride, total)
                return total
            for index in range(k):
                scalars = read(stored, a, starts + start + index * step, np.ones(rows, bool))
                right = np.zeros(width, kind.numpy)
                right[:count] = _line(kind, b + (line + index * b_step) * kind.itemsize, count)
                total = fma(scalars.astype(kind.numpy)[:, None], right[None, :], total)
            return total

        total = nest(outer, 0, 0, total)
        for i in range(rows):
            current().at(out + i * out_stride * kind.itemsize, width, kind.numpy)[:] = total[i]

    return block


def sweep(rows: int, dtype: str, left: str, contiguous: bool) -> Word:
    """Word for a block of few rows and any number of columns of A @ B, summed in the order of k."""
    kind, stored = dtypes.named(dtype), dtypes.named(left)

    def swept(a: int, row: int, last: int, row_stride: int, step: int, b: int, b_step: int, columns: int,
              out: int, out_stride: int, k: int) -> None:  # fmt: skip
        starts = np.array([min(row + i, last) * row_stride for i in range(rows)])
        total = np.zeros((rows, -(-columns // LANES) * LANES), kind.numpy)
        for index in range(k):
            scalars = read(stored, a, starts + index * (1 if contiguous else step), np.ones(rows, bool))
            right = np.zeros(total.shape[1], kind.numpy)
            right[:columns] = _line(kind, b + index * b_step * kind.itemsize, columns)
            total = fma(scalars.astype(kind.numpy)[:, None], right[None, :], total)
        for i in range(rows):
            current().at(out + i * out_stride * kind.itemsize, total.shape[1], kind.numpy)[:] = total[i]

    return swept


def transpose_panel(vectors: int, dtype: str, right: str) -> Word:
    """Word to pack a panel of a B whose k stride is 1; columns past `columns` repeat the last one."""
    kind, stored = dtypes.named(dtype), dtypes.named(right)
    square, panel = LANES * 4 // kind.itemsize, vectors * LANES

    def pack(source: int, stride: int, columns: int, k: int, packed: int) -> None:
        lines = -(-k // square) * square
        whole = np.zeros((lines, panel), kind.numpy)
        for column in range(panel):
            place = source + min(column, columns - 1) * stride * stored.itemsize
            whole[:k, column] = _line(stored, place, k)
        current().at(packed, lines * panel, kind.numpy)[:] = whole.reshape(-1)

    return pack


def dot_panel(rows: int, vectors: int, dtype: str, left: str, right: str) -> Word:
    """Word for a block of few rows, A and B both with a k stride of 1: dot products along the lanes."""
    kind, of_a, of_b = (dtypes.named(name) for name in (dtype, left, right))
    width = LANES * 4 // kind.itemsize

    def dots(a: int, row: int, last: int, row_stride: int, b: int, column_stride: int, columns: int,
             out: int, out_stride: int, k: int) -> None:  # fmt: skip
        padded = -(-(k + 1) // width) * width  # the masked end is there even where nothing is left for it
        right = np.zeros((vectors * LANES, padded), kind.numpy)
        for column in range(vectors * LANES):
            place = b + min(column, columns - 1) * column_stride * of_b.itemsize
            right[column, :k] = _line(of_b, place, k)
        # Rows are done two at a time.
        count = min(-(-min(last - row + 1, rows) // 2) * 2, rows) if rows > 1 else 1
        for i in range(count):
            line = np.zeros(padded, kind.numpy)
            line[:k] = _line(of_a, a + min(row + i, last) * row_stride * of_a.itemsize, k)
            total = np.zeros((vectors * LANES, width), kind.numpy)
            for first in range(0, padded, width):
                x = np.broadcast_to(line[first : first + width], total.shape)
                total = fma(x, right[:, first : first + width], total)
            while total.shape[1] > 1:
                total = total[:, ::2] + total[:, 1::2]
            place = out + i * out_stride * kind.itemsize
            current().at(place, vectors * LANES, kind.numpy)[:] = total[:, 0]

    return dots
