"""Single operations and chains of them, with a backward or without, and an optimizer alone.

All of them are bound by memory, or by functions that are no matrix products: their `flops` are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from benchmarks.works.work import FLOAT, OPTIMIZER_PASSES, Array, Shape, Work, norm, normal


@dataclass(frozen=True)
class Softmax(Work):
    """A softmax over each row."""

    rows: int
    width: int

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        return (normal(random, self.rows, self.width),)

    @property
    def bytes(self) -> int:
        return 2 * FLOAT * self.rows * self.width


@dataclass(frozen=True)
class LayerNorm(Work):
    """A layer norm over each row, and the gradients of its input, weight and bias, given its result's."""

    rows: int
    width: int

    def shapes(self) -> dict[str, Shape]:
        return norm("norm", self.width)

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        return normal(random, self.rows, self.width), normal(random, self.rows, self.width)

    @property
    def bytes(self) -> int:
        return 4 * FLOAT * (self.rows + 1) * self.width


@dataclass(frozen=True)
class CrossEntropy(Work):
    """The mean cross entropy of logits and classes, and the gradient of the logits."""

    rows: int
    classes: int

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        return normal(random, self.rows, self.classes), random.integers(0, self.classes, self.rows)

    @property
    def bytes(self) -> int:
        return 2 * FLOAT * self.rows * self.classes


@dataclass(frozen=True)
class GeluChain(Work):
    """gelu(x * y + x) * sigmoid(y), exact GELU."""

    elements: int

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        return normal(random, self.elements), normal(random, self.elements)

    @property
    def bytes(self) -> int:
        return 3 * FLOAT * self.elements


@dataclass(frozen=True)
class BlackScholes(Work):
    """Prices of calls and puts from spot, strike and years; the normal distribution by way of erf."""

    rate: ClassVar[float] = 0.03
    volatility: ClassVar[float] = 0.25
    elements: int

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        """Spot, strike and years until the option's day."""
        ranges = ((50.0, 150.0), (50.0, 150.0), (0.1, 2.0))
        return tuple(random.uniform(*ends, self.elements).astype(np.float32) for ends in ranges)

    @property
    def bytes(self) -> int:
        return 5 * FLOAT * self.elements


@dataclass(frozen=True)
class AdamW(Work):
    """One AdamW step over many tensors, whose gradients were set once."""

    weight_decay: ClassVar[float] = 1e-2
    tensors: int
    elements: int

    def shapes(self) -> dict[str, Shape]:
        return {f"{number}": (self.elements,) for number in range(self.tensors)}

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        """No arguments: a training loop hands an optimizer none."""
        return ()

    def gradients(self) -> dict[str, Array]:
        """The gradient of each weight."""
        random = np.random.default_rng(2)
        return {name: normal(random, *shape) for name, shape in self.shapes().items()}

    @property
    def bytes(self) -> int:
        return (OPTIMIZER_PASSES + 1) * FLOAT * self.tensors * self.elements
