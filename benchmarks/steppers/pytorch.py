"""The steps of PyTorch, eager and under torch.compile."""

from __future__ import annotations

import os

import torch

from benchmarks.steppers.common import timed
from benchmarks.steppers.timed import Timed
from benchmarks.works import Work

if threads := os.environ.get("OMP_NUM_THREADS"):
    torch.set_num_threads(int(threads))


def make_eager(work: Work, device: str = "cpu") -> Timed:
    """A step that runs op by op."""
    return timed(torch, work, device=device)


def make(work: Work, device: str = "cpu") -> Timed:
    """Forward with its backward, and the optimizer, each under torch.compile: its fastest form here."""
    return timed(torch, work, part=torch.compile, device=device)
