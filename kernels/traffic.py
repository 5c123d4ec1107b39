"""The elements of memory that a kernel's loops lead to: what any back end has to move at least.

Knows no back end, and no machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernels.blocks import AnyWork
from kernels.files import Placed, walked
from kernels.spec import ELEMENT, Load, LoopSpec, Reduce, Store


def distinct(kernel: Placed, operands: Iterable[int]) -> int:
    """Bytes of the elements that these operands touch, those of shared memory once."""
    counts: dict[int, int] = {}
    for operand in operands:
        number = kernel.memory[operand]
        counts[number] = counts.get(number, 0) + touched(kernel.work, operand)
    types = kernel.dtypes
    return sum(min(count, kernel.sizes[m]) * types[m].itemsize for m, count in counts.items())


def touched(work: AnyWork, operand: int) -> int:
    """Elements that an operand has along the loop's axes."""
    spec, extents = work.spec, work.extents
    levels = [
        max(spec.levels[s.index], spec.operand_level(operand))
        for s in spec.steps
        if isinstance(spec, LoopSpec)
        and isinstance(s, Load | Store)
        and s.operand == operand
        and s.index is not None
    ]
    if levels and isinstance(spec, LoopSpec):
        return math.prod(extents if max(levels) == ELEMENT else extents[: spec.rows])
    count = math.prod(n for n, s in zip(walked(work, operand), work.strides[operand], strict=True) if s)
    parts = any(isinstance(s, Reduce) and s.operand == operand for s in spec.steps)
    return count * max(work.parts, 1) if parts else count
