"""The active capture: tensors as IR values, and everything the recorded code did to state, kept aside.

Nothing real is touched while recording: writes, gradients and random draws are noted here and carried out by
the program. Knows tensors and IR values; knows nothing of guards on Python objects or of running programs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from compiler.errors import TraceError
from compiler.ir import Apply, Graph, Input, Value, constant
from compiler.ops.arithmetic import add
from compiler.ops.compare import cast
from compiler.ops.movement import expand, to_write_through
from compiler.ops.op import Op
from compiler.types import TensorType
from compiler.where import gradient_line, made_at, user_line
from framework.capture import machines
from framework.capture.leaving import Leaving
from framework.capture.reads import Item, item
from framework.device import device
from framework.graph import OpNode
from framework.nn.parameter import Parameter
from framework.state import Precision
from framework.storage import Storage
from framework.tensor import Tensor
from framework.watch import unwatched
from kernels import dtypes
from kernels.gpu import arrays

_new = object.__new__
Chain = tuple[Any, ...]
_PLAIN = {Tensor, Parameter, int, float, bool, str, type(None), dtypes.DType}
# Where tuples, and named ones of the library, are made.
_OWN_TUPLES = {"builtins", "framework.size", "framework.nn.functional.recurrent"}


class Source:
    """Memory seen by a capture: the tensor that owns it, its value now, how often the capture wrote to it,
    and how many of these writes its owner's version counts.

    `input` is the program input of memory that existed before; None for tensors made inside. A `part_of`
    other memory is a copy of what is a view in eager mode, `stale` from the first write to the other on.
    """

    # Instances set only what differs: there is one for each tensor of a recording.
    input: Input | None = None
    writes: int = 0
    counted: int = 0
    # History, grad flag and hooks of memory that existed before.
    before: tuple[Any, ...] = ()
    part_of: Source | None = None
    stale: bool = False

    def __init__(self, owner: Tensor, value: Value) -> None:
        self.owner = owner
        self.value = value


@dataclass(eq=False)
class Scalar:
    """A Python number that each replay reads anew."""

    read: Callable[[], float]
    input: Input


@dataclass(eq=False)
class Draws:
    """Random streams taken from one generator: inputs for its seed and offset, and how many were taken."""

    generator: Any
    seed: Input
    offset: Input
    count: int = 0


@dataclass
class Tracer:
    """One capture in progress."""

    # Whether effects on tensors happen for real; here the program carries them out.
    drives = False

    sources: dict[int, Source] = field(default_factory=dict)
    gradients: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    # Leaves whose existing gradient the recorded code looked at, with what it found.
    gradients_read: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    scalars: list[Scalar] = field(default_factory=list)
    draws: dict[int, Draws] = field(default_factory=dict)
    guards: list[tuple[Callable[[], Any], Any]] = field(default_factory=list)
    touched: dict[int, Any] = field(default_factory=dict)
    undo: list[Callable[[], Any]] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    # Results of ops that reject bad input, whether or not anybody uses them.
    checked: list[Value] = field(default_factory=list)
    # Values that recorded Python has, and may only hand on.
    items: list[Item] = field(default_factory=list)
    # Views that existed and are taken for part of their base.
    followed: dict[int, Tensor] = field(default_factory=dict)
    # What those that are memory of their own here view, with the history it had.
    viewed: dict[int, tuple[Tensor, tuple[Any, ...]]] = field(default_factory=dict)
    # Copies of what is a view in eager mode.
    picked: list[Source] = field(default_factory=list)
    # The device of its tensors, once one was met or made.
    where: device | None = None
    # What the function's programs had for sizes.
    sizes: machines.Sizes = field(default_factory=machines.Sizes)
    # Whether memory was written to past its version (`.data`), which histories know their values by.
    unversioned: bool = False

    # Values

    def apply(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Tensor:
        """The tensor of an op's result, without history."""
        value = op.trace(*[self.read(x) if isinstance(x, Tensor) else x for x in inputs], **attrs)
        if op.check is not None:
            self.checked.append(value)
        return self.wrap(value)

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`function(*args, **kwargs)` of the library's, which runs no user's code on plain arguments."""
        if not (all(map(_is_plain, args)) and all(map(_is_plain, kwargs.values()))):
            return function(*args, **kwargs)
        with made_at(user_line()):
            return unwatched(function, *args, **kwargs)

    def recorded(self, out: Tensor) -> None:
        """Note the line of the op that made `out`, for the gradient of that op."""
        node, source = out._node, self.sources.get(id(out))
        if source is not None and isinstance(node, OpNode):
            node.line = source.value.where

    def rule(self, node: OpNode, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        """The gradients of an op's node, which say of which op they are."""
        place = gradient_line(user_line(), node.op.name, getattr(node, "line", ""))
        with made_at(place):
            return unwatched(OpNode.gradients, node, grads, unpack)

    def share(self, t: Tensor) -> Tensor:
        """Another tensor of the value of `t`; the caller links it to `t`."""
        return self.wrap(self.read(t))

    def part(self, t: Tensor) -> None:
        """`t` is about to be no view any more: it has a value of its own already."""

    def item(self, t: Tensor) -> Item:
        """What stands for `t.item()`."""
        made = item(t, self.wrap(self.read(t)))
        self.items.append(made)
        return made

    def concrete(self, t: Tensor) -> NoReturn:
        """Refuse: a value does not exist while it is recorded."""
        bool(self.read(t))
        raise AssertionError("a traced value has no truth value")

    def place(self, where: device) -> None:
        """Note that a tensor is on a device, or made there. Raises TraceError for a second one."""
        if self.where is None:
            self.where = where
            if where.type == "cuda":
                self.guard(lambda: Precision.float32)
        elif self.where != where:
            raise TraceError(
                f"tensors of {self.where} and of {where} are used together, and a program runs on one "
                "device: move them there outside, or make them there (device=x.device)"
            )

    def adopt(self, t: Tensor) -> Source:
        """The source of a tensor that exists already, as memory of its own."""
        source = self.sources.get(id(t))
        if source is None:
            assert t._data is not None, "only a real tensor is adopted"
            self.place(t.device)
            node = Input(
                TensorType(t._data.shape, dtypes.of_numpy(t._data.dtype)), name=f"t{len(self.sources)}"
            )
            source = self.sources[id(t)] = Source(t, node)
            source.input, source.before = node, _history(t)
            base = t._base
            while base is not None:
                self.viewed.setdefault(id(base), (base, _history(base)))
                base = base._base
        return source

    def locate(self, t: Tensor) -> tuple[Source, Chain]:
        """The memory behind `t`, and the movements from it to `t`."""
        chain: Chain = ()
        # A tensor that existed before and was met as itself stands for its own memory; a view made inside
        # never does.
        while t._base is not None and ((own := self.sources.get(id(t))) is None or own.input is None):
            if t._data is not None and not self._views_still(t, t._base):
                break
            chain = (*t._view, *chain)
            t = t._base
        if id(t) not in self.sources:
            if t._data is None:
                raise TraceError(
                    "a tensor made in an earlier capture is used: return it from that call instead"
                )
            return self.adopt(t), chain
        return self.sources[id(t)], chain

    def leaving(self, t: Tensor) -> Leaving:
        """What a result is to the memory it views."""
        return Leaving(t, self.locate(t)[0].owner)

    def _views_still(self, t: Tensor, base: Tensor) -> bool:
        """Whether a view that existed has the memory of its base, of which either may have got another by
        `.data`; if so, a replay needs it to."""
        moved, here = base._data, t._data
        assert moved is not None and here is not None, "a view that existed has memory, and its base"
        reference = weakref.ref(moved)
        for op, attrs in t._view:
            moved = op.compute(moved, **attrs)
        same = arrays.address(moved) == arrays.address(here) and moved.shape == here.shape
        if not same or moved.strides != here.strides or moved.dtype != here.dtype:
            return False
        if id(t) not in self.followed:
            self.followed[id(t)] = t
            self.guard(lambda: t._base is base and base._data is reference())
        return True

    def read(self, t: Tensor) -> Value:
        """The IR value of a tensor now."""
        source, chain = self.locate(t)
        if source.stale:
            raise TraceError(
                "what was picked at the position a tensor holds is read after a write: pick it again"
            )
        value = source.value
        for op, attrs in chain:
            value = op.trace(value, **attrs)
        return value

    def pick(self, t: Tensor, of: Tensor) -> None:
        """`t`, a copy here, was picked of `of` at a position that a tensor holds: a view in eager mode."""
        source, (other, _) = self.sources[id(t)], self.locate(of)
        source.part_of = other.part_of or other
        self.picked.append(source)
        t._storage = of._storage

    def require_unseen(self, returned: Container[int]) -> None:
        """Refuse to return what was picked beside what it is a view of: `returned` are ids of sources."""
        seen: set[int] = set()
        for source in self.picked:
            whole = source.part_of
            assert whole is not None, "it was picked of something"
            if id(source) not in returned:
                continue
            if source.stale or whole.input is not None or id(whole) in returned or id(whole) in seen:
                raise TraceError(
                    "what was picked at the position a tensor holds is a view, and returned: return a clone()"
                )
            seen.add(id(whole))

    def wrap(self, data: Any) -> Tensor:
        """A new tensor of an op's result, or of an array that Python made."""
        value = data if isinstance(data, Value) else constant(np.array(arrays.get(data)))
        t = _new(Tensor)
        t._memory = Storage()
        t._traced = value.type
        self.sources[id(t)] = Source(t, value)
        return t

    def write(self, t: Tensor, data: Any) -> None:
        """Overwrite `t`: its memory has a new value from here on, seen by every view."""
        source, chain = self.locate(t)
        if source.part_of is not None:
            raise TraceError(
                "what was picked at the position a tensor holds is written to: use x[int(position)]"
            )
        for part in self.picked:
            part.stale |= part.part_of is source
        new = data if isinstance(data, Value) else constant(np.asarray(arrays.get(data)))
        stages, chain = [source.value], to_write_through(chain, source.value.shape)
        for op, attrs in chain:
            stages.append(op.trace(stages[-1], **attrs))
        if new.dtype is not stages[-1].dtype:
            new = cast.trace(new, dtype=stages[-1].dtype)
        if new.shape != stages[-1].shape:
            new = expand.trace(new, shape=stages[-1].shape)
        for (op, attrs), base in zip(reversed(chain), reversed(stages[:-1]), strict=True):
            new = op.unview(base, new, **attrs)
        source.value = new
        source.writes += 1
        source.counted += t._storage is source.owner._storage
        self.unversioned |= t._storage is not source.owner._storage
        self.versions[id(t._storage)] = self.versions.get(id(t._storage), 0) + 1
        self.kept.append(t._storage)

    def version(self, t: Tensor) -> int:
        """The version of a tensor's memory, writes of this capture included."""
        memory = t._memory or t._storage
        return memory.writes + memory.clock.time + self.versions.get(id(memory), 0)

    # State

    def grad(self, t: Tensor) -> Tensor | None:
        """The gradient as the recorded code sees it."""
        if id(t) in self.gradients:
            return self.gradients[id(t)][1]
        if t._data is not None:
            self.gradients_read.setdefault(id(t), (t, t._grad))
            if t._grad is not None and t._grad._base is not None:
                self.adopt(t._grad)  # a view: another gradient need not be one of the same memory
        return t._grad

    def set_grad(self, t: Tensor, gradient: Tensor | None) -> None:
        """Note a new gradient; the real one changes when the program has run."""
        self.gradients[id(t)] = (t, gradient)

    def set_data(self, t: Tensor, value: Tensor) -> NoReturn:
        """Refuse: memory cannot be exchanged by a program."""
        raise TraceError(
            "`.data` is assigned inside @compile: use copy_() under no_grad, or assign it outside"
        )

    def alias(self, made: Tensor, data: Tensor) -> NoReturn:
        """Refuse: a parameter made anew at each call has no identity to replay."""
        raise TraceError("a Parameter is made inside @compile: make it outside")

    def scalar(self, read: Callable[[], float]) -> Tensor:
        """A 0-d float64 tensor whose value each replay asks `read` for."""
        return self.wrap(self.number(read))

    def number(self, read: Callable[[], float]) -> Input:
        """The program input behind a `scalar`."""
        node = Input(TensorType((), dtypes.float64), name=f"scalar{len(self.scalars)}")
        self.scalars.append(Scalar(read, node))
        return node

    def stream(self, generator: Any) -> tuple[Value, Value]:
        """Seed and offset of the next random stream."""
        draws = self.draws.get(id(generator))
        if draws is None:
            kind = TensorType((), dtypes.int64)
            draws = Draws(generator, Input(kind, name="seed"), Input(kind, name="offset"))
            self.draws[id(generator)] = draws
        from_start = draws.count
        draws.count += 1
        return draws.seed, _plus(draws.offset, from_start)

    # Guards

    def guard(self, read: Callable[[], Any]) -> Any:
        """The value of `read()`, which a replay needs to be the same."""
        value = read()
        self.guards.append((read, value))
        return value

    def touch(self, thing: Any) -> None:
        """Note that a module or optimizer was used: its structure is guarded."""
        self.touched[id(thing)] = thing

    def created(self, undo: Callable[[], Any]) -> None:
        """Note state that was made for real; a failed capture takes it back."""
        self.undo.append(undo)

    def renewing(self, view: Tensor) -> None:
        """A view is about to get its history from its base's; a failed capture takes it back."""
        before = view._node, view._output, view._view_version

        def undo() -> None:
            view._node, view._output, view._view_version = before

        self.undo.append(undo)

    def roll_back(self) -> None:
        """Take back what was made for real."""
        self.restore_history()
        for undo in reversed(self.undo):
            undo()

    def restore_history(self) -> bool:
        """Put back history, grad flag and hooks of tensors that existed before; whether any had changed."""
        changed = False
        known = [(source.owner, source.before) for source in self.real_sources()]
        for t, history in (*known, *self.viewed.values()):
            if _history(t) != history:
                changed = True
                t._node, t._output, t._requires_grad, *hooks = history
                for table, before in zip((t._hooks, t._post_accumulate_hooks), hooks, strict=True):
                    if table is not None:
                        table.clear()
                        table.update(before)
        return changed

    def require_same_history(self) -> None:
        """Refuse a call that changed the history of a tensor that existed before: it would not replay.

        A write that a gradient flows through gives its tensor a new history, as do `requires_grad_` and
        hooks.
        """
        if self.restore_history():
            raise TraceError(
                "a tensor made before the call gets a history, a grad flag or a hook inside: make it outside"
            )

    def real_sources(self) -> list[Source]:
        """Memory that existed before, in the order it was met."""
        return [s for s in self.sources.values() if s.input is not None]


def _is_plain(x: Any) -> bool:
    """Whether nothing of a user's can be behind an argument."""
    kind = type(x)
    return kind in _PLAIN or (
        issubclass(kind, tuple) and kind.__module__ in _OWN_TUPLES and all(map(_is_plain, x))
    )


def _history(t: Tensor) -> tuple[Any, ...]:
    return t._node, t._output, t._requires_grad, *hooks_of(t)


def hooks_of(t: Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """The hooks of a leaf: on its gradient, and after that was added."""
    return dict(t._hooks or {}), dict(t._post_accumulate_hooks or {})


def _plus(offset: Input, count: int) -> Value:
    return add.trace(offset, count) if count else offset


def checks_of(graph: Graph) -> list[Value]:
    """For each application that may be given bad input, a bool value that is true where it is."""
    found = []
    for node in graph.nodes:
        if isinstance(node, Apply) and node.op.check is not None:
            failed = node.op.check.failed(*node.inputs, **node.attrs)
            if isinstance(failed, Value):
                found.append(failed)
    return found
