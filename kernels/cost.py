"""What a kernel has to do and what it does, counted from its spec: bytes and floating-point operations.

Measures nothing; knows no machine but the width of its vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels import dtypes
from kernels.cpu import loop
from kernels.cpu.target import lanes
from kernels.dtypes import DType
from kernels.files import Placed
from kernels.spec import ELEMENT, KERNEL, Call, Load, LoopSpec, MatmulSpec, Reduce, Scan, Store
from kernels.traffic import distinct, touched
from kernels.work import Work

# Words that select, compare or convert, and those on bits: no arithmetic.
_NOT_COUNTED = frozenset(
    "cast where eq ne lt le gt ge and_ or_ xor invert shift_left shift_right random_bits".split()
)


@dataclass(frozen=True)
class Cost:
    """Work of one run. `read` and `written`: the bytes that must be, each once; `moved`: the bytes that the
    kernel's loops load and store, most of the excess from caches. `flops`: one for each word of arithmetic
    and each element of a reduction or a scan, two for each multiply-add; `dtype`: what they are done in.
    `footprint`: bytes of memory; `in_place`: whether all that is written is read before.
    """

    read: int
    written: int
    moved: int
    flops: int
    dtype: DType
    footprint: int
    in_place: bool

    @property
    def least(self) -> int:
        """Bytes that must be moved."""
        return self.read + self.written

    @property
    def written_share(self) -> float:
        """The share of the least bytes that is written."""
        return self.written / self.least if self.least else 0.0


def cost(kernel: Placed) -> Cost:
    """Count a kernel's work."""
    spec = kernel.work.spec
    read, written = distinct(kernel, spec.read), distinct(kernel, spec.written)
    footprint = distinct(kernel, spec.read | spec.written)
    of_read, of_written = ({kernel.memory[i] for i in group} for group in (spec.read, spec.written))
    in_place = of_written <= of_read
    flops, dtype = _flops(kernel.work), _dtype(kernel.work)
    return Cost(read, written, _moved(kernel), flops, dtype, footprint, in_place)


def _moved(kernel: Placed) -> int:
    work, spec = kernel.work, kernel.work.spec
    sizes = [touched(work, i) * o.dtype.itemsize for i, o in enumerate(spec.operands)]
    if isinstance(spec, LoopSpec):
        stored = [
            s.operand for s in spec.steps if isinstance(s, Store) or (isinstance(s, Reduce) and s.outer)
        ]
        kept = loop.kept_bytes(spec, lanes()) * math.prod(work.extents)
        return sum(sizes[i] for i in loop.loads(spec, lanes()) + stored) + kept
    batch, (m, n) = math.prod(work.extents[: spec.batch]), work.extents[spec.batch : spec.batch + 2]
    depth = math.prod(work.extents[spec.batch + 2 :])
    panels, blocks = -(-n // (spec.vectors * lanes())), -(-m // spec.rows)
    # A once for each panel of columns; B once for each block of rows, of many from a packed copy.
    factors = (panels * m + blocks * n) * depth * spec.dtype.itemsize * batch
    packing = 2 * sizes[1] if blocks > 1 else 0
    rest = [s.operand for s in spec.steps if isinstance(s, Load | Store)]
    return factors + packing + sum(sizes[i] for i in rest)


def _flops(work: Work) -> int:
    spec, extents = work.spec, work.extents
    steps = spec
    count = 0
    if isinstance(spec, MatmulSpec):
        steps, extents = spec.epilogue, extents[: spec.batch + 2]
        count = 2 * work.elements
    assert isinstance(steps, LoopSpec)
    rows, points = math.prod(extents[: steps.rows]), math.prod(extents)
    for step in spec.steps:
        if isinstance(step, Reduce | Scan):
            count += 2 * points if isinstance(step, Scan) and step.factor else points
        elif isinstance(step, Call) and step.function not in _NOT_COUNTED:
            level = steps.levels[step.out]
            count += points if level == ELEMENT else rows if level != KERNEL else 1
    return count


def _dtype(work: Work) -> DType:
    """What most of the arithmetic runs in: the widest float of the kernel."""
    spec = work.spec
    if isinstance(spec, MatmulSpec):
        return spec.dtype
    found = [o.dtype.arithmetic for o in spec.operands]
    floats = [d for d in found if d.is_floating_point]
    return max(floats or found or [dtypes.float32], key=lambda d: d.itemsize)
