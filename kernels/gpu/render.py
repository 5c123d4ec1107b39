"""From a kernel with sizes to its launch on a GPU.

Knows which file writes which kind of kernel, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.blocks import AnyWork, BlockWork
from kernels.gpu import blocked, loop, matmul
from kernels.gpu.launch import Launch
from kernels.spec import MatmulSpec


def launch_of(
    work: AnyWork, alignment: Sequence[int] | None = None, flags: int = 0, tf32: bool = False
) -> Launch:
    """The launch of a kernel whose operands' addresses are multiples of `alignment` bytes (16 where none is
    given), and which returns at once where one of `flags` bools is set. `tf32`: float32 factors of a product
    are rounded to ten bits.
    """
    if isinstance(work, BlockWork):
        return blocked.render(work, alignment, flags, tf32)
    if isinstance(work.spec, MatmulSpec):
        return matmul.render(work, alignment, flags, tf32)
    return loop.render(work, alignment, flags)
