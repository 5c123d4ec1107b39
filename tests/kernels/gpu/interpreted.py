"""Run one kernel in Triton's interpreter, and beside the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels import reference
from kernels.gpu import interpret
from kernels.gpu.checked import Memory
from kernels.gpu.render import launch_of
from kernels.spec import Index, LoopSpec
from kernels.work import Work
from tests.kernels.cpu.native import assert_near

Array = np.ndarray[Any, Any]


def run_interpreted(work: Work, arrays: Sequence[Array], offsets: Sequence[int] | None = None) -> list[Array]:
    """The flat arrays after the kernel's launch ran on copies of them; operands start at `offsets`."""
    copies = [x.copy() for x in arrays]
    counted = {s.operand for s in work.spec.steps if isinstance(s, Index)}
    starts = offsets or [0] * len(copies)
    pointers = [
        int(x[0]) + o if number in counted else x.ctypes.data + o * x.itemsize
        for number, (x, o) in enumerate(zip(copies, starts, strict=True))
    ]
    alignment = [p % 16 or 16 for p in pointers]
    interpret.run(launch_of(work, alignment), pointers, Memory(copies))
    return copies


def run_reference(work: Work, arrays: Sequence[Array], offsets: Sequence[int] | None = None) -> list[Array]:
    """The flat arrays after the reference ran on copies of them."""
    copies = [x.copy() for x in arrays]
    assert isinstance(work.spec, LoopSpec)
    reference.run(work.spec, work.extents, copies, work.strides, work.index_strides, offsets)
    return copies


def check(
    work: Work, arrays: Sequence[Array], ulps: int = 0, offsets: Sequence[int] | None = None
) -> list[Array]:
    """Both results agree on every operand: equal, or floats within `ulps`. Returns the interpreted one."""
    got, wanted = run_interpreted(work, arrays, offsets), run_reference(work, arrays, offsets)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert_near(a, b, ulps, f"operand {number} of {work.spec} over {list(work.extents)}")
    return got
