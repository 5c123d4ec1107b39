"""Training loops as people write them, a hundred steps each: compiled, they give eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F

STEPS = 100
# One loop: the losses of all steps, and what is compared at the end.
Style = Callable[[Callable[[Any], Any]], tuple[list[float], list[fw.Tensor]]]


def network(inputs: int = 6, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def batches(count: int = STEPS) -> list[tuple[fw.Tensor, fw.Tensor]]:
    generator = np.random.default_rng(0)
    made = []
    for _ in range(count):
        x = generator.normal(size=(8, 6)).astype(np.float32)
        made.append((fw.tensor(x), fw.tensor((x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0))))
    return made


def closure_over_model_and_optimizer(wrap: Callable[[Any], Any]) -> tuple[list[float], list[fw.Tensor]]:
    model = network()
    optimizer = fw.optim.AdamW(model.parameters(), lr=0.02)
    schedule = fw.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    @wrap
    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    for x, y in batches():
        losses.append(step(x, y).item())
        schedule.step()
    return losses, list(model.parameters())


class Trainer:
    """A model with its loop; counts its steps and keeps a running loss."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 3)
        self.parameters = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = fw.optim.SGD(self.parameters, lr=0.1, momentum=0.9, nesterov=True)
        self.steps = 0
        self.running = 0.0

    def loss(self, x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        return F.cross_entropy(self.head(self.model(x)), y, label_smoothing=0.1)

    def step(self, x: fw.Tensor, y: fw.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        self.running = 0.9 * self.running + 0.1 * loss.item()
        return self.running


def method_of_a_trainer(wrap: Callable[[Any], Any]) -> tuple[list[float], list[fw.Tensor]]:
    trainer = Trainer()
    step = wrap(trainer.step)
    losses = [step(x, y) for x, y in batches()]
    assert trainer.steps == STEPS
    return losses, [*trainer.parameters, *trainer.model.buffers()]


def accumulation_clipping_and_loss_scaling(
    wrap: Callable[[Any], Any],
) -> tuple[list[float], list[fw.Tensor]]:
    model = network()
    optimizer = fw.optim.Adam(model.parameters(), lr=0.02)

    @wrap
    def accumulate(x: fw.Tensor, y: fw.Tensor, scale: float) -> fw.Tensor:
        loss = F.cross_entropy(model(x), y) / 2
        (loss * scale).backward()
        return loss

    @wrap
    def update(scale: float, most: float) -> fw.Tensor:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(scale)
        norm = nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    losses, scale = [], 2.0**10
    for number, (x, y) in enumerate(batches()):
        losses.append(accumulate(x, y, scale).item())
        if number % 2:
            losses.append(update(scale, 0.5 + number / 200).item())
            scale = scale * 2 if number % 10 == 9 else scale
    return losses, list(model.parameters())


def two_networks_against_each_other(wrap: Callable[[Any], Any]) -> tuple[list[float], list[fw.Tensor]]:
    generator, critic = network(4, 6), network(6, 1)
    generate = fw.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    criticise = fw.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.999))
    ones, zeros = fw.ones(8, 1), fw.zeros(8, 1)

    @wrap
    def step(real: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        fake = generator(fw.randn(8, 4))
        criticise.zero_grad()
        found = F.binary_cross_entropy_with_logits(critic(real), ones)
        fooled = F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        (found + fooled).backward()
        criticise.step()
        generate.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(fake), ones)
        loss.backward()
        generate.step()
        return found + fooled, loss

    losses = [value.item() for x, _ in batches() for value in step(x)]
    return losses, [*generator.parameters(), *critic.parameters()]


def forward_only(wrap: Callable[[Any], Any]) -> tuple[list[float], list[fw.Tensor]]:
    model = network()
    forward = wrap(model)
    optimizer = fw.optim.RMSprop(model.parameters(), lr=0.01)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, list(model.parameters())


@pytest.mark.parametrize(
    "style",
    [
        closure_over_model_and_optimizer,
        method_of_a_trainer,
        accumulation_clipping_and_loss_scaling,
        two_networks_against_each_other,
        forward_only,
    ],
)
def test_a_hundred_steps(style: Style) -> None:
    compiled: list[Any] = []

    def wrap(function: Any) -> Any:
        compiled.append(fw.compile(function))
        return compiled[-1]

    fw.manual_seed(0)
    wanted_losses, wanted = style(lambda function: function)
    state = fw.get_rng_state()
    fw.manual_seed(0)
    losses, tensors = style(wrap)
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-3, atol=2e-4)
    for got, expected in zip(tensors, wanted, strict=True):
        np.testing.assert_allclose(got.detach(), expected.detach(), rtol=5e-3, atol=2e-3)
    np.testing.assert_array_equal(fw.get_rng_state().numpy(), state.numpy())
    for function in compiled:
        explanation = function.explain()
        assert len(function.variants) <= 4, str(explanation)
        # A function that is driven meets each number as a constant once.
        assert len(explanation.stretches) <= (3 if explanation.mode == "replay" else 24), str(explanation)


@pytest.mark.replays
@pytest.mark.parametrize("kind", [fw.optim.SGD, fw.optim.Adam, fw.optim.AdamW])
def test_numbers_that_change_at_every_step_compile_once(kind: Any) -> None:
    def make(wrap: Callable[[Any], Any]) -> tuple[Callable[[int], float], list[fw.Tensor]]:
        fw.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1)
        schedule = fw.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=250)
        data = batches(1)[0]

        @wrap
        def step(x: fw.Tensor, y: fw.Tensor, most: float) -> fw.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            return loss

        def call(number: int) -> float:
            group = optimizer.param_groups[0]
            group["weight_decay"] = 0.1 / (number + 1)
            if "betas" in group:
                group["betas"] = (0.9 - number / 1000, 0.999 - number / 5000)
            loss = step(*data, 0.3 + number / 300).item()
            schedule.step()
            return loss

        return call, [*model.parameters(), *model.buffers()]

    compiled: list[Any] = []

    def wrap(function: Any) -> Any:
        compiled.append(fw.compile(function, strict=True))
        return compiled[-1]

    eager, wanted = make(lambda function: function)
    call, tensors = make(wrap)
    for number in range(200):
        np.testing.assert_allclose(call(number), eager(number), rtol=5e-3, atol=1e-4)
    for got, expected in zip(tensors, wanted, strict=True):
        # A weight whose gradient is noise goes Adam's way either way.
        np.testing.assert_allclose(got.detach(), expected.detach(), rtol=1e-2, atol=5e-2)
    assert len(compiled[0].explain().history) == 1, str(compiled[0].explain())
