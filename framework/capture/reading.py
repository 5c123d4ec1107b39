"""Reading off the result of a library function what it did, so that its Python need not run again.

Knows the gradient graph; refuses what is more than ops on the arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.types import TensorType
from framework.capture.known import Gradient, Inner, Kept, KnownCall
from framework.deferred import Deferred
from framework.graph import ROOM, Edge, Node, OpNode, Saved, TypeOnly
from framework.storage import Storage
from framework.tensor import Tensor, edge_of

if TYPE_CHECKING:
    from framework.capture.driver import Stretch


class UnfitError(Exception):
    """A call did something that cannot be repeated without its Python."""


def value_of(t: Tensor, stretch: Stretch) -> Deferred:
    """The value of a tensor of its own memory that this stretch made."""
    value = t._deferred
    _require(type(t) is Tensor and t._base is None and t._data is None and t._hooks is None)
    _require(not t._requires_grad and not t._output and t._storage.version == 0)
    if value is None or value.stretch is not stretch:
        raise UnfitError
    return value


def _require(condition: bool) -> None:
    if not condition:
        raise UnfitError


class Reader:
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
        """Fill `known`. Raises UnfitError where the gradients are more than those of ops."""
        _require(all(t._storage is not result._storage for t in self.arguments))
        if result._node is None:
            return known
        nodes, kept = self._reached(result)
        _require(0 < len(nodes) < ROOM and nodes[-1] is result._node)
        self.known, self.result = known, result
        self.steps = {node: i for i, node in enumerate(nodes)}
        known.kept = tuple(sorted(kept.items()))
        for place, (i, _) in enumerate(known.kept, 1):
            self.places[id(self.arguments[i])] = place
            self.storages.setdefault(id(self.arguments[i]._storage), place)
        self.storages[id(result._storage)] = 0
        self._find_edges(nodes)
        known.steps = [self._gradient(node) for node in nodes]
        known.frees = any(step.frees for step in known.steps)
        return known

    def _reached(self, result: Tensor) -> tuple[list[OpNode], dict[int, bool]]:
        """The nodes the call made, in order, and the arguments they keep, each with whether its value is."""
        nodes: dict[OpNode, None] = {}
        kept: dict[int, bool] = {}
        stack: list[Node | None] = [result._node]
        while stack:
            node = stack.pop()
            if node is None or node.sequence <= self.started or node in nodes:
                continue
            if type(node) is not OpNode or node.hooks or node.retained or node.saved is None:
                raise UnfitError
            nodes[node] = None
            stack += node.below
            for entry in node.saved:
                t = entry.tensor if type(entry) is Saved else None
                if t is not None and id(t) in self.numbers:
                    kept[self.numbers[id(t)]] = True
                    continue
                while t is not None:
                    number = self.numbers.get(id(t), self._through(t))
                    if number is not None:
                        kept.setdefault(number, False)
                        break
                    t = t._base
        return sorted(nodes, key=lambda node: node.sequence), kept

    def _through(self, t: Tensor) -> int | None:
        """The argument, a view, of which `t` is one more view."""
        if t._base is None or id(t._base) in self.numbers:
            return None
        found = [i for i, x in enumerate(self.arguments) if x._base is t._base and self.numbers[id(x)] == i]
        found = [i for i in found if t._view[: len(self.arguments[i]._view)] == self.arguments[i]._view]
        _require(len(found) < 2)
        return found[0] if found else None

    def _find_edges(self, nodes: list[OpNode]) -> None:
        """Number the arguments' edges that are used."""
        owners: dict[Edge, int] = {}
        for i, t in enumerate(self.arguments):
            edge = edge_of(t)
            if edge is not None:
                _require(self.arguments[owners.setdefault(edge, i)] is t)
        used: list[int] = []
        for edge in [edge for node in nodes for edge in node.edges]:
            if edge is not None and edge[0] not in self.steps and edge not in self.edges:
                _require(edge in owners)
                self.edges[edge] = ~len(self.edges)
                used.append(owners[edge])
        self.known.used = tuple(used)

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
            return self._kept(entry)
        fixed = isinstance(entry, np.ndarray) and not entry.ndim and not entry.flags.writeable
        _require(entry is None or type(entry) is TypeOnly or fixed)
        return entry

    def _kept(self, entry: Saved) -> Kept:
        data, storage, t = entry.data, entry.storage, entry.tensor
        if entry.edge is not None or storage is None or type(data) is not Deferred:
            raise UnfitError
        _require(entry.version == storage.version)
        number = self.numbers.get(id(t))
        if number is None:
            return Kept(self._value(data), self._storage(storage), 0 if t is None else self._tensor(t))
        _require(data.node is self.given[number].node and storage is t._storage)
        place = self.places[id(t)]
        return Kept(place, place, place)

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
        base, value, view = -1, -1, t._view
        argument = self._through(t)
        if t._base is None:
            _require(id(t) in self.made)
            value = self._value(value_of(t, self.stretch))
        else:
            _require(type(t) is Tensor and t._hooks is None and not t._requires_grad and not t._output)
            _require(t._storage is t._base._storage)
            if argument is None:
                base = self._tensor(t._base)
            else:
                base = self.places[id(self.arguments[argument])]
                view = view[len(self.arguments[argument]._view) :]
        kind = TensorType(tuple(t.shape), t.dtype) if t._traced is None else t._traced
        inner = Inner(kind, value, self._storage(t._storage), step, base, view, t._view_kind)
        self.known.inner.append(inner)
        place = self.places[id(t)] = len(self.known.kept) + len(self.known.inner)
        return place
