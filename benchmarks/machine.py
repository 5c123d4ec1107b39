"""The machine in words, and an environment that gives every framework the same threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# OPENBLAS_CORETYPE can halve OpenBLAS's speed, and not every framework reads it: nobody gets it.
_REMOVED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "XLA_FLAGS")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "NPROC")


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
