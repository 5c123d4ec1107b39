"""Losses of class targets: cross_entropy and nll_loss.

Ignored and out-of-range targets are told apart without reading a value: the first by `where`, the second by
the check of the gather that picks the log-probabilities.
"""

from __future__ import annotations

from compiler.ops.compare import where
from compiler.ops.indexing import take
from framework.nn.functional.activation import log_softmax, widened
from framework.nn.functional.loss import check_reduction, reduced
from framework.state import composite
from framework.tensor import Tensor
from kernels import dtypes


@composite
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-weight[target] * input[target] for log-probabilities (C), (N, C) or (N, C, ...) and int64 class
    indices.

    The mean divides by the weights of the targets that count: NaN when none does. IndexError for a class out
    of range.
    """
    return _class_index_loss(input, target, weight, ignore_index, reduction, 0.0)


@composite
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """nll_loss(log_softmax(input)), or -sum(target * log_softmax(input)) for floating targets of the input's
    shape.

    `label_smoothing` mixes that share of the uniform distribution into the target.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    logs = log_softmax(widened(input), _class_axis(input))
    if tuple(target.shape) == tuple(input.shape) and target.is_floating_point():
        loss = _probability_loss(logs, target, weight, ignore_index, reduction, label_smoothing)
    else:
        loss = _class_index_loss(logs, target, weight, ignore_index, reduction, label_smoothing)
    return loss.to(input.dtype)


def _class_axis(input: Tensor) -> int:
    if input.dim() < 1:
        raise ValueError("Expected 1 or more dimensions (got 0): the input needs a class dimension")
    return 0 if input.dim() == 1 else 1


def _probability_loss(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    if ignore_index >= 0:
        raise RuntimeError("ignore_index is not supported for floating point target: leave it at its default")
    axis = _class_axis(logs)
    classes = logs.shape[axis]
    if smoothing > 0.0:
        target = target * (1.0 - smoothing) + smoothing / classes
    terms = logs * target if weight is None else logs * target * _along(weight, axis, logs)
    losses = -terms.sum(axis)
    if reduction == "mean":
        return losses.sum() / (logs.numel() // max(classes, 1))
    return reduced(losses, reduction)


def _class_index_loss(
    logs: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, smoothing: float
) -> Tensor:
    check_reduction(reduction)
    axis = _class_axis(logs)
    _check_targets(logs, target, axis)
    counts = target != ignore_index
    index = where(counts, target.long(), 0)
    # An index of size 1 along the classes: its gradient is pointwise, where(iota == index, g, 0), and fuses.
    picked = logs.gather(axis, index.unsqueeze(axis)).squeeze(axis)
    weights = None if weight is None else where(counts, take(weight, index, axis=0), 0.0)
    losses = where(counts, -picked if weights is None else -picked * weights, 0.0)
    if smoothing > 0.0:
        spread = logs if weight is None else logs * _along(weight, axis, logs)
        even = where(counts, -spread.sum(axis), 0.0)
        losses = losses * (1.0 - smoothing) + even * (smoothing / logs.shape[axis])
    if reduction == "mean":
        return losses.sum() / (counts.to(logs.dtype) if weights is None else weights).sum()
    return reduced(losses, reduction)


def _along(weight: Tensor, axis: int, logs: Tensor) -> Tensor:
    """Class weights (C,) shaped to broadcast over `logs`."""
    return weight.reshape(*(-1 if i == axis else 1 for i in range(logs.dim())))


def _check_targets(logs: Tensor, target: Tensor, axis: int) -> None:
    if target.dtype not in (dtypes.int64, dtypes.uint8):
        raise RuntimeError(
            f"expected class indices of dtype int64, got {target.dtype}: use target.long(), or, for "
            f"probabilities, a floating target of the input's shape {list(logs.shape)}"
        )
    shape = tuple(logs.shape)
    wanted = shape[:axis] + shape[axis + 1 :]
    if tuple(target.shape) == wanted:
        return
    if target.dim() and wanted and target.shape[0] != wanted[0]:
        raise ValueError(
            f"Expected input batch_size ({wanted[0]}) to match target batch_size ({target.shape[0]})."
        )
    raise RuntimeError(f"Expected target size {list(wanted)}, got {list(target.shape)}")
