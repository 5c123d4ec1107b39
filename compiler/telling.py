"""A program in words, for the debug ladder: its kernels, graphs, specs and sources, as the level asks.

Reads a finished program; writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler import debugging
from compiler.binding import KernelView
from compiler.debugging import GRAPHS, SOURCES, VERIFYING, tell
from compiler.interpret import evaluate
from compiler.view import KernelView as HostKernelView
from compiler.watching import Look, set_everywhere
from kernels.cost import cost
from kernels.gpu.arrays import get

if TYPE_CHECKING:
    from compiler.lower import Kernel
    from compiler.watching import Program

Array = np.ndarray[Any, Any]
# What floating-point results of a program may differ by from its graph's, of the largest element.
TOLERANCE = {2: 3e-2, 4: 1e-3, 8: 1e-9}


def told(program: Program, level: int) -> str:
    """What `level` tells of a program that was just made."""
    plan = program.plan
    lines = [
        f"program of {len(program.recorded.graph.nodes)} nodes: {len(plan.kernels)} kernels in "
        f"{len(set(plan.levels))} launches, arena {plan.arena_bytes} bytes; planned in "
        f"{program.plan_seconds * 1e3:.1f} ms, kernels made in {program.build_seconds * 1e3:.1f} ms"
    ]
    for number, view in enumerate(program.kernels):
        lines.append(f"  kernel {number}, launch {view.level}: {summary(view.kernel)}{_made(view)}")
    if level >= GRAPHS:
        lines += ["recorded graph", _indented(str(program.recorded.graph))]
        lines += ["graph after the passes", _indented(str(program.request.graph))]
        lines += [f"spec of kernel {i}\n{_indented(str(k.spec))}" for i, k in enumerate(plan.kernels)]
    if level >= SOURCES:
        lines += [f"source of kernel {i}{_path(v)}\n{v.source}" for i, v in enumerate(program.kernels)]
    return "\n".join(lines)


def _made(view: KernelView) -> str:
    """What is known of a kernel's compilation; of one for a GPU nothing."""
    if not isinstance(view, HostKernelView):
        return ""
    return "; from the cache" if view.cached else f"; compiled in {view.compile_seconds * 1e3:.0f} ms"


def _path(view: KernelView) -> str:
    return f": {view.path}" if isinstance(view, HostKernelView) else ""


def summary(kernel: Kernel) -> str:
    """One kernel in a line: name, sizes, ops, bytes, operations, and the user's lines."""
    work = cost(kernel.placed())
    ops = ", ".join(n.op.name for n in kernel.nodes) or "copy"
    lines = " ".join(dict.fromkeys(n.where for n in kernel.nodes if n.where))
    return (
        f"{kernel.spec.name} {list(kernel.extents)}: {ops}; {work.least} bytes, {work.flops} flops; {lines}"
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


class Comparing(Look):
    """Compares what a program computes with its graph, node by node in NumPy, and tells of a difference."""

    there = True

    def before(self, program: Program, arrays: Mapping[int, Array]) -> list[Array] | None:
        """What the graph gives, computed while the inputs are as they were; None on bad input."""
        graph = program.recorded.graph
        # Copies: the program may write to what a view views.
        given = [np.array(get(arrays[i])) for i in range(len(graph.inputs))]
        with contextlib.suppress(RuntimeError, ValueError, IndexError, ZeroDivisionError):
            return evaluate(graph, given)
        return None

    def after(
        self,
        program: Program,
        arrays: Mapping[int, Array],
        outputs: list[Array],
        failed: int,
        begun: list[Array] | None,
    ) -> None:
        """Tell what differs, first of all the value that was made first."""
        if begun is None or failed:
            return
        got = [*outputs, *(arrays[number] for number, _ in program.recorded.writes)]
        values = zip(program.recorded.graph.outputs, begun, got, strict=False)
        for value, expected, array in sorted(values, key=lambda row: row[0].serial):
            share = _difference(expected, get(array))
            if share > TOLERANCE.get(expected.dtype.itemsize, 0.0):
                tell(
                    f"a program differs from its graph by {share:.2g} in {value.type}, made at {value.where}"
                )


def _difference(expected: Array, got: Array) -> float:
    """The largest difference, as a share of the largest element; infinite where one alone is not finite."""
    if expected.dtype.kind in "biu":
        return 0.0 if np.array_equal(expected, got) else float("inf")
    a, b = expected.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    fine = np.isfinite(a)
    largest = np.abs(a[fine]).max(initial=0.0)
    return float(np.abs(a - b)[fine].max(initial=0.0) / (largest or 1.0))


def set_level(level: int) -> None:
    """Tell and check what `level` says, in all threads. Raises ValueError outside 0 to 5."""
    debugging.set_level(level)
    set_everywhere((Comparing(),) if level >= VERIFYING else ())


set_level(debugging.ladder.level)
