"""Sums over a row of which at most one element is not zero: the one at the position that the row names.

Such a sum is that element, which needs no walk over the row: what a loss takes of a row of probabilities,
and what the gradient of that puts there. Knows specs; writes no text.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.spec import ELEMENT, Call, Index, Literal, Load, LoopSpec, Named, Reduce, Scan, Store, used


@dataclass(frozen=True)
class Pick:
    """The element steps of a sum, in order, where the row's own `position` is the address `index` has."""

    index: Index
    position: str
    steps: tuple[Named, ...]


def picks(spec: LoopSpec) -> dict[str, Pick]:
    """The sums of `spec`, by the names of their results, that are one element of a row along the lanes."""
    if spec.vector != "inner" or spec.inner != 1:
        return {}
    steps = {s.out: s for s in spec.steps if not isinstance(s, Store)}
    found = {s.out: _pick(spec, steps, s) for s in spec.steps if isinstance(s, Reduce)}
    return {out: pick for out, pick in found.items() if pick is not None}


def _pick(spec: LoopSpec, steps: dict[str, Named], total: Reduce) -> Pick | None:
    value = steps[total.value]
    if total.combine != "add" or total.outer or total.dtype.compute or not isinstance(value, Call):
        return None
    condition = _condition(steps, value)
    if condition is None or value.dtype is not total.dtype:
        return None
    for name, position in (condition, condition[::-1]):
        index = steps[name]
        walks = isinstance(index, Index) and spec.operands[index.operand].strides[-1] == 1
        if walks and spec.levels[position] != ELEMENT:
            needed = _needed(spec, steps, total.value)
            if not any(isinstance(s, Scan) or (isinstance(s, Load) and s.index) for s in needed):
                return Pick(index, position, needed)
    return None


def _condition(steps: dict[str, Named], value: Named) -> tuple[str, str] | None:
    """Which two values are equal wherever `value` is not zero."""
    match value:
        case Call(function="neg", inputs=(x,)):
            return _condition(steps, steps[x])
        case Call(function="where", inputs=(condition, _, other)):
            zero, equal = steps[other], steps[condition]
            if isinstance(zero, Literal) and zero.value == 0 and isinstance(equal, Call):
                return (equal.inputs[0], equal.inputs[1]) if equal.function == "eq" else None
    return None


def _needed(spec: LoopSpec, steps: dict[str, Named], name: str) -> tuple[Named, ...]:
    """The element steps that a value takes, in order."""
    wanted: set[str] = set()
    stack = [name]
    while stack:
        x = stack.pop()
        if x not in wanted and spec.levels[x] == ELEMENT:
            wanted.add(x)
            stack += used(steps[x])
    return tuple(s for s in spec.steps if not isinstance(s, Store) and s.out in wanted)
