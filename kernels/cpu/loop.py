"""A loop spec as Numba source on explicit vectors.

Pure text: this module imports neither Numba nor LLVM, so a cached kernel is found without them. The result is
a function `kernel(table, start, stop, part, scratch)`: rows [start, stop) of the loop, as part number `part`.

Values are computed where their level says: once (KERNEL), once a row (ROW), in loops over the inner axes
(ELEMENT). What depends on a reduction waits for the next loop over the same row; cheap values are computed
again there, expensive ones are kept in `scratch`, which is private to the thread.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernels import dtypes
from kernels.cpu.picks import Pick, picks
from kernels.cpu.repeating import side_by_side
from kernels.cpu.steps import Steps
from kernels.dtypes import DType
from kernels.spec import (
    COMBINE,
    ELEMENT,
    EXPENSIVE,
    KERNEL,
    ROW,
    Call,
    Index,
    Literal,
    Load,
    LoopSpec,
    Named,
    Reduce,
    Scan,
    Step,
    Store,
    before_all,
    identity,
    used,
)

# Vectors of a row that are added up before they are added to its sum.
TOGETHER = 4
# Vectors of rows that are reduced at once: a sum of columns reads so many cache lines of each row one after
# the other (4096 x 4096: 17.1 ms with one, 6.6 with four).
SIDE_BY_SIDE = 4
# Expensive functions of an element from which on two vectors of them are computed at once: fewer are short
# enough for the CPU to begin the next vector in time (Black-Scholes, 170 instructions: 52 ns a vector, 39
# so; a GELU times a sigmoid gains nothing).
LONG = 4
# Rows that are done a vector each before the next vectors, where an operand lies across the lanes: as many as
# use up the cache lines that a vector of it touches (a transposing copy of 2048 x 2048 took 24 ms row by row,
# 11 so).
TILE = 16


def render(spec: LoopSpec, lanes: int) -> str:
    """The source of `spec`'s module for vectors of `lanes` elements."""
    body = _Loop(spec, lanes).source()
    words = sorted(set(re.findall(r"\b([a-z_0-9]+)\(", body)) - {"range", "kernel"})
    text = "\n".join(f"#   {line}" for line in str(replace(spec, name="kernel")).splitlines())
    imports = f"from math import inf, nan\n\nfrom kernels.cpu.vocabulary import {', '.join(words)}"
    return f"{imports}\n\n{text}\n\n\n{body}"


def scratch_bytes(spec: LoopSpec, extents: Sequence[int], lanes: int) -> int:
    """Bytes of private scratch memory one thread needs to run `spec`."""
    loop = _Loop(spec, lanes)
    inner = list(extents[spec.rows :])
    if spec.vector == "inner":
        inner[-1] = -(-inner[-1] // lanes)
    return sum(loop.dtype[name].arithmetic.itemsize for name in loop.kept) * lanes * math.prod(inner)


def loads(spec: LoopSpec, lanes: int) -> list[int]:
    """The operand of each load, one for every loop over a row that makes it."""
    loop = _Loop(spec, lanes)
    inside = [step for phase in range(loop.phases) for step in loop.needed(phase)]
    outside = [
        s for s in spec.steps if not isinstance(s, Store) and spec.levels.get(s.out, ELEMENT) != ELEMENT
    ]
    return [s.operand for s in inside + outside if isinstance(s, Load)]


def kept_bytes(spec: LoopSpec, lanes: int) -> int:
    """Bytes of one element that are written to scratch memory and read again, both counted."""
    loop = _Loop(spec, lanes)
    uses = [s.out for phase in range(loop.phases) for s in loop.needed(phase) if not isinstance(s, Store)]
    return sum(loop.dtype[out].arithmetic.itemsize for out in uses if out in loop.spilled)


@dataclass
class _Loop(Steps):
    def __post_init__(self) -> None:
        super().__post_init__()
        spec = self.spec
        self.steps = {s.out: s for s in spec.steps if not isinstance(s, Store)}
        self.picks = picks(spec)
        self.phase = _phases(spec)
        self.last_load: dict[int, int] = {}
        self.spilled: dict[str, None] = {}
        # What is spilled to where a later loop stores its result.
        self.homes: dict[str, int] = {}
        # The first loop that computes an element step: what none needed before it is not there yet.
        self.made: dict[str, int] = {}
        effects = [s for s in spec.steps if self.level_of_effect(s) == ELEMENT]
        self.phases = 1 + max([self.effect_phase(s) for s in effects], default=-1)
        # What later loops need of earlier ones decides what is spilled and how late an operand is still read;
        # a store that waits for such a read is itself a later need, hence the repetition.
        before: object = None
        while before != (self.last_load, self.spilled):
            before = (dict(self.last_load), dict(self.spilled))
            self.made = {}
            for phase in range(self.phases):
                walked = self.needed(phase)
                for step in walked:
                    self.made.setdefault(step.out, phase)
                for step in itertools.chain(walked, *(pick.steps for pick in self.picked(phase).values())):
                    if isinstance(step, Load):
                        self.last_load[step.operand] = phase
        self.settle()

    def settle(self) -> None:
        """Choose homes: results not yet stored, of the same type, which no loop reads any more by then.

        A softmax of 4096 columns then fits the nearest cache, and waits for its result's memory while it
        computes exponentials: 2.5 to 2.1 ms.
        """
        for name in self.spilled:
            for store in self.effects(ELEMENT, self.phases - 1):
                if isinstance(store, Store) and self.is_home(store, name):
                    self.homes[name] = store.operand
                    break

    def is_home(self, store: Store, name: str) -> bool:
        operand = self.spec.operands[store.operand]
        return (
            store.index is None
            and operand.dtype is self.dtype[name].arithmetic
            and 0 not in operand.strides[self.spec.rows :]
            and self.vector_stride(store.operand) == "1"
            and self.last_load.get(store.operand, -1) < self.made[name] < self.phases - 1
            and store.operand not in self.homes.values()
        )

    @property
    def kept(self) -> list[str]:
        """What is spilled to scratch memory."""
        return [name for name in self.spilled if name not in self.homes]

    # Which steps go where

    def level(self, name: str) -> int:
        return self.spec.levels[name]

    def level_of_effect(self, step: Step) -> int:
        """The level at which a Store or Reduce does its work; -1 for steps that only name a value."""
        match step:
            case Reduce(value=value, outer=False):
                return ELEMENT
            case Reduce(value=value, operand=operand):
                # One value in all columns is summed in each.
                return max(self.level(value), self.spec.operand_level(operand))
            case Store(value, operand, index):
                levels = [self.level(value), self.spec.operand_level(operand)]
                return max(levels + ([self.level(index)] if index else []))
        return -1

    def effect_phase(self, step: Step) -> int:
        """The loop over the row in which a Store or Reduce runs; a store waits for the last load of its
        operand.
        """
        match step:
            case Reduce(value=value):
                return self.phase[value]
            case Store(value, operand, index):
                own = max(self.phase[value], self.phase[index] if index else 0)
                return max(own, self.last_load.get(operand, 0))
        raise AssertionError(f"{step} has no effect")

    def effects(self, level: int, phase: int) -> list[Reduce | Store]:
        return [
            s
            for s in self.spec.steps
            if isinstance(s, Reduce | Store)
            and self.level_of_effect(s) == level
            and self.effect_phase(s) == phase
        ]

    def walked(self, phase: int) -> list[Reduce | Store]:
        """The effects that take a loop over the row."""
        return [s for s in self.effects(ELEMENT, phase) if isinstance(s, Store) or s.out not in self.picks]

    def picked(self, phase: int) -> dict[str, Pick]:
        """The sums that take one element, and come before that loop."""
        effects = [s for s in self.effects(ELEMENT, phase) if isinstance(s, Reduce)]
        return {s.out: self.picks[s.out] for s in effects if s.out in self.picks}

    def needed(self, phase: int) -> list[Named]:
        """Element steps of one loop, in order: everything its effects need, earlier results kept in scratch
        aside.
        """
        wanted: set[str] = set()
        stack = [x for s in self.walked(phase) for x in used(s)]
        while stack:
            name = stack.pop()
            if name in wanted or self.level(name) != ELEMENT:
                continue
            wanted.add(name)
            step = self.steps[name]
            if _is_kept(step) and self.made.get(name, phase) < phase:
                self.spilled[name] = None
                continue
            stack += used(step)
        return [s for s in self.spec.steps if not isinstance(s, Store) and s.out in wanted]

    # Text

    def source(self) -> str:
        out, spec = self.out, self.spec
        with out.block("def kernel(table, start, stop, part, scratch):"):
            self.header()
            self.start_outer()
            if spec.vector == "rows" and spec.rows == 1:
                self.vectors_of_rows("start", "stop")
            elif spec.vector == "rows" and self.crosses():
                with out.block(f"for first in range(start, stop, {TILE}):"):
                    out.line(f"last = first + {TILE} if first + {TILE} < stop else stop")
                    with out.block(f"for j in range(0, n{spec.rows - 1}, {self.lanes}):"):
                        out.line(f"active = mask(n{spec.rows - 1} - j)")
                        with out.block("for flat in range(first, last):"):
                            self.decompose(spec.rows - 1)
                            self.row()
            elif spec.vector == "rows":
                with out.block("for flat in range(start, stop):"):
                    self.decompose(spec.rows - 1)
                    self.vectors_of_rows("0", f"n{spec.rows - 1}")
            else:
                with out.block("for flat in range(start, stop):"):
                    self.decompose(spec.rows)
                    self.row()
            self.finish_outer()
        return str(out)

    def vectors_of_rows(self, start: str, stop: str) -> None:
        """Rows that are the lanes: whole vectors first where that gains, several at once, then the rest."""
        out, begin, count = self.out, start, self.side_by_side()
        if count:
            size = count * self.lanes
            begin = "whole"
            out.line(f"whole = {start} + quotient({stop} - {start}, {size}) * {size}")
            with out.block(f"for first in range({start}, whole, {size}):"):
                mark = len(out.lines)
                out.line("j = first + NUMBER")
                out.line(f"active = mask({self.lanes})")
                self.row()
                out.lines[mark:] = side_by_side(out.lines[mark:], count, self.lanes)
        with out.block(f"for j in range({begin}, {stop}, {self.lanes}):"):
            out.line(f"active = mask({stop} - j)")
            self.row()

    def side_by_side(self) -> int:
        """How many vectors of rows are done at once, without a mask; 0 where code for that is no gain."""
        reductions = [s for s in self.spec.steps if isinstance(s, Reduce | Scan)]
        if reductions:
            alone = not self.spilled and not any(isinstance(s, Reduce) and s.outer for s in reductions)
            return SIDE_BY_SIDE if alone and len(reductions) <= SIDE_BY_SIDE // 2 else 0
        expensive = sum(isinstance(s, Call) and s.function in EXPENSIVE for s in self.spec.steps)
        return 2 if expensive >= LONG else min(expensive, 1)

    def crosses(self) -> bool:
        """Whether an operand lies across the lanes: what is next in memory belongs to the next row."""
        strides = [o.strides[: self.spec.rows] for o in self.spec.operands]
        return any(s[-2] == 1 and s[-1] not in (0, 1) for s in strides if len(s) > 1)

    def header(self) -> None:
        out, spec = self.out, self.spec
        for i in range(len(spec.operands)):
            out.line(f"p{i} = entry(table, {i})")
        for axis in range(spec.axes):
            out.line(f"n{axis} = entry(table, {len(spec.operands) + axis})")
        for (operand, axis), slot in spec.stride_slots.items():
            out.line(f"s{operand}_{'i' if axis < 0 else axis} = entry(table, {slot})")
        if self.kept:
            self.scratch_addresses()
        for step in spec.steps:
            if not isinstance(step, Store | Reduce) and self.level(step.out) == KERNEL:
                self.compute(step)

    def scratch_addresses(self) -> None:
        sizes = [f"n{a}" for a in range(self.spec.rows, self.spec.axes)]
        if self.spec.vector == "inner":
            sizes[-1] = f"quotient({sizes[-1]} + {self.lanes - 1}, {self.lanes})"
        self.out.line(f"span = {' * '.join(sizes)} * {self.lanes}")
        address = "scratch"
        for name in self.kept:
            self.out.line(f"kept_{name} = {address}")
            address = f"kept_{name} + span * {self.dtype[name].arithmetic.itemsize}"
        self.out.line(f"every = mask({self.lanes})")

    def decompose(self, axes: int) -> None:
        """i0, i1, … of `flat` over the first `axes` axes."""
        rest = "flat"
        for axis in reversed(range(1, axes)):
            self.out.line(f"q{axis} = quotient({rest}, n{axis})")
            self.out.line(f"i{axis} = {rest} - q{axis} * n{axis}")
            rest = f"q{axis}"
        if axes:
            self.out.line(f"i0 = {rest}")

    def row(self) -> None:
        """Everything of one row (or of one vector of rows): row steps, then a loop and more row steps per
        phase.
        """
        for phase in range(self.phases + 1):
            row_steps = [
                s
                for s in self.spec.steps
                if not isinstance(s, Store | Reduce)
                and self.level(s.out) == ROW
                and self.phase[s.out] == phase
            ]
            if phase:
                self.finish_inner(phase - 1)
            for step in row_steps:
                self.compute(step)
            for effect in self.effects(ROW, phase) + (self.effects(KERNEL, phase) if phase == 0 else []):
                self.effect(effect)
            if phase < self.phases:
                for out, pick in self.picked(phase).items():
                    self.pick(out, pick)
                if self.walked(phase):
                    self.start_inner(phase)
                    self.inner_loop(phase)

    def inner_loop(self, phase: int) -> None:
        """The loop over a row: whole vectors, several at a time where they are summed, then the rest."""
        spec, out = self.spec, self.out
        last = spec.axes - 1
        if spec.vector != "inner":
            for axis in range(spec.rows, spec.axes):
                out.open(f"for c{axis} in range(n{axis}):")
            self.vector_of_elements(phase)
            out.close(spec.inner)
            return
        for axis in range(spec.rows, last):
            out.open(f"for c{axis} in range(n{axis}):")
        ahead = self.written_next(phase)
        reductions = [s for s in self.walked(phase) if isinstance(s, Reduce) and not s.outer]
        count = TOGETHER if reductions else 1
        step = count * self.lanes
        out.line(f"whole = quotient(n{last}, {step}) * {step}")
        with out.block(f"for first in range(0, whole, {step}):"):
            out.line(f"active = mask({self.lanes})")
            for number in range(count):
                out.line(f"j = first + {number * self.lanes}")
                for operand in ahead:
                    size = spec.operands[operand].dtype.itemsize
                    out.line(f"prefetch_for_write(p{operand} + ({self.base(operand)} + j) * {size})")
                self.vector_of_elements(phase, number)
            for reduce in reductions:
                word = COMBINE[reduce.combine]
                parts = [f"some_{reduce.out}_{number}" for number in range(count)]
                while len(parts) > 1:
                    parts = [f"{word}({x}, {y})" for x, y in zip(parts[::2], parts[1::2], strict=True)]
                value = self.wide(parts[0], reduce.combine, reduce.dtype)
                out.line(f"total_{reduce.out} = {word}(total_{reduce.out}, {value})")
        with out.block(f"for j in range(whole, n{last}, {self.lanes}):"):
            out.line(f"active = mask(n{last} - j)")
            self.vector_of_elements(phase)
        out.close(spec.inner - 1)

    def pick(self, name: str, pick: Pick) -> None:
        """A sum that is one element: that in every lane, with 0 added as a sum does, or 0 outside the row.

        A cross entropy over 10,000 classes with its gradient: 6.3 to 5.4 us a row.
        """
        out, last = self.out, self.spec.axes - 1
        start = f"p{pick.counter} + {self.base(pick.counter)}"
        out.line(f"place = lane({pick.position}) - ({start})")
        self.compute(Literal(name, 0, self.dtype[name]))
        with out.block(f"for j in range(place, place + 1 if 0 <= place < n{last} else place):"):
            for step in pick.steps:
                self.compute_one(step)
            out.line(f"{name} = add({name}, {pick.value})")

    def compute_one(self, step: Named) -> None:
        """Write the line of an element step for element `j` alone, in every lane."""
        match step:
            case Load(out, operand):
                self.out.line(f"{out} = load_one_{self.dtype[out].name}(p{operand}, {self.one(operand)})")
            case Index(out, operand):
                self.out.line(f"{out} = steps(p{operand} + {self.one(operand)}, 0)")
            case _:
                self.compute(step)

    def one(self, operand: int) -> str:
        """Where element `j` of a row lies."""
        return f"{self.base(operand)} + j * {self.vector_stride(operand)}"

    def written_next(self, phase: int) -> list[int]:
        """Operands to fetch before the last loop over a row writes them, in one that has its row in cache.

        Layer norm of 4096 columns: 1.43 to 1.26 ms; in its first loop, which waits for memory itself, 1.63.
        """
        if not 0 < phase == self.phases - 2:
            return []
        stores = [s for s in self.effects(ELEMENT, self.phases - 1) if isinstance(s, Store)]
        return [
            s.operand
            for s in stores
            if s.index is None
            and self.vector_stride(s.operand) == "1"
            and s.operand not in self.last_load
            and s.operand not in self.homes.values()
        ]

    def vector_of_elements(self, phase: int, number: int = -1) -> None:
        """What is done with one vector of a row; vector `number` of several keeps what it adds to sums."""
        out = self.out
        for step in self.needed(phase):
            if step.out in self.spilled and self.made[step.out] < phase:
                out.line(f"{step.out} = {self.reloaded(step.out)}")
            elif not isinstance(step, Reduce):
                self.compute(step)
                if step.out in self.spilled:
                    out.line(self.spill(step.out))
        for effect in self.walked(phase):
            if number >= 0 and isinstance(effect, Reduce) and not effect.outer:
                out.line(f"some_{effect.out}_{number} = {effect.value}")
            else:
                self.effect(effect)

    def spill(self, name: str) -> str:
        if name in self.homes:
            return self.store(name, self.homes[name], None)
        return f"store_{self.dtype[name].arithmetic.name}(kept_{name}, {self.kept_offset()}, {name}, every)"

    def reloaded(self, name: str) -> str:
        if name in self.homes:
            return self.load(self.homes[name], None)
        return f"load_{self.dtype[name].arithmetic.name}(kept_{name}, {self.kept_offset()}, every)"

    def kept_offset(self) -> str:
        """Where in a scratch slot the current vector lies."""
        spec, place = self.spec, ""
        for axis in range(spec.rows, spec.axes):
            if spec.vector == "inner" and axis == spec.axes - 1:
                size, index = (
                    f"quotient(n{axis} + {self.lanes - 1}, {self.lanes})",
                    f"quotient(j, {self.lanes})",
                )
            else:
                size, index = f"n{axis}", f"c{axis}"
            place = f"({place}) * {size} + {index}" if place else index
        return f"({place}) * {self.lanes}"

    def effect(self, step: Reduce | Store) -> None:
        match step:
            case Store(value, operand, index):
                self.out.line(self.store(value, operand, index))
            case Reduce(out, value, combine, dtype, outer):
                value = self.wide(value, combine, dtype)
                if outer and self.level_of_effect(step) == ELEMENT:
                    place = f"p{step.operand}, {self.part_base(step.operand)} + j"
                    old = f"load_{dtype.name}({place}, active)"
                    self.out.line(
                        f"store_{dtype.name}({place}, {COMBINE[combine]}({old}, {step.value}), active)"
                    )
                    return
                chosen = f"where(active, {value}, identity_{out})" if self.across_lanes(step) else value
                self.out.line(f"total_{out} = {COMBINE[combine]}(total_{out}, {chosen})")

    # Reductions

    def across_lanes(self, step: Reduce) -> bool:
        """Whether each lane holds another part of a reduction, be the value the same in all of them."""
        return self.spec.vector == ("rows" if step.outer else "inner")

    def wide(self, value: str, combine: str, dtype: DType) -> str:
        """Sums of floats run in float64: a million float32 terms stay within one part in a million. Four at
        a time are added in float32 before, which a softmax over 1024 takes a fifth less time for.
        """
        register = dtype.arithmetic
        return f"cast_float32_float64({value})" if combine == "add" and register is dtypes.float32 else value

    def accumulator(self, combine: str, dtype: DType) -> DType:
        return dtypes.float64 if combine == "add" and dtype.is_floating_point else dtype.arithmetic

    def identity(self, combine: str, dtype: DType) -> str:
        accumulator = self.accumulator(combine, dtype)
        return f"constant_{accumulator.name}({identity(combine, accumulator)!r})"

    def start(self, step: Reduce) -> None:
        self.out.line(f"identity_{step.out} = {self.identity(step.combine, step.dtype)}")
        self.out.line(f"total_{step.out} = identity_{step.out}")

    def total(self, step: Reduce) -> str:
        """The finished total, in every lane where lanes were combined, in the reduction's dtype."""
        total = f"total_{step.out}"
        if self.across_lanes(step):
            total = f"reduce_{step.combine}({total})"
        accumulator = self.accumulator(step.combine, step.dtype)
        return total if accumulator is step.dtype else f"cast_{accumulator.name}_{step.dtype.name}({total})"

    def compute(self, step: Step) -> None:
        """Write the lines that give a step its value."""
        if isinstance(step, Scan):
            self.scan(step)
        else:
            super().compute(step)

    def scan(self, step: Scan) -> None:
        """What a scan has come to: lane after lane where they lie along the axis, else in each lane."""
        operands = ["total_" + step.out, *([step.factor] if step.factor else []), step.value]
        word = "recurrence" if step.factor else COMBINE[step.combine]
        if self.spec.vector == "rows":
            self.out.line(f"total_{step.out} = {word}({', '.join(operands)})")
            self.out.line(f"{step.out} = total_{step.out}")
        else:
            self.out.line(f"{step.out} = scan_{word}({', '.join(operands)})")
            self.out.line(f"total_{step.out} = last_lane({step.out})")

    def start_inner(self, phase: int) -> None:
        for step in self.needed(phase):
            if isinstance(step, Scan) and self.made[step.out] == phase:
                start = f"constant_{step.dtype.arithmetic.name}({before_all(step)!r})"
                self.out.line(f"total_{step.out} = {start}")
        for step in self.walked(phase):
            if isinstance(step, Reduce) and not step.outer:
                self.start(step)

    def finish_inner(self, phase: int) -> None:
        for step in self.walked(phase):
            if isinstance(step, Reduce) and not step.outer:
                self.out.line(f"{step.out} = {self.total(step)}")

    def outer_reductions(self) -> Iterable[Reduce]:
        return [s for s in self.spec.steps if isinstance(s, Reduce) and s.outer]

    def start_outer(self) -> None:
        """Begin the reductions over the rows: registers for row values, this part's slice of memory for
        elements.
        """
        for step in self.outer_reductions():
            if self.level_of_effect(step) != ELEMENT:
                self.start(step)
                continue
            out, spec, name = self.out, self.spec, step.dtype.name
            out.line(
                f"identity_{step.out} = constant_{step.dtype.arithmetic.name}"
                f"({identity(step.combine, step.dtype)!r})"
            )
            for axis in range(spec.rows, spec.axes - 1):
                out.open(f"for c{axis} in range(n{axis}):")
            with out.block(f"for j in range(0, n{spec.axes - 1}, {self.lanes}):"):
                place = f"p{step.operand}, {self.part_base(step.operand)} + j"
                out.line(f"store_{name}({place}, identity_{step.out}, mask(n{spec.axes - 1} - j))")
            out.close(spec.inner - 1)

    def finish_outer(self) -> None:
        for step in self.outer_reductions():
            if self.level_of_effect(step) != ELEMENT:
                place = f"p{step.operand}, part * s{step.operand}_i"
                self.out.line(f"store_one_{step.dtype.name}({place}, {self.total(step)})")

    def part_base(self, operand: int) -> str:
        base = self.base(operand)
        return f"part * s{operand}_i" + ("" if base == "0" else f" + {base}")


def _is_kept(step: Step) -> bool:
    """Whether what one loop over a row has computed is better kept for the next than computed again."""
    return isinstance(step, Scan) or (isinstance(step, Call) and step.function in EXPENSIVE)


def _phases(spec: LoopSpec) -> dict[str, int]:
    """How many loops over the row must be finished before a value is known."""
    phase: dict[str, int] = {}
    for step in spec.steps:
        if isinstance(step, Store):
            continue
        before = max((phase[x] for x in used(step)), default=0)
        phase[step.out] = before + 1 if isinstance(step, Reduce) and not step.outer else before
    return phase
