"""Where a compiled call runs: on the host, or on the GPU that its tensors are on.

Knows programs of either kind; which device a recording is on, the tracer knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.binding import Arena
from compiler.plan import Request
from compiler.program import Executable
from framework.state import Precision
from kernels import memory
from kernels.gpu import arrays
from kernels.varying import Varying

if TYPE_CHECKING:
    from compiler.gpu.arrays import ArrayExecutable


@dataclass
class Sizes:
    """What the programs of one function had for sizes: those of its calls, and those of its gradients."""

    calls: Varying = field(default_factory=Varying)
    gradients: Varying = field(default_factory=Varying)


def program(
    request: Request, arena: Arena | None, number: int | None, varying: Varying
) -> Executable | ArrayExecutable:
    """The program of a request on GPU `number`, or on the host; `varying` has those before it."""
    if number is None:
        return Executable(request, arena, varying=varying)
    from compiler.gpu.arrays import ArrayExecutable  # loads what makes kernels for a GPU

    return ArrayExecutable(request, number, arena, Precision.float32 != "highest", varying)


def arena(number: int | None) -> Arena:
    """Scratch memory that programs share."""
    if number is None:
        return Arena()

    def allocate(size: int) -> Any:
        with arrays.there(number):
            return arrays.machine(number).allocate(size)

    return Arena(allocate)


def maker(number: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """What makes arrays of this kind for results."""
    return memory.maker(shape, dtype) if number is None else partial(arrays.empty, number=number)
