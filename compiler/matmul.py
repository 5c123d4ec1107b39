"""A product group to a matmul spec: the operands' strides, the register block, the epilogue's steps.

Uses the loop lowering for everything after the product; knows nothing of how a product is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import LoweringError
from compiler.ir import Value
from compiler.lower import (
    Kernel,
    LoopLowering,
    Place,
    Shape,
    merge_axes,
    more_than_one,
    resolve,
)
from kernels import dtypes
from kernels.cpu.matmul import block, walk
from kernels.cpu.target import lanes
from kernels.recorder import Register
from kernels.spec import BLOCKS, PRODUCT, SLICES, Index, Load, MatmulSpec, Operand, Store, pattern

# Products in a batch from which on threads need not share a product.
MANY = 16
# What stands for a number of rows that varies: blocks of 4 rows take up to a third longer than the best of 2
# to 32 rows (by 512 x 512), and as long for more.
MANY_ROWS = 1 << 12


def product_kernel(lowering: LoopLowering) -> Kernel:
    """The kernel of a matrix product and the pointwise work on its tiles."""
    group = lowering.group
    product = group.product
    assert product is not None
    wide = product.dtype.arithmetic
    if not wide.is_floating_point:
        raise LoweringError(f"matmul of {product.type} has no compiled form; use a floating dtype")
    accumulated = Register(PRODUCT, wide)
    lowering.values[product] = (
        lowering.k.cast(accumulated, product.dtype) if wide is not product.dtype else accumulated
    )
    for node in group.nodes:
        lowering.read(node)
    for node, buffer, geometry in lowering.outputs:
        lowering.store(node, buffer, geometry)
    depth = product.attrs.get("depth", 1)
    left, right = (_factor(lowering, x) for x in product.inputs)
    summed = tuple(product.inputs[0].shape[-depth:])
    domain, summed, places = _walked(group.domain, summed, left, right, lowering.places)
    kinds = (product.dtype, product.dtype, *lowering.types)
    operands = tuple(
        Operand(d, tuple(pattern(s) for s in p.strides)) for d, p in zip(kinds, places, strict=True)
    )
    steps = tuple(
        replace(s, operand=s.operand + 2) if isinstance(s, Load | Store | Index) else s
        for s in lowering.k.steps
    )
    *batch, m, n = domain
    many = math.prod(batch) >= MANY
    rows, vectors = block(m, n, lanes(), wide is dtypes.float64, many, strided=places[0].strides[-1] != 1)
    walked = walk(m, n, summed, operands, (rows, vectors), lanes())
    depth = len(summed)
    spec = MatmulSpec(lowering.name, len(batch), wide, rows, vectors, operands, steps, depth, walked)
    return Kernel(spec, (*domain, *summed), places, tuple(group.nodes))


def serving(kernel: Kernel, varying: frozenset[int], usual: str = BLOCKS) -> Kernel:
    """A product's kernel with the register block of all sizes that its axes `varying` may have, and the
    `usual` walk unless it is walked in slices.
    """
    spec = kernel.spec
    assert isinstance(spec, MatmulSpec)
    rows, columns = spec.batch, spec.batch + 1
    if varying.isdisjoint((rows, columns)):
        return kernel
    *batch, m, n = kernel.extents[: spec.batch + 2]
    strided = kernel.places[0].strides[-1] != 1
    walked = walk(m, n, kernel.extents[columns + 1 :], spec.operands, (1, 1), lanes())
    walked = SLICES if walked == SLICES else usual
    if rows in varying:
        m, strided = MANY_ROWS, True
    if columns in varying:
        n = next((size for size in (lanes(), 2 * lanes()) if n <= size), 64 * lanes())
    wide = spec.dtype is dtypes.float64
    block_rows, vectors = block(m, n, lanes(), wide, math.prod(batch) >= MANY, strided)
    return replace(kernel, spec=replace(spec, rows=block_rows, vectors=vectors, walk=walked))


def _walked(
    domain: Shape, summed: Shape, left: Place, right: Place, others: Sequence[Place]
) -> tuple[Shape, Shape, tuple[Place, ...]]:
    """A product's axes, neighbours that every operand walks as one merged: (batch.., m, n), those summed
    over, and the places of A, B and the epilogue's operands with strides along them.
    """
    *sizes, n = domain
    depth, fill = len(summed), (0,) * (len(sizes) - 1)
    a_batch, a_rows, a_inner = left.strides[: -1 - depth], left.strides[-1 - depth], left.strides[-depth:]
    b_batch, b_inner = right.strides[: -1 - depth], right.strides[-1 - depth : -1]
    a_batch, b_batch = (fill + a_batch)[len(a_batch) :], (fill + b_batch)[len(b_batch) :]
    around = zip(a_batch, b_batch, *(p.strides[:-2] for p in others), strict=True)
    rows = sizes[-1], (a_rows, 0, *(p.strides[-2] for p in others))
    walk = merge_axes([*(x for x in zip(sizes, around, strict=False) if x[0] != 1), rows])
    # Which axis is summed first is free: the one whose elements of A lie closest is the innermost.
    inner = sorted(zip(summed, zip(a_inner, b_inner, strict=True), strict=True), key=lambda x: -abs(x[1][0]))
    inner = merge_axes(more_than_one(inner))
    strides = [tuple(s[number] for _, s in walk) for number in range(2 + len(others))]
    places = (
        replace(left, strides=(*strides[0], *(s[0] for _, s in inner))),
        replace(right, strides=(*strides[1][:-1], *(s[1] for _, s in inner), right.strides[-1])),
        *(replace(p, strides=(*s, p.strides[-1])) for p, s in zip(others, strides[2:], strict=True)),
    )
    return (*(size for size, _ in walk), n), tuple(size for size, _ in inner), places


def _factor(lowering: LoopLowering, x: Value) -> Place:
    """Where a factor lies, with strides over its own axes."""
    base, (shape, strides, offset) = resolve(x, lowering.stored)
    strides = tuple(0 if size == 1 else s for size, s in zip(shape, strides, strict=True))
    return Place(lowering.buffers[base], offset, strides)
