"""How many registers a tile takes, from when its values are made and when they are used last.

An estimate, since the compiler puts instructions into another order; it keeps tiles from sizes that would
spill. Knows specs; knows no device but the size of a processor's register file.
"""

from __future__ import annotations

from itertools import accumulate

from kernels.dtypes import DType
from kernels.gpu.phases import lasts, level
from kernels.spec import ELEMENT, ROW, Call, Index, Literal, Load, LoopSpec, Reduce, Scan, Store, used

# Registers of a processor, all of which one program may take; the most of one thread, and those that it needs
# for addresses and inside of functions.
FILE, MOST, SPARE = 65536, 255, 32


def held(spec: LoopSpec) -> int:
    """The most registers of 32 bits that one element of a tile takes at a time."""
    lanes = ELEMENT if spec.inner else ROW
    in_parts = any(isinstance(s, Reduce) and s.outer for s in spec.steps)
    uses: dict[str, list[int]] = {}
    for number, step in enumerate(spec.steps):
        for name in used(step):
            uses.setdefault(name, []).append(number)
    change = [0] * (len(spec.steps) + 1)
    for number, step in enumerate(spec.steps):
        if isinstance(step, Store | Literal):
            continue
        size = -(-_dtype(spec, step).arithmetic.itemsize // 4)
        total = isinstance(step, Reduce) and step.outer
        if level(spec, step) == lanes and (total or (in_parts and lasts(spec, step))):
            # It is there as long as the rows are walked.
            change[0] += size
        elif spec.levels.get(step.out) == lanes and step.out in uses:
            # A load waits until it is needed.
            change[uses[step.out][0] if isinstance(step, Load | Index) else number] += size
            change[uses[step.out][-1] + 1] -= size
    return max(accumulate(change))


def fits(registers: int, elements: int, warps: int) -> bool:
    """Whether so many warps hold a tile whose elements take `registers` each."""
    threads = 32 * warps
    return registers * -(-elements // threads) + SPARE <= min(MOST, FILE // threads)


def _dtype(spec: LoopSpec, step: Load | Index | Call | Reduce | Scan) -> DType:
    return spec.operands[step.operand].dtype if isinstance(step, Load | Index) else step.dtype
