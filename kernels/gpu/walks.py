"""What the loops over the walked axis of a block spec do, one after the other.

What depends on a reduction waits for the next loop. But a sum whose terms have a factor exp(x - max x), be it
of a row or a product's, is taken in the loop that finds the maximum, from what that is so far (Milakov and
Gimelshein, 2018; Dao et al., 2022). Factors that a row has as a whole are applied to the finished sum. Knows
specs; knows no tiles and no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.blocks import BlockSpec, BlockStep, Total, needs
from kernels.dtypes import DType
from kernels.spec import Call, Literal, Reduce, Store


@dataclass(frozen=True)
class Running:
    """A value that is linear in exp(x - `most`): `base` is the call of exp; of the calls from there on,
    `steps` are done at every element, `rest` with what is finished.
    """

    most: Reduce
    base: Call
    steps: tuple[Call, ...] = ()
    rest: tuple[Call, ...] = ()


class Walks:
    """The loops: `elements[p]` are the steps of loop p with the effects it is there for, `between[p]` what
    comes before it and does not walk, in order; `between[-1]` comes after all loops.

    `online` has the form of each sum that is taken while the maximum is looked for.
    """

    def __init__(self, spec: BlockSpec) -> None:
        self.spec = spec
        # Products whose terms are made in a later loop in any case, without tricks.
        self.plain: set[str] = set()
        self.follow()
        late = self.made_late()
        if late:
            self.plain = late
            self.follow()

    def follow(self) -> None:
        """Find out in which loop everything is done."""
        self.known: dict[str, Running | None] = {}
        self.ready: dict[str, int] = {}
        self.online: dict[str, Running] = {}
        for step in self.spec.steps:
            if isinstance(step, Store):
                continue
            before = self.loop(step)
            if isinstance(step, Reduce | Total):
                found = self.running(step)
                if found is not None:
                    self.online[step.out] = found
                    before = self.loop(step)
                factors = (x for call in found.rest for x in call.inputs) if found else ()
                # A factor's own chain is no factor of the finished sum.
                others = (self.ready[x] for x in factors if self.is_whole(x))
                self.ready[step.out] = max([before + 1, *others])
            else:
                self.ready[step.out] = before
        effects = {s: self.loop(s) for s in self.spec.steps if self.has_effect(s)}
        count = max(effects.values(), default=-1) + 1
        self.elements = [self.closure([s for s, p in effects.items() if p == n]) for n in range(count)]
        self.between = [
            [s for s in self.spec.steps if not self.walks(s) and self.moment(s) == n]
            for n in range(count + 1)
        ]

    # Places

    def is_whole(self, name: str) -> bool:
        """Whether a value is the same along the walked axis."""
        return self.spec.walked not in self.spec.varies[name]

    def walks(self, step: BlockStep) -> bool:
        """Whether a step is done at every element; a sum is finished after that."""
        if isinstance(step, Store):
            return self.has_effect(step)
        return not self.is_whole(step.out)

    def has_effect(self, step: BlockStep) -> bool:
        """Whether a loop is there for a step."""
        if isinstance(step, Store):
            return self.spec.walked in self.spec.along(step.operand)
        return isinstance(step, Reduce | Total)

    def moment(self, step: BlockStep) -> int:
        """How many loops come before a step that does not walk."""
        return self.loop(step) if isinstance(step, Store) else self.ready[step.out]

    def loop(self, step: BlockStep) -> int:
        """The loop in which a step does what it does at every element."""
        return max((self.ready[x] for x in self.needs(step)), default=0)

    def needs(self, step: BlockStep) -> tuple[str, ...]:
        """The values that a step uses in its loop."""
        found = self.online.get(step.out) if isinstance(step, Reduce | Total) else None
        if found is None:
            return needs(step)
        inside = {found.base.out, *(call.out for call in found.steps)}
        others = [x for call in found.steps for x in call.inputs if x not in inside]
        return (found.most.value, *(x for x in others if not self.is_linear(x)))

    def closure(self, effects: Iterable[BlockStep]) -> list[BlockStep]:
        """Effects of one loop and all that they need there, in order."""
        wanted = dict.fromkeys(effects)
        stack = list(wanted)
        while stack:
            for name in self.needs(stack.pop()):
                step = self.spec.named[name]
                if not self.is_whole(name) and step not in wanted:
                    wanted[step] = None
                    stack.append(step)
        return [s for s in self.spec.steps if s in wanted]

    def made_late(self) -> set[str]:
        """Products taken online whose values another loop makes anyway, when they are known."""
        late: set[str] = set()
        for name in self.online:
            step = self.spec.named[name]
            if isinstance(step, Total):
                own = self.ready[step.value]
                if own < len(self.elements) and self.spec.named[step.value] in self.elements[own]:
                    late.add(name)
        return late

    # Sums while the maximum is looked for

    def running(self, step: Reduce | Total) -> Running | None:
        """How the terms of a sum depend on a maximum, if they are linear in exp(x - that)."""
        if step.out in self.plain or (isinstance(step, Reduce) and step.combine != "add"):
            return None
        return self.linear(step.value)

    def is_linear(self, name: str) -> bool:
        """Whether a value is known to be linear in such an exponential."""
        return self.known.get(name) is not None

    def linear(self, name: str) -> Running | None:
        """The form of a value that is linear in exp(x - max x)."""
        if name not in self.known:
            self.known[name] = self.form(self.spec.named[name])
        return self.known[name]

    def form(self, step: BlockStep) -> Running | None:
        """As `linear`, of a step."""
        match step:
            case Call(function="exp", inputs=(x,)):
                return self.exponential(step, self.spec.named[x])
            case Call(function="cast", inputs=(x,), dtype=dtype) if self.computed_as(x) is dtype.arithmetic:
                # What is summed up is rounded once, when it is a factor.
                return self.linear(x)
            case Call(function="mul", inputs=(x, y)):
                return self.times(step, x, (y,)) or self.times(step, y, (x,))
            case Call(function="div", inputs=(x, y)):
                return self.times(step, x, (y,))
            case Call(function="where", inputs=(choice, x, y)):
                if self.is_zero(y):
                    return self.times(step, x, (choice,))
                return self.times(step, y, (choice,)) if self.is_zero(x) else None
        return None

    def exponential(self, step: Call, difference: BlockStep) -> Running | None:
        """exp(x - max x) itself."""
        match difference:
            case Call(function="sub", inputs=(x, most)):
                found = self.spec.named[most]
                if isinstance(found, Reduce) and found.combine == "max" and found.value == x:
                    return Running(found, step)
        return None

    def times(self, step: Call, x: str, factors: tuple[str, ...]) -> Running | None:
        """`step`, which is linear in x if the others are numbers of the row, or known before the maximum."""
        found = self.linear(x)
        if found is None:
            return None
        if all(self.is_whole(y) for y in factors):
            return Running(found.most, found.base, found.steps, (*found.rest, step))
        if all(self.ready[y] <= self.ready[found.most.value] for y in factors):
            return Running(found.most, found.base, (*found.steps, step), found.rest)
        return None

    def computed_as(self, name: str) -> DType | None:
        """The type in which a call's value is computed."""
        step = self.spec.named[name]
        return step.dtype.arithmetic if isinstance(step, Call) else None

    def is_zero(self, name: str) -> bool:
        """Whether a value is the number 0."""
        match self.spec.named[name]:
            case Literal(value=value):
                return value == 0
        return False
