"""The most this machine does: bytes a second per cache level, FLOPs a second, the cost of sharing work.

Measured in a process of its own, whose libraries all have the same number of threads, and kept in the cache
folder. `python -m kernels.roofline THREADS` prints it as JSON. Knows no kernel but its own probes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernels import cache, dtypes, machine
from kernels.cost import Cost
from kernels.cpu import pool
from kernels.cpu.engine import compiler_digest
from kernels.cpu.runner import LARGE
from kernels.cpu.target import fingerprint
from kernels.dtypes import DType
from kernels.files import Placed
from kernels.library import LIBRARY, LoopBuilder
from kernels.prepared import Prepared, aligned
from kernels.timing import MOST_WAITED, Timing, time_steadily
from kernels.work import Work

# Side of the matrix products whose speed is the peak.
SIDE = 2048
# Bytes of the arrays in memory: far more than any cache holds, and at most.
_BEYOND, _MOST = 8, 1 << 30
# Launches of one program that tell what it costs to share one.
_LAUNCHES = 256
_SECONDS = 0.4
# Elements that a thread's part of an array is a multiple of: whole vectors, on cache lines of their own.
_GRAIN = 64
_FLOATS = (dtypes.float32, dtypes.float64)


@dataclass(frozen=True)
class Level:
    """A level of the memory hierarchy: what all threads together can keep there in bytes (0: no limit), and
    bytes a second, read and written, of y = x, z = x + 3 y, the sum of x, and x = -x.
    """

    name: str
    capacity: int
    copy: float
    triad: float
    read: float
    update: float

    def bandwidth(self, written: float, in_place: bool) -> float:
        """Bytes a second of the probe whose written share of all bytes is nearest: 0, a third or a half. What
        is written in place need not be fetched from memory for it.
        """
        if written < 1 / 6:
            return self.read
        return self.update if in_place else self.triad if written < 5 / 12 else self.copy


@dataclass(frozen=True)
class Roofline:
    """Peaks of `threads` threads. `blas` and `ours`: FLOPs a second of a product of 2048 x 2048 by dtype;
    `fork_join`: seconds to share one launch; `call`: seconds of an empty native call from Python. `waited`:
    the largest share of a probe's time for which threads had no core.
    """

    machine: str
    threads: int
    levels: tuple[Level, ...]
    blas: dict[str, float]
    ours: dict[str, float]
    fork_join: float
    call: float
    waited: float

    @property
    def noisy(self) -> bool:
        """Whether other programs had the cores."""
        return self.waited > MOST_WAITED

    def level(self, size: int) -> Level:
        """The level that `size` bytes are read from when they were used just before."""
        return next(level for level in self.levels if not level.capacity or size <= level.capacity)

    @property
    def memory(self) -> Level:
        """The level that holds everything."""
        return self.levels[-1]

    def flops(self, dtype: DType) -> float:
        """The most FLOPs a second seen on products of `dtype`, or of what it is computed in."""
        name = dtype.arithmetic.name if dtype.is_floating_point else dtypes.float32.name
        return max(self.blas[name], self.ours[name])

    def bound(self, work: Cost) -> tuple[float, str]:
        """Seconds that a kernel's bytes, each once, and its FLOPs take at least; and which of them."""
        level = self.level(work.footprint)
        bandwidth = level.bandwidth(work.written_share, work.in_place)
        times = {level.name: work.least / bandwidth, "FLOPs": work.flops / self.flops(work.dtype)}
        why = max(times, key=lambda name: times[name])
        return times[why], why

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return asdict(self)


def from_json(content: dict[str, Any]) -> Roofline:
    """The roofline that `as_json` gave."""
    fields = dict(content)
    fields["levels"] = tuple(Level(**level) for level in content["levels"])
    return Roofline(**fields)


def roofline(threads: int | None = None, fresh: bool = False) -> Roofline:
    """The roofline of `threads` threads (of all cores): from the cache, or measured, which takes some
    seconds; kept unless it is noisy.
    """
    threads = threads or pool.get_num_threads()
    name = f"roofline_{_key(threads)}.json"
    stored = None if fresh else cache.read(name)
    if stored is None:
        command = [sys.executable, "-m", "kernels.roofline", str(threads)]
        environment = machine.thread_environment(threads)
        stored = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
        if not from_json(json.loads(stored)).noisy:
            cache.write(name, stored)
    return from_json(json.loads(stored))


def _key(threads: int) -> str:
    """Everything that decides what is measured."""
    versions = [np.__version__, importlib.metadata.version("numba"), compiler_digest(), fingerprint()]
    probes = Path(__file__).read_text()
    text = f"{machine.describe()} {machine.cache_sizes()} {threads} {versions} {probes}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class _Meter:
    """Times probes, and remembers for how long they waited for cores."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def time(self, call: Callable[[], Any], seconds: float = _SECONDS) -> Timing:
        timing = time_steadily(call, seconds)
        self.waits.append(timing.waited)
        return timing


def measure(threads: int) -> Roofline:
    """Measure in this process, whose libraries should have been started with `threads` threads."""
    pool.set_num_threads(threads)
    meter = _Meter()
    fork_join, call = _sharing(meter, threads)
    levels = tuple(_levels(meter, threads))
    blas = {d.name: _flops(meter, _blas(d)) for d in _FLOATS}
    products = {d.name: Prepared(LIBRARY["matmul"].make(d, (SIDE,) * 3)) for d in _FLOATS}
    ours = {name: _flops(meter, product) for name, product in products.items()}
    return Roofline(machine.describe(), threads, levels, blas, ours, fork_join, call, max(meter.waits))


def _flops(meter: _Meter, product: Callable[[], Any]) -> float:
    return 2 * SIDE**3 / meter.time(product, 1.5).best


def _blas(dtype: DType) -> Callable[[], Any]:
    left = np.ones((SIDE, SIDE), dtype.numpy)
    out = np.empty_like(left)
    return lambda: np.matmul(left, left, out=out)


# Bandwidths ---------------------------------------------------------------------------------------


def _levels(meter: _Meter, threads: int) -> Iterator[Level]:
    sizes = machine.cache_sizes()
    for name, capacity in (
        ("L1", sizes[1] * threads),
        ("L2", sizes[2] * threads),
        ("L3", sizes[3]),
    ):
        yield Level(name, capacity, *(_bandwidth(meter, probe, capacity // 2, threads) for probe in _PROBES))
    size = min(max(_BEYOND * sizes[3], 1 << 28), _MOST)
    copy, *others = (_bandwidth(meter, probe, size, threads) for probe in _PROBES)
    yield Level("memory", 0, max(copy, _library_copy(meter, size, threads)), *others)


def _copy(k: Any, operands: list[Any]) -> None:
    k.store(k.load(dtypes.float32, operands[0]), dtypes.float32, operands[0])


def _triad(k: Any, operands: list[Any]) -> None:
    x, y = (k.load(dtypes.float32, operands[0]) for _ in range(2))
    k.store(k.add(x, k.mul(y, 3.0)), dtypes.float32, operands[0])


def _read(k: Any, operands: list[Any]) -> None:
    # The sum of integers: one instruction a vector, where a sum of floats is also widened.
    k.store(k.reduce(k.load(dtypes.int64, operands[0]), "add"), dtypes.int64, operands[1])


def _update(k: Any, operands: list[Any]) -> None:
    k.overwrite(0, k.neg(k.load(dtypes.float32, operands[0])))


# With the number of arrays, and how often each byte of them counts.
_PROBES: tuple[tuple[Any, int, int], ...] = ((_copy, 2, 1), (_triad, 3, 1), (_read, 1, 1), (_update, 1, 2))


def _bandwidth(meter: _Meter, probe: tuple[Any, int, int], size: int, threads: int) -> float:
    """Bytes a second of a probe over arrays of `size` bytes together, each thread on its own part again and
    again.
    """
    write, count, times = probe
    k = LoopBuilder(write.__name__[1:], rows=2, inner=1)
    write(k, [("s", 0, 1), (1, 0, 0)])
    item = k.operands[0].dtype.itemsize
    each = max(size // (count * threads * item) // _GRAIN, 1) * _GRAIN
    repeats = max(1, (4 << 20) // (each * item))
    strides = tuple((each, 0, 1) if o.strides[-1] else (1, 0, 0) for o in k.operands)
    work = Work(k.spec(), (threads, repeats, each), strides, (0,) * len(strides), parts=threads)
    sizes = tuple(each * threads if o.strides[-1] else threads for o in k.operands)
    kernel = Placed(work, tuple(range(len(sizes))), (0,) * len(sizes), sizes)
    moved = times * count * each * threads * repeats * item
    return moved / meter.time(Prepared(kernel)).best


def _library_copy(meter: _Meter, size: int, threads: int) -> float:
    """Bytes a second of the C library's copy, which may go past the caches."""
    source, target = (aligned(size // 8, dtypes.float32) for _ in range(2))
    source[:], target[:] = 1, 0
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as workers:
        best = meter.time(lambda: list(workers.map(lambda pair: np.copyto(*pair), parts))).best
    return 2 * source.nbytes / best


# Sharing ------------------------------------------------------------------------------------------


def _sharing(meter: _Meter, threads: int) -> tuple[float, float]:
    """Seconds that it costs to share one launch of tiny tasks, and of an empty native call."""
    empty = meter.time(_tiny(threads, 0, shared=False)).best
    if threads == 1:
        return 0.0, empty
    alone, shared = (meter.time(_tiny(threads, _LAUNCHES, shared=s)).median for s in (False, True))
    return max(shared - alone, 0.0) / _LAUNCHES, empty


def _tiny(threads: int, launches: int, shared: bool) -> Prepared:
    """A program of `launches` launches of one tiny task per thread."""
    k = LoopBuilder("tiny", rows=1, inner=1)
    _copy(k, [("s", 1)])
    work = Work(k.spec(), (threads, 16), ((16, 1),) * 2, (0, 0), parts=threads)
    tiny = Prepared(Placed(work, (0, 1), (0, 0), (16 * threads,) * 2), max(launches, 1))
    if launches == 0:
        tiny.program.head[0] = 0
    if shared:
        tiny.program.launches[:, 2] = LARGE
        tiny.program.parallel = True
        tiny.program.fit(threads)
    return tiny


if __name__ == "__main__":
    count = int(sys.argv[1])
    machine.pin(count)
    print(json.dumps(measure(count).as_json()))
