"""A kernel with memory of its own, to be called: natively, or by the reference.

Fills memory with numbers that every function of the vocabulary is defined on; measures nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import dtypes, reference
from kernels.cpu import pool, runner
from kernels.cpu.runner import Program
from kernels.dtypes import DType
from kernels.errors import KernelError
from kernels.files import Placed, reach
from kernels.spec import Load, MatmulSpec, Store

Array = np.ndarray[Any, Any]
# Bytes that memory starts at a multiple of: nothing depends on where an allocator put it.
ALIGNMENT = 64


class Prepared:
    """`kernel` ready to run on `arrays`, flat and one per memory; call it to run it `repeats` times.

    All runs of a call are one native call, so that Python's part (about a microsecond) is paid once.
    """

    def __init__(self, kernel: Placed, repeats: int = 1, arrays: list[Array] | None = None) -> None:
        self.kernel, self.repeats = kernel, repeats
        self.arrays = filled(kernel) if arrays is None else arrays
        if arrays is None and _indexed(kernel):
            # The reference looks at every index before machine code follows it.
            Prepared(kernel, arrays=[x.copy() for x in self.arrays]).reference()
        self.program = program = Program([kernel.work] * repeats, range(repeats))
        for number in range(repeats):
            for operand, address in enumerate(self._addresses()):
                program.table[program.pointer_slot(number, operand)] = address
        self.native = runner.native_run()

    def _addresses(self) -> list[int]:
        kernel = self.kernel
        rows = zip(kernel.memory, kernel.offsets, kernel.work.spec.operands, strict=True)
        return [
            offset if memory < 0 else self.arrays[memory].ctypes.data + offset * operand.dtype.itemsize
            for memory, offset, operand in rows
        ]

    def __call__(self) -> None:
        program = self.program
        if program.threads != pool.get_num_threads():
            program.fit(pool.get_num_threads())
        self.native(program.address, pool.address() if program.parallel else 0)

    def reference(self) -> None:
        """Run the kernel once, by its meaning in NumPy."""
        by_reference(self.kernel, self.arrays)


def by_reference(kernel: Placed, arrays: list[Array]) -> None:
    """Run a kernel on `arrays`, flat and one per memory, by its meaning in NumPy."""
    work = kernel.work
    operands = [arrays[m] if m >= 0 else np.zeros(1, np.int64) for m in kernel.memory]
    if isinstance(work.spec, MatmulSpec):
        reference.run_matmul(work.spec, work.extents, operands, work.strides, kernel.offsets)
    else:
        reference.run(
            work.spec, work.extents, operands, work.strides, work.index_strides, offsets=kernel.offsets
        )


def filled(kernel: Placed) -> list[Array]:
    """Memory for a kernel: floats between 0.1 and 1, integers that may be indices, bools of both kinds."""
    rng = np.random.default_rng(0)
    most = _index_limit(kernel)
    return [_filled(rng, dtype, size, most) for dtype, size in zip(kernel.dtypes, kernel.sizes, strict=True)]


def _filled(rng: np.random.Generator, dtype: DType, size: int, most: int) -> Array:
    array = aligned(size, dtype)
    if dtype.is_floating_point:
        # Of large memory each block is the same: drawing numbers takes longer than most kernels.
        block = rng.uniform(0.1, 1.0, min(size, 1 << 20)).astype(dtype.numpy)
        for start in range(0, size, max(len(block), 1)):
            array[start : start + len(block)] = block[: size - start]
    elif dtype is dtypes.bool_:
        array[:] = rng.random(size) < 0.5
    else:
        array[:] = rng.integers(0, min(most, np.iinfo(dtype.numpy).max), size)
    return array


def aligned(size: int, dtype: DType) -> Array:
    """`size` elements, not initialised, from a multiple of ALIGNMENT bytes on."""
    memory = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size * dtype.itemsize].view(dtype.numpy)


def _indexed(kernel: Placed) -> set[int]:
    steps = kernel.work.spec.steps
    return {s.operand for s in steps if isinstance(s, Load | Store) and s.index is not None}


def _index_limit(kernel: Placed) -> int:
    """What every index must be below to stay within memory; 10 where there is none."""
    limits = []
    for operand in _indexed(kernel):
        size, stride = kernel.sizes[kernel.memory[operand]], kernel.work.index_strides[operand]
        room = size - 1 - kernel.offsets[operand] - reach(kernel.work, operand)[1]
        if room < 0:
            raise KernelError(f"{kernel.work.spec.name}: memory of p{operand} is too small for any index")
        limits.append(room // stride + 1 if stride else 10)
    return min(limits, default=10)
