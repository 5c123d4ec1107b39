"""The IR: immutable nodes in a graph that is defined by its outputs.

Nodes compare by identity. A graph is a tuple of inputs and a tuple of outputs; everything between is reached
from the outputs, in the order the nodes were made. Knows ops only as names with a type rule.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from compiler.errors import TraceError
from compiler.types import TensorType, type_of_array
from compiler.where import GradientLine
from kernels.dtypes import DType

if TYPE_CHECKING:
    from compiler.ops.op import Op

_next_serial = itertools.count().__next__
_serial_of = operator.attrgetter("serial")


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor of a graph. `where` is the user's file:line that made it; `serial` orders by creation."""

    type: TensorType
    where: str = field(default="", kw_only=True, repr=False)
    serial: int = field(default_factory=_next_serial, kw_only=True, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as an ndarray's."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.type.shape)

    def __bool__(self) -> NoReturn:
        raise TraceError(
            f"Python reads the value of a {self.type}: "
            "use where(condition, x, y) for a branch, or return the tensor and read it outside @compile"
        )

    __float__ = __int__ = __index__ = __array__ = __iter__ = __bool__


@dataclass(frozen=True, eq=False)
class Input(Value):
    """A value the caller provides at every run."""

    name: str = ""


@dataclass(frozen=True, eq=False)
class Const(Value):
    """An array known when the graph was made; a 0-d one is a literal of the kernels that use it."""

    data: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(()), repr=False)


@dataclass(frozen=True, eq=False)
class Measure(Value):
    """A number computed from symbolic sizes, without axes.

    A program for given sizes holds it as memory, so that its kernels serve every size.
    """

    size: Any = None


@dataclass(frozen=True, eq=False, init=False)
class Apply(Value):
    """An op applied to values."""

    op: Op = field(kw_only=True)
    inputs: tuple[Value, ...] = field(kw_only=True)
    attrs: Mapping[str, Any] = field(kw_only=True)

    # A program is made of tens of thousands: what `dataclass` writes for a frozen class takes twice as long.
    def __init__(
        self,
        type: TensorType,
        *,
        op: Op,
        inputs: tuple[Value, ...],
        attrs: Mapping[str, Any],
        where: str = "",
        serial: int | None = None,
    ) -> None:
        fields = self.__dict__
        fields["type"] = type
        fields["where"] = where
        fields["serial"] = _next_serial() if serial is None else serial
        fields["op"] = op
        fields["inputs"] = inputs
        fields["attrs"] = attrs

    def with_inputs(self, inputs: tuple[Value, ...]) -> Apply:
        """The same application to other inputs; `self` when nothing changes."""
        if inputs == self.inputs:  # values compare by identity
            return self
        made = Apply(self.type, where=self.where, op=self.op, inputs=inputs, attrs=self.attrs)
        text = self.__dict__.get("attrs_text")
        if text is not None:
            made.__dict__["attrs_text"] = text
        return made

    @cached_property
    def attrs_text(self) -> str:
        """The attributes as what tells them from others: to a dict 0.0 is -0.0, and 1 is True."""
        return repr(sorted(self.attrs.items())) if self.attrs else ""


def constant(data: Any, where: str = "") -> Const:
    """A Const of an array (which must not change afterwards)."""
    array = np.asarray(data)
    return Const(type_of_array(array), data=array, where=where)


@dataclass(frozen=True, eq=False)
class Graph:
    """A pure function from `inputs` to `outputs`."""

    inputs: tuple[Input, ...]
    outputs: tuple[Value, ...]

    @cached_property
    def nodes(self) -> tuple[Value, ...]:
        """Inputs in their order, then every constant and application an output needs, operands first."""
        reached: dict[Value, None] = dict.fromkeys(self.inputs)
        given = len(reached)
        stack = list(dict.fromkeys(self.outputs))
        reached |= dict.fromkeys(stack)
        while stack:
            value = stack.pop()
            if isinstance(value, Apply):
                for x in value.inputs:
                    if x not in reached:
                        reached[x] = None
                        stack.append(x)
        # A node is made after its operands, so creation order is a topological order.
        return (*self.inputs, *sorted(itertools.islice(reached, given, None), key=_serial_of))

    @cached_property
    def users(self) -> dict[Value, tuple[Apply, ...]]:
        """Every node's applications that read it, in node order."""
        users: dict[Value, list[Apply]] = {v: [] for v in self.nodes}
        for v in self.nodes:
            if isinstance(v, Apply):
                for x in v.inputs if len(v.inputs) < 2 else dict.fromkeys(v.inputs):
                    users[x].append(v)
        return {v: tuple(u) for v, u in users.items()}

    @cached_property
    def reads(self) -> Counter[Value]:
        """How many applications read each node: the number of its users."""
        read: list[Value] = []
        for v in self.nodes:
            if isinstance(v, Apply):
                read += v.inputs if len(v.inputs) < 2 else dict.fromkeys(v.inputs)
        return Counter(read)

    def __str__(self) -> str:
        names = {v: f"%{i}" for i, v in enumerate(self.nodes)}
        lines = [f"{name}: {v.type} = {_describe(v, names)}" for v, name in names.items()]
        return "\n".join([*lines, f"return {', '.join(names[v] for v in self.outputs)}"])


def graph_among(inputs: tuple[Input, ...], outputs: tuple[Value, ...], values: Iterable[Value]) -> Graph:
    """A graph whose nodes are all among `inputs` and `values`, which are about in order: to sort those and
    leave out what is not needed takes half as long as to search from the outputs.
    """
    order = sorted(dict.fromkeys(values), key=_serial_of)
    needed = set(outputs)
    for value in reversed(order):
        if isinstance(value, Apply) and value in needed:
            needed.update(value.inputs)
    needed.difference_update(inputs)
    graph = Graph(inputs, outputs)
    graph.__dict__["nodes"] = (*inputs, *[v for v in order if v in needed])
    return graph


def _describe(value: Value, names: Mapping[Value, str]) -> str:
    match value:
        case Input(name=name):
            text = f'input "{name}"'
        case Const(data=data):
            text = f"const {data.item()!r}" if data.ndim == 0 else "const [...]"
        case Measure(size=size):
            text = f"size {size.text()}"
        case Apply(op=op, inputs=inputs, attrs=attrs):
            operands = [names[x] for x in inputs] + [f"{key}={item!r}" for key, item in attrs.items()]
            text = f"{op.name}({', '.join(operands)})"
        case _:
            raise AssertionError(f"no text for a {type(value).__name__}")
    where = value.where
    if not where:
        return text
    return f"{text}    # {where}{f', {where.words}' if isinstance(where, GradientLine) else ''}"
