"""From a kernel with sizes to its launch on a GPU.

Knows which file writes which kind of kernel, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.gpu import loop
from kernels.gpu.launch import Launch
from kernels.work import Work


def launch_of(work: Work, alignment: Sequence[int] | None = None, flags: int = 0) -> Launch:
    """The launch of a kernel whose operands' addresses are multiples of `alignment` bytes (16 where none is
    given), and which returns at once where one of `flags` bools is set.
    """
    return loop.render(work, alignment, flags)
