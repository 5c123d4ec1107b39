"""Who looks at programs while they run, thread by thread: a profiler, a search for NaN, the checks of
debugging.

A program asks only whether there is anybody in any thread. What a look does is its own business.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels.cpu import edits, stepping

if TYPE_CHECKING:
    from compiler.gpu.arrays import ArrayExecutable
    from compiler.program import Executable

    Program = Executable | ArrayExecutable

Array = np.ndarray[Any, Any]


class Look:
    """Sees a run of a program. `steps`: whether it is to be run kernel by kernel; `there`: whether it sees
    programs of a GPU too, whose arrays are on it.
    """

    steps = there = False

    def before(self, program: Program, arrays: Mapping[int, Array]) -> Any:
        """Inputs by number, before anything runs. What it raises stops the call before memory has changed;
        what it returns is handed to the others.
        """

    def ready(self, program: Executable, begun: Any) -> None:
        """The first kernel is about to run, if this look `steps`."""

    def kernel(self, program: Executable, number: int, begun: Any) -> None:
        """Kernel `number` has run, if this look `steps`."""

    def took(self, program: ArrayExecutable, numbers: Sequence[int], seconds: float, begun: Any) -> None:
        """Kernels of one launch took so long on a GPU, if this look `steps`."""

    def after(
        self,
        program: Program,
        arrays: Mapping[int, Array],
        outputs: list[Array],
        failed: int,
        begun: Any,
    ) -> None:
        """The run is over; `failed` where a check found bad input."""


class Watched:
    """How many threads have a look, and what looks `everywhere`; only then does a program ask for its own."""

    threads = 0
    everywhere: tuple[Look, ...] = ()


class _Own(threading.local):
    looks: tuple[Look, ...] = ()


watched = Watched()
_own = _Own()
_counting = threading.Lock()


def _after_fork() -> None:
    """Only one thread of the parent goes on."""
    global _counting
    _counting = threading.Lock()
    watched.threads = bool(_own.looks) + bool(watched.everywhere)


os.register_at_fork(after_in_child=_after_fork)


def looks() -> tuple[Look, ...]:
    """Those of this thread, first one first."""
    return _own.looks


def set_looks(chosen: tuple[Look, ...]) -> None:
    """Let these, and no others, look at the programs of this thread."""
    with _counting:
        watched.threads += bool(chosen) - bool(_own.looks)
        _own.looks = chosen


def set_everywhere(chosen: tuple[Look, ...]) -> None:
    """Let these look at the programs of all threads, besides those of each thread."""
    with _counting:
        watched.threads += bool(chosen) - bool(watched.everywhere)
        watched.everywhere = chosen


def run(program: Executable, arrays: Mapping[int, Array], outputs: list[Array], workers: int) -> int:
    """Run a program under the looks of this thread."""
    here = (*watched.everywhere, *_own.looks)
    begun = [look.before(program, arrays) for look in here]
    pairs = list(zip(here, begun, strict=True))
    if any(look.steps for look in here):
        stepping_ones = [(look, start) for look, start in pairs if look.steps]

        def ready() -> None:
            for look, start in stepping_ones:
                look.ready(program, start)

        def after(number: int) -> None:
            for look, start in stepping_ones:
                look.kernel(program, number, start)

        steps = program.stepped()
        if edits.active():
            steps.renew()
        failed = stepping.run(steps, workers, ready, after)
    else:
        failed = program.native(program.program.address, workers)
    for look, start in reversed(pairs):
        look.after(program, arrays, outputs, failed, start)
    return failed


def run_there(
    program: ArrayExecutable,
    arrays: Mapping[int, Any],
    outputs: list[Any],
    run: Callable[[], int],
    timed: Callable[[], tuple[int, list[tuple[tuple[int, ...], float]]]],
) -> int:
    """Run a program of a GPU under the looks of this thread that see such: `timed` gives the kernels of each
    launch, one after the other, with the seconds it took.
    """
    here = [look for look in (*watched.everywhere, *_own.looks) if look.there]
    pairs = [(look, look.before(program, arrays)) for look in here]
    if any(look.steps for look in here):
        failed, launches = timed()
        for look, start in pairs:
            for numbers, seconds in launches if look.steps else ():
                look.took(program, numbers, seconds, start)
    else:
        failed = run()
    for look, start in reversed(pairs):
        look.after(program, arrays, outputs, failed, start)
    return failed
