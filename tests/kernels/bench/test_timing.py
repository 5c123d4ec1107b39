"""Statistics of samples, and what they say of the machine; nothing here depends on speed."""

from __future__ import annotations

import pytest

from kernels import timing as timing_module
from kernels.timing import FEWEST, TRIES, Timing, busy, summary, time_call, time_steadily, waiting


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


@pytest.mark.parametrize(("waits", "tries"), [((0.0,), 1), ((0.9, 0.9, 0.0), 3), ((0.9,) * TRIES, TRIES)])
def test_a_busy_machine_is_tried_again(
    waits: tuple[float, ...], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(waits)
    monkeypatch.setattr(timing_module, "time_call", lambda *_: Timing(1.0, 1.0, 0.0, 9, left.pop(0)))
    assert time_steadily(lambda: None).waited == waits[tries - 1]
    assert left == []
