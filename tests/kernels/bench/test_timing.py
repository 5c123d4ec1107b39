"""Statistics of samples, and what they say of the machine; nothing here depends on speed."""

from __future__ import annotations

import pytest

from kernels.bench.result import busy
from kernels.timing import FEWEST, summary, time_call, waiting


def test_summary() -> None:
    timing = summary([4.0, 1.0, 2.0, 3.0, 5.0], waited=0.5)
    assert (timing.median, timing.best, timing.samples, timing.waited) == (3.0, 1.0, 5, 0.5)
    assert timing.spread == pytest.approx(2 / 3)
    assert timing.divided(2).median == 1.5 and timing.divided(2).spread == timing.spread


def test_every_call_is_made() -> None:
    calls: list[int] = []
    timing = time_call(lambda: calls.append(1), seconds=0.01)
    assert timing.samples >= FEWEST
    assert len(calls) > timing.samples
    assert 0 < timing.best <= timing.median


def test_waiting_only_grows() -> None:
    before = waiting()
    assert 0 <= before <= waiting()


def test_busy() -> None:
    assert not busy(0.01, 0.0)
    assert busy(0.5, 0.0)
    assert busy(0.01, 0.5)
