"""Run a plan in NumPy: every kernel by the reference, in the very memory the plan gave it.

Kernels of one level run in any order and arena memory starts as garbage, so that a wrong level or lifetime
shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.binding import optimise
from compiler.lower import Buffer, Kernel
from compiler.plan import Plan, Planner, Request
from kernels import reference
from kernels.spec import Index, MatmulSpec, Reduce, identity

Array = np.ndarray[Any, Any]


def planned(request: Request) -> Plan:
    """The plan of a request, as an Executable makes it, without machine code."""
    return Planner(optimise(request)).run()


def simulate(plan: Plan, arrays: Sequence[Array], seed: int = 0) -> list[Array]:
    """The outputs, flat; inputs are written in place."""
    rng = np.random.default_rng(seed)
    arena = rng.integers(0, 256, plan.arena_bytes + 64).astype(np.uint8)
    memory: dict[Buffer, Array] = {}
    for buffer, offset in plan.arena.items():
        memory[buffer] = _typed(arena[offset:], buffer)
    for buffer, constant in plan.constants.items():
        memory[buffer] = np.ascontiguousarray(constant.data).reshape(-1).copy()
    for buffer, array in zip(plan.inputs, arrays, strict=True):
        memory[buffer] = array.reshape(-1)
    for buffer in plan.outputs:
        memory[buffer] = np.zeros(buffer.type.size, buffer.type.dtype.numpy)
    for level in sorted(set(plan.levels)):
        together = [k for k, own in zip(plan.kernels, plan.levels, strict=True) if own == level]
        for number in rng.permutation(len(together)):
            _run(together[number], memory)
    return [memory[b] for b in plan.outputs]


def _typed(raw: Array, buffer: Buffer) -> Array:
    return raw[: buffer.type.nbytes].view(buffer.type.dtype.numpy)


def _run(kernel: Kernel, memory: dict[Buffer, Array]) -> None:
    spec, places = kernel.spec, kernel.places
    counters = {s.operand for s in spec.steps if isinstance(s, Index)}
    arrays = [
        np.zeros(1, np.int64) if i in counters or p.buffer is None else memory[p.buffer.root]
        for i, p in enumerate(places)
    ]
    strides, offsets = [p.strides for p in places], [p.offset for p in places]
    if isinstance(spec, MatmulSpec):
        reference.run_matmul(spec, kernel.extents, arrays, strides, offsets)
        return
    for step in spec.steps:
        if isinstance(step, Reduce) and step.outer and kernel.parts > 1:
            # The reference computes the whole as the first part; the other parts add nothing.
            arrays[step.operand][:] = identity(step.combine, step.dtype)
    reference.run(spec, kernel.extents, arrays, strides, [p.index_stride for p in places], offsets)
