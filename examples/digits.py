"""Train a small network on scikit-learn's digits, eagerly and compiled, and compare the two.

`python examples/digits.py` needs the extra `data`. Exit status 1: a promise in the summary is not kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import framework as fw
import framework.nn.functional as F
from framework import nn
from framework.utils.data import DataLoader, TensorDataset

EPOCHS = 30
BATCH = 64
SEED = 0
LEAST_ACCURACY, MOST_DIFFERENCE, LEAST_SPEEDUP = 0.97, 1e-4, 5.0
Step = Callable[[fw.Tensor, fw.Tensor], fw.Tensor]


@dataclass(frozen=True)
class Training:
    """A network, its optimizer and schedule, and one step of training."""

    model: nn.Module
    schedule: fw.optim.lr_scheduler.LRScheduler
    step: Step


@dataclass(frozen=True)
class Outcome:
    """What a training run gave: mean loss of each epoch, accuracy on the test set, speed."""

    losses: list[float]
    accuracy: float
    steps_per_second: float


def prepare() -> Training:
    """A fresh network from SEED, with the step written the ordinary way."""
    fw.manual_seed(SEED)
    # Smooth activations: at the kink of a ReLU a difference in the last bit becomes another gradient.
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = fw.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = fw.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)

    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Training(model, schedule, step)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1437 images to train on and 360 to test with: 64 grey values from 0 to 1 each, and the digit."""
    images, classes = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, classes, test_size=0.2, random_state=SEED, stratify=classes)
    train_x, test_x, train_y, test_y = parts
    return (
        TensorDataset(fw.tensor(train_x, dtype=fw.float32), fw.tensor(train_y)),
        TensorDataset(fw.tensor(test_x, dtype=fw.float32), fw.tensor(test_y)),
    )


def train(
    name: str, training: Training, step: Step, train_set: TensorDataset, test_set: TensorDataset
) -> Outcome:
    """Train for EPOCHS with `step`; the batches are the same for every run, the last one is smaller."""
    order = fw.Generator()
    order.manual_seed(SEED)
    loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, generator=order)
    epochs, seconds = [], []
    progress = tqdm(range(EPOCHS), desc=f"{name:9}", unit="epoch")
    for _ in progress:
        begin = time.perf_counter()
        losses = [step(x, y) for x, y in loader]
        seconds.append(time.perf_counter() - begin)
        training.schedule.step()
        epochs.append(float(fw.stack(losses).mean()))
        progress.set_postfix(loss=f"{epochs[-1]:.4f}")
    # The middle epoch: the first one compiles.
    speed = len(loader) / sorted(seconds)[EPOCHS // 2]
    return Outcome(epochs, accuracy(training.model, test_set), speed)


@fw.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """The share of images whose most likely class is right."""
    x, y = dataset.tensors
    return float((model(x).argmax(1) == y).to(fw.float32).mean())


def first_call() -> float:
    """Seconds that the first call of the compiled step takes in this process."""
    step = fw.compile(prepare().step)
    x, y = fw.rand(BATCH, 64), fw.randint(0, 10, (BATCH,))
    begin = time.perf_counter()
    float(step(x, y))
    return time.perf_counter() - begin


def first_call_elsewhere(cache: str) -> float:
    """`first_call` of a new process that keeps its kernels in the folder `cache`."""
    environment = os.environ | {"TRACEFUSE_CACHE": cache}
    command = [sys.executable, __file__, "--first-call"]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def largest_difference(eager: Outcome, compiled: Outcome) -> float:
    """The largest relative difference of the two losses of an epoch."""
    return max(abs(a - b) / abs(a) for a, b in zip(eager.losses, compiled.losses, strict=True))


def print_losses(eager: Outcome, compiled: Outcome) -> None:
    """Loss per epoch of both runs, side by side."""
    print(f"\n{'epoch':>5} {'eager':>12} {'compiled':>12} {'difference':>11}")
    for number, (a, b) in enumerate(zip(eager.losses, compiled.losses, strict=True), 1):
        print(f"{number:5} {a:12.7f} {b:12.7f} {abs(a - b) / abs(a):11.1e}")


def print_summary(rows: list[tuple[str, str, str]]) -> None:
    """Aligned rows of a name, a value and what is promised."""
    print()
    for name, value, promise in rows:
        print(f"{name:28} {value:>22}   {promise}".rstrip())


def main() -> int:
    """Train twice, print, and say whether the promises hold."""
    train_set, test_set = digits()
    plain = prepare()
    eager = train("eager", plain, plain.step, train_set, test_set)
    traced = prepare()
    step: Any = fw.compile(traced.step)
    compiled = train("compiled", traced, step, train_set, test_set)
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = first_call_elsewhere(cache), first_call_elsewhere(cache)

    speedup = compiled.steps_per_second / eager.steps_per_second
    difference = largest_difference(eager, compiled)
    print_losses(eager, compiled)
    print_summary(
        [
            ("test accuracy, eager", f"{eager.accuracy:.4f}", f"at least {LEAST_ACCURACY}"),
            ("test accuracy, compiled", f"{compiled.accuracy:.4f}", f"at least {LEAST_ACCURACY}"),
            ("largest loss difference", f"{difference:.1e}", f"at most {MOST_DIFFERENCE:.0e}"),
            ("steps per second, eager", f"{eager.steps_per_second:,.0f}", ""),
            ("steps per second, compiled", f"{compiled.steps_per_second:,.0f}", ""),
            ("speedup", f"{speedup:.1f}", f"at least {LEAST_SPEEDUP:.0f}"),
            ("kernels in the step", f"{len(step.kernels)}", step.explain().mode),
            ("first call, empty cache", f"{cold:.2f} s", ""),
            ("first call, filled cache", f"{warm:.2f} s", ""),
        ]
    )
    broken = [
        words
        for words, kept in (
            (f"accuracy is below {LEAST_ACCURACY}", min(eager.accuracy, compiled.accuracy) >= LEAST_ACCURACY),
            (f"losses differ by more than {MOST_DIFFERENCE:.0e}", difference <= MOST_DIFFERENCE),
            (f"compiled is less than {LEAST_SPEEDUP:.0f} times as fast", speedup >= LEAST_SPEEDUP),
        )
        if not kept
    ]
    for words in broken:
        print(f"NOT KEPT: {words}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--first-call"]:
        print(first_call())
    else:
        sys.exit(main())
