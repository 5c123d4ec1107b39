"""Activation layers: each holds the settings of one function of `nn.functional` and applies it."""

from __future__ import annotations

from framework.creation import full
from framework.nn import functional as F
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.tensor import Tensor


class _Activation(Module):
    """A layer whose printed form lists the settings named in `shown`."""

    shown: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """The settings as name=value."""
        named = [f"{name}={getattr(self, name)!r}" for name in self.shown]
        return ", ".join(named + (["inplace=True"] if self.__dict__.get("inplace") else []))


class ReLU(_Activation):
    """max(x, 0); the gradient at 0 is 0."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.relu` of the input."""
        return F.relu(input, self.inplace)


class ReLU6(_Activation):
    """min(max(x, 0), 6)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.relu6` of the input."""
        return F.relu6(input, self.inplace)


class LeakyReLU(_Activation):
    """x above 0, `negative_slope` * x below."""

    shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.leaky_relu` of the input."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)


class ELU(_Activation):
    """x above 0, alpha * (exp(x) - 1) below. Clevert et al., ICLR 2016."""

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.elu` of the input."""
        return F.elu(input, self.alpha, self.inplace)


class SELU(_Activation):
    """ELU scaled so that activations keep mean 0 and variance 1. Klambauer et al., NeurIPS 2017."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.selu` of the input."""
        return F.selu(input, self.inplace)


class GELU(_Activation):
    """x * Phi(x), exactly ("none") or by the tanh formula ("tanh"). Hendrycks & Gimpel, 2016."""

    shown = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """`F.gelu` of the input."""
        return F.gelu(input, self.approximate)


class SiLU(_Activation):
    """x * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.silu` of the input."""
        return F.silu(input, self.inplace)


class Mish(_Activation):
    """x * tanh(softplus(x))."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.mish` of the input."""
        return F.mish(input, self.inplace)


class Hardswish(_Activation):
    """x * relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.hardswish` of the input."""
        return F.hardswish(input, self.inplace)


class Hardsigmoid(_Activation):
    """relu6(x + 3) / 6."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.hardsigmoid` of the input."""
        return F.hardsigmoid(input, self.inplace)


class Hardtanh(_Activation):
    """x limited to [min_val, max_val]; no gradient at or past the limits."""

    shown = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Tensor) -> Tensor:
        """`F.hardtanh` of the input."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """`F.tanh` of the input."""
        return F.tanh(input)


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    def forward(self, input: Tensor) -> Tensor:
        """`F.sigmoid` of the input."""
        return F.sigmoid(input)


class LogSigmoid(_Activation):
    """log(sigmoid(x)), without overflow."""

    def forward(self, input: Tensor) -> Tensor:
        """`F.logsigmoid` of the input."""
        return F.logsigmoid(input)


class Softplus(_Activation):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above `threshold`."""

    shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        """`F.softplus` of the input."""
        return F.softplus(input, self.beta, self.threshold)


class Softsign(_Activation):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        """`F.softsign` of the input."""
        return F.softsign(input)


class Softmax(_Activation):
    """exp(x) / sum(exp(x)) along `dim`."""

    shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """`F.softmax` of the input."""
        return F.softmax(input, self.dim)


class LogSoftmax(_Activation):
    """log(softmax(x)) along `dim`."""

    shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """`F.log_softmax` of the input."""
        return F.log_softmax(input, self.dim)


class Softmin(_Activation):
    """softmax(-x) along `dim`."""

    shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """`F.softmin` of the input."""
        return F.softmin(input, self.dim)


class GLU(_Activation):
    """First half of `dim` times the sigmoid of the second half."""

    shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """`F.glu` of the input."""
        return F.glu(input, self.dim)


class PReLU(_Activation):
    """x above 0, weight * x below, with one learned weight for all channels or one each (dimension 1)."""

    shown = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(full((num_parameters,), init))

    def forward(self, input: Tensor) -> Tensor:
        """`F.prelu` of the input."""
        return F.prelu(input, self.weight)
