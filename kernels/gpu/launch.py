"""A kernel of the GPU as text, and all that its launch needs but addresses.

Knows neither specs nor devices: `kernels.gpu.render` makes launches, others compile, run or interpret them.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

# The most that code generation gains from: the bytes of the widest access, or as many elements of one byte.
MOST = 16
_numbers = itertools.count()


def divisibility(value: int) -> int:
    """The largest power of two, up to 16, that divides a size, a stride or an address."""
    return math.gcd(value, MOST)


def facts(value: int, varies: bool, lane: int = 4) -> int:
    """What is told of a value's divisibility: where it varies only that 16, or `lane`, divide it."""
    known = divisibility(value)
    return known if not varies or known == MOST else lane if known >= lane else 1


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: Triton's name of its type, and a power of two that divides its value."""

    name: str
    type: str
    divisibility: int = 1

    @property
    def is_pointer(self) -> bool:
        """Whether its value is the address of memory."""
        return self.type.startswith("*")


@dataclass(frozen=True)
class Launch:
    """One launch of `kernel(...)` in `source`, a module of Triton functions without decorators.

    `parameters` are one per operand (a pointer; an int64 start where the operand has no memory), one per flag
    (a pointer to a bool), then sizes and strides, whose values are `arguments`. `constants` are compiled in.
    With `exact`, a product and a sum are never contracted.
    """

    name: str
    source: str = field(repr=False)
    parameters: tuple[Parameter, ...]
    constants: tuple[tuple[str, int], ...]
    grid: tuple[int, int, int]
    warps: int
    stages: int
    arguments: tuple[int, ...]
    exact: bool = True

    @property
    def pointers(self) -> tuple[Parameter, ...]:
        """The parameters whose values come with the call: operands, then flags."""
        return self.parameters[: len(self.parameters) - len(self.arguments)]

    def values(self, pointers: Sequence[int]) -> tuple[int, ...]:
        """The values of all parameters, for operands and flags at `pointers`."""
        return (*pointers, *self.arguments)

    @property
    def code(self) -> tuple[object, ...]:
        """What decides about object code: launches of equal code share it, whatever their sizes."""
        return self.source, self.parameters, self.constants, self.warps, self.stages, self.exact

    def aligned(self, alignment: Sequence[int]) -> Launch:
        """This launch for operands whose addresses are multiples of `alignment` bytes."""
        operands = zip(self.parameters, alignment, strict=False)
        known = [replace(p, divisibility=divisibility(a)) if p.is_pointer else p for p, a in operands]
        return replace(self, parameters=(*known, *self.parameters[len(known) :]))


def functions(source: str, wrap: Callable[[FunctionType], Any]) -> dict[str, Any]:
    """Every function of a source text, wrapped by `wrap` and calling the others so: `kernel` and its helpers.

    Triton reads a function's text again, where Python finds that of any module: in the cache of lines.
    """
    name = f"<kernel {next(_numbers)}>"
    # Without a time of modification the entry is never checked against a file.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), namespace)
    own = {key: f for key, f in namespace.items() if isinstance(f, FunctionType)}
    made = {key: wrap(f) for key, f in own.items()}
    namespace.update(made)
    return made
