"""Padding and taking apart. Knows shapes only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ops import movement
from framework.autograd import Function
from framework.creation import zeros_like
from framework.joining import cat
from framework.tensor import Tensor
from framework.views import stack

Sizes = int | Sequence[int]


def per_axis(axes: int, given: Sizes, name: str) -> tuple[int, ...]:
    """One number per axis, from one for all or one for each. Raises RuntimeError for another count."""
    listed = (given,) if isinstance(given, int) else tuple(given)
    if len(listed) == 1:
        return listed * axes
    if len(listed) != axes:
        raise RuntimeError(f"{name} must either be a single int, or a tuple of {axes} ints, got {given}")
    return listed


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`input` with `value` (0) around it; `pad` is (before, after) of the last dimension, then of the one
    before it.

    Negative amounts cut. "reflect" mirrors without the edge, "replicate" repeats the edge, "circular" goes
    round. Raises ValueError for an odd count, too many dimensions, or another mode, RuntimeError for more
    than a mode can take from the input.
    """
    if mode not in ("constant", *_AROUND):
        raise ValueError(f"mode {mode!r} is not one of constant, {', '.join(_AROUND)}")
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
    if mode != "constant":
        for axis, (before, after) in enumerate(zip(low, high, strict=True)):
            if before > 0 or after > 0:
                input = _around(input, axis, max(before, 0), max(after, 0), mode)
        return input
    amounts = {"low": tuple(max(n, 0) for n in low), "high": tuple(max(n, 0) for n in high)}
    return movement.pad(input, **amounts, value=value or 0)


def _around(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Padding along one axis with elements of `x`."""
    size = x.shape[axis]
    most = {"reflect": size - 1, "circular": size}.get(mode)
    if size == 0 or (most is not None and max(before, after) > most):
        raise RuntimeError(
            f"Padding size should be less than the corresponding input dimension: {mode} padding of "
            f"({before}, {after}) at dimension {axis} of input {list(x.shape)}"
        )
    if mode == "reflect":
        first, last = x.narrow(axis, 1, before).flip(axis), x.narrow(axis, size - 1 - after, after).flip(axis)
    elif mode == "circular":
        first, last = x.narrow(axis, size - before, before), x.narrow(axis, 0, after)
    else:
        first, last = (
            x.narrow(axis, place, 1).expand(*(n if a == axis else -1 for a in range(x.dim())))
            for place, n in ((0, before), (size - 1, after))
        )
    return cat([first, x, last], axis)


_AROUND = ("reflect", "replicate", "circular")


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
