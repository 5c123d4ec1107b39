"""What a library function gave, and its gradient as one node that turns into those of the single ops.

The node is all the engine and the user meet until something looks inside. Knows drivers and the gradient
graph; when a function is known, calls.py and reading.py say.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compiler.ir import Value
from compiler.ops.op import Op
from compiler.types import TensorType
from framework.deferred import Deferred
from framework.graph import Edge, OpNode, Saved, next_sequence
from framework.layout import Step
from framework.storage import Storage
from framework.tensor import Tensor, edge_of

if TYPE_CHECKING:
    from framework.capture.driver import Driver, Stretch

_new, _ref = object.__new__, weakref.ref
# What is set when a node is looked into.
_INSIDE = frozenset(("attrs", "edges", "label", "op", "positions", "saved", "shapes"))


class Kept(NamedTuple):
    """A saved value: numbers of its value and storage, and of the tensor it came from, if it was an input.

    0 is the result, then come the arguments that are kept, then what is made inside.
    """

    value: int
    storage: int
    tensor: int


class Inner(NamedTuple):
    """A tensor made inside, that is saved or that saved ones view."""

    type: TensorType
    value: int
    storage: int
    # Number of the step that made it, and of the tensor it views; -1 for none.
    step: int
    base: int
    view: tuple[Step, ...]
    view_kind: int


class Gradient(NamedTuple):
    """The gradient of one op inside. Edges are numbers of steps, or inverted those of arguments' edges."""

    op: Op
    attrs: Mapping[str, Any]
    edges: tuple[tuple[int, int] | None, ...]
    positions: tuple[int, ...]
    saved: list[Any]
    shapes: tuple[tuple[int, ...], ...]
    label: str | None
    frees: bool


class KnownCall:
    """What a library function gives for arguments of one kind."""

    def __init__(self, node: Value, ops: int, checks: list[Any]) -> None:
        self.node, self.ops, self.checks = node, ops, checks
        # Arguments to which gradients flow; and those that are kept, each with whether its value is.
        self.used: tuple[int, ...] = ()
        self.kept: tuple[tuple[int, bool], ...] = ()
        self.keeps_result = False
        self.values: list[Value] = []
        self.storages = 0
        self.inner: list[Inner] = []
        self.steps: list[Gradient] = []
        self.frees = False

    def passes(self, driver: Driver, tensors: list[Tensor]) -> bool:
        """Whether no check finds bad input; where it is not known, the function is to be run."""
        stretch = driver.stretch
        for check in self.checks:
            if isinstance(check, Value):
                failed = driver.holds(check)
            else:
                op, numbers, attrs = check
                found = op.check.failed(*op.typed(tuple([driver.seen(tensors[n]) for n in numbers])), **attrs)
                failed = not isinstance(found, np.ndarray) or found.any()
            if failed or driver.stretch is not stretch:
                return False
        return True

    def result(self, driver: Driver, tensors: list[Tensor], values: list[Deferred]) -> Tensor:
        """The result for these arguments."""
        stretch = driver.stretch
        value = _new(Deferred)
        value.node, value.stretch, value.array = self.node, stretch, None
        stretch.values.append(_ref(value))
        stretch.inside += self.ops
        made = driver.tensor(value)
        if self.steps:
            node = made._node = CallNode(Call(self, driver, made, tensors, values))
            stretch.calls.append(_ref(node))
        return made


class Call:
    """One call: the edges of its arguments, and what its gradients keep, with the versions it had."""

    __slots__ = ("edges", "known", "lock", "storages", "stretch", "tensors", "values", "versions")

    def __init__(
        self,
        known: KnownCall,
        driver: Driver,
        made: Tensor,
        tensors: list[Tensor],
        values: list[Deferred],
    ) -> None:
        self.known = known
        self.lock = driver.lock
        self.stretch: Stretch | None = driver.stretch
        self.edges: list[Edge] = []
        for i in known.used:
            edge = edge_of(tensors[i])
            assert edge is not None, "the key says which arguments need a gradient"
            self.edges.append(edge)
        # Those that are not kept must not live longer.
        self.values: list[Any] = [made._deferred if known.keeps_result else None]
        self.tensors: list[Any] = [None]
        self.storages, self.versions = [made._storage], [0]
        for i, reads in known.kept:
            t = tensors[i]
            self.values.append(values[i] if reads else None)
            self.tensors.append(t)
            storage = t._memory or t._storage
            self.storages.append(storage)
            self.versions.append(storage.version)

    def unchanged(self) -> bool:
        """Whether what is kept is there, and was not written to."""
        if self.stretch is None:
            return False
        first = 0 if self.known.keeps_result else 1
        return [s.version for s in self.storages[first:]] == self.versions[first:]

    def free(self) -> None:
        """Let go of what is kept."""
        self.stretch = None
        self.values = self.tensors = self.storages = self.versions = []


class CallNode(OpNode):
    """The gradient of a library call as one node. It becomes the OpNode of the result, with those of the
    other ops behind it, once more than its hooks is asked for.
    """

    # The layout of its base, whose instance it becomes.
    __slots__ = ()

    def __init__(self, call: Call) -> None:
        self.hooks = self.retained = None
        self.sequence = next_sequence()
        self.call = call

    def __getattr__(self, name: str) -> Any:
        if name not in _INSIDE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.look_inside()
        return getattr(self, name)

    def look_inside(self) -> None:
        """Become the nodes of the single ops."""
        with self.call.lock:
            if type(self) is CallNode:
                _Inside(self.call).build(self)
                self.__class__ = OpNode  # type: ignore[assignment]
                self.call.free()

    def release(self) -> None:
        with self.call.lock:  # another thread may be looking
            if type(self) is not CallNode:
                OpNode.release(self)
            elif self.call.known.frees:
                self.call.free()


class _Inside:
    """The nodes of one call, and the values and tensors they save."""

    def __init__(self, call: Call) -> None:
        self.known, self.edges, self.stretch = call.known, call.edges, call.stretch
        self.values, self.tensors = list(call.values), list(call.tensors)
        self.storages, self.versions = list(call.storages), list(call.versions)
        if self.stretch is not None:
            self._make(self.stretch)

    def _make(self, stretch: Stretch) -> None:
        known = self.known
        for node in known.values:
            value = Deferred(node, stretch)
            stretch.values.append(_ref(value))
            self.values.append(value)
        self.storages += [Storage() for _ in range(known.storages)]
        self.versions += [0] * known.storages
        for inner in known.inner:
            self.tensors.append(self._tensor(inner, stretch))

    def _tensor(self, inner: Inner, stretch: Stretch) -> Tensor:
        t = _new(Tensor)
        t._storage = self.storages[inner.storage]
        if inner.base < 0:
            t._deferred = self.values[inner.value]
        else:
            base = t._base = self.tensors[inner.base]
            t._view, t._view_kind = inner.view, inner.view_kind
            t._view_version = self.versions[inner.storage]
            if base._data is not None:
                data = base._data
                for op, attrs in inner.view:
                    data = op.compute(data, **attrs)
                t._data = data
                return t
        t._traced = inner.type
        stretch.tensors.append(_ref(t))
        return t

    def build(self, last: CallNode) -> None:
        """Fill `last`, and make the nodes behind it."""
        nodes: list[OpNode] = []
        steps = self.known.steps
        for number, step in enumerate(steps):
            edges = tuple([None if e is None else self._edge(e, nodes) for e in step.edges])
            saved = [self._saved(x) for x in step.saved] if self.stretch or not step.frees else None
            if number == len(steps) - 1:
                node: OpNode = last
                node.op, node.attrs, node.positions = step.op, step.attrs, step.positions
                node.edges, node.shapes, node.saved = edges, step.shapes, saved
            else:
                node = OpNode.made(step.op, step.attrs, edges, step.positions, saved or [], step.shapes)
                node.saved = saved
                node.sequence = last.sequence - (len(steps) - 1 - number)
            node.label = step.label
            nodes.append(node)
        if self.stretch is not None:
            first = len(self.tensors) - len(self.known.inner)
            for inner, t in zip(self.known.inner, self.tensors[first:], strict=True):
                if inner.step >= 0:
                    t._node = nodes[inner.step]

    def _edge(self, edge: tuple[int, int], nodes: list[OpNode]) -> Edge | None:
        number, output = edge
        return (nodes[number], output) if number >= 0 else self.edges[~number]

    def _saved(self, entry: Any) -> Any:
        if type(entry) is not Kept:
            return entry
        storage = entry.storage
        return Saved.made(
            self.values[entry.value],
            self.storages[storage],
            self.versions[storage],
            self.tensors[entry.tensor],
        )
