"""What every work has: weights and inputs drawn from a fixed seed, and the least that it costs.

Knows no particular work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
LEARNING_RATE, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8
FLOAT = 4
# Parameter and both moments, each read and written.
OPTIMIZER_PASSES = 6


@dataclass(frozen=True)
class Work(ABC):
    """A function of a batch, and of weights that it may train."""

    # More than one batch, so that no framework may keep anything of the only one there is.
    count: ClassVar[int] = 2

    def shapes(self) -> dict[str, Shape]:
        """Shape of each weight, under the name that it has in a PyTorch module."""
        return {}

    def weights(self) -> dict[str, Array]:
        """Uniform float32 numbers in ±1/sqrt(inputs), in ±0.02 for biases; norm weights are around 1."""
        random = np.random.default_rng(0)
        drawn = {}
        for name, shape in self.shapes().items():
            bound = math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.02
            center = 1.0 if name.endswith("norm.weight") else 0.0
            drawn[name] = random.uniform(center - bound, center + bound, shape).astype(np.float32)
        return drawn

    def batches(self) -> list[tuple[Array, ...]]:
        """`count` batches: the arguments of as many calls."""
        random = np.random.default_rng(1)
        return [self.batch_of(random) for _ in range(self.count)]

    @abstractmethod
    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        """The arguments of one call; floating-point ones are float32, classes int64."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """The least traffic of one call with memory: what it takes read once, what it leaves written once."""

    @property
    def flops(self) -> int:
        """Additions and multiplications inside the matrix products of one call."""
        return 0


def normal(random: np.random.Generator, *shape: int) -> Array:
    """Float32 numbers with mean 0 and deviation 1."""
    return random.standard_normal(shape, np.float32)


def linear(name: str, inputs: int, outputs: int) -> dict[str, Shape]:
    """Weight and bias of a linear layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, Shape]:
    """Weight and bias of a layer norm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
