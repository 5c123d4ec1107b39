"""`python -m benchmarks.overhead`: what a compiled call costs beside its arithmetic, and its memory.

A small add, an AdamW step over many small parameters, each op of a driven training step, and resident memory
over 10,000 steps.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import framework as fw
from benchmarks.machine import describe
from benchmarks.steppers.tracefuse import make
from benchmarks.works import WORKS

PARAMETERS, ELEMENTS = 200, 10
STEPS = 10_000
# By then every variant is compiled and every pool is filled.
SETTLED = 1_000


def microseconds(call: Callable[[], Any], rounds: int = 50, calls: int = 200) -> tuple[float, float]:
    """Median and best over `rounds` of the mean time of a call."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(times), min(times)


def small_add() -> tuple[float, float]:
    """A compiled a + b of ten elements each."""
    add: Any = fw.compile(lambda a, b: a + b)
    a, b = fw.ones(ELEMENTS), fw.ones(ELEMENTS)
    add(a, b)
    assert add.explain().mode == "replay", add.explain()
    return microseconds(lambda: add(a, b))


def many_parameters() -> tuple[float, float]:
    """A compiled AdamW step over PARAMETERS tensors of ELEMENTS elements, whose gradients were set once."""
    parameters = [fw.nn.Parameter(fw.ones(ELEMENTS)) for _ in range(PARAMETERS)]
    optimizer = fw.optim.AdamW(parameters)
    for p in parameters:
        p.grad = fw.ones(ELEMENTS)

    def update() -> None:
        optimizer.step()

    step: Any = fw.compile(update)
    step()
    assert step.explain().mode == "replay", step.explain()
    return microseconds(step)


def driven_op() -> tuple[float, float]:
    """Each op of a training step that reads its loss, in microseconds beyond the replayed step."""
    model = fw.nn.Sequential(
        fw.nn.Linear(64, 64), fw.nn.GELU(), fw.nn.Linear(64, 64), fw.nn.GELU(), fw.nn.Linear(64, 10)
    )
    optimizer = fw.optim.AdamW(model.parameters())
    x, y = fw.rand(64, 64), fw.randint(0, 10, (64,))

    def train() -> fw.Tensor:
        optimizer.zero_grad()
        loss = fw.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses: list[float] = []
    replayed: Any = fw.compile(train)
    driven: Any = fw.compile(lambda: losses.append(train().item()))
    for step in (replayed, driven):
        for _ in range(3):
            step()
    assert (replayed.explain().mode, driven.explain().mode) == ("replay", "driven")
    ops = sum(stretch.ops for stretch in driven.explain().stretches if stretch.runs > 1)
    pairs = [(microseconds(driven, 1, 50)[0], microseconds(replayed, 1, 50)[0]) for _ in range(30)]
    each = [(slow - fast) / ops for slow, fast in pairs]
    return statistics.median(each), min(each)


def resident() -> int:
    """Bytes of this process that are in memory now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_growth() -> tuple[int, int]:
    """Resident bytes after SETTLED and after STEPS compiled training steps of mlp_small."""
    step, batches, _ = make(WORKS["mlp_small"])
    for number in range(SETTLED):
        step(*batches[number % len(batches)])
    settled = resident()
    for number in range(SETTLED, STEPS):
        step(*batches[number % len(batches)])
    return settled, resident()


def main() -> None:
    """Measure all and print them."""
    print(describe())
    for name, (median, best) in (
        ("compiled add of 10 elements", small_add()),
        (f"compiled AdamW, {PARAMETERS} parameters of {ELEMENTS}", many_parameters()),
        ("each op of a driven training step", driven_op()),
    ):
        print(f"{name:44} median {median:8.2f} us, best {best:8.2f} us a call")
    settled, end = memory_growth()
    growth = (end - settled) / 2**10
    print(f"resident memory, step {SETTLED} to step {STEPS}: {settled / 2**20:.1f} MiB, {growth:+.0f} KiB")


if __name__ == "__main__":
    main()
