"""Activation functions, elementwise and along one dimension, as plain compositions of tensor ops.

Each is differentiable any number of times; the branches that `where` drops are kept finite so that no NaN
leaks into a gradient.
"""

from __future__ import annotations

import math

from compiler.ops.arithmetic import minimum
from compiler.ops.compare import where
from framework import reductions
from framework.inplace import update
from framework.state import composite
from framework.tensor import Tensor
from kernels import dtypes
from kernels.dtypes import DType

# Klambauer et al., "Self-normalizing neural networks", NeurIPS 2017.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0); NaN stays NaN and the gradient at 0 is 0."""
    return input.relu_() if inplace else input.relu()


@composite
def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


@composite
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]; no gradient at or past the limits. Raises ValueError when they
    cross.
    """
    if inplace:
        return update(input, hardtanh, (min_val, max_val), {}, "hardtanh_")
    if min_val > max_val:
        raise ValueError(
            f"min_val cannot be greater than max_val, got min_val={min_val} and max_val={max_val}"
        )
    # clamp passes the gradient at the limits themselves, hardtanh does not.
    inside = (input > min_val) & (input < max_val)
    return where(inside, input, input.detach().clamp(min_val, max_val))


@composite
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x above 0, `negative_slope` * x elsewhere."""
    if inplace:
        return update(input, leaky_relu, (negative_slope,), {}, "leaky_relu_")
    return where(input > 0, input, input * negative_slope)


@composite
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight * x elsewhere; `weight` holds one value, or one per channel (dimension 1)."""
    if weight.numel() == 1:
        weight = weight.reshape(())
    else:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.numel() != channels:
            raise RuntimeError(
                f"prelu: weight has {weight.numel()} values, but the input has {channels} channels"
            )
        weight = weight.reshape(-1, *(1 for _ in range(input.dim() - 2)))
    return where(input > 0, input, input * weight)


@composite
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, alpha * (exp(x) - 1) elsewhere."""
    if inplace:
        return update(input, elu, (alpha,), {}, "elu_")
    below = where(input > 0, 0.0, input).expm1()
    return where(input > 0, input, below * alpha)


@composite
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale * elu(x, alpha), with the constants that keep mean 0 and variance 1."""
    if inplace:
        return update(input, selu, (), {}, "selu_")
    return elu(input, SELU_ALPHA) * SELU_SCALE


@composite
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    if inplace:
        return update(input, celu, (alpha,), {}, "celu_")
    below = (where(input > 0, 0.0, input) / alpha).expm1()
    return where(input > 0, input, below * alpha)


@composite
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x) by the error function, or by the tanh formula with `approximate="tanh"`."""
    if approximate == "none":
        return input * 0.5 * ((input * math.sqrt(0.5)).erf() + 1.0)
    if approximate == "tanh":
        inner = (input * input * input * 0.044715 + input) * math.sqrt(2.0 / math.pi)
        return input * 0.5 * (inner.tanh() + 1.0)
    raise RuntimeError(f"approximate argument must be either none or tanh, got {approximate!r}")


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return input.sigmoid()


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return input.tanh()


@composite
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    if inplace:
        return update(input, silu, (), {}, "silu_")
    return input * input.sigmoid()


@composite
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))."""
    # The tie of minimum at 0 gives 1/2, the exact gradient there; clamp would give 1.
    return minimum(input, 0.0) - (-input.abs()).exp().log1p()


@composite
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above `threshold`."""
    scaled = input * beta
    linear = scaled > threshold
    return where(linear, input, where(linear, 0.0, scaled).exp().log1p() / beta)


@composite
def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)). Misra, BMVC 2020."""
    if inplace:
        return update(input, mish, (), {}, "mish_")
    return input * softplus(input).tanh()


@composite
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6."""
    if inplace:
        return update(input, hardsigmoid, (), {}, "hardsigmoid_")
    return relu6(input + 3.0) / 6.0


@composite
def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * relu6(x + 3) / 6."""
    if inplace:
        return update(input, hardswish, (), {}, "hardswish_")
    return input * relu6(input + 3.0) / 6.0


@composite
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (input.abs() + 1.0)


@composite
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - input.tanh()


@composite
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """First half of `dim` times the sigmoid of the second. Raises RuntimeError for an odd size."""
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    return input.narrow(dim, 0, size // 2) * input.narrow(dim, size // 2, size // 2).sigmoid()


def widened(input: Tensor) -> Tensor:
    """A 16-bit floating tensor as float32, anything else as it is: normalisations round once, at their
    end.
    """
    return input.float() if input.dtype in (dtypes.float16, dtypes.bfloat16) else input


def _chosen_dim(input: Tensor, dim: int | None) -> int:
    # PyTorch's implicit choice, kept for layers made without a dimension.
    return dim if dim is not None else (0 if input.dim() in (0, 1, 3) else 1)


@composite
def softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`, shifted by the maximum; a row of -inf is NaN."""
    x = input if dtype is None else input.to(dtype)
    return reductions.softmax(widened(x), _chosen_dim(x, dim)).to(x.dtype)


@composite
def softmin(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """softmax(-x)."""
    return softmax(-input, dim, dtype)


@composite
def log_softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """log(softmax(x)) along `dim`, without the rounding of taking the logarithm afterwards."""
    x = input if dtype is None else input.to(dtype)
    return reductions.log_softmax(widened(x), _chosen_dim(x, dim)).to(x.dtype)
