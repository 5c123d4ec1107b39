"""Products of few tiles over a long depth as two kernels: parts of the depth side by side, then their sum.

A gradient of 128 by 128 weights, summed over 65536 rows, has work for few of a GPU's processors. Each slice
of the depth leaves what it came to in scratch memory; a loop adds the slices in their order and goes on with
what the product's tiles would have gone through, so that sums are the same from run to run. Knows kernels and
their places; how many slices are worth it is for `kernels.gpu.product_tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from compiler.levels import ALIGNMENT
from compiler.lower import Bound, Buffer, Kernel, Place
from compiler.schedule import is_product
from compiler.types import TensorType, contiguous_strides
from kernels.dtypes import DType
from kernels.gpu import matmul
from kernels.spec import (
    BLOCKS,
    PRODUCT,
    Index,
    Load,
    LoopSpec,
    MatmulSpec,
    Operand,
    Reduce,
    Step,
    Store,
    pattern,
)


@dataclass
class Sliced:
    """Kernels with their levels, some of them in two; and how many bytes of scratch memory lie where."""

    kernels: list[Bound] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    scratch: dict[Buffer, int] = field(default_factory=dict)
    size: int = 0


def sliced(kernels: Sequence[Bound], levels: Sequence[int], tf32: bool = False) -> Sliced:
    """Kernels and levels with such products in two; what is at different levels shares scratch memory."""
    found, used = Sliced(), dict[int, int]()
    for kernel, level in zip(kernels, levels, strict=True):
        count = 1
        if isinstance(kernel, Kernel) and isinstance(kernel.spec, MatmulSpec):
            count = matmul.slices(kernel.work(), tf32)
        if count == 1 or not isinstance(kernel, Kernel):
            found.kernels.append(kernel)
            found.levels.append(2 * level)
            continue
        parts, whole = _cut(kernel, count)
        found.kernels += parts, whole
        found.levels += 2 * level, 2 * level + 1
        buffer = parts.places[2].buffer
        assert buffer is not None, "the slices are in memory"
        found.scratch[buffer] = used.get(level, 0)
        used[level] = -(-(found.scratch[buffer] + buffer.type.nbytes) // ALIGNMENT) * ALIGNMENT
    found.size = max(used.values(), default=0)
    return found


def _cut(kernel: Kernel, count: int) -> tuple[Kernel, Kernel]:
    """The product of each slice, and the sum of those with the epilogue."""
    spec = kernel.spec
    assert isinstance(spec, MatmulSpec)
    rank = spec.batch + 2
    shape, (outer, *depth) = kernel.extents[:rank], kernel.extents[rank:]
    length, size = outer // count, math.prod(shape)
    buffer = Buffer(TensorType((count, size), spec.dtype), f"slices of {spec.name}")
    a, b = kernel.places[:2]
    summed = spec.batch + 1, spec.batch  # where the outermost summed axis is among a factor's
    factors = [
        replace(p, strides=(length * p.strides[at], *p.strides)) for p, at in zip((a, b), summed, strict=True)
    ]
    rows = contiguous_strides(shape)
    places = (*factors, Place(buffer, 0, (size, *rows)))
    product = replace(
        spec,
        batch=spec.batch + 1,
        operands=_operands(places, [*(o.dtype for o in spec.operands[:2]), spec.dtype]),
        steps=(Store(PRODUCT, 2),),
        walk=BLOCKS,
    )
    parts = Kernel(product, (count, *shape, length, *depth), places, tuple(filter(is_product, kernel.nodes)))
    first = Place(buffer, 0, (*rows, size))
    others = [replace(p, strides=(*p.strides, 0)) for p in kernel.places[2:]]
    steps: tuple[Step, ...] = (Load("slice", 0), Reduce(PRODUCT, "slice", "add", spec.dtype))
    steps += tuple(
        replace(s, operand=s.operand - 1) if isinstance(s, Load | Store | Index) else s for s in spec.steps
    )
    operands = _operands((first, *others), [spec.dtype, *(o.dtype for o in spec.operands[2:])])
    loop = LoopSpec(f"slices_of_{spec.name}", rank, 1, "rows", operands, steps)
    return parts, Kernel(loop, (*shape, count), (first, *others), kernel.nodes)


def _operands(places: Sequence[Place], kinds: Sequence[DType]) -> tuple[Operand, ...]:
    pairs = zip(kinds, places, strict=True)
    return tuple(Operand(kind, tuple(pattern(s) for s in place.strides)) for kind, place in pairs)
