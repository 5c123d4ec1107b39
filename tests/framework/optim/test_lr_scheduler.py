"""Schedules against learning rates read off PyTorch 2.13, rounded to 1e-10."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn, optim
from framework.optim import lr_scheduler as schedules


def sgd(lr: float = 0.1) -> Any:
    return optim.SGD([nn.Parameter(fw.zeros(1))], lr=lr, momentum=0.9)


S = schedules
CASES: dict[str, tuple[Any, list[float]]] = {
    "StepLR": (lambda o: S.StepLR(o, 3, 0.5), [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025, 0.0125]),
    "MultiStepLR": (
        lambda o: S.MultiStepLR(o, [2, 4, 4], 0.5),
        [0.1, 0.1, 0.05, 0.05, 0.0125, 0.0125, 0.0125],
    ),
    "ConstantLR": (lambda o: S.ConstantLR(o, 0.25, 3), [0.025, 0.025, 0.025, 0.1, 0.1, 0.1]),
    "LinearLR": (lambda o: S.LinearLR(o, 0.25, 0.75, 4), [0.025, 0.0375, 0.05, 0.0625, 0.075, 0.075, 0.075]),
    "ExponentialLR": (lambda o: S.ExponentialLR(o, 0.9), [0.1, 0.09, 0.081, 0.0729, 0.06561]),
    "PolynomialLR": (lambda o: S.PolynomialLR(o, 5, 2.0), [0.1, 0.064, 0.036, 0.016, 0.004, 0.0, 0.0]),
    "CosineAnnealingLR": (
        lambda o: S.CosineAnnealingLR(o, 4, 0.01),
        [0.1, 0.0868198052, 0.055, 0.0231801948, 0.01, 0.0231801948, 0.055, 0.0868198052, 0.1, 0.0868198052],
    ),
    "LambdaLR": (lambda o: S.LambdaLR(o, lambda t: 1 / (t + 1)), [0.1, 0.05, 0.0333333333, 0.025, 0.02]),
    "MultiplicativeLR": (
        lambda o: S.MultiplicativeLR(o, lambda t: 0.5 + t / 20),
        [0.1, 0.055, 0.033, 0.02145, 0.015015, 0.01126125],
    ),
    "OneCycleLR": (
        lambda o: S.OneCycleLR(o, 1.0, total_steps=9),
        [
            0.04,
            0.6513582352,
            0.9944154355,
            0.8985666593,
            0.705644729,
            0.4626371027,
            0.2287299532,
            0.0608929698,
            4e-06,
        ],
    ),
    "OneCycleLR linear, three phases": (
        lambda o: S.OneCycleLR(
            o, 1.0, epochs=3, steps_per_epoch=3, anneal_strategy="linear", three_phase=True, pct_start=0.4
        ),
        [
            0.04,
            0.4092307692,
            0.7784615385,
            0.8523076923,
            0.4830769231,
            0.1138461538,
            0.0285725714,
            0.0142882857,
            4e-06,
        ],
    ),
    "CosineAnnealingWarmRestarts": (
        lambda o: S.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
        [0.1, 0.055, 0.1, 0.0868198052, 0.055, 0.0231801948, 0.1, 0.096574579, 0.0868198052, 0.0722207545],
    ),
    "SequentialLR": (
        lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.9)], [3]),
        [0.01, 0.01, 0.1, 0.1, 0.09, 0.081, 0.0729],
    ),
    "SequentialLR warm-up": (
        lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 3), S.CosineAnnealingLR(o, 5)], [4]),
        [0.01, 0.04, 0.07, 0.1, 0.1, 0.0904508497, 0.0654508497, 0.0345491503, 0.0095491503, 0.0],
    ),
    "ChainedScheduler": (
        lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.9)]),
        [0.01, 0.009, 0.081, 0.0729, 0.06561],
    ),
}


def rates(optimizer: Any, scheduler: Any, count: int) -> list[float]:
    out = [optimizer.param_groups[0]["lr"]]
    for _ in range(count):
        optimizer.step()
        scheduler.step()
        assert scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]
        out.append(optimizer.param_groups[0]["lr"])
    return out


@pytest.mark.parametrize("name", CASES)
def test_learning_rates(name: str) -> None:
    make, expected = CASES[name]
    optimizer = sgd()
    np.testing.assert_allclose(rates(optimizer, make(optimizer), len(expected) - 1), expected, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_state_dict_continues_the_schedule(name: str) -> None:
    make, expected = CASES[name]
    first, second = sgd(), sgd()
    a, b = make(first), make(second)
    rates(first, a, 2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    second.step()
    assert rates(second, b, len(expected) - 3) == rates(first, a, len(expected) - 3)


def test_one_cycle_moves_momentum() -> None:
    optimizer = optim.Adam([nn.Parameter(fw.zeros(1))], lr=0.1)
    scheduler = S.OneCycleLR(optimizer, 1.0, total_steps=5)
    seen = [optimizer.param_groups[0]["betas"][0]]
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        seen.append(optimizer.param_groups[0]["betas"][0])
    np.testing.assert_allclose(seen, [0.95, 0.85495156, 0.88887395, 0.93117449, 0.95], atol=1e-8)
    optimizer.step()
    scheduler.step()
    with pytest.raises(ValueError, match="total steps is 5"):
        scheduler.step()


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        ({"patience": 1}, [1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5], [0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
        (
            {
                "mode": "max",
                "threshold_mode": "abs",
                "threshold": 0.1,
                "patience": 0,
                "cooldown": 1,
                "min_lr": 0.005,
            },
            [1, 1.05, 1.2, 1.2, 1.2, 1.2],
            [0.1, 0.01, 0.01, 0.005, 0.005, 0.005],
        ),
    ],
)
def test_reduce_on_plateau(options: dict[str, Any], values: list[float], expected: list[float]) -> None:
    optimizer = sgd()
    scheduler = S.ReduceLROnPlateau(optimizer, **options)
    seen = []
    for value in values:
        scheduler.step(fw.tensor(value))
        seen.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    other = S.ReduceLROnPlateau(optimizer)
    other.load_state_dict(scheduler.state_dict())
    assert other.best == scheduler.best and other.mode == scheduler.mode


def test_warm_restarts_jump_between_steps() -> None:
    optimizer = sgd()
    scheduler = S.CosineAnnealingWarmRestarts(optimizer, 2, 2, 0.01)
    scheduler.step(3.5)
    assert scheduler.T_cur == 1.5 and scheduler.T_i == 4 and scheduler.last_epoch == 3
    with pytest.raises(ValueError, match="non-negative epoch"):
        scheduler.step(-1)


def test_groups_and_lambdas() -> None:
    a, b = nn.Parameter(fw.zeros(1)), nn.Parameter(fw.zeros(1))
    optimizer = optim.SGD([{"params": [a]}, {"params": [b], "lr": 1.0}], lr=0.1)
    scheduler = S.LambdaLR(optimizer, [lambda t: 1.0, lambda t: 0.5**t])
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.1, 0.5] and scheduler.base_lrs == [0.1, 1.0]
    with pytest.raises(ValueError, match="Expected 2 lr_lambdas, but got 1"):
        S.LambdaLR(optimizer, [lambda t: 1.0])


def test_resuming_needs_the_initial_rate() -> None:
    with pytest.raises(KeyError, match="initial_lr"):
        S.StepLR(sgd(), 3, last_epoch=4)
    optimizer = sgd()
    optimizer.param_groups[0]["initial_lr"] = 0.2
    assert S.ExponentialLR(optimizer, 0.5, last_epoch=4).base_lrs == [0.2]


def test_wrong_order_warns() -> None:
    scheduler = S.StepLR(sgd(), 1)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()
    optimizer = sgd()
    scheduler = S.StepLR(optimizer, 1)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_tensor_rate_is_written_in_place() -> None:
    lr = fw.tensor(0.1)
    optimizer = optim.SGD([nn.Parameter(fw.zeros(1))], lr=lr)  # type: ignore[arg-type]
    scheduler = S.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is lr and lr.item() == pytest.approx(0.05)
    assert scheduler.get_last_lr()[0] is not lr


def test_errors() -> None:
    optimizer = sgd()
    with pytest.raises(TypeError, match="int is not an Optimizer"):
        S.StepLR(3, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="total_steps OR"):
        S.OneCycleLR(optimizer, 1.0)
    with pytest.raises(ValueError, match="anneal_strategy"):
        S.OneCycleLR(optimizer, 1.0, total_steps=3, anneal_strategy="none")
    with pytest.raises(ValueError, match="Factor should be"):
        S.ReduceLROnPlateau(optimizer, factor=1.0)
    with pytest.raises(ValueError, match="one scheduler more than milestones"):
        S.SequentialLR(optimizer, [S.StepLR(optimizer, 1)], [1])
    with pytest.raises(ValueError, match="same optimizer"):
        S.ChainedScheduler([S.StepLR(optimizer, 1), S.StepLR(sgd(), 1)])
