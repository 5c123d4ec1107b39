"""This machine in words and sizes, and an environment that gives every library the same threads.

Reads what the system says of itself; measures nothing.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

# OPENBLAS_CORETYPE can halve OpenBLAS's speed, and not every library reads it: nobody gets it.
REMOVED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "XLA_FLAGS")
# XLA sizes its pool by NPROC.
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS", "NPROC",
)  # fmt: skip
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def describe() -> str:
    """Processor, cores and system, on one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if "model name" in x]
        name = lines[0] if lines else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


@cache
def cache_sizes() -> dict[int, int]:
    """Bytes of the data caches by level: 1 and 2 of one core, 3 of all; usual sizes where the system is
    silent.
    """
    sizes = dict(_USUAL)
    for index in sorted(_CACHES.glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            text = (index / "size").read_text().strip()
            unit = _UNITS.get(text[-1], 1)
            sizes[int((index / "level").read_text())] = int(text.rstrip("KMG")) * unit
    return sizes


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(threads: int) -> dict[str, str]:
    """This process's environment with every known thread count set to `threads`."""
    kept = {name: value for name, value in os.environ.items() if name not in REMOVED}
    return kept | dict.fromkeys(THREADS, str(threads))


def pin(threads: int) -> None:
    """Keep this process on `threads` cores: some libraries count cores and nothing else."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
