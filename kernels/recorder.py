"""Write a spec's steps by computing: the scalar vocabulary on registers, each word appended as a step.

Knows nothing of strides or sizes; `kernels.library` adds those, and so does a compiler's lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels import dtypes
from kernels.dtypes import DType
from kernels.spec import Call, Literal, Step

_COMPARISONS = frozenset("eq ne lt le gt ge".split())


@dataclass(frozen=True)
class Register:
    """A value of a loop body: its name in the spec and its dtype."""

    name: str
    dtype: DType


class Recorder:
    """The scalar vocabulary as spec steps: calling a word appends it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.literals: dict[tuple[str, DType], Register] = {}
        self.calls: dict[object, Register] = {}
        self.count = 0

    def fresh(self, dtype: DType) -> Register:
        """A new register."""
        self.count += 1
        return Register(f"v{self.count}", dtype)

    def literal(self, number: Any, dtype: DType) -> Register:
        """The register of a number."""
        number = float(number) if dtype.is_floating_point else int(number)
        key = (repr(number), dtype)
        if key not in self.literals:
            register = self.fresh(dtype)
            self.steps.append(Literal(register.name, number, dtype))
            self.literals[key] = register
        return self.literals[key]

    def call(self, function: str, operands: Sequence[Register], dtype: DType) -> Register:
        """Append a call, once for equal operands."""
        key = (function, tuple(operands), dtype)
        if key not in self.calls:
            register = self.fresh(dtype)
            self.steps.append(Call(register.name, function, tuple(x.name for x in operands), dtype))
            self.calls[key] = register
        return self.calls[key]

    def cast(self, x: Any, dtype: DType) -> Register:
        """Convert a register."""
        return x if x.dtype is dtype else self.call("cast", (x,), dtype)

    def __getattr__(self, function: str) -> Callable[..., Register]:
        def word(*operands: Any) -> Register:
            dtype = next(x.dtype for x in reversed(operands) if isinstance(x, Register))
            first = operands[:1] if function == "where" else ()
            if function == "where":
                typed = [x.dtype for x in operands[1:] if isinstance(x, Register)]
                dtype = typed[-1] if typed else dtypes.float32
            rest = operands[len(first) :]
            registers = [*first, *(x if isinstance(x, Register) else self.literal(x, dtype) for x in rest)]
            return self.call(function, registers, dtypes.bool_ if function in _COMPARISONS else dtype)

        return word
