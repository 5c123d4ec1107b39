"""The search for the first NaN or infinity: in eager ops, in gradients, and in compiled programs.

Knows what to look at and when; what is to be reported, and the words, are compiler/finite.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler import finite
from compiler.finite import NonFiniteError, Wanted
from compiler.ir import Apply
from compiler.ops.op import Op
from compiler.where import GradientLine, user_line
from framework.graph import Node, OpNode, Saved
from framework.lookout import Lookout, modules_here
from framework.tensor import Tensor
from kernels.gpu import arrays as device

if TYPE_CHECKING:
    from compiler.watching import Program

__all__ = ["Finite", "NonFiniteError", "wanted_of"]

Array = np.ndarray[Any, Any]
# What `check_finite` may be set to, besides False.
_WANTED = {True: Wanted(), "nan": Wanted(inf=False), "inf": Wanted(nan=False)}


def wanted_of(value: bool | str) -> Wanted:
    """What a value of `check_finite` that is not False means. Raises ValueError for what is no such value."""
    if value is not True and value not in ("nan", "inf"):
        raise ValueError(f'check_finite is True, "nan", "inf" or False, not {value!r}')
    return _WANTED[value]


class Finite(Lookout):
    """Raises NonFiniteError at the first op to be reported; `forward` False looks at gradients of eager ops
    alone.

    One that `raises` nothing only has the lines of forward ops kept.
    """

    there = True

    def __init__(self, wanted: Wanted, forward: bool = True, raises: bool = True) -> None:
        self.wanted, self.forward, self.raises = wanted, forward, raises
        self.runs_op_by_op = forward

    def op(self, op: Op, inputs: list[Any], attrs: Mapping[str, Any], out: Any, begun: Any) -> None:
        """Look at an op's result. What a gradient rule computes is looked at when the rule is done."""
        where = user_line()
        if self.forward and not isinstance(where, GradientLine) and not finite.is_finite(out):
            given = list(map(device.get, inputs))
            finite.check(op, given, attrs, device.get(out), self.wanted, where, modules_here())

    def gradient(
        self, node: Node, grads: list[Any], results: Sequence[Any], place: GradientLine, begun: Any
    ) -> None:
        """Look at the gradients of a node."""
        found = [_array(g) for g in results]
        if not self.raises or all(map(finite.is_finite, found)):
            return
        arrays, given = list(map(device.get, found)), [device.get(_array(g)) for g in grads]
        saved = [device.get(_array(x.data)) for x in _saved(node)]
        for number, g in enumerate(arrays):
            kind = _kind(g, [*given, *saved], self.wanted)
            if kind:
                raise _error(node, number, kind, g, given, place)

    def before(self, program: Program, arrays: Mapping[int, Array]) -> list[Array] | None:
        """Compute the recorded graph node by node: it says which one, and nothing has changed yet."""
        if not self.forward:
            return None
        graph = program.recorded.graph
        # On bad input the program's own check stops it, and the call is made eagerly.
        with contextlib.suppress(ValueError):
            given = [device.get(arrays[i]) for i in range(len(graph.inputs))]
            return finite.check_graph(graph, given, self.wanted)
        return None

    def after(
        self, program: Program, arrays: Mapping[int, Array], outputs: list[Array], failed: int, begun: Any
    ) -> None:
        """What the program computes is finite where its graph is, or a kernel is wrong."""
        if begun is None or failed:
            return
        got = [*outputs, *(arrays[number] for number, _ in program.recorded.writes)]
        for value, expected, array in zip(program.recorded.graph.outputs, begun, got, strict=False):
            if not finite.is_finite(array) and finite.is_finite(expected):
                array = device.get(array)
                kind = "nan" if np.isnan(array).any() else "inf"
                head = "The ops, computed one by one, are finite; in the compiled program "
                op = value.op.name if isinstance(value, Apply) else "a value"
                raise finite.error(op, kind, array, [], value.where, head=head)


def _saved(node: Node) -> list[Saved]:
    entries = node.saved if isinstance(node, OpNode) else ()
    return [x for x in entries or () if type(x) is Saved]


def _array(x: Any) -> Any:
    return x._data if isinstance(x, Tensor) else x


def _kind(g: Any, operands: list[Any], wanted: Wanted) -> str:
    """ "nan" or "inf" where a gradient is to be reported."""
    if g is None or finite.is_finite(g):
        return ""
    if np.isnan(g).any():
        return "nan" if wanted.nan else ""
    given = all(finite.is_finite(x) for x in operands if x is not None)
    return "inf" if wanted.inf and given else ""


def _error(
    node: Node, number: int, kind: str, g: Array, given: list[Any], place: GradientLine
) -> NonFiniteError:
    """The first line is PyTorch's, so that who searches for it finds what to do."""
    operands: list[tuple[str, Any, Any]] = [("incoming gradient", x, None) for x in given if x is not None]
    bad = np.isnan(g) if kind == "nan" else np.isinf(g)
    at = np.unravel_index(int(bad.argmax()), bad.shape)
    for slot, entry in enumerate(node.saved or () if isinstance(node, OpNode) else ()):
        if type(entry) is not Saved:
            continue
        x = device.get(_array(entry.data))
        there = f"{x[at]:.6g}" if isinstance(x, np.ndarray) and x.shape == g.shape and x.ndim else None
        operands.append((f"operand {slot - 1}" if slot else "result", x, there))
    head = f"Function '{node.name()}' returned {kind} values in its {number}th output.\nThe gradient of "
    return finite.error(place.op, kind, g, operands, place, head=head)
