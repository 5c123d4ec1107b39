"""The step of Tracefuse, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import framework as fw
import framework.nn.functional as F
from benchmarks.works import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY, Work
from framework import nn


def make_eager(work: Work) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """A step that runs op by op."""
    layers: list[nn.Module] = []
    for weight, bias in work.weights():
        linear = nn.Linear(*weight.shape)
        with fw.no_grad():
            linear.weight.copy_(fw.from_numpy(weight.T))
            linear.bias.copy_(fw.from_numpy(bias))
        layers += [linear, nn.GELU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = fw.optim.AdamW(model.parameters(), LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY)

    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [(fw.from_numpy(x), fw.from_numpy(y)) for x, y in work.batches()]


def make(work: Work) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """The same step under `compile`."""
    step, batches = make_eager(work)
    return fw.compile(step), batches
