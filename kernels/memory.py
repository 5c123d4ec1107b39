"""Large arrays from reused memory: a fresh one costs more in page faults than the arithmetic that fills it.

An array's memory comes back when the last view of it is gone. Knows nothing of what is stored.
"""

from __future__ import annotations

import gc
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Bytes. One elementwise pass into fresh and reused memory: 12 and 5 ms at 64 MiB, 3.5 and 1.5 ms at 16 MiB,
# 0.3 and 0.2 ms at 4 MiB; below, fresh is as fast, for the C library keeps such memory itself.
LARGE = 1 << 22
# Idle memory kept at most.
_MOST_IDLE = 1 << 29

_lock = threading.RLock()
_idle: deque[np.ndarray[Any, Any]] = deque()
_idle_bytes = 0


class _Loan:
    """Memory lent to one array, which refers to it as its base. Views refer to that array, so all are gone
    when this is.
    """

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        _give(self.memory)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As np.empty; of at least LARGE bytes, in reused memory where there is some."""
    return maker(shape, dtype)(shape, dtype)


def maker(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[..., np.ndarray[Any, Any]]:
    """What makes arrays of this kind as `empty` does, for who makes many."""
    # A dtype that is not NumPy's own has no name in the array interface.
    large = math.prod(shape) * dtype.itemsize >= LARGE and dtype.isbuiltin == 1
    return _lend if large else np.empty


def _lend(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.asarray(_Loan(_take(_rounded(math.prod(shape) * dtype.itemsize)), shape, dtype))


# Bytes from which an array in another order is copied before it is read row by row, and bytes of a row that
# are copied at a time: a cache line. A transposed 4096 x 4096 float32 takes 18 ms, in one go 127.
_TURNED, _LINE = 1 << 20, 64


def in_order(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A row-major copy of a large array whose rows are not its innermost axis; any other array itself."""
    if x.nbytes < _TURNED or x.flags.c_contiguous or not _is_turned(x):
        return x
    out = empty(x.shape, x.dtype)
    step = max(1, _LINE // x.itemsize)
    for start in range(0, x.shape[-1], step):
        out[..., start : start + step] = x[..., start : start + step]
    return out


def _is_turned(x: np.ndarray[Any, Any]) -> bool:
    """Whether elements along another axis lie closer to each other than along the last."""
    last = abs(x.strides[-1])
    return any(0 < abs(stride) < last and n > 1 for n, stride in zip(x.shape, x.strides, strict=True))


class _Place:
    """Memory that somebody else owns, as an array interface."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, size: int) -> None:
        kind = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
        self.__array_interface__ = kind


def bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """Memory from `address` on, whose owner must outlive the array."""
    return np.asarray(_Place(address, size))


def is_own(array: np.ndarray[Any, Any]) -> bool:
    """Whether `array` is no view of another array."""
    return array.base is None or type(array.base) is _Loan


def _rounded(size: int) -> int:
    # Eight sizes to a power of two: at most an eighth is unused, and arrays of like sizes share memory.
    step = 1 << max(size.bit_length() - 4, 12)
    return -(-size // step) * step


def _take(size: int) -> np.ndarray[Any, Any]:
    global _idle_bytes
    with _lock:
        for i in range(len(_idle) - 1, -1, -1):
            if _idle[i].nbytes == size:
                memory = _idle[i]
                del _idle[i]
                _idle_bytes -= size
                return memory
    return np.empty(size, np.uint8)


def _give(memory: np.ndarray[Any, Any]) -> None:
    global _idle_bytes
    with _lock:
        _idle.append(memory)
        _idle_bytes += memory.nbytes
        while _idle_bytes > _MOST_IDLE:
            _idle_bytes -= _idle.popleft().nbytes


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


# Held by who freezes or thaws what the garbage collector knows: others may rely on what is frozen.
freezing = threading.Lock()


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collections inside, in any thread."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            with freezing:
                # What is thawed is old, and not searched at the next allocation (60 ms for 10,000 nodes).
                if not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()
            gc.enable()
