"""Padding and taking apart. Knows shapes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ops import movement
from framework.autograd import Function
from framework.creation import zeros_like
from framework.tensor import Tensor
from framework.views import stack


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`input` with `value` (0) around it; `pad` is (before, after) of the last dimension, then of the one
    before it.

    Negative amounts cut. Raises ValueError for an odd count, too many dimensions, or another mode.
    """
    if mode != "constant":
        raise ValueError(
            f"mode {mode!r}: only 'constant' padding exists; join flipped or repeated slices with cat()"
        )
    if len(pad) % 2 or len(pad) // 2 > input.dim():
        raise ValueError(
            f"pad needs two amounts for each of at most {input.dim()} dimensions, got {len(pad)}: {list(pad)}"
        )
    untouched = input.dim() - len(pad) // 2
    low = [0] * untouched + list(pad[::2])[::-1]
    high = [0] * untouched + list(pad[1::2])[::-1]
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        start, size = max(-before, 0), input.shape[axis]
        if before < 0 or after < 0:
            input = input.narrow(axis, start, size - start - max(-after, 0))
    amounts = {"low": tuple(max(n, 0) for n in low), "high": tuple(max(n, 0) for n in high)}
    return movement.pad(input, **amounts, value=value or 0)


class _Unstacked(Function):
    """The slices along one dimension; their gradients are stacked."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        ctx.set_materialize_grads(False)
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        present = next(g for g in gradients if g is not None)
        return stack([zeros_like(present) if g is None else g for g in gradients], ctx.dim), None


def unstacked(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """`x.unbind(dim)` for slices that are all used: the gradient of each, alone, is padded to all of `x`."""
    return _Unstacked.apply(x, dim % x.dim())
