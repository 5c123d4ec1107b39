"""The training steps that are timed: sizes, weights and batches, the same for every framework.

NumPy only; knows no framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2
# More than one batch, so that no framework may keep anything of the only one there is.
BATCHES = 4


@dataclass(frozen=True)
class Work:
    """A multilayer perceptron: exact GELU between its layers, cross entropy at its end, AdamW."""

    widths: tuple[int, ...]
    batch: int

    def weights(self) -> list[tuple[Array, Array]]:
        """Weight (inputs, outputs) and bias of each layer, float32, uniform in ±1/sqrt(inputs)."""
        random = np.random.default_rng(0)
        layers = []
        for fan_in, fan_out in zip(self.widths[:-1], self.widths[1:], strict=True):
            bound = fan_in**-0.5
            weight = random.uniform(-bound, bound, (fan_in, fan_out))
            layers.append(
                (weight.astype(np.float32), random.uniform(-bound, bound, fan_out).astype(np.float32))
            )
        return layers

    def batches(self) -> list[tuple[Array, Array]]:
        """Inputs (batch, width), float32, and classes (batch,), int64."""
        random = np.random.default_rng(1)
        return [
            (
                random.standard_normal((self.batch, self.widths[0])).astype(np.float32),
                random.integers(0, self.widths[-1], self.batch),
            )
            for _ in range(BATCHES)
        ]


WORKS = {
    "mlp_small": Work((64, 64, 64, 10), 64),
    "mlp_mid": Work((784, 512, 512, 10), 128),
    "mlp_big": Work((1024, 2048, 2048, 2048, 10), 256),
}
