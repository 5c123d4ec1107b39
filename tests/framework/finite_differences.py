"""Checks gradients of functions of float64 tensors against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import framework as fw


def check_gradients(
    function: Callable[..., Any], *arrays: Any, step: float = 1e-6, tolerance: float = 1e-6
) -> None:
    """Compare backward of sum(w * function(*arrays)), w fixed and random, with differences at every
    element.
    """
    values = [np.array(a, np.float64) for a in arrays]
    tensors = [fw.tensor(v, dtype=fw.float64).requires_grad_() for v in values]
    out = function(*tensors)
    weights = np.random.default_rng(7).standard_normal(tuple(out.shape))
    (out * fw.tensor(weights, dtype=fw.float64)).sum().backward()

    def total(*inputs: Any) -> float:
        made = function(*(fw.tensor(v, dtype=fw.float64) for v in inputs))
        return float((made.numpy() * weights).sum())

    for position, (value, t) in enumerate(zip(values, tensors, strict=True)):
        expected = np.zeros_like(value)
        for i in np.ndindex(value.shape):
            high, low = [v.copy() for v in values], [v.copy() for v in values]
            high[position][i] += step
            low[position][i] -= step
            expected[i] = (total(*high) - total(*low)) / (2 * step)
        assert t.grad is not None, f"input {position} took no gradient"
        np.testing.assert_allclose(t.grad.numpy(), expected, rtol=tolerance * 10, atol=tolerance)
