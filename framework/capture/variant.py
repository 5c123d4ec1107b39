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
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds

from compiler.errors import TraceError
from compiler.ir import Graph, Input, Value
from compiler.ops.movement import reshape
from compiler.ops.reduction import any as any_
from compiler.plan import Request
from compiler.program import Arena, Executable
from framework.capture.backward import Backward, CompiledBackward, record_backward
from framework.capture.guards import Guard
from framework.capture.observe import SIMPLE
from framework.capture.tracer import Chain, Source, Tracer, checks_of, hooks_of
from framework.capture.tree import map_leaves
from framework.graph import Node, OpNode, raise_freed
from framework.nn.module import Module
from framework.state import ambient, no_grad, structure
from framework.storage import Clock, Storage
from framework.tensor import Tensor, apply_op, geometry
from kernels.dtypes import DType
from kernels.memory import is_own

Array = np.ndarray[Any, Any]


class FreedNode(Node):
    """Stands for history that the program has used up: asking it for gradients is a second backward."""

    __slots__ = ()

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        raise_freed()


# What `replay` gives when an operand fails a check.
BAD_INPUT = object()
# What may be returned as it was when the call was recorded.
CONSTANT = (*SIMPLE, DType, np.generic, type, types.FunctionType, Module)


class Result:
    """How to make one returned tensor: from output `number`, then the movements of `chain`; an `alias` is
    another tensor of the same memory.

    `freed` is the name of a history that the call has used up; `root` the position among the results that can
    still be differentiated. Not a dataclass: those are containers to a tree of results.
    """

    def __init__(
        self, number: int, chain: Chain, alias: bool, requires_grad: bool, freed: str, root: int
    ) -> None:
        self.number, self.chain, self.alias = number, chain, alias
        self.requires_grad, self.freed, self.root = requires_grad, freed, root


class Given:
    """A returned tensor that is, or views, memory that existed: argument `position`, or `tensor` itself."""

    def __init__(self, position: int, tensor: Tensor | None, chain: Chain) -> None:
        self.position, self.tensor, self.chain = position, tensor, chain


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
                g = made[self.number] = fill(object.__new__(Tensor), outputs[self.number])
            self.last = weakref.ref(g) if self.reusable else None
        if leaf._grad is not g:
            leaf._grad = g
            structure.gradients += 1


def _references_alone() -> tuple[int, int]:
    """What `GradientSlot.references` counts for a gradient that only its leaf and the slot hold."""
    leaf = fill(object.__new__(Tensor), np.zeros(1))
    slot = GradientSlot(-1, leaf, 0, None, True)
    slot.set((), [np.zeros(1)], [None])
    g = slot.last() if slot.last is not None else None
    assert g is not None, "the leaf holds it"
    return slot.references(g)


def fill(tensor: Tensor, array: Array) -> Tensor:
    """Put memory under a bare tensor."""
    tensor._data = array
    tensor._storage = Storage()
    return tensor


class Settled(Protocol):
    """What an instance of a symbolic recording has of its own: gradients, checks, and where it works."""

    arena: Arena

    def differentiate(
        self, roots: Sequence[Tensor], sources: Sequence[Source], tracer: Tracer
    ) -> Backward | None:
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
        names: Sequence[Guard],
        structures: Sequence[Guard],
        elsewhere: set[int],
        settled: Settled | None = None,
    ) -> None:
        self.names, self.structures, self.reads = tuple(names), tuple(structures), tuple(tracer.guards)
        # Asked at every call.
        self.checks = tuple(guard.holds for guard in names)
        self.calls = 0
        self.undo = tuple(tracer.undo)
        self.lock = threading.RLock()
        position = {id(x): i for i, x in enumerate(leaves) if isinstance(x, Tensor)}
        # Arguments that the recorded code also knew by another name: one input stands for both.
        self.known = [(i, x) for i, x in enumerate(leaves) if isinstance(x, Tensor) and id(x) in elsewhere]
        self.sources = tracer.real_sources()
        _require_apart(self.sources)
        self.values: list[Value] = []
        self.numbers: dict[int, int] = {}
        self.roots: list[Tensor] = []
        self.result = map_leaves(lambda x: self._plan_result(x, tracer, position), result)
        returned = set(self.numbers.values())
        self.gradients = self._plan_gradients(tracer, position, returned)
        # An argument that gets a gradient must be none of the other tensors that do: one would replace the
        # other.
        given = [slot.position for slot in self.gradients if slot.position >= 0]
        kept = [slot.leaf for slot in self.gradients if slot.leaf is not None]
        self.apart = [(p, leaf) for p in given for leaf in kept]
        self.root_kinds = [(tuple(r.shape), r.dtype.numpy) for r in self.roots]
        differentiate = record_backward if settled is None else settled.differentiate
        self.backward = differentiate(self.roots, self.sources, tracer) if self.roots else None
        if self.backward is not None:
            self.first_kept = len(self.values)
            self.values += self.backward.kept
        self.scalars = [s.read for s in tracer.scalars]
        self.draws = [(d.generator, d.count) for d in tracer.draws.values()]
        inputs = [s.input for s in self.sources if s.input is not None] + [s.input for s in tracer.scalars]
        for d in tracer.draws.values():
            inputs += [d.seed, d.offset]
        written = [(i, s) for i, s in enumerate(self.sources) if s.writes]
        self._build(inputs, written, settled)
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
        read = tracer.gradients_read.values()
        self.gradients_read = [(leaf, g is None) for leaf, g in read if id(leaf) not in position]
        # Arguments whose gradient the call reads must have none, for a program has one memory for each input.
        self.no_gradient = [position[id(leaf)] for leaf, _ in read if id(leaf) in position]
        if any(g is not None for leaf, g in read if id(leaf) in position):
            raise TraceError(
                "the gradient of an argument is added to: make the argument's tensor a parameter"
            )
        self.written_arguments = [
            (position[id(s.owner)], s.writes) for _, s in written if id(s.owner) in position
        ]
        self.written_held = [i for i, s in written if id(s.owner) not in position]
        self.clock = Clock()
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
            (slots.get(number), shape, dtype)
            for number, (shape, dtype) in enumerate(self.executable.output_types)
        ]
        self.seen = self.seen_gradients = -1

    # Building

    def _output(self, source: Source) -> int:
        number = self.numbers.get(id(source))
        if number is None:
            number = self.numbers[id(source)] = len(self.values)
            self.values.append(source.value)
        return number

    def _plan_result(self, x: Any, tracer: Tracer, position: dict[int, int]) -> Any:
        if not isinstance(x, Tensor):
            if not isinstance(x, CONSTANT):
                raise TraceError(f"a {type(x).__name__} is returned, which a replay cannot make anew")
            return x
        source, chain = tracer.locate(x)
        if source.input is not None:
            owner = source.owner
            where = position.get(id(owner), -1)
            if chain and ambient.grad_enabled and x.requires_grad:
                raise TraceError(
                    "a view of a tensor that requires grad is returned: return it outside @compile"
                )
            return Given(where, None if where >= 0 else owner, chain)
        freed, root = "", -1
        if x.requires_grad and x._node is not None:
            if is_freed(x._node):
                freed = x._node.name()
            else:
                root = len(self.roots)
                self.roots.append(x)
        return Result(self._output(source), chain, x is not source.owner, x.requires_grad, freed, root)

    def _plan_gradients(
        self, tracer: Tracer, position: dict[int, int], returned: set[int]
    ) -> list[GradientSlot]:
        planned = []
        for leaf, g in tracer.gradients.values():
            if leaf._data is None:
                continue
            where = position.get(id(leaf), -1)
            number, real = -1, None
            if g is not None:
                source, chain = tracer.locate(g)
                if source.input is None and not chain:
                    number = self._output(source)
                elif source.input is not None and source.owner is g:
                    real = g
                else:
                    raise TraceError(
                        "a view is assigned to .grad inside @compile: assign a tensor of its own"
                    )
            planned.append(
                GradientSlot(where, None if where >= 0 else leaf, number, real, number not in returned)
            )
        return planned

    def _build(self, inputs: list[Input], written: list[tuple[int, Source]], settled: Settled | None) -> None:
        writes = tuple((i, s.value) for i, s in written if s.value is not s.input)
        graph = Graph(tuple(inputs), (*self.values, *(v for _, v in writes)))
        failures = checks_of(graph) if settled is None else settled.checks(graph)
        flags = tuple(map(_flag, failures))
        strides = {i: geometry(source.owner)[1] for i, source in enumerate(self.sources)}
        outputs = (*graph.outputs, *flags)
        arena = None if settled is None else settled.arena
        self.executable = Executable(Request(Graph(graph.inputs, outputs), writes, flags, strides), arena)

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
        known = structure.version == self.seen and structure.gradients == self.seen_gradients
        if (not known or self.clock.left) and self.recheck() is not None:
            return False
        for check in self.checks:
            if not check():
                return False
        for read, value in self.reads:
            if read() != value:
                return False
        for p in self.no_gradient:
            if leaves[p]._grad is not None:
                return False
        for p, tensor in self.known:
            if leaves[p] is not tensor:
                return False
        return not self.apart or all(leaves[p] is not leaf for p, leaf in self.apart)

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
        for storage in storages:
            storage.follow(self.clock)
        self.clock.left = False
        self.written_memory = [t._data for t in written if t is not None]
        self.written_alone = all(map(is_own, self.written_memory))  # type: ignore[union-attr]
        self.seen, self.seen_gradients = structure.version, structure.gradients
        return None

    def overlaps(self, leaves: Sequence[Any]) -> bool:
        """Whether an argument shares memory with what is written, or a written argument with another."""
        if not self.written_held and not self.written_arguments:
            return False
        for _, p in self.arguments:
            leaf = leaves[p]
            array = leaf._data
            if id(leaf._storage) in self.written_ids:
                return True
            # Memory that nobody else can know of is its array's own, and no written array is a view.
            alone = self.written_alone and is_own(array)
            if not alone and any(np.may_share_memory(array, w) for w in self.written_memory):
                return True
        if not self.written_arguments:
            return False
        written = {p for p, _ in self.written_arguments}
        arrays = [(p, leaves[p]._data) for _, p in self.arguments]
        return any(
            (p in written or q in written) and np.may_share_memory(a, b)
            for i, (p, a) in enumerate(arrays)
            for q, b in arrays[i + 1 :]
        )

    # Running

    def replay(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the arguments, carry out its effects, and make the results.

        BAD_INPUT when a check failed: then nothing was changed, and the function itself says what is wrong.
        """
        with self.lock:
            self.calls += 1
            if self.scalars:
                self.scalar_format.pack_into(self.scalar_memory.data, 0, *[read() for read in self.scalars])
            for k, (generator, _) in enumerate(self.draws):
                self.draw_memory[2 * k], self.draw_memory[2 * k + 1] = generator.seed_value, generator.offset
            made: list[Tensor | None] = [None] * len(self.values)
            outputs: list[Any] = []
            for number, (slot, shape, dtype) in enumerate(self.output_plan):
                again = None if slot is None else slot.free_again(leaves)
                made[number] = again
                outputs.append(np.empty(shape, dtype) if again is None else again._data)
            failed = self.executable.run([(i, leaves[p]._data) for i, p in self.arguments], outputs)
            if failed:
                return BAD_INPUT
            for generator, count in self.draws:
                generator.offset += count
            self.clock.time += 1
            for p, count in self.written_arguments:
                leaves[p]._storage.writes += count
            for slot in self.gradients:
                again = made[slot.number] if slot.number >= 0 else None
                if again is not None and slot.last is not None and slot.last() is again:
                    again._storage.writes += 1  # the leaf has it already
                else:
                    slot.set(leaves, outputs, made)
            # Its own assignments are no news to a program that reads no gradient; one that does must look
            # again.
            if not self.gradients_read:
                self.seen_gradients = structure.gradients
            return self._results(leaves, outputs, made)

    def _results(self, leaves: Sequence[Any], outputs: list[Array], made: list[Tensor | None]) -> Any:
        history = None
        if self.backward is not None:
            inputs: list[Any] = list(self.current)
            for i, p in self.arguments:
                inputs[i] = leaves[p]
            history = CompiledBackward(self.backward, outputs[self.first_kept :], inputs, self.root_kinds)
        if type(self.result) is Result:  # the common case: one tensor, usually the loss
            return self._result(self.result, leaves, outputs, made, history)
        return map_leaves(lambda x: self._result(x, leaves, outputs, made, history), self.result)

    def _result(
        self,
        x: Any,
        leaves: Sequence[Any],
        outputs: list[Array],
        made: list[Tensor | None],
        history: CompiledBackward | None,
    ) -> Any:
        if type(x) is Given:
            return _follow(leaves[x.position] if x.tensor is None else x.tensor, x.chain)
        if type(x) is not Result:
            return x
        base = made[x.number]
        if base is None:
            base = made[x.number] = fill(object.__new__(Tensor), outputs[x.number])
        t = _follow(base.detach(), x.chain) if x.alias else base
        if x.freed:
            t._node = FreedNode((), x.freed)
        elif x.root >= 0 and history is not None:
            t._node, t._output = history, x.root
        elif x.requires_grad:
            t._requires_grad = True
        return t


_ALONE = _references_alone()


def _kind(t: Tensor) -> tuple[Any, ...]:
    data = t._data
    assert data is not None, "only real tensors have a kind"
    return data.shape, data.dtype, data.strides, t.requires_grad


def _words(kind: tuple[Any, ...]) -> str:
    shape, dtype, _, requires_grad = kind
    return f"{dtype}{list(shape)}{', requiring grad' if requires_grad else ''}"


def _follow(t: Tensor, chain: Chain) -> Tensor:
    if chain:
        with no_grad():
            for op, attrs in chain:
                t = apply_op(op, (t,), attrs)
    return t


def _flag(failed: Value) -> Value:
    """A check's verdict as one bool without axes."""
    if failed.ndim == 0:
        return failed
    return reshape.trace(any_.trace(failed, axes=tuple(range(failed.ndim))), shape=())


def is_freed(node: Node) -> bool:
    """Whether a backward pass has used up the history of `node`."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if isinstance(current, OpNode) and current.saved is None:
            return True
        for edge in current.edges:
            if edge is not None and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return False


def _require_apart(sources: Sequence[Source]) -> None:
    """Refuse memory that is met under two names when one of them is written."""
    spans = sorted((*byte_bounds(s.owner._data), s.writes > 0) for s in sources)  # type: ignore[arg-type]
    end, written = 0, False
    for low, high, writes in spans:
        if low < end and (writes or written):
            raise TraceError("two tensors of this call share memory, and one of them is written to")
        end, written = (high, writes) if low >= end else (max(end, high), written or writes)
