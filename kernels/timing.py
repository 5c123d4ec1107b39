"""How long a call takes: many samples, their median, best and spread, and whether it had its cores meanwhile.

A sample is as many calls as make it long beside the clock. Knows nothing of what is called.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Seconds of one sample at least: a clock read costs 50 ns, and what interrupts the machine is over in 100 us.
SAMPLE = 200e-6
FEWEST, MOST = 9, 2000
# A machine on which threads wait longer than this for a core has others to serve, which halves a speed
# without any spread; an interquartile range of so much of the median is no measurement either.
MOST_WAITED, MOST_SPREAD = 0.05, 0.15
TRIES = 5


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median and best of `samples`; `spread` is their interquartile range over the
    median. `waited`: seconds for which threads were ready and had no core, over those of the whole.
    """

    median: float
    best: float
    spread: float
    samples: int
    waited: float

    def divided(self, parts: int) -> Timing:
        """The timing of one of `parts` equal parts of the call."""
        return Timing(self.median / parts, self.best / parts, self.spread, self.samples, self.waited)


def busy(spread: float, waited: float) -> bool:
    """Whether a timing says that other programs had the cores."""
    return spread > MOST_SPREAD or waited > MOST_WAITED


def time_steadily(call: Callable[[], Any], seconds: float = 0.3) -> Timing:
    """`time_call`, up to TRIES times while the machine is busy; the last try."""
    timing = time_call(call, seconds)
    for _ in range(TRIES - 1):
        if not busy(timing.spread, timing.waited):
            break
        timing = time_call(call, seconds)
    return timing


def time_call(call: Callable[[], Any], seconds: float = 0.3) -> Timing:
    """Time `call` for about `seconds`, after a few calls that warm caches and workers."""
    count = _calls_per_sample(call, seconds)
    collecting = gc.isenabled()
    gc.disable()
    try:
        times: list[float] = []
        begin, ready = time.perf_counter(), waiting()
        end = begin + seconds
        while len(times) < FEWEST or (len(times) < MOST and time.perf_counter() < end):
            times.append(_sample(call, count))
        waited = (waiting() - ready) / (time.perf_counter() - begin)
    finally:
        if collecting:
            gc.enable()
    return summary(times, waited)


def waiting() -> float:
    """Seconds so far that this process's threads were ready but had no core; 0 where the system is silent."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread may end meanwhile
            total += int(task.read_text().split()[1])
    return total / 1e9


def summary(times: list[float], waited: float = 0.0) -> Timing:
    """The timing that samples of one call in seconds say."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, min(times), (high - low) / median if median else 0.0, len(times), waited)


def _calls_per_sample(call: Callable[[], Any], seconds: float) -> int:
    """How often to call for one sample; the search for it warms up."""
    _sample(call, 1)
    count, spent = 1, 0.0
    while True:
        one = _sample(call, count)
        spent += one * count
        if spent > seconds / 5 and one * count >= SAMPLE:
            return max(1, round(SAMPLE / one))
        if one * count < SAMPLE:
            count *= 2


def _sample(call: Callable[[], Any], count: int) -> float:
    """Mean seconds of `count` calls."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count
