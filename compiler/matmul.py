"""A product group to a matmul spec: the operands' strides, the register block, the epilogue's steps.

Uses the loop lowering for everything after the product; knows nothing of how a product is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.errors import LoweringError
from compiler.ir import Value
from compiler.lower import Kernel, LoopLowering, Place, Register, Shape, pattern, resolve
from kernels import dtypes
from kernels.cpu.matmul import block, walks
from kernels.cpu.target import lanes
from kernels.spec import PRODUCT, Index, Load, MatmulSpec, Operand, Store

# Products in a batch from which on threads need not share a product.
MANY = 16


def product_kernel(lowering: LoopLowering) -> Kernel:
    """The kernel of a matrix product and the pointwise work on its tiles."""
    group = lowering.group
    product = group.product
    assert product is not None
    rank = len(group.domain)
    wide = product.dtype.arithmetic
    if not wide.is_floating_point:
        raise LoweringError(f"matmul of {product.type} has no compiled form; use a floating dtype")
    accumulated = Register(PRODUCT, wide)
    lowering.values[product] = (
        lowering.k.cast(accumulated, product.dtype) if wide is not product.dtype else accumulated
    )
    for node in group.nodes:
        lowering.read(node)
    for node, buffer in lowering.outputs:
        lowering.store(node, buffer)
    depth = product.attrs.get("depth", 1)
    left, right = (_factor(lowering, x) for x in product.inputs)
    axes = Axes(group.domain, product.inputs[0].shape[-depth:])
    places = axes.merged(rank, left, right, lowering.places)
    kinds = (product.dtype, product.dtype, *lowering.types)
    operands = tuple(
        Operand(d, tuple(pattern(s) for s in p.strides)) for d, p in zip(kinds, places, strict=True)
    )
    steps = tuple(
        replace(s, operand=s.operand + 2) if isinstance(s, Load | Store | Index) else s
        for s in lowering.k.steps
    )
    *batch, m, n = axes.domain
    many = math.prod(batch) >= MANY
    rows, vectors = block(m, n, lanes(), wide is dtypes.float64, many, walks(operands[2:]))
    spec = MatmulSpec(lowering.name, len(batch), wide, rows, vectors, operands, steps, len(axes.summed))
    return Kernel(spec, (*axes.domain, *axes.summed), places, tuple(group.nodes))


@dataclass
class Axes:
    """The axes of a product while neighbours that every operand walks as one are merged: `domain` is
    (batch.., m, n), `summed` what is summed over.
    """

    domain: Shape
    summed: Shape

    def merged(self, rank: int, left: Place, right: Place, others: Sequence[Place]) -> tuple[Place, ...]:
        """The places of A, B and the epilogue's operands, with strides along the merged axes."""
        depth = len(self.summed)
        a_batch, a_rows, a_inner = left.strides[: -1 - depth], left.strides[-1 - depth], left.strides[-depth:]
        b_batch, b_inner, b_columns = (
            right.strides[: -1 - depth],
            right.strides[-1 - depth : -1],
            right.strides[-1],
        )
        # One column per axis: the strides of A, B and the others.
        fill = (0,) * (rank - 2)
        a_batch, b_batch = (fill + a_batch)[len(a_batch) :], (fill + b_batch)[len(b_batch) :]
        around = [*zip(a_batch, b_batch, *(p.strides[:-2] for p in others), strict=True)]
        rows = (a_rows, 0, *(p.strides[-2] for p in others))
        columns = (0, b_columns, *(p.strides[-1] for p in others))
        *sizes, n = self.domain
        batch = [x for x in zip(sizes, around, strict=False) if x[0] != 1]
        walked = _merge([*batch, (sizes[-1], rows)])
        # Which axis is summed first is free: the one whose elements of A lie closest is the innermost.
        inner = sorted(
            zip(self.summed, zip(a_inner, b_inner, strict=True), strict=True), key=lambda x: -abs(x[1][0])
        )
        summed = _merge([x for x in inner if x[0] != 1] or inner[:1])
        self.domain, self.summed = (*(size for size, _ in walked), n), tuple(size for size, _ in summed)
        table = [*(strides for _, strides in walked), columns]
        a_and_b = [strides for _, strides in summed]
        places = []
        for number, place in enumerate((left, right, *others)):
            *outer, row, column = [strides[number] for strides in table]
            if number == 0:
                along = (*outer, row, *(s[0] for s in a_and_b))
            elif number == 1:
                along = (*outer, *(s[1] for s in a_and_b), column)
            else:
                along = (*outer, row, column)
            places.append(replace(place, strides=along))
        return tuple(places)


def _merge(axes: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    """(size, strides) of neighbouring axes, those that are walked as one made one."""
    made: list[tuple[int, tuple[int, ...]]] = []
    for size, strides in axes:
        if made and all(s == t * size for s, t in zip(made[-1][1], strides, strict=True)):
            made[-1] = made[-1][0] * size, strides
        else:
            made.append((size, strides))
    return made


def _factor(lowering: LoopLowering, x: Value) -> Place:
    """Where a factor lies, with strides over its own axes."""
    base, (shape, strides, offset) = resolve(x, lowering.stored)
    strides = tuple(0 if size == 1 else s for size, s in zip(shape, strides, strict=True))
    return Place(lowering.buffers[base], offset, strides)
