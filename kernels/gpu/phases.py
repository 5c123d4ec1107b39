"""What the loops over a long row do, one after the other: what depends on a reduction waits for the next.

Values are computed again in every loop that needs them. But a sum of exp(x - max x) is taken in the loop that
finds the maximum, from what that is so far (Milakov and Gimelshein, 2018), which saves a loop over memory.
Knows specs; knows no tiles and no text.
"""

from __future__ import annotations

from kernels.spec import ELEMENT, KERNEL, ROW, Call, Index, Load, LoopSpec, Reduce, Step, Store, used


def level(spec: LoopSpec, step: Step) -> int:
    """Where in the nest a step does its work; a row's reduction does it at every element."""
    match step:
        case Reduce(value=value, operand=operand, outer=outer):
            return max(ROW, spec.levels[value], spec.operand_level(operand)) if outer else ELEMENT
        case Store(value, operand, index):
            # What is added is added by every row, be it the same.
            known = [spec.levels[value], spec.levels[index] if index else KERNEL, ROW if index else KERNEL]
            return max(spec.operand_level(operand), *known)
    return spec.levels[step.out]


def lasts(spec: LoopSpec, step: Step) -> bool:
    """Whether a load or a counter is the same in all rows, and not of memory that changes."""
    match step:
        case Load(operand=operand, index=None) | Index(operand=operand):
            return operand not in spec.written and not any(spec.operands[operand].strides[: spec.rows])
    return False


class Phases:
    """The loops over one row: `elements[p]` are the steps of loop p, `rows[p]` those before it, in order.

    A store waits for the last loop that reads its operand. `rows[-1]` comes after all loops. `online` has the
    maximum of each sum that is taken along with it.
    """

    def __init__(self, spec: LoopSpec) -> None:
        self.spec = spec
        self.named = {s.out: s for s in spec.steps if not isinstance(s, Store)}
        sums = (s for s in spec.steps if isinstance(s, Reduce) and s.combine == "add" and not s.outer)
        self.online = {s.out: most for s in sums if (most := self.maximum(s)) is not None}
        self.ready: dict[str, int] = {}
        for step in self.named.values():
            # How many loops over the row must be finished before a value is known.
            before = max((self.ready[x] for x in self.needs(step)), default=0)
            self.ready[step.out] = before + (isinstance(step, Reduce) and not step.outer)
        last_load: dict[int, int] = {}
        while True:
            self.elements = self.loops(last_load)
            before, last_load = last_load, {}
            for number, steps in enumerate(self.elements):
                last_load |= {s.operand: number for s in steps if isinstance(s, Load)}
            if last_load == before:
                break
        self.rows = [
            [s for s in spec.steps if level(spec, s) == ROW and self.phase(s, {}) == p]
            for p in range(len(self.elements) + 1)
        ]

    def maximum(self, total: Reduce) -> Reduce | None:
        """The maximum of x, where what is summed is exp(x - that)."""
        summed = self.named[total.value]
        difference = self.named[summed.inputs[0]] if isinstance(summed, Call) else summed
        match summed, difference:
            case Call(function="exp"), Call(function="sub", inputs=(x, most)):
                found = self.named[most]
                if isinstance(found, Reduce) and found.combine == "max" and found.value == x:
                    return found
        return None

    def needs(self, step: Step) -> tuple[str, ...]:
        """The values that a step uses in the loop in which it works."""
        if isinstance(step, Reduce) and step.out in self.online:
            return (self.online[step.out].value,)
        return used(step)

    def phase(self, step: Step, last_load: dict[int, int]) -> int:
        """The loop in which a step works, or before which where it belongs to the row."""
        if isinstance(step, Load | Reduce | Store):
            known = [self.ready[x] for x in self.needs(step)]
            waits = [last_load.get(step.operand, 0)] if isinstance(step, Store) else []
            return max(known + waits, default=0)
        return self.ready[step.out]

    def loops(self, last_load: dict[int, int]) -> list[list[Step]]:
        """Each loop's effects and all that they need, when stores wait for `last_load` of their operands."""
        effects: dict[Step, int] = {
            s: self.phase(s, last_load)
            for s in self.spec.steps
            if isinstance(s, Store | Reduce) and level(self.spec, s) == ELEMENT
        }
        found: list[list[Step]] = []
        for number in range(max(effects.values(), default=-1) + 1):
            wanted: dict[Step, None] = dict.fromkeys(s for s, p in effects.items() if p == number)
            stack = list(wanted)
            while stack:
                for name in self.needs(stack.pop()):
                    step = self.named[name]
                    if self.spec.levels[name] == ELEMENT and step not in wanted:
                        wanted[step] = None
                        stack.append(step)
            found.append([s for s in self.spec.steps if s in wanted])
        return found
