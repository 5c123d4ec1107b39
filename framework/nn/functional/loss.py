"""Losses of continuous targets and of probabilities, each with reduction "mean", "sum" or "none".

The losses of class targets are in `classification`.
"""

from __future__ import annotations

import warnings
from typing import Any

from compiler.ops.checked import unit_interval
from compiler.ops.compare import where
from framework.autograd import Function
from framework.nn.functional.activation import logsigmoid
from framework.state import composite
from framework.tensor import Tensor


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The mean, the sum, or `losses` itself. Raises ValueError for another word."""
    if reduction == "none":
        return losses
    check_reduction(reduction)
    return losses.mean() if reduction == "mean" else losses.sum()


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless `reduction` is "mean", "sum" or "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'{reduction!r} is not a valid value for reduction: use "mean", "sum" or "none"')


def _warn_of_sizes(input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        warnings.warn(
            f"Using a target size ({list(target.shape)}) that is different to the input size "
            f"({list(input.shape)}): they broadcast, which is rarely meant; reshape one of them",
            stacklevel=3,
        )


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input - target) squared."""
    _warn_of_sizes(input, target)
    return _squared(input, target, reduction)


@composite
def _squared(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    difference = input - target
    return reduced(difference * difference, reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|input - target|; the gradient where they agree is 0."""
    _warn_of_sizes(input, target)
    return _absolute(input, target, reduction)


@composite
def _absolute(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced((input - target).abs(), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d * d / (2 * beta) for errors d within beta, |d| - beta / 2 outside; beta 0 is `l1_loss`."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    _warn_of_sizes(input, target)
    return _smooth(input, target, reduction, beta)


@composite
def _smooth(input: Tensor, target: Tensor, reduction: str, beta: float) -> Tensor:
    difference = input - target
    size = difference.abs()
    return reduced(where(size < beta, difference * difference * (0.5 / beta), size - 0.5 * beta), reduction)


def huber_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d * d / 2 for errors d within delta, delta * (|d| - delta / 2) outside."""
    if delta <= 0:
        raise ValueError(f"huber_loss does not support non-positive values for delta, got {delta}")
    _warn_of_sizes(input, target)
    return _huber(input, target, reduction, delta)


@composite
def _huber(input: Tensor, target: Tensor, reduction: str, delta: float) -> Tensor:
    difference = input - target
    size = difference.abs()
    return reduced(
        where(size <= delta, difference * difference * 0.5, (size - 0.5 * delta) * delta), reduction
    )


@composite
def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target * (log(target) - input) for log-probabilities `input`; 0 where the target is 0.

    "batchmean" is the sum over dimension 0's size, the divergence as it is defined.
    """
    if log_target:
        losses = target.exp() * (target - input)
    else:
        present = target > 0
        losses = where(present, target * where(present, target, 1.0).log(), 0.0) - target * input
    if reduction == "batchmean":
        return losses.sum() / input.shape[0]
    return reduced(losses, reduction)


class _BinaryCrossEntropy(Function):
    """-t * log(p) - (1 - t) * log(1 - p), logarithms at least -100; the gradient is bounded by 1e12 as
    PyTorch's.
    """

    @staticmethod
    def forward(ctx: Any, probability: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(probability, target)
        log_no, log_yes = (-probability).log1p().clamp(min=-100.0), probability.log().clamp(min=-100.0)
        return (target - 1.0) * log_no - target * log_yes

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        p, target = ctx.saved_tensors
        by_probability = g * (p - target) / ((1.0 - p) * p).clamp(min=1e-12)
        return by_probability, g * ((-p).log1p().clamp(min=-100.0) - p.log().clamp(min=-100.0))


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-target * log(input) - (1 - target) * log(1 - input), logarithms limited to -100.

    Raises ValueError for different shapes and RuntimeError for a value outside [0, 1].
    """
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"Using a target size ({list(target.shape)}) that is different to the input size "
            f"({list(input.shape)}) is deprecated. Please ensure they have the same size."
        )
    losses = _BinaryCrossEntropy.apply(unit_interval(input), unit_interval(target))
    return reduced(losses if weight is None else losses * weight, reduction)


@composite
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross entropy of sigmoid(input), without overflow; `pos_weight` multiplies the positive term."""
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"Target size ({list(target.shape)}) must be the same as input size ({list(input.shape)})"
        )
    log_yes = logsigmoid(input)
    if pos_weight is not None:
        log_yes = log_yes * ((pos_weight - 1.0) * target + 1.0)
    losses = (1.0 - target) * input - log_yes
    return reduced(losses if weight is None else losses * weight, reduction)
