"""Reused memory of large arrays."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernels import memory

SHAPE = (memory.LARGE // 4 + 3, 1)
FLOAT = np.dtype(np.float32)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_comes_back_when_the_array_is_gone() -> None:
    first = memory.empty(SHAPE, FLOAT)
    assert first.shape == SHAPE and first.dtype is FLOAT
    assert first.flags.c_contiguous and first.flags.writeable and memory.is_own(first)
    where = address(first)
    del first
    second = memory.empty((1, *SHAPE), np.dtype(np.int32))
    assert address(second) == where


def test_a_view_keeps_the_memory() -> None:
    first = memory.empty(SHAPE, FLOAT)
    view = first.reshape(-1)[5:]
    assert not memory.is_own(view)
    where = address(first)
    del first
    assert address(memory.empty(SHAPE, FLOAT)) != where
    held = memoryview(view)
    del view
    assert address(memory.empty(SHAPE, FLOAT)) != where
    del held
    found = [memory.empty(SHAPE, FLOAT) for _ in range(3)]
    assert where in map(address, found)


def test_small_arrays_and_foreign_dtypes_are_plain() -> None:
    assert memory.empty((3,), FLOAT).base is None
    structure = np.dtype([("x", np.float64)])
    assert memory.empty((memory.LARGE,), structure).base is None


def test_idle_memory_is_bounded() -> None:
    held = [memory.empty((memory._MOST_IDLE // 8,), np.dtype(np.uint8)) for _ in range(12)]
    del held
    assert 0 < memory._idle_bytes <= memory._MOST_IDLE
    assert memory._idle_bytes == sum(x.nbytes for x in memory._idle)


def test_threads_never_share() -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            x = memory.empty(SHAPE, FLOAT)
            x[::4096] = number
            y = memory.empty(SHAPE, FLOAT)
            y[::4096] = -number
            if not (x[::4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("axes", [(1, 0), (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 0, 2)])
def test_turned_arrays_are_copied_in_order(axes: tuple[int, ...]) -> None:
    x = np.arange(1 << 19, dtype=np.float64).reshape((1 << 10, 1 << 9) if len(axes) == 2 else (64, 128, 64))
    turned = x.transpose(axes)
    found = memory.in_order(turned)
    assert (found is turned) is (turned.strides[-1] == min(turned.strides))
    assert found is turned or found.flags.c_contiguous
    np.testing.assert_array_equal(found, turned)


def test_what_is_read_row_by_row_is_not_copied() -> None:
    x = np.zeros((1 << 10, 1 << 10), np.float32)
    for array in (x, x[:, ::2], x[::-1], np.broadcast_to(x[0], x.shape), np.broadcast_to(x[:, :1], x.shape)):
        assert memory.in_order(array) is array
