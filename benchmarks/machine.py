"""The machine's peaks for whole steps; what it is, and equal threads for all, are `kernels.machine`'s.

`python -m benchmarks.machine THREADS` prints the peaks as JSON: of the process, so a fresh one is asked.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kernels.machine import describe as describe
from kernels.machine import pin as pin
from kernels.machine import thread_environment as thread_environment

# Far beyond any cache, in float32 numbers; a matrix product that BLAS runs at its full speed.
COPIED = 2**26
SIDE = 2048
PEAK_SECONDS = 3.0


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
