"""Sequences of different lengths as one padded tensor, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from compiler.ops import movement
from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.tensor import Tensor
from framework.views import stack


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Tensors (length, ...) side by side as (longest, N, ...), or (N, longest, ...) with `batch_first`.

    The result has the dtype of the first. RuntimeError when the sizes behind the length differ.
    """
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    if not isinstance(sequences, Iterable):
        kind = type(sequences)
        raise RuntimeError(
            f"pad_sequence: Expected iterable for input sequences, but got arg of type: {kind}"
        )
    listed = list(sequences)
    _check_sequences(listed)
    longest = max(x.shape[0] for x in listed)
    value = padding_value if listed[0].is_floating_point() else int(padding_value)
    padded = [_padded(x.to(listed[0].dtype), longest, value, padding_side) for x in listed]
    return stack(padded, 0 if batch_first else 1)


def _check_sequences(sequences: Sequence[Tensor]) -> None:
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    if any(x.dim() == 0 for x in sequences):
        raise RuntimeError("pad_sequence: a sequence needs a dimension for its length, got a 0-d tensor")
    first = sequences[0].shape[1:]
    for number, x in enumerate(sequences):
        if x.shape[1:] != first:
            raise RuntimeError(
                "pad_sequence: sizes behind the length must be equal, but got "
                f"{list(first)} at entry 0 and {list(x.shape[1:])} at entry {number}"
            )


def _padded(x: Tensor, longest: int, value: float, side: str) -> Tensor:
    missing = longest - x.shape[0]
    if not missing:
        return x
    amounts, nothing = (missing, *(0,) * (x.dim() - 1)), (0,) * x.dim()
    low, high = (amounts, nothing) if side == "left" else (nothing, amounts)
    return movement.pad(x, low=low, high=high, value=value)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of `pad_sequence`, cut to their `lengths` (a tensor or a sequence)."""
    batches = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return [x[:size] for x, size in zip(batches.unbind(0), sizes, strict=True)]


_attach(globals(), _training.TABLE, "rnn")
