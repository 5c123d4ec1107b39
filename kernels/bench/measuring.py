"""Measure one kernel, alone or beside other libraries, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels import dtypes
from kernels.bench import peers
from kernels.bench.code import code
from kernels.bench.result import OURS, Measurement
from kernels.cost import cost
from kernels.cpu import pool
from kernels.errors import KernelError
from kernels.files import Placed, load, placed
from kernels.library import ELEMENTWISE, LIBRARY, MATMUL, Named, Sizes
from kernels.prepared import Array, Prepared
from kernels.roofline import Roofline, roofline
from kernels.timing import Timing, time_call, time_steadily
from kernels.work import Work

# Runs of one native call: enough that Python's microsecond does not count.
_CALL, _MOST_RUNS = 30e-6, 64

Kernel = str | Path | Work | Placed


@dataclass(frozen=True)
class Subject:
    """A kernel to measure: its name, sizes and dtype as reports have them; `named` if it is the library's."""

    name: str
    sizes: Sizes
    dtype: str
    placed: Placed
    named: Named | None = None


def subject(kernel: Kernel, sizes: Sequence[int] | None = None, dtype: str = "float32") -> Subject:
    """What `kernel` says: a name of the library (of `sizes` and `dtype`), a file, or a `Work`.

    Raises KernelError for a name that does not exist, or sizes that the kernel does not have.
    """
    if isinstance(kernel, str) and kernel in LIBRARY:
        named = LIBRARY[kernel]
        chosen = fitting(named, tuple(sizes) if sizes else named.default)
        return Subject(kernel, chosen, dtype, named.make(dtypes.named(dtype), chosen), named)
    if isinstance(kernel, str | Path):
        if not Path(kernel).is_file():
            raise KernelError(f"{kernel} is neither a file nor a kernel of the library: {', '.join(LIBRARY)}")
        kernel = load(kernel)
    kernel = placed(kernel) if isinstance(kernel, Work) else kernel
    work = kernel.work
    return Subject(work.spec.name, work.extents, cost(kernel).dtype.name, kernel)


def fitting(named: Named, sizes: Sizes) -> Sizes:
    """`sizes` as the kernel has them: those of an elementwise one multiplied, else as many as it takes."""
    if named.family == ELEMENTWISE:
        count = 1
        for size in sizes:
            count *= size
        return (count,)
    if len(sizes) != len(named.default):
        axes = "[batch,] m, k, n" if named.family == MATMUL else "rows, columns"
        raise KernelError(f"{named.name} has {len(named.default)} sizes ({axes}), got {list(sizes)}")
    return sizes


def prepare(kernel: Kernel, sizes: Sequence[int] | None = None, dtype: str = "float32") -> Prepared:
    """The kernel on memory of its own, to be called, by a timer of one's own for one."""
    return Prepared(subject(kernel, sizes, dtype).placed)


def measure(
    kernel: Kernel,
    sizes: Sequence[int] | None = None,
    dtype: str = "float32",
    *,
    threads: int | None = None,
    seconds: float = 0.3,
    roof: Roofline | None = None,
) -> Measurement:
    """Time a kernel for about `seconds` on `threads` threads (as many as the pool has), and look at its code.

    `Measurement.noisy` says that the machine was too busy, at every try. Without `roof`, the machine's
    roofline is taken from the cache, or measured.
    """
    return _measure(subject(kernel, sizes, dtype), None, threads, seconds, roof)


def compare(
    kernel: Kernel,
    sizes: Sequence[int] | None = None,
    dtype: str = "float32",
    *,
    threads: int | None = None,
    seconds: float = 0.3,
    against: Sequence[str] = peers.NAMES,
    roof: Roofline | None = None,
    say: Callable[[str], Any] = print,
) -> list[Measurement]:
    """`measure`, and the same work by each library in `against`; `say` is told which are left out, and why.

    Other libraries use the threads that this process gave them when they were loaded.
    """
    what = subject(kernel, sizes, dtype)
    arrays = Prepared(what.placed).arrays
    threads = threads or pool.get_num_threads()
    roof = roof or roofline(threads)
    ours = _measure(what, arrays, threads, seconds, roof)
    found = [ours]
    for name in against:
        try:
            call = peers.make(name, what.named, what.sizes, what.placed, arrays, threads)
        except peers.LeftOutError as reason:
            say(f"{name} left out of {what.name}: {reason}")
            continue
        found.append(_of_peer(ours, name, time_steadily(call, seconds)))
    return found


def _measure(
    what: Subject, arrays: list[Array] | None, threads: int | None, seconds: float, roof: Roofline | None
) -> Measurement:
    if threads and threads != pool.get_num_threads():
        pool.set_num_threads(threads)
    roof = roof or roofline(pool.get_num_threads())
    one = Prepared(what.placed, arrays=arrays)
    timing, call = _timed(one, seconds)
    work, made = cost(what.placed), code(what.placed.work.spec)
    bound, why = roof.bound(work)
    return Measurement(
        what.name,
        what.sizes,
        what.dtype,
        pool.get_num_threads(),
        OURS,
        timing.median,
        timing.best,
        timing.spread,
        timing.samples,
        timing.waited,
        work.least,
        work.flops,
        bound,
        why,
        work.least / roof.memory.copy,
        work.moved,
        call.median,
        made.seconds,
        made.size,
        made.bits,
    )


def _timed(one: Prepared, seconds: float) -> tuple[Timing, Timing]:
    """A run's timing, of several runs a call where it is short; and that of a call from Python."""
    call = time_call(one, seconds / 4)
    runs = min(_MOST_RUNS, max(1, round(_CALL / call.best)))
    many = Prepared(one.kernel, runs, one.arrays) if runs > 1 else one
    return time_steadily(many, seconds).divided(runs), call


def _of_peer(ours: Measurement, library: str, timing: Timing) -> Measurement:
    taken = replace(ours, library=library, moved=None, call=None)
    taken = replace(taken, compile_seconds=None, code_bytes=None, vector_bits=None)
    taken = replace(taken, median=timing.median, best=timing.best, spread=timing.spread)
    return replace(taken, samples=timing.samples, waited=timing.waited)
