"""A call recorded with symbolic sizes, and its programs for concrete ones.

A `Draft` puts stand-ins with symbolic shapes in place of the arguments; what was then recorded becomes a
`Recording`. Its instance for given sizes is the recorded graph with numbers in place of sizes, planned as any
other: an ordinary Variant. Which calls a recording serves is asked in dynamic.py.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from compiler.dims import Scope, Values, is_symbolic
from compiler.errors import TraceError
from compiler.ir import Apply, Const, Graph, Input, Measure, Value, constant
from compiler.ops.movement import reshape
from compiler.ops.op import typed_number
from compiler.types import TensorType
from framework.capture import machines
from framework.capture.backward import Backward, record_backward, runs_user_code
from framework.capture.guards import Guard
from framework.capture.leaving import Leaving, require_one_history
from framework.capture.numbers import Numbers
from framework.capture.reads import Item
from framework.capture.results import Given, given
from framework.capture.tracer import Chain, Source, Tracer, hooks_of
from framework.capture.tree import map_leaves, once
from framework.capture.variant import Variant
from framework.device import number_of
from framework.graph import Node
from framework.nn.parameter import Parameter
from framework.storage import Clocks, Storage
from framework.tensor import Tensor
from kernels import dtypes
from kernels.memory import uncollected

# (number of an argument's leaf, axis); the axis of an int is -1.
Place = tuple[int, int]
Guards = Callable[[], tuple[Sequence[Guard], Sequence[Guard]]]


class DraftTracer(Tracer):
    """A capture whose arguments are stand-ins."""

    def __init__(self) -> None:
        super().__init__()
        self.has_gradient: dict[int, bool] = {}

    def stand_in(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor of symbolic shape for argument `x`, with the same place in the gradient graph."""
        hooked = any(hooks_of(x))
        if type(x) not in (Tensor, Parameter) or hooked or (x._base is not None and x.requires_grad):
            raise TraceError("an argument has hooks, or is a view with history")
        assert x._data is not None, "arguments have memory"
        self.place(x.device)
        t = object.__new__(type(x))
        t._data, t._storage = None, Storage()
        t._traced = TensorType(shape, dtypes.of_numpy(x._data.dtype))
        t._requires_grad = x._requires_grad
        if x._node is not None:
            t._node = Node((), x._node.name())
        node = Input(t._traced, name=f"t{len(self.sources)}")
        before = (t._node, t._output, t._requires_grad, *hooks_of(t))
        source = self.sources[id(t)] = Source(t, node)
        source.input, source.before = node, before
        self.has_gradient[id(t)] = x._grad is not None
        return t

    def grad(self, t: Tensor) -> Tensor | None:
        """The gradient as the recorded code sees it; arguments must come without one."""
        has = self.has_gradient.get(id(t))
        if has is None or id(t) in self.gradients:
            return super().grad(t)
        if has:
            raise TraceError("the gradient of an argument is read")
        self.gradients_read.setdefault(id(t), (t, None))
        return None


class Returned:
    """A tensor that a recording hands out: where its memory comes from, and what it is to it.

    Not a dataclass: those are containers to a tree of results.
    """

    def __init__(self, x: Tensor, tracer: Tracer) -> None:
        self.source, self.chain = tracer.locate(x)
        self.is_owner = x is self.source.owner
        self.kind = TensorType(tuple(x.shape), x.dtype)
        self.leaving = tracer.leaving(x) if self.source.input is None else None
        owner = self.source.owner
        self.owner_kind = TensorType(tuple(owner.shape), owner.dtype)


class Draft:
    """What is to be symbolic in a call that is about to be recorded.

    `groups` are the places that share a symbol each; `now` holds the number at every place.
    """

    def __init__(
        self,
        places: Sequence[Place],
        groups: Sequence[Sequence[int]],
        now: tuple[int, ...],
        leaves: list[Any],
    ) -> None:
        self.places, self.groups, self.now, self.actual = places, groups, now, leaves
        self.tracer = DraftTracer()
        self.scope = Scope()
        self.symbols: dict[int, Any] = {}
        for number, group in enumerate(groups):
            value = now[group[0]]
            symbol = self.scope.symbol(f"n{number}", value, 0 if value >= 0 else None)
            self.symbols.update(dict.fromkeys(group, symbol))
        # Set when the recording turned out to be of use for other sizes only.
        self.is_unfit = False
        # What may be negative and is not now is not negative then.
        self.positive = [g[0] for g in groups if any(places[i][1] < 0 for i in g) and now[g[0]] >= 0]

    @property
    def words(self) -> str:
        """Why the call is recorded again."""
        places = [self._place(group[0]) for group in self.groups]
        return f"{' and '.join(places)} {'varies' if len(places) == 1 else 'vary'}"

    def legend(self) -> list[str]:
        """What every symbol stands for."""
        return [
            f"n{number} is {' and '.join(map(self._place, group))}"
            for number, group in enumerate(self.groups)
        ]

    def _place(self, number: int) -> str:
        leaf, axis = self.places[number]
        return f"argument {leaf}" if axis < 0 else f"dimension {axis} of argument {leaf}"

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
        """The call's arguments and their leaves with stand-ins for tensors and symbols for varying ints."""
        shapes: dict[int, list[Any]] = {}
        numbers: dict[int, Any] = {}
        for number, (leaf, axis) in enumerate(self.places):
            size = self.symbols.get(number, self.now[number])
            if axis < 0:
                numbers[leaf] = size
            else:
                shapes.setdefault(leaf, []).append(size)
        made: dict[int, Tensor] = {}
        leaves: list[Any] = []

        def stand_in(x: Any) -> Any:
            position = len(leaves)
            if isinstance(x, Tensor):
                if id(x) not in made:
                    made[id(x)] = self.tracer.stand_in(x, tuple(shapes.get(position, x.shape)))
                x = made[id(x)]
            leaves.append(numbers.get(position, x))
            return leaves[-1]

        _require_plain((args, kwargs))
        args, kwargs = map_leaves(stand_in, (args, kwargs))
        return args, kwargs, leaves

    def settle(
        self, result: Any, leaves: list[Any], guards: Guards, elsewhere: set[int], numbers: Numbers | None
    ) -> Variant:
        """The program for this call's sizes, an instance of what was recorded."""
        recording = Recording(self, result, leaves, guards, numbers)
        self.scope.close()
        values = recording.values_of(self.now)
        if values is None:
            self.is_unfit = True
            raise TraceError("a condition on sizes does not hold for the sizes it was made from")
        return recording.instance(self.actual, values)


def _require_plain(x: Any) -> None:
    """Refuse arguments in containers that a copy may not stand for."""
    if type(x) in (tuple, list) or (isinstance(x, tuple) and hasattr(x, "_fields")):
        for item in x:
            _require_plain(item)
    elif type(x) is dict:
        for item in x.values():
            _require_plain(item)
    elif isinstance(x, tuple | list | dict) or (
        hasattr(x, "__dataclass_fields__") and not isinstance(x, type)
    ):
        raise TraceError("an argument is a container of a class of its own")


def _require_settled(x: Any) -> None:
    """Refuse results that sizes could hide in."""
    if isinstance(x, dict):
        if any(is_symbolic(key) or isinstance(key, tuple) for key in x):
            raise TraceError("a size is a key of the result")
        for item in x.values():
            _require_settled(item)
    elif isinstance(x, tuple | list):
        for item in x:
            _require_settled(item)
    elif type(x) is not Item and hasattr(x, "__dataclass_fields__"):
        for name in x.__dataclass_fields__:
            _require_settled(getattr(x, name))
    elif isinstance(x, types.FunctionType):
        raise TraceError("a function is returned, which may hold sizes")


class Recording:
    """A call recorded with symbolic sizes, ready to be made into programs."""

    def __init__(
        self,
        draft: Draft,
        result: Any,
        leaves: list[Any],
        guards: Guards,
        numbers: Numbers | None,
    ) -> None:
        tracer = draft.tracer
        self.places, self.groups, self.now, self.positive = (
            draft.places,
            draft.groups,
            draft.now,
            draft.positive,
        )
        self.legend = draft.legend()
        self.position = {id(x): i for i, x in enumerate(leaves) if isinstance(x, Tensor)}
        self.stand_ins = [x for x in leaves if isinstance(x, Tensor)]  # `position` knows them by identity
        self.numbers = numbers
        _require_settled(result)
        roots: list[Tensor] = []
        # Sources that existed before and are returned, or viewed by what is.
        self.given_out: set[int] = set()
        self.leaving: list[tuple[int, Leaving]] = []
        self.result = map_leaves(once(lambda x: self._returned(x, tracer, roots)), result)
        require_one_history(self.leaving)
        self.handed_out: list[Returned] = []
        map_leaves(self._hand_out, self.result)
        self.gradients = [
            (leaf, None if g is None else self._gradient(g, tracer))
            for leaf, g in tracer.gradients.values()
            if leaf._data is not None or id(leaf) in self.position
        ]
        self.handed_out += [g for _, g in self.gradients if isinstance(g, Returned)]
        # Locating results may have met tensors for the first time.
        self.sources = tracer.real_sources()
        self.backward = self._differentiated(roots, tracer) if roots else None
        self.held = guards()
        self.scalars, self.draws, self.guards = tracer.scalars, tracer.draws, tracer.guards
        self.gradients_read, self.undo, self.checked = tracer.gradients_read, tracer.undo, tracer.checked
        self._order()
        handed_out = {id(r.source) for r in self.handed_out} | self.given_out
        tracer.require_unseen(handed_out)
        self.conditions = [
            c
            for c in draft.scope.conditions.values()
            if c.about is None or _matters(c.about, tracer, handed_out)
        ]
        self.lock, self.clocks = threading.RLock(), Clocks()
        self.where, number, self.sizes = tracer.where, number_of(tracer.where), tracer.sizes
        self.arena, self.backward_arena = machines.arena(number), machines.arena(number)
        self.backward_lock = threading.Lock()
        self.latest: Variant | None = None

    def _hand_out(self, x: Any) -> None:
        made = x.tensor if type(x) is Item else x
        if type(made) is Returned:
            self.handed_out.append(made)

    def _returned(self, x: Any, tracer: Tracer, roots: list[Tensor]) -> Any:
        if type(x) is Item:
            return Item(Returned(x.tensor, tracer), x.kind)
        if not isinstance(x, Tensor):
            return x
        source, chain = tracer.locate(x)
        if source.input is not None:
            self.given_out.add(id(source))
            where = self.position.get(id(source.owner), -1)
            return given(x, source, chain, where, tracer.real_sources().index(source))
        if x._retains_grad:
            raise TraceError("retain_grad() is called inside @compile on a result: call it outside")
        made = Returned(x, tracer)
        leaving = made.leaving
        assert leaving is not None, "a call made it"
        self.leaving.append((id(source), leaving))
        if leaving.is_root and not any(t is leaving.holder for t in roots):
            roots.append(leaving.holder)
        return made

    def _differentiated(self, roots: list[Tensor], tracer: Tracer) -> Backward | None:
        """The gradients of the results, and theirs, which must be recorded while sizes are symbolic."""
        if runs_user_code(roots, self.sources):
            raise TraceError("a hook or a custom function is part of the gradients")
        free = {r.source.value for r in self.handed_out if not r.source.writes}
        backward = record_backward(roots, self.sources, free, tracer)
        if backward is not None and isinstance(backward.second(), str):
            raise TraceError("the gradients have no gradients with symbolic sizes")
        return backward

    def _gradient(self, g: Tensor, tracer: Tracer) -> Any:
        made = Returned(g, tracer)
        if made.source.input is None:
            return made
        if id(made.source.owner) in self.position or not made.is_owner:
            raise TraceError("an argument, or a view, is assigned to .grad")
        return g

    def _order(self) -> None:
        """Every node that a program may need, operands first; and for those that check, what they check."""
        outputs: list[Value] = [*self.checked, *(r.source.value for r in self.handed_out)]
        outputs += [v for s in self.sources for v in (s.value, s.input) if v is not None]
        if self.backward is not None:
            outputs += self.backward.kept
        nodes = Graph((), tuple(outputs)).nodes
        self.failures: dict[Value, Value] = {}
        for node in nodes:
            if isinstance(node, Apply) and node.op.check is not None:
                failed = node.op.check.failed(*node.inputs, **node.attrs)
                if isinstance(failed, Value):
                    self.failures[node] = failed
        for graph in [] if self.backward is None else self.backward.graphs:
            outputs += [*graph.outputs, *graph.inputs]
        if self.backward is not None:
            outputs += self.backward.seeds
        outputs += self.failures.values()
        self.nodes = Graph((), tuple(outputs)).nodes

    def values_of(self, now: tuple[int, ...]) -> Values | None:
        """The symbols' values for the numbers at the places; None when the recording is not for them."""
        symbols: dict[str, int] = {}
        free = set()
        for number, group in enumerate(self.groups):
            symbols[f"n{number}"] = now[group[0]]
            free.update(group)
            if any(now[i] != now[group[0]] for i in group):
                return None
        if any(a != b for i, (a, b) in enumerate(zip(now, self.now, strict=True)) if i not in free):
            return None
        if any(now[i] < 0 for i in self.positive):
            return None
        values = Values(symbols)
        try:
            fits = all(condition.holds(values) for condition in self.conditions)
        except Exception:  # noqa: BLE001 -- a question without an answer, as a division by zero
            return None
        return values if fits else None

    def instance(self, leaves: Sequence[Any], values: Values) -> Variant:
        """The program for the sizes that `values` gives."""
        with self.lock, uncollected():
            made = Instance(self, leaves, values)
            held = {id(s.owner) for s in self.sources if id(s.owner) not in self.position}
            variant = Variant(
                made.tracer, made.result, leaves, lambda: self.held, _unobserved, held, self.numbers, made
            )
            # Instances write the same tensors, and work in the same memory one at a time.
            variant.recording, variant.lock, variant.clocks = self, self.lock, self.clocks
            self.latest = variant
            return variant

    def words(self) -> list[str]:
        """What is symbolic, and the conditions on it."""
        return [*self.legend, *(f"condition: {c.words}" for c in self.conditions)]


def _matters(about: tuple[Tensor, Tensor], tracer: Tracer, handed_out: set[int]) -> bool:
    """Whether anybody can tell if two tensors share memory: one is written to, or the second handed out."""
    sources = [tracer.locate(t)[0] for t in about]
    return any(s.writes for s in sources) or id(sources[1]) in handed_out


def _unobserved(record: Callable[[], Any]) -> Any:
    """A recording's gradients run no code of the user's."""
    return record()


class SettledTracer(Tracer):
    """What a finished capture would hold, had it been made with these sizes."""

    def __init__(self, real: list[Source]) -> None:
        super().__init__()
        self.real = real
        self.located: dict[int, tuple[Source, Chain]] = {}
        self.left: dict[int, Leaving] = {}

    def locate(self, t: Tensor) -> tuple[Source, Chain]:
        """Where memory comes from, for the tensors a recording hands out."""
        return self.located[id(t)]

    def leaving(self, t: Tensor) -> Leaving:
        """What such a tensor is to its memory."""
        return self.left[id(t)]

    def real_sources(self) -> list[Source]:
        """Memory that existed before."""
        return self.real


class Instance:
    """A recording with numbers for its sizes, in the form a Variant is made from."""

    def __init__(self, recording: Recording, leaves: Sequence[Any], values: Values) -> None:
        self.recording, self.leaves, self.values = recording, leaves, values
        self.arena = recording.arena
        self.backward_arena, self.backward_lock = recording.backward_arena, recording.backward_lock
        self.new: dict[Value, Value] = {}
        self.measures: dict[Any, Value] = {}
        for node in recording.nodes:
            self.new[node] = self._settled(node)
        self.old = {new: old for old, new in self.new.items()}
        self.sources: dict[int, Source] = {}
        self.tracer = tracer = SettledTracer([self._source(s) for s in recording.sources])
        tracer.scalars, tracer.draws, tracer.where = recording.scalars, recording.draws, recording.where
        tracer.guards, tracer.undo, tracer.sizes = recording.guards, recording.undo, recording.sizes
        tracer.checked = [self.new[v] for v in recording.checked]
        tracer.gradients_read = self._by_leaf(recording.gradients_read.values())
        tracer.gradients = self._by_leaf((leaf, self._tensor(g)) for leaf, g in recording.gradients)
        self.result = map_leaves(once(self._leaf), recording.result)

    # Values

    def _type(self, kind: TensorType) -> TensorType:
        shape = self.values.of(kind.shape)
        return kind if shape is kind.shape else TensorType(shape, kind.dtype)

    def _settled(self, node: Value) -> Value:
        if isinstance(node, Const):
            return node
        if isinstance(node, Measure):
            return self._measured(node)
        kind = self._type(node.type)
        if isinstance(node, Input):
            return node if kind is node.type else Input(kind, name=node.name, where=node.where)
        assert isinstance(node, Apply), f"a {type(node).__name__} is in a graph"
        inputs = tuple([self.new[x] for x in node.inputs])
        attrs: Mapping[str, Any] = {key: self.values.of(item) for key, item in node.attrs.items()}
        if (
            kind is node.type
            and all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            and all(attrs[key] is item for key, item in node.attrs.items())
        ):
            return node
        return Apply(kind, op=node.op, inputs=inputs, attrs=attrs, where=node.where)

    def _measured(self, node: Measure) -> Value:
        """A number in memory: a literal would make a kernel of its own for every size."""
        number = self.values.of(node.size)
        key = (type(number), repr(number), node.dtype)
        if key not in self.measures:
            memory = np.array(typed_number(number, node.dtype)).reshape(1)
            self.measures[key] = reshape.trace(constant(memory, node.where), shape=())
        return self.measures[key]

    # Tensors

    def _owner(self, t: Tensor) -> Tensor:
        position = self.recording.position.get(id(t))
        return t if position is None else self.leaves[position]

    def _source(self, source: Source) -> Source:
        made = self.sources.get(id(source))
        if made is None:
            owner = object.__new__(Tensor) if source.input is None else self._owner(source.owner)
            node = None if source.input is None else self.new[source.input]
            assert node is None or isinstance(node, Input), "an input stays one"
            made = self.sources[id(source)] = Source(owner, self.new[source.value])
            made.input, made.before = node, source.before
            made.writes, made.counted = source.writes, source.counted
        return made

    def _by_leaf(self, pairs: Any) -> dict[int, tuple[Tensor, Any]]:
        return {id(owner): (owner, g) for leaf, g in pairs for owner in (self._owner(leaf),)}

    def _leaf(self, x: Any) -> Any:
        if type(x) is Item:
            return Item(self._tensor(x.tensor), x.kind)
        if type(x) is Given:
            chain = tuple((op, self.numbers(dict(attrs))) for op, attrs in x.chain)
            return Given(x.position, x.number, x.tensor, chain, x.tracked, x.detached, x.requires_grad)
        return self._tensor(x) if type(x) is Returned else self.values.of(x)

    def _tensor(self, x: Any) -> Any:
        """A bare tensor that answers what a Variant asks of one that was recorded."""
        if type(x) is not Returned:
            if isinstance(x, Tensor):
                source = next(s for s in self.recording.sources if s.owner is x)
                self.tracer.located[id(x)] = self._source(source), ()
            return x
        source = self._source(x.source)
        t = source.owner if x.is_owner else object.__new__(Tensor)
        if source.input is None or not x.is_owner:
            t._traced, t._data = self._type(x.kind), None
        if x.leaving is not None:
            source.owner._traced = self._type(x.owner_kind)
            leaving = self.tracer.left[id(t)] = copy(x.leaving)
            leaving.holder = t if leaving.apart else source.owner
        chain = tuple((op, self.numbers(dict(attrs))) for op, attrs in x.chain)
        self.tracer.located[id(t)] = source, chain
        return t

    # In place of what a Variant derives from a capture

    def backward(self) -> Backward | None:
        """The recorded gradients, for these sizes."""
        backward = self.recording.backward
        return None if backward is None else backward.settled(self)

    def value(self, x: Value) -> Value:
        """A value with numbers for sizes."""
        return self.new[x]

    def input(self, x: Input) -> Input:
        """An input with numbers for sizes."""
        new = self.new[x]
        assert isinstance(new, Input), "an input stays one"
        return new

    def numbers(self, x: Any) -> Any:
        """Numbers for sizes, in tuples too."""
        return self.values.of(x)

    def checks(self, graph: Graph) -> list[Value]:
        """The recorded checks of the nodes in `graph`, which compare with sizes in memory."""
        failures = self.recording.failures
        found = [failures.get(self.old.get(node, node)) for node in graph.nodes]
        return [self.new[flag] for flag in found if flag is not None]
