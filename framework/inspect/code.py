"""A graph as a few lines of Python that people run: tensors by name, one function, the comparison.

Knows ops by their names and attributes; judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.compare import Case
from compiler.ir import Apply, Const, Value
from compiler.minify import simple_arrays
from kernels import dtypes
from kernels.dtypes import DType

# Longest expression that is written in one line.
WIDTH = 80
# Most elements that are written out.
FEW = 64
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
_FUNCTIONS = frozenset(
    "where abs square reciprocal remainder fmod maximum minimum relu sign floor ceil trunc round sqrt rsqrt "
    "exp expm1 log log1p sin cos tanh erf sigmoid pow".split()
)
_OVER_AXES = frozenset(("sum", "prod", "amax", "amin"))
_NAMES = [c for c in "abcdeghijklmnopqrstuvwxyz" if c not in "ol"]


def code_of(case: Case, edits: Mapping[int, str], plainly: bool = False, device: str = "") -> list[str]:
    """Lines that build the inputs, define the function `f`, and compare it with eager.

    `edits` are paths of files that stand for kernels, by number. `plainly` applies the ops themselves rather
    than the functions that users know; `device` is where the inputs are, the CPU where it is empty.
    """
    return _Code(case, plainly, device).lines(edits)


class _Code:
    def __init__(self, case: Case, plainly: bool, device: str) -> None:
        self.case, self.plainly, self.device = case, plainly, device
        self.names: dict[Value, str] = {}
        self.applies = False
        self.body: list[str] = []
        self.given: list[str] = []
        arrays = dict(zip(case.graph.inputs, case.arrays, strict=True))
        for node in case.graph.nodes:
            if isinstance(node, Const) and node.ndim:
                arrays[node] = node.data  # type: ignore[index]
        for node, array in arrays.items():
            name = self.names[node] = self.name(len(self.given))
            self.given.append(f"{name} = {_moved(array_code(array), device)}")

    @staticmethod
    def name(number: int) -> str:
        return _NAMES[number] if number < len(_NAMES) else f"x{number}"

    def lines(self, edits: Mapping[int, str]) -> list[str]:
        graph = self.case.graph
        pending: dict[Value, tuple[str, list[str]]] = {}
        for node in graph.nodes:
            if not isinstance(node, Apply):
                continue
            text, where = self.expression(node, pending)
            users = graph.users[node]
            once = len(users) == 1 and users[0].inputs.count(node) == 1 and node not in graph.outputs
            if once and len(text) < WIDTH // 2:
                pending[node] = text, where
                continue
            if node is graph.outputs[-1] and len(graph.outputs) == 1:
                self.body.append(f"    return {_bare(text)}{_comment(where)}")
                break
            self.names[node] = f"v{len(self.body) + 1}"
            self.body.append(f"    {self.names[node]} = {_bare(text)}{_comment(where)}")
        if not self.body or not self.body[-1].startswith("    return"):
            self.body.append(f"    return {', '.join(self.operand(v, pending)[0] for v in graph.outputs)}")
        arguments = ", ".join(name for name in self.names.values() if not name.startswith("v"))
        imports = ["import framework as fw"]
        if self.applies:
            imports += ["from compiler import ops", "from framework.apply import apply_op"]
        head = [f"def f({arguments}):", *self.body]
        if len(self.body) == 1 and len(head[0]) + len(self.body[0]) < WIDTH + 20:
            head = [f"def f({arguments}): {self.body[0].strip()}"]
        tail = [f"print(fw.compile(f).compare({arguments}))"]
        if edits:
            tail = ["f = fw.compile(f)", f"f({arguments})"]
            tail += [f"f.kernels[{number}].edit({path!r})" for number, path in edits.items()]
            tail.append(f"print(f.compare({arguments}))")
        return [*imports, *self.given, *head, *tail]

    def operand(self, x: Value, pending: Mapping[Value, tuple[str, list[str]]]) -> tuple[str, list[str]]:
        """The text of a value where it is used, and the user lines in it."""
        if x in self.names:
            return self.names[x], []
        if x in pending:
            return pending[x]
        assert isinstance(x, Const), "everything else has a name"
        number = x.data.item()
        text = repr(number) if np.isfinite(number) else f"float('{number}')"
        if not self.plainly:
            return text, []
        return _moved(f"fw.tensor({text}, dtype={_attribute(x.dtype)})", self.device), []

    def expression(
        self, node: Apply, pending: Mapping[Value, tuple[str, list[str]]]
    ) -> tuple[str, list[str]]:
        found = [self.operand(x, pending) for x in node.inputs]
        where = [line for _, lines in found for line in lines] + ([node.where] if node.where else [])
        texts = [text for text, _ in found]
        return self.text(node, texts), list(dict.fromkeys(where))

    def text(self, node: Apply, x: list[str]) -> str:
        name, attrs = node.op.name, node.attrs
        plain = any(not isinstance(i, Const) or i.ndim for i in node.inputs) and not self.plainly
        if plain and not attrs and name in _INFIX:
            return f"({x[0]} {_INFIX[name]} {x[1]})"
        if plain and not attrs and name == "neg":
            return f"(-{x[0]})"
        if plain and not attrs and name in _FUNCTIONS:
            return f"fw.{name}({', '.join(map(_bare, x))})"
        if plain and name in _OVER_AXES and set(attrs) == {"axes"} and attrs["axes"]:
            return f"fw.{name}({_bare(x[0])}, {attrs['axes']}, keepdim=True)"
        if plain and name in ("reshape", "expand") and set(attrs) == {"shape"}:
            return f"{x[0]}.{name}({attrs['shape']})"
        if plain and name == "cast" and set(attrs) == {"dtype"}:
            return f"{x[0]}.to({_attribute(attrs['dtype'])})"
        return self.applied(node, x)

    def applied(self, node: Apply, x: list[str]) -> str:
        self.applies = True
        given = ", ".join(f"{key!r}: {_attribute(value)}" for key, value in node.attrs.items())
        inputs = "".join(f"{text}, " for text in x).rstrip()
        return f"apply_op(ops.TABLE[{node.op.name!r}], ({inputs}), {{{given}}})"


def _moved(text: str, device: str) -> str:
    """The expression of a tensor that is on a device."""
    if not device:
        return text
    return f"{text if text.endswith(')') else f'({text})'}.to({device!r})"


def _attribute(x: Any) -> str:
    return f"fw.{x.name}" if isinstance(x, DType) else repr(x)


def _bare(text: str) -> str:
    """An expression without parentheses around the whole of it."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def _comment(where: list[str]) -> str:
    return f"  # {', '.join(where)}" if where else ""


def array_code(array: np.ndarray[Any, Any]) -> str:
    """An expression for a tensor with the elements of `array`."""
    shape, dtype = array.shape, _attribute(dtypes.of_numpy(array.dtype))
    inside = ", ".join(map(str, shape))
    for name, simple in simple_arrays(array):
        if simple.tobytes() != array.tobytes():
            continue
        ramp = f"fw.arange({array.size})" + (f".reshape({inside})" if array.ndim != 1 else "")
        kind = "" if array.dtype == np.float32 else f".to({dtype})"
        texts = {
            "ones": f"fw.ones({shape}{'' if array.dtype == np.float32 else f', dtype={dtype}'})",
            "zeros": f"fw.zeros({shape}{'' if array.dtype == np.float32 else f', dtype={dtype}'})",
            "arange": f"{ramp}{'' if array.dtype == np.int64 else kind}",
            "odd": f"({ramp} % 2 == 1)",
            "ramp": f"({ramp} / {max(array.size, 1)}){kind}",
            "centred ramp": f"({ramp} / {max(array.size, 1)}){kind} - 0.5",
        }
        return texts[name]
    if array.size <= FEW and array.dtype.kind in "fiub":
        text = repr(array.tolist()).replace("inf", "float('inf')").replace("nan", "float('nan')")
        return f"fw.tensor({text}, dtype={dtype})"
    values = ", ".join(repr(x) for x in array.astype(np.float64).reshape(-1).tolist())
    return f"fw.tensor([{values}], dtype={dtype}).reshape({inside})"
