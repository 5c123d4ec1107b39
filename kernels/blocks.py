"""What a back end is asked to build of a set of kernels that hand large values on to each other: a nest over
outer axes and two long ones, of which a program has a block of one and walks the other.

Products over short axes make values along both long axes, products along the walked one sum them up. Names no
sizes and no addresses; knows nothing of any back end's syntax.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property

from kernels.dtypes import DType
from kernels.spec import Call, Index, Literal, Load, Operand, Reduce, Store, text_of, used
from kernels.work import Work

Axes = frozenset[int]


@dataclass(frozen=True)
class Dot:
    """`out` = operand `own` (along the block's axis and `axis`) times operand `walked` (along `axis` and the
    walked one), summed over `axis`, in `dtype`: float32 or float64.
    """

    out: str
    own: int
    walked: int
    axis: int
    dtype: DType


@dataclass(frozen=True)
class Total:
    """`out` = `value`, rounded to `factor`, times `operand` (along the walked axis and `axis`), summed over
    the walked axis in `dtype`.
    """

    out: str
    value: str
    operand: int
    axis: int
    factor: DType
    dtype: DType


BlockStep = Load | Literal | Index | Call | Reduce | Store | Dot | Total


def needs(step: BlockStep) -> tuple[str, ...]:
    """The values that a step uses."""
    match step:
        case Dot():
            return ()
        case Total(value=value):
            return (value,)
    return used(step)


def operands_of(step: BlockStep) -> tuple[int, ...]:
    """The operands that a step reads or writes."""
    match step:
        case Dot(own=own, walked=walked):
            return own, walked
        case Load(operand=operand) | Index(operand=operand) | Store(operand=operand) | Total(operand=operand):
            return (operand,)
    return ()


@dataclass(frozen=True)
class BlockSpec:
    """Axes: `outer` ones, the one of which each program has a block, the walked one, then `depths` short
    ones. Operands have a stride for each. `steps` are in SSA order; a `Reduce` combines along the walked
    axis, and nothing goes to a computed position.
    """

    name: str
    outer: int
    depths: int
    operands: tuple[Operand, ...]
    steps: tuple[BlockStep, ...] = field(repr=False)

    @property
    def axes(self) -> int:
        """Number of axes."""
        return self.outer + 2 + self.depths

    @property
    def own(self) -> int:
        """The axis of which a program has a block."""
        return self.outer

    @property
    def walked(self) -> int:
        """The axis that every program walks."""
        return self.outer + 1

    def along(self, operand: int) -> Axes:
        """The axes of a tile along which an operand's address varies."""
        strides = self.operands[operand].strides
        return frozenset(a for a in range(self.outer, self.axes) if strides[a] != 0)

    @cached_property
    def varies(self) -> dict[str, Axes]:
        """The axes of a tile along which each value varies."""
        found: dict[str, Axes] = {}
        for step in self.steps:
            match step:
                case Load(out, operand) | Index(out, operand):
                    found[out] = self.along(operand)
                case Literal(out):
                    found[out] = frozenset()
                case Call(out, _, inputs):
                    found[out] = frozenset[int]().union(*(found[x] for x in inputs))
                case Reduce(out):
                    found[out] = frozenset((self.own,))
                case Dot(out):
                    found[out] = frozenset((self.own, self.walked))
                case Total(out, axis=axis):
                    found[out] = frozenset((self.own, axis))
                case Store():
                    pass
        return found

    @cached_property
    def named(self) -> dict[str, BlockStep]:
        """The step that makes each value."""
        return {s.out: s for s in self.steps if not isinstance(s, Store)}

    @cached_property
    def written(self) -> frozenset[int]:
        """Operands that are written."""
        return frozenset(s.operand for s in self.steps if isinstance(s, Store))

    @cached_property
    def read(self) -> frozenset[int]:
        """Operands whose memory is read."""
        reading = (s for s in self.steps if isinstance(s, Load | Dot | Total))
        return frozenset(o for s in reading for o in operands_of(s))

    @cached_property
    def digest(self) -> str:
        """Hash of the structure; two specs that differ only in `name` share a kernel."""
        text = repr((self.outer, self.depths, self.operands, self.steps))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        axes = [f"outer{i}" for i in range(self.outer)] + ["own", "walked"]
        axes += [f"depth{i}" for i in range(self.depths)]
        operands = [f"  p{i}: {o.dtype.name}{list(o.strides)}" for i, o in enumerate(self.operands)]
        head = f"blocks {self.name}({', '.join(axes)})"
        return "\n".join([head, *operands, *(f"  {_text(s)}" for s in self.steps)])


def _text(step: BlockStep) -> str:
    match step:
        case Dot(out, own, walked, axis, dtype):
            return f"{out} = p{own} times p{walked} over axis {axis}: {dtype.name}"
        case Total(out, value, operand, axis, factor, dtype):
            return f"{out} = {value} as {factor.name} times p{operand} along axis {axis}: {dtype.name}"
        case Reduce(out, value, combine, dtype):
            return f"{out} = {combine} of {value}: {dtype.name}"
    return text_of(step)


@dataclass(frozen=True)
class BlockWork:
    """A spec with sizes, as `kernels.work.Work` is of a loop."""

    spec: BlockSpec
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    varying: frozenset[int] = frozenset()
    parts: int = 0

    @property
    def elements(self) -> int:
        """Points along the outer axes and the two long ones."""
        return math.prod(self.extents[: self.spec.outer + 2])

    @property
    def index_strides(self) -> tuple[int, ...]:
        """None of its operands is indexed."""
        return (0,) * len(self.strides)


AnyWork = Work | BlockWork
