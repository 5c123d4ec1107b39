"""An executable that interprets its graph: what recordings mean, without the time that machine code takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compiler.binding import optimise
from compiler.interpret import evaluate
from compiler.ir import Graph
from compiler.plan import Request
from framework.capture import book, machines

Array = np.ndarray[Any, Any]


class Interpreted:
    """Stands for `compiler.program.Executable`: the passes run, the nodes are computed one by one."""

    plan_seconds = build_seconds = 0.0
    interrupted = False

    def __init__(self, request: Request, arena: Any = None, varying: Any = None) -> None:
        self.request = optimise(request)
        graph = self.request.graph
        count = len(graph.outputs) - len(self.request.writes) - len(self.request.checks)
        self.output_types = [(v.shape, v.dtype.numpy) for v in graph.outputs[:count]]
        self.bound: dict[int, Array] = {}
        self.kernels: list[Any] = []
        self.plan = SimpleNamespace(kernels=[], levels=[], arena_bytes=0)

    def bind(self, number: int, array: Array) -> None:
        """Use `array` as input `number` from now on."""
        self.bound[number] = array

    def run(self, given: Sequence[tuple[int, Array]], outputs: Sequence[Array]) -> int:
        """As an Executable's: 1 where a check fails, and then nothing is written."""
        arrays = {**self.bound, **dict(given)}
        request = self.request
        given_arrays = [arrays[i] for i in range(len(request.graph.inputs))]
        # First, for the ops themselves raise on what they check; one check may depend on another's op.
        try:
            failed = evaluate(Graph(request.graph.inputs, request.checks), given_arrays)
        except (LookupError, ArithmeticError):
            return 1
        if any(map(np.any, failed)):
            return 1
        results = evaluate(request.graph, given_arrays)
        # Results may be views of what is written next.
        results = [np.array(x) for x in results]
        for target, value in zip(outputs, results, strict=False):
            np.copyto(target, value)
        for (number, _), value in zip(request.writes, results[len(outputs) :], strict=False):
            np.copyto(arrays[number], value)
        return 0

    def __call__(self, *arrays: Array) -> list[Array]:
        outputs = [np.empty(shape, dtype) for shape, dtype in self.output_types]
        assert not self.run(list(enumerate(arrays)), outputs), "a check failed"
        return outputs

    def let_through(self) -> None:
        """Nothing interrupts it."""


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Make every program of compiled functions an interpreted one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (machines, book):
            patch.setattr(module, "Executable", Interpreted)
        yield
