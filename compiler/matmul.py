"""A product group to a matmul spec: the operands' strides, the register block, the epilogue's steps.

Uses the loop lowering for everything after the product; knows nothing of how a product is computed.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import LoweringError
from compiler.ir import Apply, Value
from compiler.lower import Kernel, LoopLowering, Place, Register, pattern, resolve
from compiler.schedule import padded
from kernels import dtypes
from kernels.cpu.matmul import block
from kernels.cpu.target import lanes
from kernels.spec import PRODUCT, Index, Load, MatmulSpec, Operand, Store


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
    factors = [_factor(lowering, x, rank, product) for x in product.inputs]
    m, k = product.inputs[0].shape[-2:]
    n = product.shape[-1]
    rows, vectors = block(m, n, lanes(), wide is dtypes.float64)
    places = (*factors, *lowering.places)
    kinds = (product.dtype, product.dtype, *lowering.types)
    operands = tuple(
        Operand(d, tuple(pattern(s) for s in p.strides)) for d, p in zip(kinds, places, strict=True)
    )
    steps = tuple(
        replace(s, operand=s.operand + 2) if isinstance(s, Load | Store | Index) else s
        for s in lowering.k.steps
    )
    spec = MatmulSpec(lowering.name, rank - 2, wide, rows, vectors, operands, steps)
    return Kernel(spec, (*group.domain, k), places, tuple(group.nodes))


def _factor(lowering: LoopLowering, x: Value, rank: int, product: Apply) -> Place:
    """Where a factor lies, with strides over (batch.., its two matrix axes)."""
    base, (shape, strides, offset) = resolve(x, lowering.stored)
    aligned = (0,) * (rank - len(shape)) + tuple(strides)
    batch = tuple(
        0 if size == 1 else s for size, s in zip(padded(shape, rank)[:-2], aligned[:-2], strict=True)
    )
    return Place(lowering.buffers[base], offset, (*batch, *aligned[-2:]))
