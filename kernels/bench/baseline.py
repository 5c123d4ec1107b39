"""Measurements beside those of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.bench.result import OURS, Measurement


@dataclass(frozen=True)
class Change:
    """One of our kernels before and now."""

    before: Measurement
    now: Measurement

    @property
    def ratio(self) -> float:
        """Time now over time before, of the best runs: what else the machine did lengthens any run, and never
        shortens one.
        """
        return self.now.best / self.before.best


def changes(before: Sequence[Measurement], now: Sequence[Measurement]) -> list[Change]:
    """What both runs measured of our own kernels."""
    known = {m.key: m for m in before}
    return [Change(known[m.key], m) for m in now if m.library == OURS and m.key in known]


def regressions(found: Sequence[Change], tolerance: float) -> list[Change]:
    """Those slower than before by more than `tolerance`, a share of the time before."""
    return [change for change in found if change.ratio > 1 + tolerance]
