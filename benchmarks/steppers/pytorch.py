"""The steps of PyTorch, eager and under torch.compile."""

from __future__ import annotations

import os

import torch

from benchmarks.steppers.common import timed
from benchmarks.steppers.timed import Timed
from benchmarks.works import Work

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def make_eager(work: Work) -> Timed:
    """A step that runs op by op."""
    return timed(torch, work)


def make(work: Work) -> Timed:
    """Forward with its backward, and the optimizer, each under torch.compile: its fastest form here."""
    return timed(torch, work, part=torch.compile)
