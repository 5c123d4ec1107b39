"""What looks at eager ops: it stands where a capture stands, computes each op at once, and looks at the
result.

Knows ops, nodes and lines. What is looked for is a `Lookout`: a search for NaN and infinities (finite.py),
or a profile (profiler.py). While a thread has none, its ops know nothing of this module.
"""

from __future__ import annotations

import os.path
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler import watching
from compiler.ops.op import Op
from compiler.where import GradientLine, is_own, made_at, user_line
from framework.graph import Node, OpNode
from framework.state import ambient
from framework.tensor import Tensor, concrete

_new = object.__new__


class Lookout(watching.Look):
    """Sees eager ops and the gradients of nodes, besides the programs of its base.

    `begin` is called before, and what it returns is handed to `op` and `gradient` after. With one that
    `runs_op_by_op`, driven functions are not compiled.
    """

    runs_op_by_op = False

    def begin(self) -> Any:
        """An op or a gradient is about to be computed."""

    def op(self, op: Op, inputs: list[Any], attrs: Mapping[str, Any], out: Any, begun: Any) -> None:
        """An op was computed: operands as arrays and numbers, and the result."""

    def gradient(
        self, node: Node, grads: list[Any], results: Sequence[Any], place: GradientLine, begun: Any
    ) -> None:
        """The gradients of a node were computed, in a backward pass at `place`."""

    def called(self, function: Any, recordings: Sequence[Any], begun: Any) -> None:
        """A compiled function has returned, or raised; what it recorded meanwhile."""

    def failed(self, begun: Any) -> None:
        """What was begun has raised."""


class Watch:
    """Stands in `ambient.watch` while this thread has lookouts."""

    drives = False

    def __init__(self, lookouts: tuple[Lookout, ...]) -> None:
        self.lookouts = lookouts
        self.runs_op_by_op = any(lookout.runs_op_by_op for lookout in lookouts)
        # The compiled function whose call was announced and now comes.
        self.coming: Any = None
        # The line that made each node, for messages about its gradient.
        self.lines: weakref.WeakKeyDictionary[Node, str] = weakref.WeakKeyDictionary()

    def apply(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Tensor:
        """The tensor of an op's result, without history."""
        arrays = [concrete(x) if isinstance(x, Tensor) else x for x in inputs]
        begun = [lookout.begin() for lookout in self.lookouts]
        out = _new(Tensor)
        data = out._data = self._guarded(begun, lambda: op.compute(*arrays, **attrs))
        for lookout, start in zip(self.lookouts, begun, strict=True):
            lookout.op(op, [_operand(x, a) for x, a in zip(inputs, arrays, strict=True)], attrs, data, start)
        return out

    def announces(self, function: Any) -> bool:
        """Whether a call of a compiled function is to come through `call`; not when it comes from there."""
        coming, self.coming = self.coming, None
        return coming is not function

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a compiled function."""
        begun, before = [lookout.begin() for lookout in self.lookouts], len(function.history)
        self.coming = function
        try:
            return function(*args, **kwargs)
        finally:
            self.coming = None
            for lookout, start in zip(self.lookouts, begun, strict=True):
                lookout.called(function, function.history[before:], start)

    def recorded(self, out: Tensor) -> None:
        """Note the line of the op that made `out`."""
        if out._node is not None:
            self.lines[out._node] = user_line()

    def rule(self, node: OpNode, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        """The gradients of an op's node."""
        place = GradientLine(user_line(), node.op.name, self.lines.get(node, ""))

        def run() -> list[Any]:
            with made_at(place):
                return OpNode.gradients(node, grads, unpack)

        return self.gradients(node, place, grads, run)

    def gradients(
        self, node: Node, place: GradientLine, grads: list[Any], run: Callable[[], Sequence[Any]]
    ) -> Any:
        """What `run` gives, the gradients of `node`."""
        begun = [lookout.begin() for lookout in self.lookouts]
        results = self._guarded(begun, run)
        for lookout, start in zip(self.lookouts, begun, strict=True):
            lookout.gradient(node, grads, results, place, start)
        return results

    def _guarded(self, begun: list[Any], run: Callable[[], Any]) -> Any:
        """What `run` gives; when it raises, the lookouts are told."""
        try:
            return run()
        except BaseException:
            for lookout, start in zip(self.lookouts, begun, strict=True):
                lookout.failed(start)
            raise

    def custom(self, node: Node, name: str, grads: list[Any], run: Callable[[], Sequence[Any]]) -> Any:
        """`gradients` of a function whose backward is Python: the ops in it have lines of their own."""
        return self.gradients(node, GradientLine(user_line(), name, self.lines.get(node, "")), grads, run)


def _operand(given: Any, array: Any) -> Any:
    """An operand as its user gave it: a number is not yet an array of its type."""
    if not isinstance(given, Tensor) and isinstance(array, np.ndarray) and not array.ndim:
        return array.item()
    return array


def lookouts() -> tuple[Lookout, ...]:
    """Those of this thread."""
    return () if ambient.watch is None else ambient.watch.lookouts


def add(lookout: Lookout) -> None:
    """Let `lookout` see what this thread does from here on."""
    _set((*lookouts(), lookout))


def remove(lookout: Lookout) -> None:
    """Take a lookout of this thread away."""
    _set(tuple([x for x in lookouts() if x is not lookout]))


def _set(chosen: tuple[Lookout, ...]) -> None:
    before = ambient.watch
    watch = Watch(chosen) if chosen else None
    if watch is not None and before is not None:
        watch.lines = before.lines
    ambient.watch = watch
    others = [look for look in watching.looks() if not isinstance(look, Lookout)]
    watching.set_looks((*others, *chosen))


def modules_here() -> str:
    """Our modules and functions between the user's line and this op, outermost first:
    `Sequential > LayerNorm > layer_norm`.
    """
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        if frame.f_code.co_name in ("forward", "step") and "self" in frame.f_locals:
            found.append(type(frame.f_locals["self"]).__name__)
        elif os.path.basename(os.path.dirname(frame.f_code.co_filename)) == "functional":
            found.append(frame.f_code.co_name)
        frame = frame.f_back
    return " > ".join(name for name in reversed(found) if not name.startswith("_"))
