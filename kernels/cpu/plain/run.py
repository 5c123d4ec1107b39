"""Run a kernel's generated source as plain Python, task after task, on NumPy memory.

Tracebacks and debuggers show the lines of the source's file. Knows nothing of machine code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kernels import dtypes
from kernels.cpu import tasks
from kernels.cpu.plain.memory import Memory, using
from kernels.files import Placed
from kernels.prepared import aligned

Array = np.ndarray[Any, Any]
# Where generated sources take their words from, and where plain Python does.
_NATIVE, _PLAIN = "from kernels.cpu.", "from kernels.cpu.plain."


def run(source: str, path: str | Path, kernel: Placed, arrays: list[Array]) -> None:
    """Run `source`, whose lines `path` has, on flat arrays, one for each memory of `kernel`.

    Raises KernelError where it leaves its memory, and whatever the source itself raises.
    """
    namespace: dict[str, Any] = {"__name__": "kernel", "__file__": str(path)}
    exec(compile(source.replace(_NATIVE, _PLAIN), str(path), "exec"), namespace)
    work = kernel.work
    spec, operands = work.spec, len(work.spec.operands)
    table = np.zeros(spec.table_size, np.int64)
    for number, (memory, offset, operand) in enumerate(
        zip(kernel.memory, kernel.offsets, spec.operands, strict=True)
    ):
        start = 0 if memory < 0 else arrays[memory].ctypes.data
        table[number] = start + offset * (operand.dtype.itemsize if memory >= 0 else 1)
    table[operands : operands + len(work.extents)] = work.extents
    for (operand, axis), slot in spec.stride_slots.items():
        table[slot] = work.index_strides[operand] if axis < 0 else work.strides[operand][axis]
    scratch = aligned(tasks.scratch_bytes(work) + 64, dtypes.uint8)
    named = [(f"memory {number} ({_names(kernel, number)})", x) for number, x in enumerate(arrays)]
    allowed = Memory([*named, ("the table", table), ("scratch memory", scratch)])
    with using(allowed), np.errstate(all="ignore"):
        for part, (start, stop) in enumerate(tasks.cuts(work)):
            namespace["kernel"](table.ctypes.data, start, stop, part, scratch.ctypes.data)


def _names(kernel: Placed, number: int) -> str:
    """The operands that are in a memory, as the source calls them."""
    return ", ".join(f"p{i}" for i, memory in enumerate(kernel.memory) if memory == number)
