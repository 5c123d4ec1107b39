"""Dropout layers: random zeroing in training, identity otherwise."""

from __future__ import annotations

from framework.nn import functional as F
from framework.nn.module import Module
from framework.state import guarded, runtime_scalar
from framework.tensor import Tensor


class Dropout(Module):
    """In training, zero each element with probability `p` and scale the rest by 1 / (1 - p)."""

    runtime_numbers = frozenset(("p",))

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        F.check_probability(p)
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """`input` with elements dropped, or `input` itself in evaluation or at p = 0."""
        if not self.training or guarded(lambda: self.p == 0):
            return input
        if not guarded(lambda: 0.0 <= self.p <= 1.0):
            F.check_probability(self.p)
        return F.dropout(input, runtime_scalar(lambda: self.p), True, self.inplace)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}, inplace={self.inplace}"
