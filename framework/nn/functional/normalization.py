"""Normalisations: layer, group, batch, instance and root-mean-square, from two passes over centred values.

Knows no modules; batch_norm and instance_norm write the running statistics they are given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ops import standardize
from framework.apply import apply_op
from framework.creation import ones
from framework.nn.functional.activation import widened
from framework.state import composite, no_grad
from framework.tensor import Tensor


@composite
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over the trailing `normalized_shape`, then times `weight` plus `bias`.

    Ba et al., "Layer normalization", 2016. A constant row gives 0.
    """
    dims = _trailing(input, normalized_shape)
    _require_shape(normalized_shape, weight=weight, bias=bias)
    x = apply_op(standardize, (widened(input), eps), {"axes": dims})
    return _scaled(x, weight, bias).to(input.dtype)


@composite
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x * x) + eps) over the trailing `normalized_shape`; eps None is the dtype's machine
    epsilon.
    """
    dims = _trailing(input, normalized_shape)
    _require_shape(normalized_shape, weight=weight)
    x = widened(input)
    eps = float(np.finfo(x.dtype.numpy).eps) if eps is None else eps
    return _scaled(x * ((x * x).mean(dims, keepdim=True) + eps).rsqrt(), weight, None).to(input.dtype)


@composite
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over each of `num_groups` groups of channels of (N, C, ...), then scaled by
    channel.
    """
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    shape = tuple(input.shape)
    if shape[1] % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(shape)} and num_groups={num_groups}"
        )
    if math.prod(shape) // num_groups == 1:
        raise _too_few(shape)
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None and tuple(values.shape) != (shape[1],):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got "
                f"{name} of shape {list(values.shape)} and input of shape {list(shape)}"
            )
    groups = widened(input).reshape(shape[0], num_groups, math.prod(shape[1:]) // num_groups)
    x = apply_op(standardize, (groups, eps), {"axes": (2,)}).reshape(*shape)
    return _scaled(x, _by_channel(weight, input), _by_channel(bias, input)).to(input.dtype)


@composite
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of (N, C, ...) by the batch (`training`) or by the running statistics.

    In training the running statistics given move by `momentum` (a number or a 0-d tensor), the variance
    unbiased.
    """
    _require_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if training:
        x, variance = _batch_statistics(input, running_mean, running_var, momentum)
    elif running_mean is None or running_var is None:
        raise ValueError("Expected running_mean and running_var to be given when training=False")
    else:
        x, variance = widened(input) - _by_channel(running_mean, input), _by_channel(running_var, input)
    scaled = _scaled(x * (variance + eps).rsqrt(), _by_channel(weight, input), _by_channel(bias, input))
    return scaled.to(input.dtype)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each sample of (N, C, ...) by itself, or by the running statistics.

    With `use_input_stats` the running statistics given move by `momentum` towards the batch's average.
    Ulyanov et al., 2016.
    """
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "Expected running_mean and running_var to be defined when use_input_stats is false"
            )
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    shape = tuple(input.shape)
    count = math.prod(shape[2:])
    if count == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {list(shape)}: use eval(), "
            "with track_running_stats=True"
        )
    _require_channels(input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    x, mean, variance = _centred(widened(input), tuple(range(2, input.dim())))
    _move_running(running_mean, running_var, mean.mean(0), variance.mean(0), count, momentum)
    scaled = _scaled(x * (variance + eps).rsqrt(), _by_channel(weight, input), _by_channel(bias, input))
    return scaled.to(input.dtype)


def _batch_statistics(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: Any
) -> tuple[Tensor, Tensor]:
    """The centred batch and its variance by channel; moves the running statistics."""
    shape = tuple(input.shape)
    count = math.prod(shape) // max(shape[1], 1)
    if count == 1:
        raise _too_few(shape)
    if count == 0:
        # Nothing to normalise, and no statistics to move to.
        return widened(input), ones(1, shape[1], *(1 for _ in shape[2:]), device=input.device)
    x, mean, variance = _centred(widened(input), (0, *range(2, input.dim())))
    _move_running(running_mean, running_var, mean, variance, count, momentum)
    return x, variance


@no_grad()
def _move_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    count: int,
    momentum: Any,
) -> None:
    """Move the running statistics to those of `count` values, whose variance is still biased."""
    if running_mean is not None:
        running_mean.lerp_(mean.reshape(-1).to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance.reshape(-1) * (count / (count - 1))
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)


def _too_few(shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"Expected more than 1 value per channel when training, got input size {list(shape)}: use a "
        "larger batch, or eval()"
    )


def _centred(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """`x` minus its mean over `dims`, the mean and the biased variance, both with `dims` kept."""
    mean = x.mean(dims, keepdim=True)
    # The float32 mean of equal values can be a few ulps off (0.06 at 1e6), which 1/sqrt(eps) blows up. The
    # mean of what is left is a small multiple of one ulp and comes out exact. It is zero as a function, so it
    # has no gradient.
    shifted = x - mean
    rest = shifted.detach().mean(dims, keepdim=True)
    centred = shifted - rest
    return centred, mean + rest, (centred * centred).mean(dims, keepdim=True)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _by_channel(values: Any, input: Tensor) -> Any:
    """A (C,) tensor shaped to broadcast over the channels of `input`; None stays None."""
    return None if values is None else values.reshape(1, -1, *(1 for _ in range(input.dim() - 2)))


def _require_channels(input: Tensor, **given: Tensor | None) -> None:
    """Raise RuntimeError for a tensor that has not one element per channel: broadcasting would hide it."""
    if input.dim() < 2:
        raise RuntimeError(f"Expected at least 2 dimensions for input tensor but received {input.dim()}")
    channels = input.shape[1]
    for name, values in given.items():
        if values is not None and tuple(values.shape) != (channels,):
            raise RuntimeError(f"{name} should contain {channels} elements not {values.numel()}")


def _require_shape(normalized_shape: Sequence[int], **given: Tensor | None) -> None:
    wanted = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    for name, values in given.items():
        if values is not None and list(values.shape) != wanted:
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(values.shape)} and normalized_shape = {wanted}"
            )


def _trailing(input: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that `normalized_shape` covers. Raises RuntimeError when the sizes differ."""
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    count = len(wanted)
    if not count or tuple(input.shape)[-count:] != wanted:
        raise RuntimeError(
            f"Given normalized_shape={list(wanted)}, expected input with shape [*, "
            f"{', '.join(map(str, wanted))}], but got input of size {list(input.shape)}"
        )
    return tuple(range(input.dim() - count, input.dim()))
