"""The steps of Tracefuse, eager and compiled."""

from __future__ import annotations

import framework as fw
from benchmarks.steppers.common import timed
from benchmarks.steppers.timed import Timed
from benchmarks.works import Work


def make_eager(work: Work, device: str = "cpu") -> Timed:
    """A step that runs op by op."""
    return timed(fw, work, device=device)


def make(work: Work, device: str = "cpu") -> Timed:
    """The whole step as one compiled function."""
    return timed(fw, work, whole=fw.compile, device=device)
