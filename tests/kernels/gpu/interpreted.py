"""Run one kernel in Triton's interpreter, every access checked, and beside the reference.

The allowed difference is the caller's; all else must be equal bit for bit, what is not written included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels import reference
from kernels.files import Placed
from kernels.gpu import interpret
from kernels.gpu.checked import Memory
from kernels.gpu.launch import Launch
from kernels.gpu.render import launch_of
from kernels.prepared import filled
from kernels.spec import COMBINE, Index, LoopSpec, Reduce
from kernels.work import Work
from tests.kernels.cpu import native
from tests.kernels.cpu.native import assert_all_near

Array = np.ndarray[Any, Any]
_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
assert set(_COMBINE) == set(COMBINE)


def run_interpreted(work: Work, arrays: Sequence[Array], offsets: Sequence[int] | None = None) -> list[Array]:
    """The flat arrays, one per operand, after the kernel ran on copies of them.

    Operands start at `offsets`; one that is only counted with starts at its array's first number.
    """
    copies = [x.copy() for x in arrays]
    counted = {s.operand for s in work.spec.steps if isinstance(s, Index)}
    pointers = [
        int(x[0]) + o if number in counted else x.ctypes.data + o * x.itemsize
        for number, (x, o) in enumerate(zip(copies, offsets or [0] * len(copies), strict=True))
    ]
    interpret.run(launch_at(work, pointers), pointers, Memory(copies))
    return copies


def launch_at(work: Work, pointers: Sequence[int]) -> Launch:
    """The launch for operands at `pointers`: told how they are aligned, and no more."""
    return launch_of(work, [p & -p or 16 for p in pointers])


def run_reference(work: Work, arrays: Sequence[Array], offsets: Sequence[int] | None = None) -> list[Array]:
    """The flat arrays after the reference ran on copies of them."""
    assert isinstance(work.spec, LoopSpec)
    return native.run_reference(work.spec, work.extents, arrays, work.strides, work.index_strides, offsets)


def check(
    spec: LoopSpec,
    extents: Sequence[int],
    arrays: Sequence[Array],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    ulps: int = 0,
    offsets: Sequence[int] | None = None,
) -> list[Array]:
    """Both results agree on every operand: equal, or floats within `ulps`. Returns the interpreted one."""
    work = work_of(spec, extents, strides, index_strides)
    got, wanted = run_interpreted(work, arrays, offsets), run_reference(work, arrays, offsets)
    assert_all_near(got, wanted, ulps, f"of {spec} over {list(extents)}")
    return got


def work_of(
    spec: LoopSpec,
    extents: Sequence[int],
    strides: Sequence[Sequence[int]],
    index_strides: Sequence[int] | None = None,
    parts: int = 0,
) -> Work:
    """A spec with sizes."""
    indexed = tuple(index_strides or (0,) * len(strides))
    return Work(spec, tuple(extents), tuple(tuple(s) for s in strides), indexed, parts)


def check_placed(kernel: Placed, rtol: float) -> None:
    """A kernel on memory of its own, in which operands may overlap, gives what the reference does.

    Floats may differ by `rtol` of the largest beside them: sums have another order. Parts of the rows are
    combined before they are compared, as the reference has but one.
    """
    work, initial = kernel.work, filled(kernel)
    got, wanted = ([x.copy() for x in initial] for _ in range(2))
    sizes = [o.dtype.itemsize for o in work.spec.operands]
    pointers = [
        o if m < 0 else got[m].ctypes.data + o * size
        for m, o, size in zip(kernel.memory, kernel.offsets, sizes, strict=True)
    ]
    interpret.run(launch_at(work, pointers), pointers, Memory(got))
    arrays = [wanted[m] if m >= 0 else np.zeros(1, np.int64) for m in kernel.memory]
    assert isinstance(work.spec, LoopSpec)
    reference.run(work.spec, work.extents, arrays, work.strides, work.index_strides, kernel.offsets)
    parts = {kernel.memory[s.operand]: s for s in work.spec.steps if isinstance(s, Reduce) and s.outer}
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if number in parts:
            step = parts[number]
            size = work.index_strides[step.operand]
            a = _COMBINE[step.combine].reduce(a.reshape(max(work.parts, 1), size).astype(np.float64), 0)
            b = b[:size].astype(np.float64)
        words = f"memory {number} of {work.spec} over {list(work.extents)}"
        if a.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, words)
        else:
            largest = max(float(np.abs(b.astype(np.float64)).max(initial=0)), 1e-30)
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol, rtol * largest, err_msg=words
            )
