"""One recorded call as a program: binds inputs, runs, and carries out the effects on gradients, versions and
generators.

Built from a finished Tracer; knows guards only as things that hold or do not.
"""

from __future__ import annotations

import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from compiler.binding import Arena
from compiler.errors import TraceError
from compiler.ir import Graph, Input, Value
from compiler.ops.movement import reshape
from compiler.ops.reduction import any as any_
from compiler.plan import Request
from framework.access import over
from framework.capture import machines
from framework.capture.backward import Backward, record_backward, runs_user_code
from framework.capture.guards import Guard
from framework.capture.history import CompiledBackward, FreedNode
from framework.capture.leaving import Leaving, require_one_history
from framework.capture.numbers import Numbers, RuntimeNumber
from framework.capture.reads import Item
from framework.capture.results import (
    Computed,
    Given,
    Read,
    Result,
    follow,
    given,
)
from framework.capture.snapshots import SIMPLE
from framework.capture.tracer import Source, Tracer, checks_of, hooks_of
from framework.capture.tree import map_leaves, once
from framework.device import number_of
from framework.graph import Saved
from framework.nn.module import Module
from framework.state import structure
from framework.storage import Clocks, Storage
from framework.tensor import Tensor, geometry
from kernels import memory
from kernels.dtypes import DType
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


# What `replay` gives when an operand fails a check.
BAD_INPUT = object()
# What may be returned as it was when the call was recorded.
CONSTANT = (*SIMPLE, DType, np.generic, type, types.FunctionType, Module)


@dataclass
class GradientSlot:
    """One `.grad` a call assigns: of argument `position` or of `leaf`; output `number`, or the tensor `real`
    (or None).

    The gradient of the last run is written over when nobody but the leaf still holds it.
    """

    position: int
    leaf: Tensor | None
    number: int
    real: Tensor | None
    reusable: bool
    last: weakref.ref[Tensor] | None = None

    def references(self, g: Tensor) -> tuple[int, int]:
        """Reference counts of the last gradient and of its array."""
        data = g._data
        return sys.getrefcount(g), sys.getrefcount(data)

    def free_again(self, leaves: Sequence[Any]) -> Tensor | None:
        """The last gradient, if it is still the leaf's and nobody else's."""
        leaf = leaves[self.position] if self.leaf is None else self.leaf
        g = None if self.last is None else self.last()
        if g is None or leaf._grad is not g:
            return None
        return g if self.references(g) == _ALONE else None

    def set(self, leaves: Sequence[Any], outputs: list[Array], made: list[Tensor | None]) -> None:
        """Give the leaf its gradient; `made` collects tensors by output number."""
        leaf = leaves[self.position] if self.leaf is None else self.leaf
        g = self.real
        if self.number >= 0:
            g = made[self.number]
            if g is None:
                g = made[self.number] = over(outputs[self.number])
            self.last = weakref.ref(g) if self.reusable else None
        if leaf._grad is not g:
            leaf._grad = g
            structure.gradients += 1


def _references_alone() -> tuple[int, int]:
    """What `GradientSlot.references` counts for a gradient that only its leaf and the slot hold."""
    leaf = over(np.zeros(1))
    slot = GradientSlot(-1, leaf, 0, None, True)
    slot.set((), [np.zeros(1)], [None])
    g = slot.last() if slot.last is not None else None
    assert g is not None, "the leaf holds it"
    return slot.references(g)


class Settled(Protocol):
    """What an instance of a symbolic recording has of its own: gradients, checks, and where it works."""

    arena: Arena

    def backward(self) -> Backward | None:
        """As `record_backward`."""
        ...

    def checks(self, graph: Graph) -> list[Value]:
        """As `checks_of`."""
        ...


class Variant:
    """A program with the conditions under which it stands for a call."""

    # What it is an instance of, when sizes are symbolic.
    recording: Any = None

    def __init__(
        self,
        tracer: Tracer,
        result: Any,
        leaves: Sequence[Any],
        guards: Callable[[], tuple[Sequence[Guard], Sequence[Guard]]],
        observed: Callable[[Callable[[], Any]], Any],
        elsewhere: set[int],
        lifted: Numbers | None = None,
        settled: Settled | None = None,
    ) -> None:
        self.lifted = lifted
        self.calls = 0
        self.undo = tuple(tracer.undo)
        self.lock = threading.RLock()
        position = {id(x): i for i, x in enumerate(leaves) if isinstance(x, Tensor)}
        # Arguments that the recorded code also knew by another name: one input stands for both.
        self.known = [(i, x) for i, x in enumerate(leaves) if isinstance(x, Tensor) and id(x) in elsewhere]
        read = tracer.gradients_read.values()
        # The existing gradients of arguments that the call reads follow the arguments.
        given = [(position[id(leaf)], g) for leaf, g in read if g is not None and id(leaf) in position]
        distinct = {id(g) for _, g in given}
        if len(distinct) < len(given) or not distinct.isdisjoint(position):
            raise TraceError("the gradient of an argument is read, and is another's or an argument too")
        position |= {id(g): len(leaves) + i for i, (_, g) in enumerate(given)}
        self.argument_gradients = [p for p, _ in given]
        self.device, self.sizes = number_of(tracer.where), tracer.sizes
        self.sources = tracer.real_sources()
        _require_apart(self.sources)
        self.values: list[Value] = []
        self.numbers: dict[int, int] = {}
        # Results that are the memory an op made, by value: what was saved of them changes with them.
        self.untouched: dict[Value, int] = {}
        self.roots: list[Tensor] = []
        self.leaving: list[tuple[int, Leaving]] = []
        self.result = map_leaves(once(lambda x: self._plan_result(x, tracer, position)), result)
        tracer.require_unseen(self.numbers)
        require_one_history(self.leaving)
        returned = set(self.numbers.values())
        self.gradients = self._plan_gradients(tracer, position, returned, len(leaves))
        # An argument that gets a gradient must be none of the other tensors that do: one would replace the
        # other.
        assigned = [slot.position for slot in self.gradients if slot.position >= 0]
        leaves_kept = [slot.leaf for slot in self.gradients if slot.leaf is not None]
        self.apart = [(p, leaf) for p in assigned for leaf in leaves_kept]
        self.root_kinds = [(tuple(r.shape), r.dtype.numpy) for r in self.roots]
        self.backward = None
        if self.roots and settled is not None:
            self.backward = settled.backward()
        elif self.roots:
            record = partial(record_backward, self.roots, self.sources, self.untouched, tracer)
            self.backward = observed(record) if runs_user_code(self.roots, self.sources) else record()
        # What hooks and custom functions read in the backward is guarded too.
        names, structures = guards()
        self.names, self.structures, self.reads = tuple(names), tuple(structures), tuple(tracer.guards)
        # Asked at every call.
        self.checks = tuple(guard.holds for guard in names)
        # Output numbers of the values kept for the backward, and which of them are results.
        self.kept: list[int] = []
        for value in [] if self.backward is None else self.backward.kept:
            self.kept.append(self.untouched.get(value, len(self.values)))
            if value not in self.untouched:
                self.values.append(value)
        self.kept_results = [number for number in self.kept if number in returned]
        self.scalars = [s.read for s in tracer.scalars]
        self.draws = [(d.generator, d.count) for d in tracer.draws.values()]
        inputs = [s.input for s in self.sources if s.input is not None] + [s.input for s in tracer.scalars]
        for d in tracer.draws.values():
            inputs += [d.seed, d.offset]
        written = [(i, s) for i, s in enumerate(self.sources) if s.writes]
        self._build(inputs, written, tracer.checked, settled)
        # Where each input's memory comes from: an argument, the gradient of a leaf, or a tensor met inside.
        leaf_of = {id(g): leaf for leaf, g in tracer.gradients_read.values() if g is not None}
        self.arguments = [
            (i, position[id(s.owner)]) for i, s in enumerate(self.sources) if id(s.owner) in position
        ]
        self.held = [
            (i, s.owner, leaf_of.get(id(s.owner)), hooks_of(s.owner))
            for i, s in enumerate(self.sources)
            if id(s.owner) not in position
        ]
        self.gradients_read = [(leaf, g is None) for leaf, g in read if id(leaf) not in position]
        # Whether arguments have a gradient, and of what kind, where the call reads it.
        self.gradient_kinds: list[tuple[int, Any]] = [
            (position[id(leaf)], None if g is None else (_kind(g), hooks_of(g)))
            for leaf, g in read
            if id(leaf) in position
        ]
        self.written_arguments = [
            (position[id(s.owner)], s.counted) for _, s in written if id(s.owner) in position
        ]
        held = [(i, s.counted) for i, s in written if id(s.owner) not in position]
        self.written_held, self.counted_held = [i for i, _ in held], [(i, n) for i, n in held if n]
        self.clocks = Clocks()
        self.kinds = [_kind(s.owner) for s in self.sources]
        # Arguments are the caller's: nothing here keeps them alive.
        self.current: list[Tensor | None] = [
            None if id(s.owner) in position else s.owner for s in self.sources
        ]
        self.tensor_count = len(self.sources)
        del self.sources
        self._bind_scalars()
        slots = {slot.number: slot for slot in self.gradients if slot.reusable and slot.number >= 0}
        self.output_plan = [
            (slots.get(number), shape, dtype, machines.maker(self.device, shape, dtype))
            for number, (shape, dtype) in enumerate(self.executable.output_types)
        ]
        self.seen = self.seen_gradients = -1
        if lifted is not None:
            lifted.close()

    # Building

    def _output(self, source: Source) -> int:
        number = self.numbers.get(id(source))
        if number is None:
            number = self.numbers[id(source)] = len(self.values)
            self.values.append(source.value)
        return number

    def _plan_result(self, x: Any, tracer: Tracer, position: dict[int, int]) -> Any:
        if type(x) is Given:
            return x
        if type(x) is Item:
            return Read(self._output(tracer.locate(x.tensor)[0]))
        if type(x) is RuntimeNumber:
            return Computed(x._slot)
        if not isinstance(x, Tensor):
            if not isinstance(x, CONSTANT):
                raise TraceError(f"a {type(x).__name__} is returned, which a replay cannot make anew")
            return x
        source, chain = tracer.locate(x)
        if x is not source.owner or source.input is None:
            _, gradient = tracer.gradients.get(id(x), (x, None))
            if gradient is not None:
                raise TraceError(
                    "a leaf made inside @compile is returned with a gradient: return its detach()"
                )
        if source.input is not None:
            where = position.get(id(source.owner), -1)
            return given(x, source, chain, where, self.sources.index(source))
        if x._retains_grad:
            raise TraceError("retain_grad() is called inside @compile on a result: call it outside")
        leaving = tracer.leaving(x)
        self.leaving.append((id(source), leaving))
        root = -1
        if leaving.is_root:
            known = [number for number, t in enumerate(self.roots) if t is leaving.holder]
            root = known[0] if known else len(self.roots)
            self.roots += [] if known else [leaving.holder]
        number = self._output(source)
        if not source.writes:
            self.untouched[source.value] = number
        return Result(number, chain, leaving, root)

    def _plan_gradients(
        self, tracer: Tracer, position: dict[int, int], returned: set[int], count: int
    ) -> list[GradientSlot]:
        planned = []
        for leaf, g in tracer.gradients.values():
            if leaf._data is None or (g is leaf._grad and position.get(id(g), -1) >= count):
                continue  # The argument has it already.
            where = position.get(id(leaf), -1)
            number, real = -1, None
            if g is not None:
                source, chain = tracer.locate(g)
                if source.input is None and not chain:
                    number = self._output(source)
                elif source.input is not None and source.owner is g and id(g) not in position:
                    real = g
                else:
                    raise TraceError(
                        "a view is assigned to .grad inside @compile: assign a tensor of its own"
                    )
            planned.append(
                GradientSlot(where, None if where >= 0 else leaf, number, real, number not in returned)
            )
        return planned

    def _build(
        self,
        inputs: list[Input],
        written: list[tuple[int, Source]],
        checked: Sequence[Value],
        settled: Settled | None,
    ) -> None:
        writes = tuple((i, s.value) for i, s in written if s.value is not s.input)
        graph = Graph(tuple(inputs), (*self.values, *(v for _, v in writes)))
        # An op raises on bad input even when nobody uses its result.
        every = Graph(graph.inputs, (*graph.outputs, *checked))
        failures = checks_of(every) if settled is None else settled.checks(every)
        flags = tuple(map(_flag, failures))
        strides = {i: geometry(source.owner)[1] for i, source in enumerate(self.sources)}
        outputs = (*graph.outputs, *flags)
        arena = None if settled is None else settled.arena
        request = Request(Graph(graph.inputs, outputs), writes, flags, strides)
        self.executable = machines.program(request, arena, self.device, self.sizes.calls)

    def _bind_scalars(self) -> None:
        first = self.tensor_count
        self.scalar_memory = np.zeros(max(len(self.scalars), 1), np.float64)
        self.draw_memory = np.zeros(max(2 * len(self.draws), 1), np.int64)
        cells = [self.scalar_memory[i : i + 1].reshape(()) for i in range(len(self.scalars))]
        cells += [self.draw_memory[i : i + 1].reshape(()) for i in range(2 * len(self.draws))]
        for i, cell in enumerate(cells):
            self.executable.bind(first + i, cell)
        self.scalar_format = struct.Struct(f"{len(self.scalars)}d")

    # Guards

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether the program still means what the function means for these arguments."""
        if self.lifted is not None and not self.lifted.hold(leaves):
            return False
        known = structure.version == self.seen and structure.gradients == self.seen_gradients
        if (not known or self.clocks.left) and self.recheck() is not None:
            return False
        for check in self.checks:
            if not check():
                return False
        for read, value in self.reads:
            if read() != value:
                return False
        if self.gradient_kinds and not self._gradients_hold(leaves):
            return False
        for p, tensor in self.known:
            if leaves[p] is not tensor:
                return False
        return not self.apart or all(leaves[p] is not leaf for p, leaf in self.apart)

    def _gradients_hold(self, leaves: Sequence[Any]) -> bool:
        for p, kind in self.gradient_kinds:
            g = leaves[p]._grad
            if (g is None) is not (kind is None) or (g is not None and (_kind(g), hooks_of(g)) != kind):
                return False
        return True

    def with_gradients(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The leaves of a call, and the gradients of arguments after them."""
        return [*leaves, *[leaves[p]._grad for p in self.argument_gradients]]

    def first_change(self) -> str | None:
        """The first name or number that is not what it was, in words."""
        for guard in self.names:
            if not guard.holds():
                return f"no longer so: {guard.words}"
        for read, value in self.reads:
            if read() != value:
                return f"a number the call branches on was {value!r} and is {read()!r}"
        return None

    def recheck(self) -> str | None:
        """Look at everything the structure counters stand for and take new memory of the same kind.

        Returns what changed, in words; None when the program still fits.
        """
        if self.seen != structure.version:
            for guard in self.structures:
                if not guard.holds():
                    return f"no longer so: {guard.words}"
        for leaf, was_none in self.gradients_read:
            if (leaf._grad is None) is not was_none:
                return f"a gradient that was{'' if was_none else ' not'} None is{' not' if was_none else ''}"
        for i, owner, leaf, hooks in self.held:
            tensor = owner if leaf is None else leaf._grad
            assert tensor is not None, "a gradient that was read is there"
            if tensor._data is None or _kind(tensor) != self.kinds[i]:
                return f"a tensor was {_words(self.kinds[i])}"
            if hooks_of(tensor) != hooks:
                return "the hooks of a tensor changed"
        for i, owner, leaf, _ in self.held:
            tensor = owner if leaf is None else leaf._grad
            assert tensor is not None and tensor._data is not None, "held tensors have memory"
            self.current[i] = tensor
            self.executable.bind(i, tensor._data)
        written = [self.current[i] for i in self.written_held]
        storages = [t._storage for t in written if t is not None]
        self.written_ids = {id(storage) for storage in storages}
        counts: dict[Storage, int] = {}
        for i, count in self.counted_held:
            t = self.current[i]
            if t is not None:
                counts[t._storage] = counts.get(t._storage, 0) + count
        for storage, count in counts.items():
            storage.follow(self.clocks.of(count))
        self.clocks.left = False
        self.written_memory = [t._data for t in written if t is not None]
        self.written_alone = all(map(memory.is_own, self.written_memory))  # type: ignore[union-attr]
        self.seen, self.seen_gradients = structure.version, structure.gradients
        return None

    def overlaps(self, leaves: Sequence[Any]) -> bool:
        """Whether an argument shares memory with what is written, or a written argument with another."""
        if not self.written_held and not self.written_arguments:
            return False
        if self.argument_gradients:
            leaves = self.with_gradients(leaves)
        for _, p in self.arguments:
            leaf = leaves[p]
            array = leaf._data
            if id(leaf._memory) in self.written_ids:
                return True
            # Memory that nobody else can know of is its array's own, and no written array is a view.
            alone = self.written_alone and memory.is_own(array)
            if not alone and any(arrays.share(array, w) for w in self.written_memory):
                return True
        if not self.written_arguments:
            return False
        written = {p for p, _ in self.written_arguments}
        given = [(p, leaves[p]._data) for _, p in self.arguments]
        return any(
            (p in written or q in written) and arrays.share(a, b)
            for i, (p, a) in enumerate(given)
            for q, b in given[i + 1 :]
        )

    # Running

    def replay(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the arguments, carry out its effects, and make the results.

        BAD_INPUT when a check failed: then nothing was changed, and the function itself says what is wrong.
        """
        with self.lock:
            self.calls += 1
            if self.lifted is not None and not self.lifted.load(leaves):
                return BAD_INPUT
            if self.argument_gradients:
                leaves = self.with_gradients(leaves)
            if self.scalars or self.draws:
                self.load_numbers()
            made: list[Tensor | None] = [None] * len(self.values)
            outputs: list[Any] = []
            for number, (slot, shape, dtype, empty) in enumerate(self.output_plan):
                again = None if slot is None else slot.free_again(leaves)
                made[number] = again
                outputs.append(empty(shape, dtype) if again is None else again._data)
            failed = self.executable.run([(i, leaves[p]._data) for i, p in self.arguments], outputs)
            if failed:
                self.executable.let_through()
                return BAD_INPUT
            try:
                self._carry_out(leaves, outputs, made)
            except KeyboardInterrupt:
                self._carry_out(leaves, outputs, made)  # memory has changed already
                raise
            if self.executable.interrupted:
                self.executable.let_through()
            return self._results(leaves, outputs, made)

    def load_numbers(self) -> None:
        """Read the numbers and the random streams of a run."""
        if self.scalars:
            self.scalar_format.pack_into(self.scalar_memory.data, 0, *[read() for read in self.scalars])
        for k, (generator, _) in enumerate(self.draws):
            self.draw_memory[2 * k], self.draw_memory[2 * k + 1] = generator.seed_value, generator.offset

    def _carry_out(self, leaves: Sequence[Any], outputs: list[Array], made: list[Tensor | None]) -> None:
        """What a run changes beside memory; doing it a second time only counts more writes."""
        for k, (generator, count) in enumerate(self.draws):
            generator.offset = int(self.draw_memory[2 * k + 1]) + count
        self.clocks.tick()
        for p, count in self.written_arguments:
            leaves[p]._storage.writes += count
        for slot in self.gradients:
            again = made[slot.number] if slot.number >= 0 else None
            if again is not None and slot.last is not None and slot.last() is again:
                again._storage.writes += 1  # the leaf has it already
            else:
                slot.set(leaves, outputs, made)
        # Its own assignments are no news to a program that reads no gradient; one that does must look again.
        if not self.gradients_read:
            self.seen_gradients = structure.gradients

    def _results(self, leaves: Sequence[Any], outputs: list[Array], made: list[Tensor | None]) -> Any:
        history = None
        if self.backward is not None:
            inputs: list[Any] = list(self.current)
            for i, p in self.arguments:
                inputs[i] = leaves[p]
            results = [_kept_result(self._made(number, outputs, made)) for number in self.kept_results]
            kept = [outputs[number] for number in self.kept]
            history = CompiledBackward(self.backward, kept, inputs, self.root_kinds, results)
        if type(self.result) is Result:  # the common case: one tensor, usually the loss
            return self._result(self.result, leaves, outputs, made, history)
        return map_leaves(once(lambda x: self._result(x, leaves, outputs, made, history)), self.result)

    def _made(self, number: int, outputs: list[Array], made: list[Tensor | None]) -> Tensor:
        """The tensor of output `number`."""
        base = made[number]
        if base is None:
            base = made[number] = over(outputs[number])
        return base

    def _result(
        self,
        x: Any,
        leaves: Sequence[Any],
        outputs: list[Array],
        made: list[Tensor | None],
        history: CompiledBackward | None,
    ) -> Any:
        if type(x) is Result:
            base = self._made(x.number, outputs, made)
            t = follow(base.detach(), x.chain, x.tracked) if x.apart else base
            if x.freed:
                t._node = FreedNode((), x.freed)
            elif x.root >= 0 and history is not None:
                t._node, t._output = history, x.root
            elif x.requires_grad:
                t._requires_grad = True
            return follow(t, x.chain, x.tracked) if x.chain and not x.apart else t
        if type(x) is Given:
            t = leaves[x.position] if x.position >= 0 else x.tensor
            t = self.current[x.number] if t is None else t
            assert t is not None, "what is no argument is held"
            t = follow(t.detach() if x.detached else t, x.chain, x.tracked)
            if x.requires_grad:
                t._requires_grad = True
            return t
        if type(x) is Computed:
            assert self.lifted is not None, "a number of the call is returned"
            return self.lifted.values[x.slot]
        return outputs[x.number].item() if type(x) is Read else x


_ALONE = _references_alone()


def _kept_result(t: Tensor) -> Saved:
    # Without the tensor itself, whose history will keep this.
    return Saved.made(t._data, t._storage, t._storage.version, None)


def _kind(t: Tensor) -> tuple[Any, ...]:
    data = t._data
    assert data is not None, "only real tensors have a kind"
    return data.shape, data.dtype, data.strides, t.requires_grad, arrays.number_of(data)


def _words(kind: tuple[Any, ...]) -> str:
    shape, dtype, _, requires_grad, number = kind
    where = "" if number is None else f" on cuda:{number}"
    return f"{dtype}{list(shape)}{where}{', requiring grad' if requires_grad else ''}"


def _flag(failed: Value) -> Value:
    """A check's verdict as one bool without axes."""
    if failed.ndim == 0:
        return failed
    return reshape.trace(any_.trace(failed, axes=tuple(range(failed.ndim))), shape=())


def _require_apart(sources: Sequence[Source]) -> None:
    """Refuse memory that is met under two names when one of them is written."""
    spans = sorted((*arrays.bounds(s.owner._data), s.writes > 0) for s in sources)
    end, written = 0, False
    for low, high, writes in spans:
        if low < end and (writes or written):
            raise TraceError("two tensors of this call share memory, and one of them is written to")
        end, written = (high, writes) if low >= end else (max(end, high), written or writes)
