"""The gradient graph: nodes, the values they save, and the gradient of one op.

Knows payloads and gradient rules; Tensors only as things with memory, a type and a version. The engine that
walks the graph is autograd.py.
"""

from __future__ import annotations

import dis
import itertools
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn

import numpy as np

from compiler.ir import Input
from compiler.ops.op import Op
from compiler.ops.reduction import sum_to
from compiler.sizes import any_symbolic, same_shape
from compiler.types import TensorType
from framework.deferred import Deferred
from framework.state import ambient, unusual
from kernels.gpu import arrays

# Nodes are numbered with gaps, so that a node that comes to stand for several leaves room for the others.
ROOM = 64
next_sequence = itertools.count(0, ROOM).__next__

UNUSED, TYPE_ONLY, VALUE = 0, 1, 2
_new = object.__new__


class Node:
    """One step of the graph. `edges` are (node, output number) of the inputs that need a gradient.

    That of a leaf is (the tensor, 0): a node for each would take as long to make as the rest of a small op.

    A node is numbered after everything it depends on, so descending `sequence` is a valid order for backward.
    """

    __slots__ = ("__weakref__", "edges", "hooks", "label", "retained", "sequence")
    output_count = 1
    # Whether its gradient runs no user's code.
    is_ours = False

    def __init__(self, edges: tuple[Edge | None, ...], label: str | None = None) -> None:
        self.edges = edges
        self.label = label
        self.hooks: dict[int, Mapping[int, Callable[..., Any]]] | None = None
        self.retained: dict[int, weakref.ref[Any]] | None = None
        self.sequence = next_sequence()

    def name(self) -> str:
        """Name of the operation, as PyTorch spells it: `MulBackward0`."""
        return self.label or type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The (node, output number) pairs gradients flow to."""
        return tuple([(None, 0) if edge is None else (_node_of(edge[0]), edge[1]) for edge in self.edges])

    @property
    def below(self) -> list[Node]:
        """The nodes gradients flow to; leaves are none."""
        return [edge[0] for edge in self.edges if edge is not None and isinstance(edge[0], Node)]

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        """One gradient per edge from one gradient per output. `unpack` turns the saved entries of an OpNode
        into its rules' arguments, checked."""
        raise NotImplementedError(f"{type(self).__name__} defines no gradients")

    def release(self) -> None:
        """Let go of saved values; a later `gradients` that needs them raises RuntimeError."""

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


Edge = tuple[Any, int]


class Saved:
    """A value kept for backward, with the version it had. `tensor` is the input it came from, None for an
    output."""

    # Filled in by who makes one: an __init__ would take as long as the rest.
    __slots__ = ("data", "edge", "storage", "tensor", "version")

    data: Any
    storage: Any
    version: int
    tensor: Any
    edge: Edge | None

    @staticmethod
    def made(data: Any, storage: Any, version: int, tensor: Any) -> Saved:
        """A value with all that is known of it."""
        entry = Saved()
        entry.data = data
        entry.storage = storage
        entry.version = version
        entry.tensor = tensor
        entry.edge = None
        return entry

    def check(self, node: Node) -> None:
        """Raise RuntimeError when the value was modified in place since it was saved."""
        if self.storage is None:
            return
        asked = self.tensor if ambient.tracer is not None else None
        current = self.storage.version if asked is None else asked._version
        if current != self.version:
            dtype = self.data.dtype
            shape = f"{dtype.name} {list(self.data.shape)}"
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                "operation: "
                f"[{shape}], which {node.name()} saved, is at version {current}; expected version "
                f"{self.version} instead. "
                "Hint: use the out-of-place operation, or clone() the tensor before modifying it."
            )

    def freeze(self, edge: Edge | None) -> None:
        """Keep the value, and the `edge` of its history, as they are now, whatever is written to the tensor
        later."""
        self.edge = edge
        if arrays.is_array(self.data):
            self.data = self.data.copy()
        elif isinstance(self.data, Deferred):
            self.data = self.data.kept()
        self.storage = None


# The one element of every TypeOnly array; bytes make it read-only.
_ZERO = bytes(8)


class TypeOnly:
    """Stands for a value of which a rule reads only shape and dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def array(self) -> Any:
        """An array of this type that holds one element; where sizes are symbolic an input of no program."""
        if any_symbolic(self.shape):
            return Input(TensorType(self.shape, self.dtype), name="only its type is read")
        # np.broadcast_to takes ten times as long.
        return np.ndarray(self.shape, self.dtype.numpy, _ZERO, 0, (0,) * len(self.shape))


class OpNode(Node):
    """The gradient of one op application."""

    # `call` is of the subclass alone, which turns into this class and so has its layout; `line` the user's of
    # the op, which recordings note.
    __slots__ = ("attrs", "call", "line", "op", "positions", "saved", "shapes")

    op: Op
    attrs: Mapping[str, Any]
    positions: tuple[int, ...]
    saved: list[Any] | None
    shapes: tuple[tuple[int, ...], ...]

    __init__ = object.__init__  # type: ignore[assignment]  # filled in by who makes one, as a Saved is

    @classmethod
    def made(
        cls,
        op: Op,
        attrs: Mapping[str, Any],
        edges: tuple[Edge | None, ...],
        positions: tuple[int, ...],
        saved: list[Any] | None,
        shapes: tuple[tuple[int, ...], ...],
    ) -> OpNode:
        """A node with the next number."""
        node = _new(cls)
        node.edges = edges
        node.label = node.hooks = node.retained = None
        node.sequence = next_sequence()
        node.op = op
        node.attrs = attrs
        node.positions = positions
        node.saved = saved
        node.shapes = shapes
        return node

    def name(self) -> str:
        return self.label or "".join(part.capitalize() for part in self.op.name.split("_")) + "Backward0"

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        if self.saved is None:
            raise_freed()
        arguments = (grads[0], *unpack(self))
        rules: Any = self.op.grads
        if len(self.positions) == 1 and not self.op.variadic:  # as most: half a µs sooner
            g, shape = rules[self.positions[0]](*arguments, **self.attrs), self.shapes[0]
            fits = g.shape == shape if type(g) is np.ndarray else same_shape(g.shape, shape)
            return [g if fits else sum_to(g, shape)]
        results = []
        for position, shape in zip(self.positions, self.shapes, strict=True):
            rule: Any = self.op.gradient(position) if self.op.variadic else rules[position]
            g = rule(*arguments, **self.attrs)
            fits = g.shape == shape if type(g) is np.ndarray else same_shape(g.shape, shape)
            results.append(g if fits else sum_to(g, shape))
        return results

    def release(self) -> None:
        for entry in self.saved or ():
            if type(entry) is Saved:
                self.saved = None
                return


class AccumulateGrad(Node):
    """Stands for a leaf where users look at the graph."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        super().__init__(())
        self.tensor = tensor

    @property
    def variable(self) -> Any:
        """The leaf."""
        return self.tensor


def _node_of(end: Any) -> Node:
    if isinstance(end, Node):
        return end
    node = None if end._accumulator is None else end._accumulator()
    if node is None:
        node = AccumulateGrad(end)
        end._accumulator = weakref.ref(node)
    return node


def raise_freed() -> NoReturn:
    """Raise the error of a second backward through released values."""
    raise RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or "
        "autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to "
        "access "
        "saved tensors after calling backward."
    )


def shape_of(t: Any) -> tuple[int, ...]:
    """The shape of a Tensor as a plain tuple, which costs nothing."""
    data = t._data
    if data is None:
        return tuple(t.shape) if t._traced is None else t._traced.shape
    return data.shape


def saved_entry(t: Any, level: int, is_output: bool = False) -> Saved | TypeOnly:
    """What a node keeps of a Tensor of which rules read a VALUE or TYPE_ONLY."""
    if level == TYPE_ONLY:
        return TypeOnly(shape_of(t), t.dtype)
    assert level == VALUE, f"unknown level {level}"
    tracer = ambient.tracer if unusual.threads else None
    storage = t._memory or t._storage
    if tracer is None:
        # An output is not kept itself: its node would keep it, and it its node.
        version = storage.writes + storage.clock.time
        return Saved.made(t._data, storage, version, None if is_output else t)
    return Saved.made(tracer.read(t), storage, tracer.version(t), None if is_output and tracer.drives else t)


@cache
def saved_levels(op: Op, count: int, wanted: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The inputs a gradient flows to, of the `count` whose bit is set in `wanted`, and what their rules read:
    (0 for the output or 1 + the input's number, TYPE_ONLY or VALUE).

    Read off the rules' code, so that an op saves, and protects from in-place changes, only what its backward
    uses.
    """
    positions = tuple(i for i in range(count) if wanted >> i & 1 and op.gradient(i) is not None)
    levels = [UNUSED] * (count + 1)
    for position in positions:
        # A variadic rule only splits the gradient: it reads shapes.
        found = [TYPE_ONLY] * (count + 1) if op.variadic else _levels_of_rule(op.gradient(position), count)
        levels = [max(pair) for pair in zip(levels, found, strict=True)]
    return positions, tuple((slot, level) for slot, level in enumerate(levels) if level != UNUSED)


def _levels_of_rule(rule: Any, count: int) -> list[int]:
    code = getattr(rule, "__code__", None)
    if code is None:
        return [VALUE] * (count + 1)
    levels = dict.fromkeys(code.co_varnames, UNUSED)
    loads = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    for before, instruction, following in zip([None, *loads[:-1]], loads, [*loads[1:], None], strict=True):
        if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            continue
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        field = following is not None and following.opname == "LOAD_ATTR" and following.argval in _TYPE_FIELDS
        reads_type = field or (before is not None and before.argval in _TYPE_FUNCTIONS)
        for name in names:
            level = TYPE_ONLY if reads_type and name == names[-1] else VALUE
            levels[name] = max(levels.get(name, UNUSED), level)
    named = [levels[name] for name in code.co_varnames[1 : code.co_argcount]]
    rest = (
        levels[code.co_varnames[code.co_argcount + code.co_kwonlyargcount]] if code.co_flags & 4 else UNUSED
    )
    return (named + [rest] * (count + 1))[: count + 1]


_TYPE_FIELDS = ("shape", "dtype", "ndim")
_TYPE_FUNCTIONS = ("dtype_of", "full_like")
