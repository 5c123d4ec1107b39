"""Whole training steps: a model, its loss, the gradients of all parameters, Adam."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from benchmarks.works.work import FLOAT, OPTIMIZER_PASSES, Array, Shape, Work, linear, norm, normal


@dataclass(frozen=True)
class Training(Work):
    """A model under AdamW. `loss` is the function of the model's result and the target."""

    count: ClassVar[int] = 4
    loss: ClassVar[str] = "cross_entropy"
    weight_decay: ClassVar[float] = 1e-2

    @property
    def bytes(self) -> int:
        parameters = sum(math.prod(shape) for shape in self.shapes().values())
        batch = sum(array.nbytes for array in self.batch_of(np.random.default_rng(1)))
        return OPTIMIZER_PASSES * FLOAT * parameters + batch


@dataclass(frozen=True)
class Mlp(Training):
    """A multilayer perceptron with exact GELU between its layers."""

    widths: tuple[int, ...]
    batch: int

    def shapes(self) -> dict[str, Shape]:
        # In a Sequential the activations have numbers too.
        layers = (linear(str(2 * i), a, b) for i, (a, b) in enumerate(pairwise(self.widths)))
        return {name: shape for layer in layers for name, shape in layer.items()}

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        return normal(random, self.batch, self.widths[0]), random.integers(0, self.widths[-1], self.batch)

    @property
    def flops(self) -> int:
        products = [2 * self.batch * a * b for a, b in pairwise(self.widths)]
        # Forward, gradient of the weight, gradient of the input; the batch takes none.
        return 3 * sum(products) - products[0]


@dataclass(frozen=True)
class Cnn(Training):
    """Two 3x3 convolutions without padding, a max-pool by 2 and two linear layers, with ReLU."""

    image: int
    channels: tuple[int, int, int]
    widths: tuple[int, int]
    batch: int

    @property
    def features(self) -> int:
        """Numbers in an image after the pool."""
        return self.channels[2] * ((self.image - 4) // 2) ** 2

    def shapes(self) -> dict[str, Shape]:
        first, second, third = self.channels
        return {
            "first.weight": (second, first, 3, 3),
            "first.bias": (second,),
            "second.weight": (third, second, 3, 3),
            "second.bias": (third,),
            **linear("hidden", self.features, self.widths[0]),
            **linear("head", *self.widths),
        }

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        images = normal(random, self.batch, self.channels[0], self.image, self.image)
        return images, random.integers(0, self.widths[1], self.batch)

    @property
    def flops(self) -> int:
        sides = (self.image - 2, self.image - 4)
        pairs = pairwise(self.channels)
        products = [18 * side**2 * a * b for side, (a, b) in zip(sides, pairs, strict=True)]
        products += [2 * self.features * self.widths[0], 2 * self.widths[0] * self.widths[1]]
        return self.batch * (3 * sum(products) - products[0])


@dataclass(frozen=True)
class Gpt(Training):
    """A decoder of pre-norm blocks: learned positions, causal attention, a GELU layer four times as wide."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    batch: int

    def shapes(self) -> dict[str, Shape]:
        width = self.width
        shapes: dict[str, Shape] = {
            "tokens.weight": (self.vocabulary, width),
            "positions": (self.context, width),
        }
        for number in range(self.layers):
            block = f"blocks.{number}."
            shapes |= norm(block + "attention_norm", width) | linear(block + "qkv", width, 3 * width)
            shapes |= linear(block + "projection", width, width) | norm(block + "mlp_norm", width)
            shapes |= linear(block + "widen", width, 4 * width) | linear(block + "narrow", 4 * width, width)
        return shapes | norm("norm", width) | linear("head", width, self.vocabulary)

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        """Tokens (batch, context) and the ones that follow, flat as the logits are."""
        text = random.integers(0, self.vocabulary, (self.batch, self.context + 1))
        return np.ascontiguousarray(text[:, :-1]), text[:, 1:].reshape(-1)

    @property
    def flops(self) -> int:
        weights = self.layers * 12 * self.width**2 + self.width * self.vocabulary
        # Two products of attention, of which the mask needs half.
        attention = self.layers * self.context * self.width
        return 6 * self.batch * self.context * (weights + attention)


@dataclass(frozen=True)
class Lstm(Training):
    """A cell written by hand, unrolled over time; the last hidden state is fitted to a target by Adam."""

    loss: ClassVar[str] = "mse_loss"
    weight_decay: ClassVar[float] = 0.0
    width: int
    times: int
    batch: int

    def shapes(self) -> dict[str, Shape]:
        return {**linear("input", self.width, 4 * self.width), "hidden.weight": (4 * self.width, self.width)}

    def batch_of(self, random: np.random.Generator) -> tuple[Array, ...]:
        """A sequence (times, batch, width) and a target (batch, width)."""
        return normal(random, self.times, self.batch, self.width), normal(random, self.batch, self.width)

    @property
    def flops(self) -> int:
        product = 2 * self.batch * self.width * 4 * self.width
        # Of the input, and of a hidden state that is not the zero at the start.
        return self.times * 2 * product + (self.times - 1) * 3 * product
