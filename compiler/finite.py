"""Which op made the first NaN or the first infinity, told from its operands and its result.

Knows ops and arrays; who looks, and at what, is others' business (framework/lookout.py,
compiler/watching.py).

An op is reported when its result has a NaN, or when its result has an infinity and its operands have none.
Infinities that a user gives (a mask of -inf) are operands or attributes, and so are never reported; nor is
what only moves elements, or was asked for by name (`full`, a NaN written as a number).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir import Apply, Const, Graph, Value
from compiler.ops.movement import concatenate, pad, slice_update
from compiler.ops.op import Elementwise, Movement, Op
from compiler.types import type_of_array
from compiler.where import GradientLine
from kernels import dtypes
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]
# Ops that hand elements on, and so make none.
_HANDING_ON = (concatenate, pad, slice_update)


@dataclass(frozen=True)
class Wanted:
    """What is looked for."""

    nan: bool = True
    inf: bool = True


class NonFiniteError(FloatingPointError, RuntimeError):
    """A NaN or an infinity was found. `op` is the op's name, `where` the user's line, `kind` "nan" or
    "inf", `finite` whether each operand was finite, `made` for a gradient the line of the op that it is the
    gradient of.

    Example::

        >>> with fw.config(check_finite=True):
        ...     fw.zeros(2).log()
        Traceback (most recent call last):
            ...
        compiler.finite.NonFiniteError: log gives -inf: 2 of 2 elements of float32[2], first at [0]
        ...
    """

    def __init__(
        self, message: str, op: str = "", where: str = "", kind: str = "nan", finite: tuple[bool, ...] = ()
    ) -> None:
        super().__init__(message)
        self.op, self.where, self.kind, self.finite = op, str(where), kind, finite
        self.made = where.made if isinstance(where, GradientLine) else ""


def is_finite(x: Any) -> bool:
    """Whether an operand, array or number, has neither NaN nor infinity."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "biu" or bool(np.isfinite(x).all())
    if arrays.is_device(x):
        return x.dtype.kind in "biu" or _is_finite_there(x)
    return not isinstance(x, float) or math.isfinite(x)


@arrays.located
def _is_finite_there(x: Any) -> bool:
    return bool(np.isfinite(x.astype(dtypes.of_numpy(x.dtype).arithmetic.numpy, copy=False)).all())


def fault(op: Op, inputs: Sequence[Any], attrs: Mapping[str, Any], out: Any, wanted: Wanted) -> str:
    """ "nan" or "inf" where `op` is to be reported for `out`, else nothing."""
    if is_finite(out) or not isinstance(out, np.ndarray):
        return ""
    if isinstance(op, Movement) or op in _HANDING_ON or not inputs:
        return ""
    if np.isnan(out).any():
        asked = any(isinstance(x, float) and math.isnan(x) for x in inputs)
        return "nan" if wanted.nan and not asked else ""
    given = all(map(is_finite, inputs)) and all(map(is_finite, attrs.values()))
    return "inf" if wanted.inf and given else ""


def check(
    op: Op, inputs: Sequence[Any], attrs: Mapping[str, Any], out: Any, wanted: Wanted, where: str, inside: str
) -> None:
    """Raise NonFiniteError if `op` is to be reported; `inside` says in what of ours the user's line called
    it.
    """
    kind = fault(op, inputs, attrs, out, wanted)
    if kind:
        raise error(op.name, kind, out, list(_operands(op, inputs, out, kind)), where, inside)


def error(
    name: str,
    kind: str,
    out: Array,
    operands: Sequence[tuple[str, Any, Any]],
    where: str,
    inside: str = "",
    head: str = "",
) -> NonFiniteError:
    """The error of a result with what it was made from: (what it is, the operand, its value at that place);
    `head` comes before the first line.
    """
    bad = np.isnan(out) if kind == "nan" else np.isinf(out)
    at = _first(bad)
    value = str(float(out[at])) if kind == "inf" else kind
    count, place = int(bad.sum()), f", first at {list(at)}" if at else ""
    found = f"{name} gives {value}: {count} of {out.size} elements of {type_of_array(out)}{place}"
    lines = [head + found, f"  at {_words(where)}{f', inside {inside}' if inside else ''}"]
    finite = []
    for words, x, there in operands:
        fine = is_finite(x)
        finite.append(fine)
        state = f"finite, {_range(x)}" if fine else _what_is_bad(x)
        lines.append(f"  {words}: {_kind(x)}, {state}{'' if there is None else f'; there {there}'}")
    if kind == "nan" and any(_has_nan(x) for _, x, _ in operands):
        lines.append("  The NaN was there before: it comes from what made that operand.")
    return NonFiniteError("\n".join(lines), name, where, kind, tuple(finite))


def check_graph(graph: Graph, arrays: Sequence[Array], wanted: Wanted) -> list[Array]:
    """The outputs of `graph`, computed node by node. Raises NonFiniteError at the first node to be
    reported, and ValueError where an op's own check finds bad input.

    Of what a gradient rule computes only the gradients are looked at: rules may mask what is not finite.
    """
    known: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    last, rules = _last_uses(graph), _rules(graph)
    for node in graph.nodes:
        if isinstance(node, Const):
            known[node] = node.data
        elif isinstance(node, Apply):
            operands = [known[x] for x in node.inputs]
            if node.op.check is not None:
                failed = node.op.check.failed(*operands, **node.attrs)
                if failed is not None and failed.any():
                    raise ValueError(f"{node.op.name} is given bad input at {node.where}")
            out = known[node] = node.op.compute(*operands, **node.attrs)
            if not isinstance(node.where, GradientLine):
                seen = [_number(x, known[x]) for x in node.inputs]
                check(node.op, seen, node.attrs, out, wanted, node.where, "")
            elif not is_finite(out) and _leaves(graph, node):
                given = [known[x] for x in rules[id(node.where)]]
                check_gradient(node.where, given, out, wanted)
        for x in last.get(node, ()):
            del known[x]
    return [known[v] for v in graph.outputs]


def check_gradient(where: GradientLine, given: Sequence[Array], out: Array, wanted: Wanted) -> None:
    """Raise NonFiniteError if a gradient made from `given` is to be reported."""
    kind = "nan" if np.isnan(out).any() else "inf"
    if wanted.nan if kind == "nan" else wanted.inf and all(map(is_finite, given)):
        operands = [(f"operand {i} of the rule", x, _there(x, out, kind)) for i, x in enumerate(given)]
        raise error(where.op, kind, out, operands, where, head="The gradient of ")


def _leaves(graph: Graph, node: Apply) -> bool:
    """Whether a value of a gradient rule is read outside of it."""
    return node in graph.outputs or any(user.where is not node.where for user in graph.users[node])


def _rules(graph: Graph) -> dict[int, list[Value]]:
    """What each gradient rule reads, by the identity of the line that its nodes share."""
    found: dict[int, dict[Value, None]] = {}
    for node in graph.nodes:
        if isinstance(node, Apply) and isinstance(node.where, GradientLine):
            outside = [x for x in node.inputs if x.where is not node.where and x.ndim]
            found.setdefault(id(node.where), {}).update(dict.fromkeys(outside))
    return {line: list(values) for line, values in found.items()}


def _number(x: Value, array: Array) -> Any:
    """A literal as the number it was in the user's program."""
    return array.item() if isinstance(x, Const) and not x.ndim else array


def _last_uses(graph: Graph) -> dict[Value, list[Value]]:
    """What is not needed any more after each node, so that a large program fits into memory."""
    ends: dict[int, Value] = {}
    for node in graph.nodes:
        ends[id(node.where)] = node
    found: dict[Value, list[Value]] = {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    for value in set(graph.nodes).difference(graph.outputs, graph.inputs):
        # An error shows all that a gradient rule was given: it stays until the rule is done.
        users = [ends[id(u.where)] if isinstance(u.where, GradientLine) else u for u in graph.users[value]]
        if users:
            found.setdefault(max(users, key=place.__getitem__), []).append(value)
    return found


def _operands(op: Op, inputs: Sequence[Any], out: Array, kind: str) -> Iterable[tuple[str, Any, Any]]:
    for number, x in enumerate(inputs):
        yield f"operand {number}", x, _there(x, out, kind) if isinstance(op, Elementwise) else None


def _there(x: Any, out: Array, kind: str) -> str | None:
    """The element of an operand that the first bad one of `out` corresponds to, if any."""
    at = _first(np.isnan(out) if kind == "nan" else np.isinf(out))
    if not isinstance(x, np.ndarray) or x.size < 2 or x.ndim > out.ndim:
        return None
    if any(n not in (1, m) for n, m in zip(reversed(x.shape), reversed(out.shape), strict=False)):
        return None
    return f"{np.broadcast_to(x, out.shape)[at]:.6g}"


def _words(where: str) -> str:
    if isinstance(where, GradientLine):
        return f"{where or 'an unknown line'}, in the {where.words}"
    return where or "a line outside any file"


def _first(bad: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))


def _has_nan(x: Any) -> bool:
    if isinstance(x, np.ndarray):
        return x.dtype.kind not in "biu" and bool(np.isnan(x).any())
    return isinstance(x, float) and math.isnan(x)


def _kind(x: Any) -> str:
    return str(type_of_array(x)) if isinstance(x, np.ndarray) else f"the number {x!r}"


def _range(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return "a constant"
    if not x.size:
        return "empty"
    low, high = x.min(), x.max()
    return f"{low:.6g}" if low == high else f"from {low:.6g} to {high:.6g}"


def _what_is_bad(x: Any) -> str:
    nans, infs = int(np.isnan(x).sum()), int(np.isinf(x).sum())
    found = [f"{n} {what}" for n, what in ((nans, "nan"), (infs, "inf")) if n]
    return f"not finite: {' and '.join(found)} of {np.size(x)}"
