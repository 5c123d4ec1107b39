"""Convolutions of one, two and three dimensions, and their transposes.

Knows shapes and padding; the sliding window is compiler/ops/window.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ops import movement, window
from framework.nn.functional.shape import Sizes, pad, per_axis
from framework.tensor import Tensor


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Input (batch, channels, length) by weight (out, channels / groups, kernel); without a batch too."""
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Input (batch, channels, height, width) by weight (out, channels / groups, rows, columns).

    `padding` is zeros on both sides, "valid" (none) or "same" (as many places as the input has, stride 1).
    Raises RuntimeError where sizes do not fit.
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Input (batch, channels, depth, height, width) by weight (out, channels / groups, kernel..)."""
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv1d` for its input; weight (channels, out / groups, kernel)."""
    return _transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv2d` for its input; weight (channels, out / groups, rows, columns)."""
    return _transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of `conv3d` for its input; weight (channels, out / groups, kernel..)."""
    return _transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def unfold(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """The windows of (batch, channels, height, width) as columns: (batch, channels * kernel, positions)."""
    kernel, dilations = per_axis(2, kernel_size, "kernel_size"), per_axis(2, dilation, "dilation")
    steps = per_axis(2, stride, "stride")
    if input.dim() == 3:
        return unfold(input.unsqueeze(0), kernel, dilations, padding, steps).squeeze(0)
    x = _padded(input, per_axis(2, padding, "padding"))
    found = window.windows(x, axes=(2, 3), sizes=kernel, steps=steps, dilations=dilations)
    return found.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)


def same_padding(kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each axis so that a window of stride 1 has as many places as the input."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [(n // 2, n - n // 2) for n in totals]


def _padded(x: Tensor, padding: Sequence[int]) -> Tensor:
    if not any(padding):
        return x
    return pad(x, [n for amount in reversed(padding) for n in (amount, amount)])


def _check(rank: int, name: str, input: Tensor, weight: Tensor, bias: Tensor | None, steps: Any) -> None:
    if input.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {name}{rank}d, but got "
            f"input of size: {list(input.shape)}"
        )
    if weight.dim() != rank + 2:
        raise RuntimeError(f"{name}{rank}d needs a weight of {rank + 2} dimensions, got {list(weight.shape)}")
    if input.dtype is not weight.dtype:
        raise RuntimeError(
            f"Input type ({input.dtype}) and weight type ({weight.dtype}) should be the same: use .to()"
        )
    if bias is not None and bias.dtype is not input.dtype:
        raise RuntimeError(
            f"Input type ({input.dtype}) and bias type ({bias.dtype}) should be the same: use .to()"
        )
    for what, sizes in steps.items():
        if any(n <= 0 for n in sizes):
            raise RuntimeError(f"non-positive {what} is not supported, got {list(sizes)}")


def _convolve(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: str | Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    steps, dilations = per_axis(rank, stride, "stride"), per_axis(rank, dilation, "dilation")
    _check(rank, "conv", input, weight, bias, {"stride": steps, "dilation": dilations})
    if input.dim() == rank + 1:
        whole = _convolve(rank, input.unsqueeze(0), weight, bias, steps, padding, dilations, groups)
        return whole.squeeze(0)
    kernel = tuple(weight.shape[2:])
    if input.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(input.shape)} "
            f"to have {weight.shape[1] * groups} channels, but got {input.shape[1]} channels instead"
        )
    if padding == "same":
        if any(n != 1 for n in steps):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        sides = same_padding(kernel, dilations)
        input = pad(input, [n for pair in reversed(sides) for n in pair])
    elif isinstance(padding, str):
        if padding != "valid":
            raise RuntimeError(f"Invalid padding string: {padding!r}, should be one of 'valid', 'same'")
    else:
        amounts = per_axis(rank, padding, "padding")
        if any(n < 0 for n in amounts):
            raise RuntimeError(f"negative padding is not supported, got {list(amounts)}")
        input = _padded(input, amounts)
    for size, k, d in zip(input.shape[2:], kernel, dilations, strict=True):
        if d * (k - 1) + 1 > size:
            raise RuntimeError(
                f"Calculated padded input size per channel: ({' x '.join(map(str, input.shape[2:]))}). "
                f"Kernel size: ({' x '.join(map(str, kernel))}). Kernel size can't be greater than actual "
                "input size"
            )
    out = window.convolution(input, weight, stride=steps, dilation=dilations, groups=groups)
    return out if bias is None else out + bias.reshape(-1, *(1,) * rank)


def _transposed(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Tensor:
    steps, dilations = per_axis(rank, stride, "stride"), per_axis(rank, dilation, "dilation")
    amounts = per_axis(rank, padding, "padding")
    extra = per_axis(rank, output_padding, "output_padding")
    _check(rank, "conv_transpose", input, weight, bias, {"stride": steps, "dilation": dilations})
    if input.dim() == rank + 1:
        whole = _transposed(rank, input.unsqueeze(0), weight, bias, steps, amounts, extra, groups, dilations)
        return whole.squeeze(0)
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, dilations, strict=True)):
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got output_padding: "
            f"{list(extra)}, stride: {list(steps)}, dilation: {list(dilations)}"
        )
    channels, kernel = weight.shape[0], tuple(weight.shape[2:])
    if input.shape[1] != channels or channels % groups:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected input{list(input.shape)} to "
            f"have {channels} channels, divisible by groups={groups}, but got {input.shape[1]} channels "
            "instead"
        )
    # A step apart, with zeros between, and with the kernel turned round: every input reaches its window.
    shape = (*input.shape[:2], *((n - 1) * s + 1 for n, s in zip(input.shape[2:], steps, strict=True)))
    spread = movement.spread(input, shape, (0,) * len(shape), (1, 1, *steps))
    reach = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, amounts, strict=True)]
    sides = [(n, n + e) for n, e in zip(reach, extra, strict=True)]
    spread = pad(spread, [n for pair in reversed(sides) for n in pair])
    turned = weight.flip(tuple(range(2, rank + 2))).unflatten(0, (groups, channels // groups))
    turned = turned.transpose(1, 2).flatten(0, 1)
    ones = (1,) * rank
    out = window.convolution(spread, turned, stride=ones, dilation=dilations, groups=groups)
    return out if bias is None else out + bias.reshape(-1, *(1,) * rank)
