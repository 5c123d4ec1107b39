"""One framework's step timed in this process: the child of `benchmarks.steps`; prints one JSON line.

Imports nothing but NumPy before the clock starts.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.machine import pin
from benchmarks.works import WORKS
from benchmarks.works.work import Array

# Name on the command line: module and maker of its step.
FRAMEWORKS = {
    "tracefuse": ("benchmarks.steppers.tracefuse", "make"),
    "tracefuse.eager": ("benchmarks.steppers.tracefuse", "make_eager"),
    "torch": ("benchmarks.steppers.pytorch", "make_eager"),
    "torch.compile": ("benchmarks.steppers.pytorch", "make"),
    "jax": ("benchmarks.steppers.jaxlike", "make"),
}
# Steps before the clock: torch.compile compiles its optimizer again on the second, and clocks must rise.
WARM_STEPS = 20
LEAST_STEPS = 10
# Elements of each result that are compared.
SAMPLES = 16


def measure(framework: str, work: str, seconds: float) -> dict[str, Any]:
    """Times in seconds and memory in bytes of `framework` on `work`, timed for about `seconds`."""
    module, maker = FRAMEWORKS[framework]
    begin = time.perf_counter()
    make = getattr(importlib.import_module(module), maker)
    imported, rss_imported = time.perf_counter(), peak_rss()
    step, batches, look = make(WORKS[work])
    made = time.perf_counter()
    result = step(*batches[0])
    first = time.perf_counter()
    results = samples(look(result))
    for number in range(1, WARM_STEPS):
        result = step(*batches[number % len(batches)])
    results += samples(look(result))
    del result
    warm = time.perf_counter()
    times = []
    while time.perf_counter() < warm + seconds or len(times) < LEAST_STEPS:
        batch = batches[len(times) % len(batches)]
        start = time.perf_counter()
        step(*batch)
        times.append(time.perf_counter() - start)
    return {
        "median": statistics.median(times),
        "best": min(times),
        "steps": len(times),
        "import": imported - begin,
        "first_call": first - made,
        "import_to_first_result": first - begin,
        "results": results,
        "peak_memory": peak_rss(),
        "peak_memory_after_import": peak_rss() - rss_imported,
    }


def peak_rss() -> int:
    """The most memory this process has had resident so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def samples(arrays: Sequence[Array]) -> list[list[float]]:
    """Of each array: its norm, and numbers from all over it, few enough to print."""
    found: list[list[float]] = []
    for array in arrays:
        flat = array.reshape(-1)
        # Without the temporary that would count as the framework's memory.
        found.append([float(np.einsum("i,i->", flat, flat, dtype=np.float64)) ** 0.5])
        found.append(flat[:: max(1, flat.size // SAMPLES)].tolist())
    return found


if __name__ == "__main__":
    pin(int(sys.argv[4]))
    print(json.dumps(measure(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
