"""What programs of compiled functions were given and gave on the CPU, to be run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.lib.array_utils import byte_bounds

from compiler.gpu.program import DeviceExecutable
from compiler.plan import Request
from compiler.program import Executable
from kernels.gpu.runner import Machine

Array = np.ndarray[Any, Any]


@dataclass
class Recording:
    """One run of a program: its inputs before and after, its outputs."""

    request: Request
    executable: Executable
    before: list[Array]
    after: list[Array]
    outputs: list[Array]

    def require_same(
        self, machine: Machine, rtol: float = 2e-5, executable: DeviceExecutable | None = None
    ) -> DeviceExecutable:
        """The program on `machine` gives the same; integers and bools exactly, floats within `rtol` of the
        largest.
        """
        elsewhere = executable or DeviceExecutable(self.request, machine)
        inputs = [clone(x) for x in self.before]
        same(elsewhere(*inputs), self.outputs, rtol, "output")
        same(inputs, self.after, rtol, "input")
        assert len(elsewhere.kernels) == len(self.executable.kernels)
        return elsewhere


def same(got: Sequence[Array], wanted: Sequence[Array], rtol: float, words: str) -> None:
    """Equal arrays, but for rounding."""
    assert len(got) == len(wanted)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        where = f"{words} {number}"
        assert a.dtype == b.dtype and a.shape == b.shape, where
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, where)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            largest = np.abs(y[np.isfinite(y)]).max(initial=0)
            np.testing.assert_allclose(x, y, rtol, rtol * largest, err_msg=where)


def clone(array: Array) -> Array:
    """An array in memory of its own, with the same strides."""
    low, high = byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    copy = np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)
    copy[...] = array
    return copy


@contextmanager
def recording() -> Iterator[list[Recording]]:
    """Inside, every run of a program is added to the list."""
    runs: list[Recording] = []
    run, make = Executable.run, Executable.__init__
    requests: dict[Executable, Request] = {}

    def made(executable: Executable, request: Request, *others: Any, **named: Any) -> None:
        requests[executable] = request
        make(executable, request, *others, **named)

    def recorded(executable: Executable, given: Sequence[tuple[int, Array]], outputs: Sequence[Array]) -> int:
        inputs = executable.bound | dict(given)
        arrays = [inputs[i] for i in range(len(inputs))]
        before = [clone(x) for x in arrays]
        failed = run(executable, given, outputs)
        after = [clone(x) for x in arrays], [x.copy() for x in outputs]
        runs.append(Recording(requests[executable], executable, before, *after))
        return failed

    with patch.object(Executable, "run", recorded), patch.object(Executable, "__init__", made):
        yield runs
