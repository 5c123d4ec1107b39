"""Initialisers: distributions, fans, gains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.nn import init


@pytest.fixture(autouse=True)
def seed() -> None:
    fw.manual_seed(0)


def test_constants() -> None:
    w = fw.empty(2, 3)
    assert init.ones_(w) is w and w.tolist() == [[1] * 3] * 2
    assert init.zeros_(w).tolist() == [[0] * 3] * 2
    assert init.constant_(w, 0.5).tolist() == [[0.5] * 3] * 2
    assert init.eye_(w).tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="2 dimensions"):
        init.eye_(fw.empty(2))


# Fans of (40, 20, 5): 20 * 5 inputs, 40 * 5 outputs.
@pytest.mark.parametrize(
    ("fill", "std", "uniform"),
    [
        (lambda w: init.uniform_(w, -2, 4), 6 / math.sqrt(12), True),
        (lambda w: init.normal_(w, 0, 0.3), 0.3, False),
        (init.xavier_uniform_, math.sqrt(2 / 300), True),
        (lambda w: init.xavier_normal_(w, gain=2.0), 2 * math.sqrt(2 / 300), False),
        (init.kaiming_uniform_, math.sqrt(2 / 100), True),
        (lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 200), False),
        (lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)), math.sqrt(1 / 300), True),
    ],
)
def test_deviation(fill: Any, std: float, uniform: bool) -> None:
    w = fill(fw.empty(40, 20, 5)).numpy()
    assert w.std() == pytest.approx(std, rel=0.03)
    spread = (w.max() - w.min()) / std
    assert (spread <= math.sqrt(12) + 1e-5) if uniform else spread > 6


def test_truncated_normal() -> None:
    w = init.trunc_normal_(fw.empty(20000), mean=1.0, std=2.0, a=-1.0, b=2.0).numpy()
    assert w.min() >= -1 and w.max() <= 2
    # Mean and deviation of the normal (1, 2) between -1 and 2, by quadrature.
    x = np.linspace(-1, 2, 100001)
    density = np.exp(-(((x - 1) / 2) ** 2) / 2)
    mean = (x * density).sum() / density.sum()
    assert w.mean() == pytest.approx(mean, abs=0.02)
    assert w.std() == pytest.approx(math.sqrt(((x - mean) ** 2 * density).sum() / density.sum()), rel=0.02)
    whole = init.trunc_normal_(fw.empty(20000), std=0.02).numpy()
    assert whole.std() == pytest.approx(0.02, rel=0.03) and np.isfinite(whole).all()


def test_generator_decides_and_leaves_take_no_history() -> None:
    w = fw.empty(5).requires_grad_()
    init.normal_(w, generator=fw.Generator().manual_seed(3))
    again = init.normal_(fw.empty(5), generator=fw.Generator().manual_seed(3))
    assert w.tolist() == again.tolist() and w.is_leaf and w.requires_grad


def test_gains_and_errors() -> None:
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3)
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04))
    with pytest.raises(ValueError, match="Unsupported nonlinearity"):
        init.calculate_gain("cube")
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.xavier_uniform_(fw.empty(3))
    with pytest.raises(ValueError, match="Mode fan_mean not supported"):
        init.kaiming_uniform_(fw.empty(3, 3), mode="fan_mean")
