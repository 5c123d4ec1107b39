"""The profiler: what a `with` block spends its time on, as spans that lie in each other.

Eager ops, gradients, compiled functions, programs and their kernels are seen by a `Lookout`; user code
names spans of its own. While a profile is on, the kernels of a program run one after the other, each timed
by itself, also those that otherwise share a launch; while none is, nothing here runs. Knows times and
texts.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.ops.op import Op
from compiler.where import GradientLine, user_line
from framework import lookout
from framework.graph import Node
from framework.lookout import Lookout, modules_here
from framework.state import python_effect
from framework.tensor import Tensor
from kernels.cost import cost
from kernels.gpu.arrays import is_array

if TYPE_CHECKING:
    from compiler.gpu.arrays import ArrayExecutable
    from compiler.program import Executable
    from compiler.watching import Program

__all__ = ["ProfilerActivity", "Row", "Span", "profile", "record_function"]

# Columns of the table by the names that PyTorch gives them, and by ours.
_ORDERS = {
    "total": "total",
    "cpu_time_total": "total",
    "self": "own",
    "self_cpu_time_total": "own",
    "count": "count",
    "bytes": "bytes",
    "name": "name",
}


@dataclass(eq=False)
class Span:
    """A stretch of time: its name, what kind of thing it is, when it began (ns) and how long it took (ns).

    `kind` is "op", "gradient", "compiled", "program", "kernel" or "user"; `bytes` is what was read and
    written; `inside` the span around it.

    Example::

        >>> x = fw.ones(4)
        >>> with fw.profile() as p:
        ...     y = x + 1
        >>> p.spans[0].name, p.spans[0].kind, p.spans[0].bytes
        ('add', 'op', 32)
    """

    name: str
    kind: str
    start: int
    duration: int = 0
    bytes: int = 0
    where: str = ""
    detail: str = ""
    inside: Span | None = field(default=None, repr=False)
    inner: int = field(default=0, repr=False)

    @property
    def own(self) -> int:
        """Nanoseconds that no span within it took."""
        return max(self.duration - self.inner, 0)


@dataclass
class Row:
    """The spans of one name and kind, added up; times in nanoseconds.

    Example::

        >>> x = fw.ones(4)
        >>> with fw.profile() as p:
        ...     y = x + 1
        >>> [(row.name, row.count, row.bytes) for row in p.rows()]
        [('add', 1, 32)]
    """

    name: str
    kind: str
    count: int = 0
    total: int = 0
    own: int = 0
    bytes: int = 0

    @property
    def rate(self) -> float:
        """Bytes per nanosecond, which are GB/s."""
        return self.bytes / self.total if self.total else 0.0


class _Spans(Lookout):
    """Collects the spans of one thread."""

    steps = there = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.open: list[Span] = []
        # Spans of kernels whose facts are looked up when there is time: counting their work takes longer.
        self.unnamed: list[tuple[Span, Program, int]] = []

    def begin(self) -> Span:
        """Open a span; its name comes when it ends."""
        span = Span("", "", 0, inside=self.open[-1] if self.open else None)
        self.open.append(span)
        span.start = time.perf_counter_ns()
        return span

    def failed(self, begun: Span) -> None:
        """Drop a span that an error ended."""
        while self.open and self.open.pop() is not begun:
            pass

    def keep(self, span: Span, end: int, **facts: Any) -> None:
        """Close a span that ended at `end`."""
        self.failed(span)
        span.duration = end - span.start
        for name, fact in facts.items():
            setattr(span, name, fact)
        if span.inside is not None:
            span.inside.inner += span.duration
        self.spans.append(span)

    def op(self, op: Op, inputs: list[Any], attrs: Mapping[str, Any], out: Any, begun: Span) -> None:
        """An eager op."""
        end, nbytes = time.perf_counter_ns(), _bytes([*inputs, out])
        self.keep(begun, end, name=op.name, kind="op", bytes=nbytes, where=user_line(), detail=modules_here())

    def gradient(
        self, node: Node, grads: list[Any], results: Sequence[Any], place: GradientLine, begun: Span
    ) -> None:
        """The gradients of an eager op."""
        end, nbytes = time.perf_counter_ns(), _bytes([*grads, *results])
        facts = {"where": str(place), "detail": place.words}
        self.keep(begun, end, name=node.name(), kind="gradient", bytes=nbytes, **facts)

    def called(self, function: Any, recordings: Sequence[Any], begun: Span) -> None:
        """A compiled function."""
        end = time.perf_counter_ns()
        name = getattr(function.function, "__qualname__", type(function.function).__name__)
        made = [f"recorded in {r.seconds * 1e3:.0f} ms: {r.reason}" for r in recordings]
        self.keep(begun, end, name=name, kind="compiled", where=user_line(), detail="; ".join(made))

    def before(self, program: Program, arrays: Mapping[int, Any]) -> list[Any]:
        """A program starts: its span, and the time at which its next kernel does."""
        span = self.begin()
        return [span, span.start]

    def ready(self, program: Executable, begun: list[Any]) -> None:
        """The first kernel starts."""
        begun[1] = time.perf_counter_ns()

    def kernel(self, program: Executable, number: int, begun: list[Any]) -> None:
        """Kernel `number` is done."""
        end = time.perf_counter_ns()
        span = Span("", "kernel", begun[1], inside=begun[0])
        self.open.append(span)
        self.keep(span, end)
        self.unnamed.append((span, program, number))
        begun[1] = time.perf_counter_ns()

    def took(
        self, program: ArrayExecutable, numbers: Sequence[int], seconds: float, begun: list[Any]
    ) -> None:
        """Kernels of one launch on a GPU: their spans share its time, and follow those of the last launch."""
        for number, share in zip(numbers, _shares(program, numbers), strict=True):
            span = Span("", "kernel", begun[1], inside=begun[0])
            self.open.append(span)
            self.keep(span, begun[1] + round(seconds * share * 1e9))
            self.unnamed.append((span, program, number))
            begun[1] += span.duration

    def name_kernels(self) -> None:
        """Give the spans of kernels their names, bytes, lines and ops."""
        for span, program, number in self.unnamed:
            span.name, span.bytes, span.where, span.detail = _facts(program)[number]
        self.unnamed.clear()

    def after(
        self,
        program: Program,
        arrays: Mapping[int, Any],
        outputs: list[Any],
        failed: int,
        begun: list[Any],
    ) -> None:
        """The program is over."""
        end, count = time.perf_counter_ns(), len(program.plan.kernels)
        nbytes = _bytes([*arrays.values(), *outputs])
        self.keep(begun[0], end, name=f"program of {count} kernels", kind="program", bytes=nbytes)


def _bytes(arrays: Iterable[Any]) -> int:
    """Bytes of arrays and of tensors in memory."""
    data = [x._data if isinstance(x, Tensor) else x for x in arrays]
    return sum(x.nbytes for x in data if x is not None and is_array(x))


_known: weakref.WeakKeyDictionary[Any, list[tuple[str, int, str, str]]] = weakref.WeakKeyDictionary()


def _shares(program: ArrayExecutable, numbers: Sequence[int]) -> list[float]:
    """Which share of their launch's time kernels are given: by the bytes they move at least."""
    sizes = [max(_facts(program)[number][1], 1) for number in numbers]
    return [size / sum(sizes) for size in sizes]


def _facts(program: Program) -> list[tuple[str, int, str, str]]:
    """Name, least bytes, lines and ops of every kernel of a program."""
    known = _known.get(program)
    if known is None:
        known = _known[program] = []
        for kernel in program.plan.kernels:
            lines = " ".join(dict.fromkeys(n.where for n in kernel.nodes if n.where))
            ops = ", ".join(n.op.name for n in kernel.nodes) or "copy"
            work = cost(kernel.placed())
            detail = f"{ops}; {list(kernel.extents)}; {work.flops} flops"
            known.append((kernel.spec.name, work.least, lines, detail))
    return known


class ProfilerActivity:
    """What PyTorch lets one choose from. There is one processor here, and it is always seen.

    Example::

        >>> fw.profiler.ProfilerActivity.CPU
        'CPU'
    """

    CPU = "CPU"


class profile:  # noqa: N801 -- PyTorch's name
    """Times what this thread does in a `with` block: eager ops, gradients, compiled programs and their
    kernels.

    `print(p.table())` adds spans up by name, `p.spans` has each, `p.save("trace.json")` writes them for
    Perfetto (ui.perfetto.dev), speedscope or chrome://tracing. Lines and bytes are always recorded: of
    PyTorch's other arguments only `on_trace_ready`, called with the profile at the end, has a meaning.

    Example::

        >>> x = fw.ones(3, 4)
        >>> with fw.profile() as p:
        ...     with fw.profiler.record_function("two ops"):
        ...         y = x.exp().sqrt()
        >>> [(span.name, span.kind, span.bytes) for span in p.spans]
        [('exp', 'op', 96), ('sqrt', 'op', 96), ('two ops', 'user', 0)]
    """

    @python_effect
    def __init__(
        self,
        activities: Iterable[str] | None = None,
        *,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
    ) -> None:
        self.on_trace_ready = on_trace_ready
        self.seconds = 0.0
        self._spans = _Spans()

    @python_effect
    def __enter__(self) -> profile:
        lookout.add(self._spans)
        self._begun = time.perf_counter()
        return self

    @python_effect
    def __exit__(self, *exception: object) -> None:
        self.seconds += time.perf_counter() - self._begun
        lookout.remove(self._spans)
        self._spans.name_kernels()
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    @property
    def spans(self) -> list[Span]:
        """Every span, in the order they ended."""
        self._spans.name_kernels()
        return self._spans.spans

    def rows(self) -> list[Row]:
        """Spans of one name and kind added up, the longest total first."""
        found: dict[tuple[str, str], Row] = {}
        for span in self.spans:
            row = found.setdefault((span.name, span.kind), Row(span.name, span.kind))
            row.count += 1
            row.total += span.duration
            row.own += span.own
            row.bytes += span.bytes
        return sorted(found.values(), key=lambda row: -row.total)

    def table(self, sort_by: str = "total", row_limit: int = 40) -> str:
        """The rows as text. `sort_by`: "total", "self", "count", "bytes" or "name"; PyTorch's names work
        too.
        """
        if sort_by not in _ORDERS:
            raise ValueError(f"a profile is sorted by {', '.join(_ORDERS)}, not {sort_by!r}")
        by = _ORDERS[sort_by]
        rows = sorted(self.rows(), key=lambda row: getattr(row, by), reverse=by != "name")
        whole = sum(span.own for span in self.spans) or 1
        head = ("name", "kind", "count", "total ms", "self ms", "self", "mean µs", "MB", "GB/s")
        cells = [head, *(_cells(row, whole) for row in rows[:row_limit])]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        lines = [_joined(line, widths) for line in cells]
        lines.insert(1, "  ".join("-" * w for w in widths))
        if len(rows) > row_limit:
            lines.append(f"and {len(rows) - row_limit} more rows: table(row_limit={len(rows)}) shows them")
        lines.append(f"{len(self.spans)} spans in {self.seconds * 1e3:.3f} ms")
        return "\n".join(lines)

    def key_averages(self) -> profile:
        """Where PyTorch has its table: `p.key_averages().table(sort_by="cpu_time_total")`."""
        return self

    def events(self) -> list[Span]:
        """PyTorch's name for `spans`."""
        return self.spans

    def save(self, path: str | Path) -> Path:
        """Write the spans in Chrome's trace form, for Perfetto, speedscope and chrome://tracing."""
        target = Path(path)
        target.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": self._events()}))
        return target

    export_chrome_trace = save

    def _events(self) -> list[dict[str, Any]]:
        here = {"pid": os.getpid(), "tid": threading.get_native_id()}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "args": {"name": "Tracefuse"}, **here},
            {"ph": "M", "name": "thread_name", "args": {"name": threading.current_thread().name}, **here},
        ]
        for span in sorted(self.spans, key=lambda span: (span.start, -span.duration)):
            facts = {"bytes": span.bytes, "line": span.where, "detail": span.detail}
            if span.bytes and span.duration:
                facts["GB/s"] = round(span.bytes / span.duration, 3)
            times = {"ts": span.start / 1e3, "dur": span.duration / 1e3}
            shown = {name: fact for name, fact in facts.items() if fact}
            events.append({"ph": "X", "name": span.name, "cat": span.kind, **times, "args": shown, **here})
        return events

    def __repr__(self) -> str:
        return self.table()


def _cells(row: Row, whole: int) -> tuple[str, ...]:
    name = row.name if len(row.name) <= 40 else f"{row.name[:39]}…"
    return (
        name,
        row.kind,
        str(row.count),
        f"{row.total / 1e6:.3f}",
        f"{row.own / 1e6:.3f}",
        f"{row.own / whole:.1%}",
        f"{row.total / row.count / 1e3:.1f}",
        f"{row.bytes / 1e6:.2f}" if row.bytes else "",
        f"{row.rate:.1f}" if row.bytes else "",
    )


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the table: two columns of text, the others of numbers."""
    left = [cell.ljust(w) for cell, w in zip(cells[:2], widths, strict=False)]
    right = [cell.rjust(w) for cell, w in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right]).rstrip()


class record_function(contextlib.ContextDecorator):  # noqa: N801
    """Names a span in the profiles of this thread: a `with` block, or a decorated function. Outside a
    profile it costs next to nothing; inside a compiled function that is replayed there is no Python to be
    timed.

    Example::

        >>> with fw.profiler.record_function("forward"):
        ...     y = fw.ones(3) * 2
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args or ""
        self.begun: list[list[tuple[_Spans, Span]]] = []

    def _recreate_cm(self) -> record_function:
        return record_function(self.name, self.args)

    def __enter__(self) -> record_function:
        profiles = [x for x in lookout.lookouts() if isinstance(x, _Spans)]
        self.begun.append([(x, x.begin()) for x in profiles])
        return self

    def __exit__(self, *exception: object) -> None:
        end = time.perf_counter_ns()
        for spans, span in self.begun.pop():
            spans.keep(span, end, name=self.name, kind="user", detail=self.args, where=user_line())
