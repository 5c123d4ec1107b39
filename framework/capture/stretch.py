"""The work of a driven call between two reads of values.

Holds what driver.py notes. Tensors on a GPU are not for it: where one is met, the call goes on op by op.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from compiler.ir import Input
from framework.capture.known import CallNode
from framework.deferred import Deferred
from framework.state import ambient
from framework.tensor import Tensor
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]
_serial = itertools.count()


class Stretch:
    """The work since the last flush."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.serial = next(_serial)
        self.open = True
        # Program inputs in the order they were met, and the present value of each array's memory.
        self.inputs: list[tuple[Input, Array]] = []
        self.memory: dict[int, Deferred] = {}
        # What was found in memory that others may write to, by the array.
        self.found: dict[int, Deferred] = {}
        self.numbers: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.values: list[weakref.ref[Deferred]] = []
        self.tensors: list[weakref.ref[Tensor]] = []
        # Gradients of library calls that nobody has looked into, and the ops of those calls.
        self.calls: list[weakref.ref[CallNode]] = []
        self.inside = 0
        self.stepped: set[Any] = set()
        self.draws: dict[int, tuple[Deferred, Deferred, int]] = {}


def is_on_gpu(operands: Iterable[Any]) -> bool:
    """Whether an operand is on a GPU."""
    if arrays.Known.engine is None:
        return False
    return any(arrays.is_device(x._data if isinstance(x, Tensor) else x) for x in operands)


def meets_a_gpu(driver: Any, operands: Iterable[Any]) -> bool:
    """Whether an operand is on a GPU; if so the rest of the driven call runs op by op."""
    there = is_on_gpu(operands)
    if there:
        step_aside(driver)
    return there


def step_aside(driver: Any) -> None:
    """Compute what was deferred, and let the rest of the call run op by op."""
    driver.flush()
    driver.outcome = driver.recording = None
    ambient.tracer = None
