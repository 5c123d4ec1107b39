"""What this installation runs on: versions, processor, threads and folders. Loads the CPU back end."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import numpy as np

from framework import cuda
from framework.settings import config
from framework.state import guarded, python_effect
from kernels import cache
from kernels.cpu import pool, target
from kernels.gpu import arrays

_LIBRARIES = ("numpy", "ml_dtypes", "numba", "llvmlite", "scipy", "triton", "cupy")


def _version(library: str) -> str:
    # CuPy has a package for each version of CUDA.
    for package in (library, f"{library}-cuda12x", f"{library}-cuda13x"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def _gpus() -> str:
    """The GPUs, or what is missing for them."""
    try:
        count = arrays.engine().count
        names = [f"{cuda.get_device_name(i)} {cuda.get_device_capability(i)}" for i in range(count)]
    except Exception as error:  # noqa: BLE001 -- a report tells of what is broken
        return str(error)
    return ", ".join(names)


def _blas() -> str:
    """What NumPy multiplies matrices with, for eager code."""
    found = np.show_config(mode="dicts")
    facts = (found or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{facts.get('name', 'unknown')} {facts.get('version', '')}".strip()


class Lines(str):
    """Text that a REPL shows as `print` does."""

    __slots__ = ()

    __repr__ = str.__str__


def show_config() -> Lines:
    """One line for each fact that decides how programs are compiled and run, as text for a REPL or a report.

    Example::

        >>> print(fw.show_config())
        Tracefuse      ...
        Python         ...
        numpy          ...
        ...
        settings       config(debug=0, disable=False, check_finite=False)
    """
    facts = {
        "Tracefuse": _version("tracefuse").replace("not installed", "run from its folder"),
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{library: _version(library) for library in _LIBRARIES},
        "CPU features": " ".join(sorted(target.features())),
        "vector lanes": target.lanes(),
        "threads": f"{pool.get_num_threads()} of {os.cpu_count()} processors",
        "BLAS": _blas(),
        "GPU": _gpus(),
        "kernel cache": f"{cache.folder()}, {cache.size() / 1e6:.1f} MB",
        "settings": config,
    }
    width = max(map(len, facts))
    return Lines("\n".join(f"{name:{width}}  {value}" for name, value in facts.items()))


def get_num_threads() -> int:
    """How many threads, the caller's included, a program uses.

    Example::

        >>> fw.get_num_threads() >= 1
        True
    """
    return guarded(pool.get_num_threads)


@python_effect
def set_num_threads(count: int) -> None:
    """Use `count` threads, the caller's included, from the next program on. Raises ValueError below 1.

    Example::

        >>> before = fw.get_num_threads()
        >>> fw.set_num_threads(1)
        >>> fw.get_num_threads()
        1
        >>> fw.set_num_threads(before)
    """
    pool.set_num_threads(count)
