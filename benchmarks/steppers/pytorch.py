"""The step of PyTorch, eager and under torch.compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.works import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY, Work

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _parts(work: Work) -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[Any, ...]]]:
    layers: list[nn.Module] = []
    for weight, bias in work.weights():
        linear = nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T))
            linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, nn.GELU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY)
    return model, optimizer, [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in work.batches()]


def make_eager(work: Work) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """A step that runs op by op."""
    model, optimizer, batches = _parts(work)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, batches


def make(work: Work) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """Forward with its backward, and the optimizer, each under torch.compile: its fastest form here."""
    model, optimizer, batches = _parts(work)
    loss_of = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
    update = torch.compile(lambda: optimizer.step())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss

    return step, batches
