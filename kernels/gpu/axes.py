"""A loop with as few axes as its operands allow.

Neighbouring axes that every operand walks as one become one, and axes of one element go. Knows sizes and
strides; knows no tiles and no text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kernels.spec import LoopSpec, Operand, pattern
from kernels.work import Work

# Sizes of axes, from the outermost, each with its stride in every operand.
Walk = list[tuple[int, tuple[int, ...]]]


def collapsed(work: Work) -> Work:
    """The same loop over fewer axes. Rows and inner axes stay apart, and each that there are leave one."""
    spec = cast(LoopSpec, work.spec)
    axes = list(zip(work.extents, zip(*work.strides, strict=True), strict=True))
    rows, inner = _merged(axes[: spec.rows]), _merged(axes[spec.rows :])
    walk = rows + inner
    strides = tuple(tuple(own[number] for _, own in walk) for number in range(len(spec.operands)))
    patterns = [tuple(pattern(s) for s in own) for own in strides]
    operands = tuple(Operand(o.dtype, own) for o, own in zip(spec.operands, patterns, strict=True))
    smaller = LoopSpec(spec.name, len(rows), len(inner), spec.vector, operands, spec.steps)
    return replace(work, spec=smaller, extents=tuple(size for size, _ in walk), strides=strides)


def _merged(axes: Walk) -> Walk:
    merged: Walk = []
    for size, strides in axes:
        if size == 1:
            continue
        if merged and all(s == t * size for s, t in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * size, strides
        else:
            merged.append((size, strides))
    return merged or [(1, (0,) * len(strides)) for _, strides in axes[:1]]
