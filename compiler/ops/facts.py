"""Facts of an op beside what it computes: the check of its inputs, and the cases its laws are tested on.

Plain classes: a dataclass takes up to 1 ms of `import framework` each. Knows no op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Check:
    """A condition on the inputs that must hold before anything is written.

    `failed(*inputs, **attrs)`, made of ops, is a bool value of any shape, true where the input is bad, or
    None when inputs of these dtypes cannot be; `error(*arrays, **attrs)` builds the exception from concrete
    inputs.
    """

    __slots__ = ("error", "failed")

    def __init__(self, failed: Callable[..., Any], error: Callable[..., Exception]) -> None:
        self.failed = failed
        self.error = error


class Index:
    """An int64 operand of a law-test sample, with values in [0, size)."""

    __slots__ = ("shape", "size")

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self.shape = shape
        self.size = size

    def __repr__(self) -> str:
        return f"Index(shape={self.shape}, size={self.size})"


class Sample:
    """One law-test case of an op: each input's shape (of the tested dtype) or `Index`, and the attributes."""

    __slots__ = ("attrs", "inputs")

    def __init__(
        self, inputs: tuple[tuple[int, ...] | Index, ...], attrs: dict[str, Any] | None = None
    ) -> None:
        self.inputs = inputs
        self.attrs = attrs or {}

    def __repr__(self) -> str:
        return f"Sample(inputs={self.inputs}, attrs={self.attrs})"
