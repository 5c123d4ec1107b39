"""Memory that a kernel in plain Python may touch: arrays by address, with every access checked.

Knows no kernels. One thread at a time runs in a `Memory`, other threads in others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kernels.errors import KernelError

Array = np.ndarray[Any, Any]


class Memory:
    """Named arrays, found by the address of a byte."""

    def __init__(self, arrays: Sequence[tuple[str, Array]]) -> None:
        self.spans = [(x.ctypes.data, x.ctypes.data + x.nbytes, x.view(np.uint8), name) for name, x in arrays]

    def at(self, address: int, count: int, dtype: np.dtype[Any]) -> Array:
        """`count` elements from `address` on, to read or write. Raises KernelError outside all arrays."""
        size = count * dtype.itemsize
        for start, stop, content, _ in self.spans:
            if start <= address and address + size <= stop:
                first = address - start
                return content[first : first + size].view(dtype)
        raise KernelError(self._outside(address, count, dtype))

    def _outside(self, address: int, count: int, dtype: np.dtype[Any]) -> str:
        """What is wrong with an access, in elements of the array that is nearest."""
        if not self.spans:
            return "a kernel without memory reads or writes some"
        start, stop, _, name = min(self.spans, key=lambda s: max(s[0] - address, address - s[1]))
        first, size = (address - start) // dtype.itemsize, (stop - start) // dtype.itemsize
        return f"elements {first} to {first + count - 1} of {name} are touched, which has {size} of {dtype}"


class _Current(threading.local):
    memory: Memory | None = None


_current = _Current()


def current() -> Memory:
    """The memory of the kernel that this thread runs."""
    if _current.memory is None:
        raise KernelError("words touch memory only while kernels.cpu.plain.run runs a kernel")
    return _current.memory


@contextmanager
def using(memory: Memory) -> Iterator[None]:
    """Let words touch `memory`."""
    before, _current.memory = _current.memory, memory
    try:
        yield
    finally:
        _current.memory = before
