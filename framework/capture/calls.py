"""Calls of library functions whose Python a driven call need not run again: `linear`, `gelu`, `cross_entropy`.

What such a function computes depends on the nodes its tensors have, which of them need a gradient, and plain
values; met again, the result comes at once, with one gradient node. The node turns into those of the single
ops when anything looks inside. Knows drivers and the gradient graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compiler.ir import Value
from compiler.ops.op import Op
from compiler.types import TensorType
from framework.deferred import Deferred
from framework.graph import ROOM, AccumulateGrad, Edge, Node, OpNode, Saved, TypeOnly, next_sequence
from framework.layout import Step
from framework.nn.parameter import Parameter
from framework.size import Size
from framework.state import ambient
from framework.storage import Storage
from framework.tensor import Tensor, edge_of, way_to
from kernels.dtypes import DType

if TYPE_CHECKING:
    from framework.capture.driver import Driver, Stretch

_new, _ref = object.__new__, weakref.ref
_UNMET = object()
# What is set when a node is looked into.
_INSIDE = frozenset(("attrs", "edges", "label", "op", "positions", "saved", "shapes"))


class Recording:
    """What one run of a library function asked for beside its result; `valid` while that is all known."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.numbers = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        self.valid = True
        # The node of a bool that must be false, or an op's check and the arguments it is asked of.
        self.checks: list[Value | tuple[Op, tuple[int, ...], Mapping[str, Any]]] = []

    def check(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> None:
        """Note a check of values that are known."""
        numbers = [self.numbers.get(id(x)) for x in inputs]
        self.checks.append((op, tuple([n for n in numbers if n is not None]), attrs))
        self.valid = self.valid and None not in numbers


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
        # Arguments to which gradients flow, in the order in which their edges are made, and those kept.
        self.used: tuple[int, ...] = ()
        self.kept: tuple[int, ...] = ()
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
        self, known: KnownCall, driver: Driver, made: Tensor, tensors: list[Tensor], values: list[Deferred]
    ) -> None:
        self.known = known
        self.lock = driver.lock
        self.stretch: Stretch | None = driver.stretch
        self.edges: tuple[Edge | None, ...] = tuple([edge_of(tensors[i]) for i in known.used])
        # Those that are not kept must not live longer.
        self.values: list[Any] = [made._deferred if known.keeps_result else None]
        self.tensors: list[Any] = [None]
        self.storages, self.versions = [made._storage], [0]
        for i in known.kept:
            t = tensors[i]
            self.values.append(values[i])
            self.tensors.append(t)
            self.storages.append(t._storage)
            self.versions.append(t._storage.version)

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
                self.call.free()
                self.__class__ = OpNode  # type: ignore[assignment]

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
                node = OpNode(step.op, step.attrs, edges, step.positions, saved or [], step.shapes)
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
        return Saved(
            self.values[entry.value], self.storages[storage], self.versions[storage], self.tensors[entry.tensor]
        )


def library_call(
    driver: Driver, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`function(*args, **kwargs)`, by what it gave for such arguments before if that is known."""
    if driver.outcome is not None or driver.recording is not None:
        return function(*args, **kwargs)
    driver.cut()
    tensors: list[Tensor] = []
    values: list[Deferred] = []
    key = _key(driver, function, args, kwargs, tensors, values)
    if key is None:
        return function(*args, **kwargs)
    known = driver.book.calls.get(key, _UNMET)
    if known is _UNMET:
        loose = tuple([x for x in key if type(x) is not int and type(x) is not str])
        if loose in driver.book.varying:
            return function(*args, **kwargs)
        return _recorded(driver, function, args, kwargs, key, loose, tensors, values)
    if known is None or (known.checks and not known.passes(driver, tensors)):
        return function(*args, **kwargs)
    return known.result(driver, tensors, values)


def _key(
    driver: Driver,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    values: list[Deferred],
) -> tuple[Any, ...] | None:
    """What the outcome depends on; None where that is not known. Fills `tensors` and their `values`."""
    stretch, recorded = driver.stretch, ambient.grad_enabled
    key: list[Any] = [function, recorded, ambient.default_dtype]
    if kwargs:
        key += kwargs
        args = (*args, *kwargs.values())
    for x in args:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            data, base = x._data, x._base
            if data is None and base is None and x._deferred is None:
                return None
            value = driver.read(x)
            if value.stretch is not stretch:
                return None
            node = value.node
            if node in key:
                key.append(next((i for i, t in enumerate(tensors) if t is x), -1))
            tensors.append(x)
            values.append(value)
            key.append(node)
            if base is not None:
                key += (recorded and edge_of(x) is not None, _place_of(x))
            else:
                key.append(recorded and (x._requires_grad or x._node is not None))
                if data is not None and not data.flags.c_contiguous:
                    key.append(data.strides)
        elif kind is float:
            key += (kind, x.hex())
        elif x is None or kind is int or kind is bool or kind is str or kind is DType:
            key += (kind, x)
        elif (kind is tuple or kind is Size) and all([type(n) is int for n in x]):
            key += (kind, tuple(x))
        else:
            return None
    return tuple(key)


def _place_of(view: Tensor) -> Any:
    """How a view lies in memory, as part of a key."""
    if view._data is not None:
        return view._view_kind, view._data.strides
    start, steps = way_to(view)
    return view._view_kind, start, tuple([(op, tuple(attrs.items())) for op, attrs in steps])


class _Unfit(Exception):
    """A call did something that cannot be repeated without its Python."""


def _recorded(
    driver: Driver,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    loose: Any,
    tensors: list[Tensor],
    values: list[Deferred],
) -> Any:
    """Run the function, and keep what it did."""
    stretch, book = driver.stretch, driver.book
    inputs, first, ops, started = len(stretch.inputs), len(stretch.tensors), len(stretch.values), next_sequence()
    driver.recording = recording = Recording(tensors)
    try:
        result = function(*args, **kwargs)
    finally:
        driver.recording = None
    if driver.stretch is not stretch:
        return result
    if len(stretch.inputs) > inputs:  # a number that varies, and is an input now
        book.varying.add(loose)
        return result
    made = {id(t) for r in stretch.tensors[first:] if (t := r()) is not None}
    known = None
    if recording.valid and type(result) is Tensor and id(result) in made and id(result) not in recording.numbers:
        try:
            known = _Reader(stretch, tensors, values, made, started).read(
                result, KnownCall(_value_of(result, stretch).node, len(stretch.values) - ops, recording.checks)
            )
        except _Unfit:
            known = None
    book.calls[key] = known
    return result


def _value_of(t: Tensor, stretch: Stretch) -> Deferred:
    """The value of a tensor of its own memory that this stretch made."""
    value = t._deferred
    _require(type(t) is Tensor and t._base is None and t._data is None and t._hooks is None)
    _require(not t._requires_grad and not t._output and t._storage.version == 0)
    if value is None or value.stretch is not stretch:
        raise _Unfit
    return value


def _require(condition: bool) -> None:
    if not condition:
        raise _Unfit


class _Reader:
    """Reads off a result what the gradients of a call are."""

    def __init__(
        self, stretch: Stretch, tensors: list[Tensor], values: list[Deferred], made: set[int], started: int
    ) -> None:
        self.stretch, self.arguments, self.given = stretch, tensors, values
        self.made, self.started = made, started
        self.numbers = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        self.steps: dict[Node, int] = {}
        self.places: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.values: dict[int, int] = {}
        self.edges: dict[Edge, int] = {}

    def read(self, result: Tensor, known: KnownCall) -> KnownCall:
        """Fill `known`. Raises _Unfit where the gradients are more than those of ops."""
        _require(all(t._storage is not result._storage for t in self.arguments))
        if result._node is None:
            return known
        nodes, kept = self._reached(result)
        _require(0 < len(nodes) < ROOM and nodes[-1] is result._node)
        self.known, self.result = known, result
        self.steps = {node: i for i, node in enumerate(nodes)}
        known.kept = tuple(sorted(kept))
        for place, i in enumerate(known.kept, 1):
            self.places[id(self.arguments[i])] = place
            self.storages.setdefault(id(self.arguments[i]._storage), place)
        self.storages[id(result._storage)] = 0
        self._find_edges(nodes)
        known.steps = [self._gradient(node) for node in nodes]
        known.frees = any(step.frees for step in known.steps)
        return known

    def _reached(self, result: Tensor) -> tuple[list[OpNode], set[int]]:
        """The nodes the call made, in order, and the numbers of arguments that they keep."""
        nodes: dict[OpNode, None] = {}
        kept: set[int] = set()
        stack: list[Node | None] = [result._node]
        while stack:
            node = stack.pop()
            if node is None or node.sequence <= self.started or type(node) is AccumulateGrad or node in nodes:
                continue
            if type(node) is not OpNode or node.hooks or node.retained or node.saved is None:
                raise _Unfit
            nodes[node] = None
            stack += [edge[0] for edge in node.edges if edge is not None]
            for entry in node.saved:
                t = entry.tensor if type(entry) is Saved else None
                while t is not None:
                    if id(t) in self.numbers:
                        kept.add(self.numbers[id(t)])
                        break
                    stack.append(t._node)
                    t = t._base
        return sorted(nodes, key=lambda node: node.sequence), kept

    def _find_edges(self, nodes: list[OpNode]) -> None:
        """Number the arguments' edges that are used, in the order they were made."""
        owners: dict[Edge, int] = {}
        for i, t in enumerate(self.arguments):
            edge = edge_of(t)
            if edge is not None:
                _require(self.arguments[owners.setdefault(edge, i)] is t)
        outside = {e for n in nodes for e in n.edges if e is not None and e[0] not in self.steps}
        _require(outside <= set(owners))
        ordered = sorted(outside, key=lambda edge: (edge[0].sequence, edge[1]))
        self.known.used = tuple([owners[edge] for edge in ordered])
        self.edges = {edge: ~i for i, edge in enumerate(ordered)}

    def _gradient(self, node: OpNode) -> Gradient:
        edges = []
        for edge in node.edges:
            if edge is None:
                edges.append(None)
            else:
                number = self.steps.get(edge[0])
                edges.append((self.edges[edge], 0) if number is None else (number, edge[1]))
        saved = [self._entry(entry) for entry in node.saved or ()]
        frees = any(type(entry) is Kept for entry in saved)
        return Gradient(
            node.op, node.attrs, tuple(edges), node.positions, saved, node.shapes, node.label, frees
        )

    def _entry(self, entry: Any) -> Any:
        if type(entry) is Saved:
            data = entry.data
            _require(entry.edge is None and entry.storage is not None and type(data) is Deferred)
            _require(entry.version == entry.storage.version)
            number = None if entry.tensor is None else self.numbers.get(id(entry.tensor))
            if number is not None:
                place = self.places[id(entry.tensor)]
                _require(data.node is self.given[number].node and entry.storage is entry.tensor._storage)
                return Kept(place, place, place)
            tensor = 0 if entry.tensor is None else self._tensor(entry.tensor)
            return Kept(self._value(data), self._storage(entry.storage), tensor)
        fixed = isinstance(entry, np.ndarray) and not entry.ndim and not entry.flags.writeable
        _require(entry is None or type(entry) is TypeOnly or fixed)
        return entry

    def _value(self, value: Deferred) -> int:
        if value is self.result._deferred:
            self.known.keeps_result = True
            return 0
        number = self.values.get(id(value))
        if number is None:
            _require(value.stretch is self.stretch)
            self.known.values.append(value.node)
            number = self.values[id(value)] = len(self.known.kept) + len(self.known.values)
        return number

    def _storage(self, storage: Storage) -> int:
        number = self.storages.get(id(storage))
        if number is None:
            _require(storage.version == 0)
            self.known.storages += 1
            number = self.storages[id(storage)] = len(self.known.kept) + self.known.storages
        return number

    def _tensor(self, t: Tensor) -> int:
        place = self.places.get(id(t))
        if place is not None:
            return place
        _require(t is not self.result)
        step = -1 if t._node is None else self.steps.get(t._node, -2)
        _require(step != -2)
        base, value = -1, -1
        if t._base is None:
            _require(id(t) in self.made)
            value, kind = self._value(_value_of(t, self.stretch)), t._traced
        else:
            base, kind = self._tensor(t._base), t._traced
            _require(type(t) is Tensor and t._hooks is None and not t._requires_grad and not t._output)
            _require(t._storage is t._base._storage)
        kind = TensorType(tuple(t.shape), t.dtype) if kind is None else kind
        inner = Inner(kind, value, self._storage(t._storage), step, base, t._view, t._view_kind)
        self.known.inner.append(inner)
        place = self.places[id(t)] = len(self.known.kept) + len(self.known.inner)
        return place
