"""`python -m benchmarks.ablation [WORK ...]`: what each part of the compiler gives, by leaving it out.

The variants of a step live in one process and take turns; a figure is the median time of the step without the
part over that of the step with all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import compiler.passes
from benchmarks.machine import describe, pin
from benchmarks.steppers.tracefuse import make
from benchmarks.works import WORKS
from compiler import plan, program
from compiler.levels import ALIGNMENT, accesses
from compiler.plan import Planner
from compiler.schedule import Scheduler

DEFAULT = ("mlp_small", "mlp_mid", "cnn", "gpt", "lstm", "layer_norm", "cross_entropy", "gelu_chain", "adamw")
ROUNDS, SECONDS = 5, 0.4
Patches = Sequence[Any]


def _apart(planner: Planner, levels: Sequence[int], outside: set[Any]) -> tuple[dict[Any, int], int]:
    """A place of its own in the arena for every buffer."""
    offsets: dict[Any, int] = {}
    total = 0
    for kernel in planner.kernels:
        for buffer in {b.root for b in set().union(*accesses(kernel))} - outside:
            if buffer not in offsets:
                offsets[buffer] = total
                total += -(-max(buffer.type.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return offsets, total


def _copied(planner: Planner, groups: Sequence[Any]) -> dict[Any, Any]:
    """No value is computed where the one it replaces lies."""
    planner.taken = set()
    planner.extra = {g: set() for g in groups}
    return {}


_PASSES = tuple(f for f in compiler.passes.PIPELINE if f.__name__ != "join_products")
# What to patch so that a step is compiled without a part.
PARTS: dict[str, Callable[[], Patches]] = {
    "nothing": lambda: [],
    "fused loops": lambda: [
        patch.object(Scheduler, "try_merge", lambda self, producer, consumer: None),
        patch.object(Scheduler, "merge_readers", lambda self, value: None),
    ],
    "epilogues": lambda: [patch.object(Scheduler, "try_epilogue", lambda self, product, user: False)],
    "joined products": lambda: [patch.object(program, "PIPELINE", _PASSES)],
    "pieces in place": lambda: [patch.object(plan, "joined", lambda *given: {})],
    "updates in place": lambda: [patch.object(Planner, "in_place", _copied)],
    "reused memory": lambda: [patch.object(Planner, "pack", _apart)],
}


def compiled(work: str, part: str) -> Callable[[], None]:
    """One step after the other of `work`, compiled without `part`."""
    step, batches, _ = make(WORKS[work])
    with ExitStack() as stack:
        for change in PARTS[part]():
            stack.enter_context(change)
        for batch in batches[:3]:
            step(*batch)
    count = 0

    def run() -> None:
        nonlocal count
        step(*batches[count % len(batches)])
        count += 1

    return run


def measured(work: str) -> dict[str, float]:
    """Median seconds of a step of `work` without each part."""
    steps = {part: compiled(work, part) for part in PARTS}
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(ROUNDS):
        for part, step in steps.items():
            end = time.perf_counter() + SECONDS / ROUNDS
            while time.perf_counter() < end or not times[part]:
                begin = time.perf_counter()
                step()
                times[part].append(time.perf_counter() - begin)
    return {part: statistics.median(taken) for part, taken in times.items()}


def main() -> None:
    """Measure the works named, or those of DEFAULT, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("works", nargs="*", default=list(DEFAULT), metavar="WORK", help=" ".join(WORKS))
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    pin(given.threads)
    parts = [part for part in PARTS if part != "nothing"]
    print(describe())
    print(f"{'':16}{'with all':>12}", *(f"{part:>17}" for part in parts))
    for work in given.works:
        found = measured(work)
        whole = found["nothing"]
        ratios = (f"{found[part] / whole:>17.2f}" for part in parts)
        print(f"{work:16}{whole * 1e3:>9.3f} ms", *ratios, flush=True)


if __name__ == "__main__":
    main()
