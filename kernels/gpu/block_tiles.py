"""How a block spec is cut for a GPU: rows of a program, columns of a step, warps and stages.

Knows sizes and element types, and no architecture: a cut has to do for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels import dtypes
from kernels.blocks import BlockSpec, BlockWork, Dot, Total, operands_of
from kernels.gpu.product_tiles import coarse
from kernels.spec import Call, Load

# tl.dot sums over so many elements at least, and the longest short axis that programs hold at once.
SHORTEST, LONGEST = 16, 128
# Rows of a program by columns of a step that compile without spills: of 16-bit factors with one product each
# way and no random numbers; of any other kernel; of more products with random numbers, and of float32 whose
# sums have more than 64 columns in all; of float64. Eight warps: with four, exact float32 spills from 64 by
# 32 on.
LIGHT, USUAL, DEEP, WIDE, WARPS = (128, 64), (64, 32), (32, 32), (16, 16), 8
MOST_COLUMNS = 64
# Bytes of a factor's tile for each warp: 16 a thread.
EACH = 512


@dataclass(frozen=True)
class BlockTile:
    """A program has `own` indices of its axis and takes `walked` of the other at a time."""

    own: int
    walked: int
    warps: int
    stages: int


def depth_block(work: BlockWork, axis: int) -> int:
    """The block of a short axis, which holds it whole."""
    size = work.extents[axis]
    return max(_power(coarse(size) if axis in work.varying else size), SHORTEST)


def tile_of(work: BlockWork, tf32: bool = False) -> BlockTile:
    """The cut of a block spec; `tf32`: its float32 factors are rounded to ten bits."""
    spec = work.spec
    products = [s for s in spec.steps if isinstance(s, Dot | Total)]
    columns = sum(depth_block(work, s.axis) for s in products if isinstance(s, Total))
    drawn = any(isinstance(s, Call) and s.function == "random_bits" for s in spec.steps)
    heavy = drawn and len(products) > 2
    if any(s.dtype is dtypes.float64 for s in products):
        own, walked = WIDE
    elif of_halves(spec):
        own, walked = DEEP if heavy else USUAL if drawn or len(products) > 2 else LIGHT
    else:
        own, walked = DEEP if heavy or columns > MOST_COLUMNS else USUAL
    sizes = {spec.own: own, spec.walked: walked}
    for axis, most in sizes.items():
        if axis not in work.varying:
            sizes[axis] = min(most, max(_power(work.extents[axis]), SHORTEST))
    narrow = min(spec.operands[o].dtype.itemsize for s in products for o in operands_of(s))
    tile = min(sizes.values()) * min(depth_block(work, s.axis) for s in products) * narrow
    # Fetched a step ahead, what lies along the block's own axis would come in the order of TF32's
    # accumulators, 32 bits at a time.
    stages = 1 if tf32 and _lies_across(spec) else 2
    return BlockTile(sizes[spec.own], sizes[spec.walked], min(max(tile // EACH, 1), WARPS), stages)


def _lies_across(spec: BlockSpec) -> bool:
    """Whether elements along both long axes are loaded that lie next to each other along the block's own."""
    strides = [spec.operands[s.operand].strides for s in spec.steps if isinstance(s, Load)]
    return any(own[spec.own] == 1 and own[spec.walked] != 0 for own in strides)


def of_halves(spec: BlockSpec) -> bool:
    """Whether all factors of products are of 16 bits."""
    found: list[bool] = []
    for step in spec.steps:
        if isinstance(step, Dot):
            found += [spec.operands[o].dtype.compute is not None for o in (step.own, step.walked)]
        elif isinstance(step, Total):
            found.append(step.factor.compute is not None)
    return all(found)


def _power(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(size - 1, 0).bit_length()
