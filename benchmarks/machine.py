"""The machine in words, its peaks, and an environment that gives every framework the same threads.

`python -m benchmarks.machine THREADS` prints the peaks as JSON: of the process, so a fresh one is asked.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

# OPENBLAS_CORETYPE can halve OpenBLAS's speed, and not every framework reads it: nobody gets it.
_REMOVED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "XLA_FLAGS")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")

# Far beyond any cache, in float32 numbers; a matrix product that BLAS runs at its full speed.
COPIED = 2**26
SIDE = 2048
PEAK_SECONDS = 3.0


def describe() -> str:
    """Processor, cores and system, on one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        name = lines[0] if lines else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


def thread_environment(threads: int) -> dict[str, str]:
    """This process's environment with every known thread count set to `threads`.

    XLA sizes its pool by NPROC.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _REMOVED}
    return kept | dict.fromkeys(_THREADS, str(threads))


def pin(threads: int) -> None:
    """Keep this process on `threads` cores: some frameworks count cores and nothing else."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def peaks(threads: int) -> dict[str, float]:
    """The most bytes a second that `threads` copies move, read and written, and FLOPs a second of BLAS."""
    source, target = np.ones(COPIED, np.float32), np.zeros(COPIED, np.float32)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    left = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(left)
    with ThreadPoolExecutor(threads) as pool:
        copy = best(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)))
    return {
        "bytes_per_second": (source.nbytes + target.nbytes) / copy,
        "flops_per_second": 2 * SIDE**3 / best(lambda: np.matmul(left, left, out=out)),
    }


def best(call: Callable[[], Any]) -> float:
    """The shortest of the calls that fit into PEAK_SECONDS."""
    times = []
    end = time.perf_counter() + PEAK_SECONDS
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    count = int(sys.argv[1])
    pin(count)
    print(json.dumps(peaks(count)))
