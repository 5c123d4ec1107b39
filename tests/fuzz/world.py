"""The world a program runs in: globals, classes and state of its own, arguments, and one run of its calls.

Source text is made elsewhere; what a run leaves behind is compared elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

import framework as fw
from framework.capture.compile import CompiledFunction
from tests.fuzz.observe import Observation, observe
from tests.fuzz.program import Call, Program

PRELUDE = """\
import random
import framework as fw
import framework.nn.functional as F
from framework import nn, optim

SCALE = 0.5
COUNT = 0
TABLE = {"k": 0.5, "name": "table"}
NOTES = []


def helper(t, by=0.5):
    return t * by + SCALE * 0.5


def other_helper(t, by=0.25):
    return (t * by).tanh()


class State:
    offset = 0.25

    def __init__(self, number):
        self.w = (fw.rand(4, 4) - 0.5).requires_grad_()
        self.bias = (fw.rand(4) - 0.5).requires_grad_()
        self.buf = fw.rand(4) - 0.5
        self.history = fw.rand(3, 4) - 0.5
        self.row = self.history[1]
        self.steps = fw.zeros(4, dtype=fw.int64)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.25), nn.Linear(4, 4))
        self.norm = nn.LayerNorm(4, eps=0.1)
        self.batch = nn.BatchNorm1d(4, eps=0.1)
        self.dropout = nn.Dropout(0.5)
        self.embedding = nn.Embedding(4, 4)
        leaves = [*self.model.parameters(), *self.embedding.parameters(), self.w, self.bias]
        if number == 0:
            self.opt = optim.SGD(leaves, lr=0.05)
        elif number == 1:
            self.opt = optim.SGD(leaves, lr=0.05, momentum=0.5, weight_decay=0.01)
        else:
            self.opt = optim.Adam(leaves, lr=0.05, eps=0.05)
        self.scale, self.count, self.repeat, self.mode, self.flag = 0.5, 0, 2, "a", True
        self.log, self.table, self.kept, self.last = [], {"k": 0.5}, [], None

    @property
    def doubled(self):
        return self.scale * 2

    def method(self, t):
        return (t * self.scale + self.offset).tanh()
"""


@lru_cache(maxsize=256)
def code_of(source: str) -> CodeType:
    """Compiled source that inspect and tracebacks can show."""
    name = f"fuzzed_{zlib.crc32(source.encode()):08x}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def namespace(optimizer: int) -> dict[str, Any]:
    """The globals of a new world, its state among them as `state`."""
    scope: dict[str, Any] = {"__name__": "fuzzed"}
    exec(code_of(PRELUDE), scope)
    fw.manual_seed(0)
    scope["state"] = scope["State"](optimizer)
    return scope


@dataclass
class World:
    """One world and the function in it."""

    program: Program
    source: str
    compiled: bool
    results: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scope = namespace(self.program.optimizer)
        self.state = self.scope["state"]
        exec(code_of(self.source), self.scope)
        self.function: Callable[..., Any] = self.scope["make"](self.state)
        if self.program.reach != "global":
            del self.scope["state"]
        if self.compiled:
            self.function = CompiledFunction(self.function)

    def run(self) -> list[Observation]:
        """Every call in turn, and what could be seen after each, to the first that cannot be followed up."""
        seen = []
        for number, call in enumerate(self.program.calls):
            seen.append(self.call(number, call))
            if seen[-1].outcome[1]:
                break
        return seen

    def call(self, number: int, call: Call) -> Observation:
        """One call with what changes before it and what the caller does with the result."""
        for change in call.changes:
            # A change that is refused (a flag of a tensor with history) is refused in every world.
            with contextlib.suppress(RuntimeError):
                exec(code_of(change), self.scope, {"state": self.state})
        args = arguments(self.program, call, self.state, self.results)
        # A result that comes back as an argument may have been written while it was made.
        versions = {f"argument[{k!r}]": t._version for k, t in args.items() if isinstance(t, fw.Tensor)}
        fw.manual_seed(1000 + number)
        random.seed(1000 + number)
        printed, error, result = io.StringIO(), None, None
        values = [self.state] * (self.program.reach == "argument") + list(args.values())
        with contextlib.redirect_stdout(printed):
            try:
                if call.keyword:
                    result = self.function(*values[:-2], s=args["s"], k=args["k"])
                else:
                    result = self.function(*values)
            except Exception as raised:  # noqa: BLE001 -- whatever it is, the other world must raise it too
                error = (type(raised).__name__, str(raised))
        after = follow_up(call.after, result)
        if after:  # a backward that fails may have added to some gradients
            return observe({}, (error, after), printed.getvalue())
        self.results.append(result)
        roots = {
            "result": self.results,
            "argument": args,
            "state": self.state,
            "global": {name: self.scope[name] for name in ("SCALE", "COUNT", "TABLE", "NOTES")},
            "cell": self.scope["cells"](),
        }
        return observe(roots, (error, after), printed.getvalue(), versions)


def tensors_in(x: Any) -> list[fw.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(x, fw.Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for item in items for t in tensors_in(item)]


def follow_up(kind: str, result: Any) -> list[Any]:
    """What the caller does with a result: backward through it, or a write over it; the errors met."""
    tensors = tensors_in(result)
    try:
        if kind == "backward":
            for t in tensors:
                if t.requires_grad:
                    t.double().mean().backward()
        elif kind == "write":
            for t in tensors:
                if not t.requires_grad:
                    t.zero_()
    except Exception as raised:  # noqa: BLE001 -- compared with the other world's
        return [(type(raised).__name__, str(raised))]
    return []


def arguments(program: Program, call: Call, state: Any, results: list[Any]) -> dict[str, Any]:
    """The arguments of a call, equal in every world."""
    rng = np.random.default_rng(call.seed)
    rows = call.rows

    def floats(*shape: int) -> fw.Tensor:
        return fw.tensor(rng.uniform(-2, 2, shape).astype(np.float32))

    x, y = floats(rows, 4), _second(program.second, rows, rng, floats)
    if call.sharing == "same" and program.second == "full":
        y = x
    elif call.sharing == "part":  # of a larger tensor each, as a batch is
        x = floats(rows + 2, 4)[1:-1]
        y = y[:] if y.ndim == 1 else fw.cat([y, y])[rows:]
    elif call.sharing == "overlap":
        base = floats(rows + 1, 4)
        x, y = base[:rows], base[1:] if program.second == "full" else y
    elif call.sharing == "transposed":
        x = floats(4, rows).t()
    elif call.sharing == "result":
        fitting = [t for t in tensors_in(results) if t.shape == x.shape and t.dtype == fw.float32]
        x = fitting[-1] if fitting else x
    elif call.sharing == "state" and rows == 3:
        x = state.history
    if call.requires_grad and x.is_leaf and not x._is_view():
        x.requires_grad_()
    i = fw.tensor(rng.integers(0, 4, rows))
    m = fw.tensor(rng.uniform(size=(rows, 4)) < 0.5)
    return {"x": x, "y": y, "i": i, "m": m, "s": call.s, "k": call.k}


def _second(kind: str, rows: int, rng: np.random.Generator, floats: Callable[..., fw.Tensor]) -> fw.Tensor:
    if kind == "row":
        return floats(4)
    if kind == "column":
        return floats(rows, 1)
    if kind == "double":
        return floats(rows, 4).double()
    if kind == "integer":
        return fw.tensor(rng.integers(-2, 3, (rows, 4)))
    return floats(rows, 4)
