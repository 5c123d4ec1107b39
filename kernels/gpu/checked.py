"""Host memory that interpreted kernels may touch, and what they did to it.

Finds accesses outside every array, and those whose result would depend on which program or thread comes
first. Knows addresses; knows nothing of Triton.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.errors import KernelError

Array = np.ndarray[Any, Any]
LOAD, STORE, ADD = "loads", "stores", "adds"


class OutOfBoundsError(KernelError, IndexError):
    """A kernel left the memory it was given."""


class HazardError(KernelError, RuntimeError):
    """A kernel's result would depend on the order in which its programs or threads run."""


class Traced:
    """One array, and of each of its elements who wrote it last, when, and who read it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.start = array.ctypes.data
        self.stop = self.start + array.nbytes
        self.writer, self.reader, self.written = np.zeros((3, max(array.size, 1)), np.int32)


class Memory:
    """Arrays by address. `begin` a launch, then a program; then `touch` what the program touches.

    Arrays must not overlap: what is done through one is not seen in another. Programs are numbered
    on from launch to launch, so that nothing of an earlier launch need be forgotten.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.traced = sorted((Traced(x) for x in arrays), key=lambda t: (t.start, t.stop))
        self.starts = [t.start for t in self.traced]
        self.before = self.last = self.program = self.time = 0

    def begin(self, programs: int) -> None:
        """A launch of so many programs; those before it are done."""
        self.before, self.last = self.last, self.last + programs + 2
        self.program = self.before

    @property
    def several(self) -> int:
        """The reader of an element that several programs of the launch read."""
        return self.last - 1

    @property
    def adding(self) -> int:
        """The writer of an element that programs of the launch add to."""
        return self.last

    def next_program(self) -> None:
        """The next program of the launch."""
        self.program += 1
        self.synchronize()

    def synchronize(self) -> None:
        """From here on threads see what others of their program wrote."""
        self.time += 1

    def touch(self, addresses: Array, size: int, kind: str) -> None:
        """The program accesses elements of `size` bytes. Raises OutOfBoundsError or HazardError."""
        if not addresses.size:
            return
        traced = self.find(int(addresses.min()), int(addresses.max()) + size, kind)
        at = ((addresses - np.uint64(traced.start)) // np.uint64(traced.array.itemsize)).astype(np.intp)
        if kind == LOAD:
            self.load(traced, at)
        elif kind == STORE:
            self.store(traced, at)
        else:
            self.add(traced, at)

    def find(self, low: int, high: int, kind: str) -> Traced:
        """The array in which bytes [low, high) lie."""
        number = bisect.bisect_right(self.starts, low) - 1
        if number >= 0 and high <= self.traced[number].stop:
            return self.traced[number]
        near = self.traced[max(number, 0)]
        first, last = low - near.start, high - near.start
        raise OutOfBoundsError(
            f"a program {kind} bytes {first} to {last} of {near.array.dtype}{list(near.array.shape)},"
            f" which has {near.array.nbytes}"
        )

    def load(self, traced: Traced, at: Array) -> None:
        """Elements are read."""
        writer, reader = traced.writer[at], traced.reader[at]
        written = writer > self.before
        if written.any():
            if (written & (writer != self.program)).any():
                self.refuse("reads what another wrote", traced, at[written])
            if (written & (traced.written[at] == self.time)).any():
                self.refuse("reads again what it wrote, with no barrier in between", traced, at[written])
        alone = (reader <= self.before) | (reader == self.program)
        traced.reader[at] = np.where(alone, self.program, self.several)

    def store(self, traced: Traced, at: Array) -> None:
        """Elements are written."""
        self.refuse_others(traced, at, self.program, "writes what another wrote")
        order = np.arange(at.size, dtype=np.int32)
        traced.writer[at] = order
        if (traced.writer[at] != order).any():
            self.refuse("writes one element twice at once", traced, at)
        traced.writer[at] = self.program
        traced.written[at] = self.time

    def add(self, traced: Traced, at: Array) -> None:
        """Elements are added to, in any order."""
        self.refuse_others(traced, at, self.adding, "adds to what another wrote")
        traced.writer[at] = self.adding

    def refuse_others(self, traced: Traced, at: Array, allowed: int, words: str) -> None:
        """Refuse a write where anyone but `allowed` wrote, or another program read."""
        writer, reader = traced.writer[at], traced.reader[at]
        bad = (writer > self.before) & (writer != allowed)
        if bad.any():
            self.refuse(words, traced, at[bad])
        bad = (reader > self.before) & (reader != self.program)
        if bad.any():
            self.refuse("writes what another read", traced, at[bad])

    def refuse(self, words: str, traced: Traced, at: Array) -> None:
        """Raise a HazardError."""
        array = traced.array
        raise HazardError(f"a program {words}: element {int(at.flat[0])} of {array.dtype}{list(array.shape)}")
