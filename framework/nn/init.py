"""Initialisers: fill a tensor in place, outside the gradient graph, from the framework's generator."""

from __future__ import annotations

import math
from typing import Any

from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.random import rand
from framework.state import no_grad
from framework.tensor import Tensor
from kernels import dtypes

_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75}
_GAINS |= dict.fromkeys(("conv1d", "conv2d", "conv3d"), 1.0)
_GAINS |= dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through `nonlinearity`; `param` is the slope of "leaky_relu"
    (0.01).
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}: use leaky_relu, {', '.join(_GAINS)}")
    return _GAINS[nonlinearity]


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with uniform numbers of [a, b)."""
    return tensor.uniform_(a, b, generator=generator)


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fill with normal numbers."""
    return tensor.normal_(mean, std, generator=generator)


@no_grad()
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Any = None,
) -> Tensor:
    """Fill with normal numbers conditioned on [a, b], by the inverse of the distribution function."""
    low, high = (math.erf((limit - mean) / (std * math.sqrt(2.0))) for limit in (a, b))
    share = rand(*tensor.shape, dtype=dtypes.float64, generator=generator) * (high - low) + low
    return tensor.copy_((_inverse_erf(share) * (std * math.sqrt(2.0)) + mean).clamp(a, b))


def _inverse_erf(y: Tensor) -> Tensor:
    """x with erf(x) = y, float64: Winitzki's formula (2008, off by 2e-3) and three Newton steps."""
    logs = (1.0 - y * y).clamp(min=1e-300).log()
    half = 2.0 / (math.pi * 0.147) + logs / 2.0
    x = ((half * half - logs / 0.147).sqrt() - half).clamp(min=0.0).sqrt() * y.sign()
    for _ in range(3):
        x = x - (x.erf() - y) * (x * x).exp() * (math.sqrt(math.pi) / 2.0)
    return x


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with `val`."""
    return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity. Raises ValueError unless 2-d."""
    if tensor.dim() != 2:
        raise ValueError(f"Only tensors with 2 dimensions are supported, got {tensor.dim()}")
    tensor.zero_()
    tensor.diagonal().fill_(1)
    return tensor


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of one unit of a weight (out, in, ...)."""
    if tensor.dim() < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions, got "
            f"{tensor.dim()}: fill it with uniform_ or normal_"
        )
    field = math.prod(tuple(tensor.shape)[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform with variance gain² · 2 / (fan_in + fan_out). Glorot & Bengio, AISTATS 2010."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with variance gain² · 2 / (fan_in + fan_out). Glorot & Bengio, AISTATS 2010."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Uniform with variance gain² / fan, for the gain of `nonlinearity` with slope `a`. He et al., ICCV
    2015.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Normal with variance gain² / fan, for the gain of `nonlinearity` with slope `a`. He et al., ICCV
    2015.
    """
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _fans(tensor) if tensor.numel() else (1, 1)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


_attach(globals(), _training.TABLE, "init")
