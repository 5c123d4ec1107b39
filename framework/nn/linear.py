"""Linear maps and table look-up: Linear, Embedding, and the shape-only layers Identity, Flatten,
Unflatten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from framework.creation import empty
from framework.nn import functional as F
from framework.nn import init
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.state import no_grad
from framework.tensor import Tensor
from kernels.dtypes import DType


class Identity(Module):
    """Return the input; constructor arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """`input` itself."""
        return input


class Flatten(Module):
    """Merge dimensions `start_dim` to `end_dim` into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """`input.flatten(start_dim, end_dim)`."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The dimensions."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split dimension `dim` into `unflattened_size`."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        """`input` with the dimension split."""
        dim = self.dim % input.dim()
        shape = tuple(input.shape)
        return input.reshape(*shape[:dim], *self.unflattened_size, *shape[dim + 1 :])

    def extra_repr(self) -> str:
        """The dimension and its sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Linear(Module):
    """`y = x @ weight.T + bias` on the last dimension; weight (out_features, in_features), bias
    (out_features,).

    Both start uniform in ±1/sqrt(in_features), PyTorch's default.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        # a = sqrt(5) makes the Kaiming bound sqrt(6 / (6 * fan_in)), the 1/sqrt(fan_in) of the bias.
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Embedding(Module):
    """Rows of `weight` (num_embeddings, embedding_dim) picked by int64 indices of any shape; starts normal(0,
    1).

    The row `padding_idx` starts at zero and takes no gradient.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(
                f"padding_idx must be within num_embeddings ({num_embeddings}), got {padding_idx}"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        given = _weight is not None
        table = _weight if given else empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.weight = Parameter(table, requires_grad=not _freeze)
        if not given:
            self.reset_parameters()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """A layer over the 2-d tensor `embeddings`, without gradient when `freeze`."""
        if embeddings.dim() != 2:
            raise ValueError(
                f"embeddings must be 2-dimensional (rows, features), got {embeddings.dim()} dimensions"
            )
        rows, features = embeddings.shape
        return cls(rows, features, padding_idx, _weight=embeddings, _freeze=freeze)

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    def forward(self, input: Tensor) -> Tensor:
        """Indices of shape S to rows of shape (*S, embedding_dim)."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """The sizes."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
