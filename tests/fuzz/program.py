"""A random program as data, and the strategies that draw it.

Every number of a step is taken modulo what there is to choose from, so that any data is a program and smaller
data a simpler one. What a step means is rendering's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

# How much of Python a program uses: tensors only, tensors' values as well, and effects as well.
PURE, READS, EFFECTS = range(3)
# Kinds of steps, the simplest first, as often as they are drawn.
_PURE_OPS = (
    "unary unary unary binary binary binary compare where reduce reduce row view view view view unpack copy "
    "cast integer matmul linear index scatter loss bring make write write write view_write state_write "
    "python random leaf backward backward gradient train zero_grad step"
).split()
_READ_OPS = (*_PURE_OPS, "item", "item", "text", "mask_read")
_EFFECT_OPS = (*_READ_OPS, *"assign assign count log table store print draw nonlocal".split())
OPS = {PURE: tuple(_PURE_OPS), READS: _READ_OPS, EFFECTS: _EFFECT_OPS}
BLOCKS = ("branch", "branch", "no_grad", "loop", "attempt", "helper", "early")
RESULTS = ("one", "tuple", "dict", "none", "nested", "alias", "argument", "number", "twice", "object")
CHANGES = (
    "state.opt.param_groups[0]['lr'] = 0.02",
    "state.model.eval()",
    "state.model.train()",
    "state.dropout.eval()",
    "state.dropout.p = 0.25",
    "state.scale = 0.75",
    "state.mode = 'b'",
    "state.flag = False",
    "state.repeat = 3",
    "global SCALE; SCALE = 0.25",
    "TABLE['k'] = 0.25",
    "state.table['k'] = 0.75",
    "State.offset = 0.5",
    "state.count = 5",
    "state.buf = fw.full((4,), 0.25)",
    "state.buf.mul_(0.5)",
    "state.history = state.history.detach().clone()",
    "state.w.grad = None",
    "state.opt.zero_grad()",
    "state.opt.zero_grad(set_to_none=False)",
    "state.w.grad = fw.full((4, 4), 0.125)",
    "state.w.requires_grad_(False)",
    "state.w.register_hook(lambda g: g * 0.5)",
    "state.w.detach().mul_(0.5)",
    "global helper; helper = other_helper",
    "helper.__defaults__ = (0.25,)",
    "state.log.append(1)",
    "state.log = []",
    "state.embedding.weight.requires_grad_(False)",
)
SHARINGS = ("apart", "apart", "part", "part", "same", "overlap", "transposed", "result", "state")
SECOND = ("full", "full", "row", "column", "double", "integer")
AFTER = ("nothing", "nothing", "backward", "write")
REACHES = ("closure", "argument", "global")


@dataclass(frozen=True)
class Step:
    """One statement: its kind, three numbers that choose operands and form, and the steps of a block."""

    op: str
    a: int = 0
    b: int = 0
    c: int = 0
    body: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Call:
    """One call: sizes, values and memory of the arguments, what changes before and what is done after it."""

    rows: int = 4
    seed: int = 0
    sharing: str = "apart"
    requires_grad: bool = False
    s: float = 0.5
    k: int = 1
    keyword: bool = False
    changes: tuple[str, ...] = ()
    after: str = "nothing"


@dataclass(frozen=True)
class Program:
    """A function as steps, how it reaches its state, and three calls of it."""

    level: int
    steps: tuple[Step, ...]
    result: Step
    calls: tuple[Call, ...]
    reach: str = "closure"
    second: str = "full"
    optimizer: int = 0

    def size(self) -> int:
        """Steps, those in blocks included."""
        return sum(map(_size, self.steps))


def _size(step: Step) -> int:
    return 1 + sum(map(_size, step.body))


NUMBER = st.integers(0, 11)
FORM = st.integers(0, 59)


def _plain(level: int) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.sampled_from(OPS[level]), NUMBER, NUMBER, FORM)


def _blocks(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    bodies = st.lists(inner, min_size=1, max_size=5).map(tuple)
    return st.builds(Step, st.sampled_from(BLOCKS), NUMBER, NUMBER, FORM, bodies)


def _step(level: int) -> st.SearchStrategy[Step]:
    plain = _plain(level)
    once = _blocks(plain)
    inner = st.one_of(plain, plain, plain, once)
    return st.one_of(*[plain] * 7, once, _blocks(inner))


_STEPS = {level: _step(level) for level in OPS}
_CALL = st.builds(
    Call,
    rows=st.sampled_from((4, 3, 2)),
    seed=st.integers(0, 99),
    sharing=st.sampled_from(SHARINGS),
    requires_grad=st.sampled_from((False, False, False, True)),
    s=st.sampled_from((0.5, 0.25)),
    k=st.sampled_from((1, 2)),
    keyword=st.sampled_from((False, False, False, True)),
    changes=st.lists(st.sampled_from(CHANGES), max_size=2).map(tuple),
    after=st.sampled_from(AFTER),
)


@st.composite
def programs(draw: Any, level: int | None = None, groups: int = 4) -> Program:
    """Programs of up to `10 * groups` steps, blocks not counted, with three calls."""
    level = draw(st.sampled_from((PURE, PURE, PURE, READS, EFFECTS, EFFECTS))) if level is None else level
    grouped = draw(st.lists(st.lists(_STEPS[level], max_size=10), max_size=groups))
    steps = [step for group in grouped for step in group]
    result = Step(draw(st.sampled_from(RESULTS)), draw(NUMBER), draw(NUMBER), draw(FORM))
    return Program(
        level,
        tuple(steps),
        result,
        draw(_calls()),
        draw(st.sampled_from(REACHES)),
        draw(st.sampled_from(SECOND)),
        draw(st.integers(0, 2)),
    )


@st.composite
def _calls(draw: Any) -> tuple[Call, ...]:
    """Three calls; the second often differs from the first in values only, so that a replay is seen."""
    first = replace(draw(_CALL), changes=())
    again = draw(st.booleans())
    second = replace(first, seed=first.seed + 1, changes=draw(_CALL).changes) if again else draw(_CALL)
    return first, second, draw(_CALL)
