"""A loop with as few axes as its operands allow.

Neighbouring axes that every operand walks as one become one, and axes of one element go, unless their sizes
vary. Knows sizes and strides; knows no tiles and no text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kernels.spec import LoopSpec, Operand, Scan, pattern
from kernels.work import Work

# Axes from the outermost: a size, the stride in every operand, whether the size varies.
Walk = list[tuple[int, tuple[int, ...], bool]]


def collapsed(work: Work) -> Work:
    """The same loop over fewer axes. Rows and inner axes stay apart, and each that there are leave one."""
    spec = cast(LoopSpec, work.spec)
    varying = [a in work.varying for a in range(spec.axes)]
    axes = list(zip(work.extents, zip(*work.strides, strict=True), varying, strict=True))
    rows, inner = _merged(axes[: spec.rows]), axes[spec.rows :]
    if not any(isinstance(s, Scan) for s in spec.steps):  # what runs along an axis is stored along it
        inner = _merged(inner)
    walk = rows + inner
    strides = tuple(tuple(own[number] for _, own, _ in walk) for number in range(len(spec.operands)))
    patterns = [tuple(pattern(s) for s in own) for own in strides]
    operands = tuple(Operand(o.dtype, own) for o, own in zip(spec.operands, patterns, strict=True))
    smaller = LoopSpec(spec.name, len(rows), len(inner), spec.vector, operands, spec.steps)
    sizes = tuple(size for size, _, _ in walk)
    expected = frozenset(axis for axis, (_, _, varies) in enumerate(walk) if varies)
    return replace(work, spec=smaller, extents=sizes, strides=strides, varying=expected)


def _merged(axes: Walk) -> Walk:
    merged: Walk = []
    for size, strides, varies in axes:
        if size == 1 and not varies:
            continue
        if merged and all(s == t * size for s, t in zip(merged[-1][1], strides, strict=True)):
            merged[-1] = merged[-1][0] * size, strides, varies or merged[-1][2]
        else:
            merged.append((size, strides, varies))
    return merged or [(1, (0,) * len(strides), False) for _, strides, _ in axes[:1]]
