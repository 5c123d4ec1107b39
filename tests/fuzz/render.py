"""A program as Python source.

Every line is tried on eager tensors as it is written, once for each size of the arguments: a line that cannot run
is left out, and what it makes tells which later lines it fits. Nothing is compiled here.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import framework as fw
from tests.fuzz.forms import FORMS
from tests.fuzz.program import Program, Step
from tests.fuzz.world import arguments, code_of, namespace

# Larger tensors are left out, and values that are not tame.
MOST_ELEMENTS, MOST_AXES, LARGEST = 100, 3, 60.0
_BROAD = ("unary", "binary", "compare", "row", "view", "write")
CONDITIONS = (
    'state.mode == "a"',
    "{a}.shape[0] > 3",
    "state.count > 0",
    "k > 1",
    "s > 0.4",
    "state.flag",
    "SCALE > 0.4",
    "{a}.ndim == 2 and {a}.shape[-1] == 4",
    "state.model.training",
    "{a}.requires_grad",
    'TABLE["k"] < 0.4',
    "len(state.log) < 2",
    "state.w.grad is None",
    "not state.kept",
)
VALUE_CONDITIONS = (
    "{a}.mean() > 0.1",
    "{a}.max().item() > 1.0",
    "bool(({a} > 0.5).any())",
    "{i}[0] == 1",
    "{a}.sum() > 0.3 and {a}.shape[0] > 2",
    "fw.equal({a}, {a})",
    "float({a}.mean()) < 0.2",
)
ATTEMPTS = (
    "{a}.reshape(7, 11, 13)",
    "{a} @ fw.ones(9, 9)",
    "{a} * state.table['absent']",
    "fw.ones(4).index_select(0, {i} + k)",
    "F.embedding({i} + k, state.embedding.weight)",
    "{a}[{a}.shape[0] + k - 2]",
    "{a} / (k - 1) if k > 1 else {a} * (1 // (k - 1))",
    "{a} * fw.ones(k, k, 5)",
    "{a}.no_such_method()",
    "F.cross_entropy({a}, {i} + k * 2)",
)


def is_float(t: fw.Tensor) -> bool:
    """Whether a tensor is of a floating dtype."""
    return t.is_floating_point()


@dataclass
class Writer:
    """Writes one function, line by line."""

    program: Program
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    indent: int = 2
    made: int = 0

    def __post_init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        seen: set[Any] = set()
        for call in self.program.calls:
            kind = (call.rows, call.sharing, call.requires_grad)
            if kind in seen:
                continue
            seen.add(kind)
            scope = namespace(self.program.optimizer)
            args = arguments(self.program, call, scope["state"], [])
            scope.update(args, factor=0.5, nonlocal_count=0)
            self.scopes.append(scope)
        self.names = ["state.w", "state.bias", "state.row", "state.history", "state.buf", "state.steps"]
        self.names += ["m", "i", "y", "x"]

    # Names

    def value(self, name: str) -> Any:
        """What a name stands for in the first scope."""
        scope = self.scopes[0]
        return scope[name] if name in scope else getattr(scope["state"], name.removeprefix("state."))

    def pick(self, number: int, fits: Callable[[fw.Tensor], bool]) -> str | None:
        """The name that `number` chooses of those that fit, the newest first."""
        found = [n for n in reversed(self.names) if fits(self.value(n))]
        return found[number % len(found)] if found else None

    def fill(self, form: str, step: Step, fits: Callable[[fw.Tensor], bool] = is_float) -> str | None:
        """A template with names in place of its operands; None when there are none."""
        words: dict[str, Any] = {"c": step.c % 4, "d": 0}
        if "{a}" in form:
            a = self.pick(step.a, fits)
            if a is None:
                return None
            t = self.value(a)
            words["a"] = a
            words["d"] = (-1, 0, t.ndim // 2)[(step.b + step.c) % 3] if t.ndim else -1
            if "{b}" in form:
                words["b"] = self.partner(step.b, t)
        if "{i}" in form:
            words["i"] = self.pick(step.b, lambda t: t.dtype is fw.int64 and t.ndim == 1) or "i"
        if "{m}" in form:
            words["m"] = self.pick(step.b, lambda t: t.dtype is fw.bool) or "m"
        return form.format(**words)

    def partner(self, number: int, t: fw.Tensor) -> str:
        """A tensor that broadcasts with `t` to at most three axes, or one that a product takes."""

        def fits(u: fw.Tensor) -> bool:
            if not u.is_floating_point():
                return False
            sizes = zip(reversed(u.shape), reversed(t.shape), strict=False)
            return all(a == b or 1 in (a, b) for a, b in sizes)

        return self.pick(number, fits) or "x"

    # Lines

    def tried(self, line: str) -> bool:
        """Whether a statement runs in every scope."""
        try:
            code = code_of(line)
            for scope in self.scopes:
                exec(code, scope)
        except Exception:  # noqa: BLE001 -- whatever it is, the line does not fit
            return False
        return True

    def emit(self, line: str) -> bool:
        """Append a statement that runs; say whether it does."""
        if not self.tried(line):
            return False
        self.put(line)
        return True

    def put(self, line: str) -> None:
        """Append a line as it is."""
        self.lines.append("    " * self.indent + line)

    def define(self, expression: str | None) -> str | None:
        """Append `name = expression` when it gives a tame tensor, and give the name."""
        name = f"v{self.made}"
        if expression is None or not self.tried(f"{name} = {expression}") or not self.keeps(name):
            return None
        self.put(f"{name} = {expression}")
        self.made += 1
        self.names.append(name)
        return name

    def keeps(self, name: str) -> bool:
        """Whether a name stands for a small, finite tensor in every scope."""
        return all(is_tame(scope[name]) for scope in self.scopes)

    # Steps

    def step(self, step: Step) -> None:
        """Write one step."""
        getattr(self, f"step_{step.op}", self.plain)(step)

    def plain(self, step: Step) -> None:
        """A new tensor from a form."""
        forms = FORMS[step.op]
        form = forms[step.c % len(forms)]
        if step.op in ("write", "view_write", "state_write", "assign"):
            self.statement(step, self.write(form, step))
        elif step.op in _STATEMENTS:
            self.statement(step, self.fill(form, step, _fitting(form)))
        else:
            self.define(self.fill(form, step, _fitting(form)))

    def statement(self, step: Step, line: str | None) -> None:
        """A statement from a form, and what it makes new names for."""
        if line is not None and self.emit(line) and "loss = " in line:
            self.put(f"v{self.made} = loss")
            if self.tried(f"v{self.made} = loss"):
                self.names.append(f"v{self.made}")
                self.made += 1

    def write(self, form: str, step: Step) -> str | None:
        """A write in place: to memory of its own, and not to a leaf that requires grad."""
        needs = 2 if any(word in form for word in ("[:, ", "1:, 1:", ".t()", "diagonal")) else 1
        if step.op == "write":
            needs = 0

        def fits(t: fw.Tensor) -> bool:
            own = not (t.requires_grad and t.is_leaf) and 0 not in (s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)
            return t.is_floating_point() and own and t.ndim >= needs

        if step.op == "state_write":
            return self.fill(form, step)
        return self.fill(form, step, fits)

    def step_unpack(self, step: Step) -> None:
        forms = FORMS["unpack"]
        line = self.fill(forms[step.c % len(forms)], step, lambda t: t.is_floating_point() and t.ndim > 0)
        if line is None:
            return
        p, q = f"v{self.made}", f"v{self.made + 1}"
        line = line.replace("p, *q", f"{p}, *{q}").replace("p, q", f"{p}, {q}").replace("p = q", f"{p} = {q}")
        line = line.replace("; q = fw.stack(q)", f"; {q} = fw.stack({q})")
        if self.tried(line) and self.keeps(p) and self.keeps(q):
            self.put(line)
            self.names += [p, q]
            self.made += 2

    def step_bring(self, step: Step) -> None:
        names = ("state.buf", "state.history", "state.row", "x", "y", "state.bias", "state.w")
        self.define(names[step.c % len(names)])

    def step_item(self, step: Step) -> None:
        forms = FORMS["number"]
        number = self.fill(forms[step.c % len(forms)], step)
        if number is None or not self.emit(f"f{self.made} = {number}"):
            return
        self.numbers.append(f"f{self.made}")
        self.made += 1
        a = self.pick(step.a, is_float)
        self.define(f"({a} + {self.numbers[-1]}).tanh()")

    def step_text(self, step: Step) -> None:
        forms = FORMS["text"]
        text = self.fill(forms[step.c % len(forms)], step)
        if text is not None and self.emit(f"f{self.made} = {text}"):
            self.numbers.append(f"f{self.made}")
            self.made += 1

    def step_count(self, step: Step) -> None:
        if step.c % 9 == 8:
            self.put("global COUNT; COUNT += 1") if "global COUNT" not in "".join(self.lines) else self.put("COUNT += 1")
        else:
            self.plain(step)

    def step_nonlocal(self, step: Step) -> None:
        self.put("calls[0] += 1" if step.c % 3 == 0 else "tally += 1")

    # Blocks

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block, whose names end with it."""
        self.put(header)
        known, numbers = len(self.names), len(self.numbers)
        self.indent += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.put("pass")
        self.indent -= 1
        del self.names[known:], self.numbers[numbers:]

    def carried(self, step: Step) -> str:
        """A name for what a block changes, made before it."""
        made = self.define(f"{self.pick(step.a, is_float)}")
        assert made is not None, "a tensor is tame under another name"
        return made

    def carry(self, name: str) -> None:
        """The end of a block: the newest tensor like it, or a half, under the carried name."""
        old = self.value(name)
        like = self.pick(0, lambda t: t.dtype is old.dtype and t.shape == old.shape and t is not old)
        if like is None or self.names.index(like) <= self.names.index(name) or not self.emit(f"{name} = {like}"):
            self.emit(f"{name} = {name} * 0.5")

    def body(self, step: Step) -> None:
        for inner in step.body:
            self.step(inner)

    def step_branch(self, step: Step) -> None:
        conditions = (*CONDITIONS, *VALUE_CONDITIONS) if self.program.level else CONDITIONS
        condition = self.fill(conditions[step.b % len(conditions)] if step.c % 2 else conditions[step.c % len(conditions)], step)
        name = self.carried(step)
        if condition is None or not self.tried(f"bool({condition})"):
            return
        with self.block(f"if {condition}:"):
            self.body(step)
            self.carry(name)
        if step.c % 3:
            with self.block("else:"):
                self.emit(f"{name} = {name}.tanh() * 0.5")

    def step_no_grad(self, step: Step) -> None:
        forms = ("fw.no_grad()", "fw.no_grad()", "fw.enable_grad()", "fw.set_grad_enabled(state.flag)")
        form = forms[step.c % len(forms)]
        name = self.carried(step)
        with self.block(f"with {form}:"):
            with eval(form, self.scopes[0]):
                self.body(step)
                self.carry(name)

    def step_loop(self, step: Step) -> None:
        ranges = ("range(2)", "range(state.repeat)", "range(k)", "enumerate(x)", 'zip("ab", (1, 2))')
        name = self.carried(step)
        with self.block(f"for j in {ranges[step.c % len(ranges)]}:"):
            self.body(step)
            if step.b % 4 == 3:
                self.put("if j == 1: break")
            self.carry(name)

    def step_attempt(self, step: Step) -> None:
        attempt = self.fill(ATTEMPTS[step.c % len(ATTEMPTS)], step)
        name = self.carried(step)
        with self.block("try:"):
            self.body(step)
            self.put(f"{name} = {attempt}")
        with self.block("except (IndexError, RuntimeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:"):
            self.emit(f"{name} = {name} * 0.5")
            if self.program.level == 2 and step.b % 2:
                self.put("state.log.append(type(error).__name__)")
        if step.b % 5 == 4:
            with self.block("finally:"):
                self.emit(f"{name} = {name} * 1")
        self.define(f"{name}.sum() * 0.1")

    def step_helper(self, step: Step) -> None:
        """A local function that closes over what it uses."""
        a = self.pick(step.a, is_float)
        function = f"inner{self.made}"
        with self.block(f"def {function}(t, by=0.5):"):
            for scope in self.scopes:
                scope["t"] = scope[a] if a in scope else getattr(scope["state"], str(a).removeprefix("state."))
            self.names.append("t")
            pure = [s for s in step.body if s.op not in ("branch", "loop", "attempt", "helper", "early", "no_grad", "bring")]
            for inner in pure:
                self.step(inner)
            newest = self.pick(0, is_float)
            self.put(f"return {newest} * by + t.mean() * 0.25")
            returned = [eval(f"{newest} * 0.5 + t.mean() * 0.25", scope) for scope in self.scopes]
        for scope, value in zip(self.scopes, returned, strict=True):
            scope[function] = lambda t, by=0.5, value=value: value
        self.define(f"{function}({a})")

    def step_early(self, step: Step) -> None:
        conditions = (*CONDITIONS, *VALUE_CONDITIONS) if self.program.level else CONDITIONS
        condition = self.fill(conditions[-1 - step.c % len(conditions)], step)
        if condition is None or self.indent > 3:
            return
        # One of two that seldom hold: most programs go on.
        with self.block(f"if {condition} and state.count > 1:" if step.b % 3 else f"if {condition} and x.shape[0] == 3:"):
            self.body(step)
            if step.b % 7 == 6:
                self.put(f'raise ValueError("early")')
            else:
                self.put(f"return {self.pick(0, is_float)}, {self.pick(1, is_float)}")

    # The whole

    def result(self) -> str:
        """The expression that is returned."""
        step = self.program.result
        new = [n for n in reversed(self.names) if n.startswith("v")] or ["x"]
        some = [new[i % len(new)] for i in range(step.a, step.a + 1 + step.b % 5)]
        a = some[0]
        kinds = {
            "one": a,
            "tuple": f"({', '.join(some)},)",
            "dict": "{" + ", ".join(f'"{n}": {n}' for n in some) + "}",
            "none": "None",
            "nested": f"[{a}, ({some[-1]}, {{'x': x, 'n': None}}), [{', '.join(some)}]]",
            "alias": f"({a}, {a}[..., None], {a}.detach(), state.buf)",
            "argument": "(x, y, i)" if step.c % 2 else "x",
            "number": f"({a}.shape, {', '.join(self.numbers[-3:] + ['s', 'k'])}, {a}.dtype, {a})",
            "twice": f"({a}, {a}, {some[-1]})",
            "object": f"(state.w.grad, state.last, {a}, state.row)",
        }
        return kinds[step.op]

    def source(self) -> str:
        """The program's text: `make(state)` gives the function, `cells()` what it closes over."""
        fw.manual_seed(7)
        random.seed(7)
        for scope in self.scopes:
            scope.update(j=1)
        with contextlib.redirect_stdout(io.StringIO()):
            for step in self.program.steps:
                self.step(step)
            self.put(f"return {self.result()}")
        reach = self.program.reach
        parameters = ("state, " if reach == "argument" else "") + "x, y, i, m, s, k"
        text = "\n".join(self.lines)
        head = ["    factor, tally, calls = 0.5, 0, [0]"] if reach != "global" else []
        closed = "state" if reach == "closure" else "_"
        body = [f"    def program({parameters}):", *(["        nonlocal tally"] if "tally" in text else []), *self.lines]
        watch = ["    global cells", "    cells = lambda: [factor, tally, calls]"]
        return "\n".join([f"def make({closed}):", *(head or ["    factor, tally, calls = 0.25, 0, [0]"]), *body, *watch, "    return program", ""])


_STATEMENTS = {"write", "view_write", "state_write", "assign", "train", "backward", "zero_grad", "step", "print", "count", "log", "table", "store"}


def is_tame(t: Any) -> bool:
    """Whether a value is a small tensor of finite, moderate values."""
    if not isinstance(t, fw.Tensor) or t.numel() > MOST_ELEMENTS or t.ndim > MOST_AXES or t.numel() == 0:
        return False
    return bool((t.detach().double().abs() <= LARGEST).all())


def _fitting(form: str) -> Callable[[fw.Tensor], bool]:
    """What the operand of a form must be."""
    if "backward" in form or "autograd.grad({a}" in form:
        return lambda t: t.is_floating_point() and t.requires_grad
    flat = "{d}" in form or "[" in form or "softmax" in form
    square = ".t()" in form or "[:, " in form or "1:, 1:" in form or "model" in form or "@" in form
    return lambda t: t.is_floating_point() and t.ndim >= (2 if square else 1 if flat else 0)


def source_of(program: Program) -> str:
    """The source text of a program."""
    return Writer(program).source()
