"""What driven calls of one function share: nodes by what they apply, and programs of stretches of work.

Knows graphs and arrays; what is deferred, and when it is computed, driver.py decides.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import CompilerError
from compiler.interpret import evaluate
from compiler.ir import Apply, Graph, Input, Value
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType
from framework.capture.explain import StretchFacts
from kernels import dtypes, memory
from kernels.errors import BuildError

if TYPE_CHECKING:
    from framework.capture.known import KnownCall
    from framework.capture.regions import Outcome

Array = np.ndarray[Any, Any]

# Nodes kept for one function; a function that never repeats itself starts anew here.
MOST_NODES = 20_000
# Programs made for one function; further stretches are computed op by op.
MOST_PROGRAMS = 256
# Programs made when their stretch is first met; from there on when it is met again among so many others.
MADE_AT_ONCE, MOST_WAITING = 16, 256


class StretchProgram:
    """The program of one stretch: an executable, or where that cannot be made a graph to interpret."""

    def __init__(
        self, graph: Graph, writes: tuple[tuple[int, Value], ...], strides: Any, where: str, lower: bool
    ) -> None:
        self.graph, self.writes = graph, writes
        self.where, self.runs, self.failure = where, 0, ""
        self.executable: Executable | None = None
        self.lock = threading.Lock()
        begin = time.perf_counter()
        if lower:
            try:
                self.executable = Executable(Request(graph, writes, (), strides))
            except (CompilerError, BuildError) as error:
                self.failure = str(error)
        self.seconds = time.perf_counter() - begin

    def run(self, arrays: list[Array]) -> list[Array]:
        """The outputs; writes are carried out in the inputs' memory."""
        self.runs += 1
        if self.executable is None:
            results = evaluate(self.graph, arrays)
            # All are of memory of their own before anything is written: a result may be what an input held.
            results = [np.array(x) for x in results]
            count = len(results) - len(self.writes)
            for (number, _), new in zip(self.writes, results[count:], strict=True):
                np.copyto(arrays[number], new)
            return results[:count]
        with self.lock:
            outputs = [memory.empty(shape, dtype) for shape, dtype in self.executable.output_types]
            self.executable.run(list(enumerate(arrays)), outputs)
        return outputs


class Book:
    """What the driven calls of one function share: nodes by what they apply, and programs."""

    def __init__(self) -> None:
        self.nodes: dict[Any, Value] = {}
        self.inputs: dict[Any, Input] = {}
        # The array that was last input `number`, with its node: most are the same at every call.
        self.latest: dict[int, tuple[weakref.ref[Array], Input]] = {}
        self.strides: dict[Input, tuple[int, ...]] = {}
        # The stretch in which a number was first met, by the op and its other operands.
        self.numbers: dict[Any, int] = {}
        self.programs: dict[Any, tuple[StretchProgram, list[int]]] = {}
        # Stretches met once, oldest first, and how many runs had no program.
        self.waiting: dict[Any, None] = {}
        self.interpreted = 0
        self.outcomes: dict[Any, list[Outcome]] = {}
        # What library calls give, by what they are given; None where their Python is always run.
        self.calls: dict[Any, KnownCall | None] = {}
        # Calls whose numbers vary, without those.
        self.varying: set[Any] = set()

    @property
    def full(self) -> bool:
        """Whether there is too much to keep."""
        return len(self.nodes) + len(self.inputs) + len(self.calls) > MOST_NODES

    def deserves_a_program(self, key: Any) -> bool:
        """Whether a stretch that has no program gets one now."""
        if len(self.programs) < MADE_AT_ONCE:
            return True
        if len(self.programs) < MOST_PROGRAMS and key in self.waiting:
            del self.waiting[key]
            return True
        self.waiting[key] = None
        if len(self.waiting) > MOST_WAITING:
            del self.waiting[next(iter(self.waiting))]
        self.interpreted += 1
        return False

    def stretches(self) -> list[StretchFacts]:
        """Every program as `explain` shows it."""
        return [
            StretchFacts(
                p.where,
                sum(isinstance(n, Apply) for n in p.graph.nodes),
                0 if p.executable is None else len(p.executable.plan.kernels),
                p.runs,
                p.seconds,
                p.failure,
                p.executable,
            )
            for p, _ in self.programs.values()
        ]

    def input(self, number: int, array: Array) -> Input:
        """The node of input `number` for arrays of this layout."""
        latest = self.latest.get(number)
        if latest is not None and latest[0]() is array:
            return latest[1]
        key = number, array.shape, array.dtype, array.strides
        node = self.inputs.get(key)
        if node is None:
            kind = TensorType(array.shape, dtypes.of_numpy(array.dtype))
            node = self.inputs.setdefault(key, Input(kind, name=f"t{number}"))
            self.strides[node] = tuple(s // array.itemsize for s in array.strides)
        self.latest[number] = weakref.ref(array), node
        return node


def apart(arrays: list[Array], written: list[Array]) -> list[Array]:
    """The arrays, copied where they share memory with another that is written."""
    views = [x for x in written if not memory.is_own(x)]
    if not views and all(map(memory.is_own, arrays)):
        return arrays
    return [
        x.copy()
        if any(x is not w and np.may_share_memory(x, w) for w in (views if memory.is_own(x) else written))
        else x
        for x in arrays
    ]


def same_bits(a: Array | None, b: Array) -> bool:
    """Whether two arrays are of one type and hold the same."""
    if a is None or a.shape != b.shape or a.dtype != b.dtype or a.strides != b.strides:
        return False
    bits = np.dtype(f"u{a.itemsize}")
    return np.array_equal(a.view(bits), b.view(bits))
