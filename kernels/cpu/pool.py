"""The worker threads that share parallel launches: one pool a process, started at first use, new after a
fork.

Threads are Python threads inside one native call, which holds no lock of the interpreter's. Knows no
programs.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kernels.cpu import engine

# Words of kernels/cpu/native.py's pool layout, in 8-byte units.
_STOP, _FUNCTIONS, _MUTEX, _CONDITION, _SPINS, _THREADS, _SIZE = 56, 64, 72, 80, 88, 89, 104
# Words of each thread.
_OWN = 8
# Empty looks before a worker sleeps: about 200 us at 10-40 ns each, longer than the Python between two steps.
_SPIN_LIMIT = 8192

_lock = threading.Lock()
_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_process = ctypes.CDLL(None)
_pool: np.ndarray | None = None
_address = 0
_retired: list[np.ndarray] = []


def source() -> str:
    """The text of the native functions."""
    return Path(__file__).with_name("native.py").read_text()


def get_num_threads() -> int:
    """How many threads, the caller's included, run a parallel launch."""
    return _threads


def set_num_threads(count: int) -> None:
    """Use `count` threads, the caller's included, from the next program on. Raises ValueError below 1."""
    global _threads
    if count < 1:
        raise ValueError(f"set_num_threads expects a positive number of threads, got {count}")
    with _lock:
        _threads = count
        _stop()


def address() -> int:
    """Address of the running pool, started if need be; 0 when one thread is enough."""
    global _pool, _address
    if _address == 0 and _threads > 1:
        with _lock:
            if _pool is None:
                _pool = _start(_threads - 1)
                _address = _pool.ctypes.data
    return _address


def _start(workers: int) -> np.ndarray:
    pool = np.zeros(_SIZE + _OWN * (workers + 1), np.int64)
    machine = engine.load(engine.Request("native", source(), "work"))
    work = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(machine.address)
    names = ("pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait", "pthread_cond_broadcast")
    for i, name in enumerate(names):
        pool[_FUNCTIONS + i] = ctypes.cast(getattr(_process, name), ctypes.c_void_p).value or 0
    _process.pthread_mutex_init(_at(pool, _MUTEX), None)
    _process.pthread_cond_init(_at(pool, _CONDITION), None)
    pool[_SPINS], pool[_THREADS] = _SPIN_LIMIT, workers + 1
    for number in range(1, workers + 1):
        # The thread holds the array, so that its memory outlives the pool's last user.
        threading.Thread(
            target=_work, args=(work, pool, number), name=f"tracefuse-{number}", daemon=True
        ).start()
    return pool


def _at(pool: np.ndarray, word: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(pool.ctypes.data + 8 * word)


def _work(work: Callable[[int, int], None], pool: np.ndarray, number: int) -> None:
    work(pool.ctypes.data, number)


def _stop() -> None:
    """Let the workers end, sleepers too."""
    global _pool, _address
    if _pool is not None:
        _retired.append(_pool)  # a program of another thread may still be posting to it
        _process.pthread_mutex_lock(_at(_pool, _MUTEX))
        _pool[_STOP] = 1
        _process.pthread_cond_broadcast(_at(_pool, _CONDITION))
        _process.pthread_mutex_unlock(_at(_pool, _MUTEX))
    _pool, _address = None, 0


def _after_fork() -> None:
    """A child has none of its parent's threads: it starts its own pool at first use."""
    global _pool, _address, _lock
    _pool, _address, _lock = None, 0, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
