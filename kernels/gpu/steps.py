"""The text of single steps of a kernel: arithmetic, and loads and stores at the indices of a tile.

Knows the names that the kernel gives to indices and masks, not how it cuts its work. Operand o starts at
p<o> and has strides s<o>_<axis>, and s<o>_i for what is indexed. A value's shape follows from the dimensions
of the tile along which it varies: 1 elsewhere, and a scalar where it varies along none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import vocabulary
from kernels.source import Source
from kernels.spec import Call, Index, Literal, Load, LoopSpec, Reduce, Scan, Step, Store

Dims = frozenset[int]


@dataclass
class Steps:
    """Writes steps of `spec` to `out`, each as one line in which values bear their own names.

    `index` names the index along each axis, `dimension` says along which dimension of the tile it varies (a
    scalar has none), `mask` names the mask of each dimension that needs one.
    """

    spec: LoopSpec
    index: dict[int, str]
    dimension: dict[int, int]
    mask: dict[int, str]
    out: Source = field(default_factory=Source)
    # Of each value: the dimensions it varies along, and its dtype.
    varies: dict[str, Dims] = field(default_factory=dict)
    dtype: dict[str, DType] = field(default_factory=dict)
    # Sizes and strides that the text names.
    used: dict[str, None] = field(default_factory=dict)

    def compute(self, step: Step) -> None:
        """Write the line of any step but a reduction or a scan."""
        match step:
            case Load(out, operand, index):
                dtype = self.spec.operands[operand].dtype
                dims = self.dims(operand, index)
                address = self.address(operand, index)
                self.name(out, vocabulary.load(address, dtype, self.masked(dims)), dims, dtype)
            case Literal(out, value, dtype):
                self.name(out, vocabulary.literal(value, dtype), frozenset(), dtype)
            case Index(out, operand):
                self.name(out, self.address(operand), self.dims(operand), dtypes.int64)
            case Call(out, function, inputs, dtype):
                dims = frozenset[int]().union(*(self.varies[x] for x in inputs))
                text = vocabulary.call(function, inputs, [self.dtype[x] for x in inputs], dtype)
                self.name(out, text, dims, dtype)
            case Store(value, operand, index):
                self.out.line(self.store(value, operand, index))
            case Reduce() | Scan():
                raise AssertionError("how a kernel walks its rows is its own affair")

    def name(self, out: str, text: str, dims: Iterable[int], dtype: DType) -> None:
        """Write the line that gives a value its name."""
        self.out.line(f"{out} = {text}")
        self.varies[out], self.dtype[out] = frozenset(dims), dtype

    def store(self, value: str, operand: int, index: str | None) -> str:
        """The statement that stores a value; with `index`, that adds it there, whatever else does."""
        dtype = self.spec.operands[operand].dtype
        dims = self.dims(operand, index)
        address = self.address(operand, index)
        if index is None:
            return vocabulary.store(address, value, dtype, self.masked(dims))
        mask = self.masked(dims | self.varies[value])
        return f'tl.atomic_add({address}, {value}{mask and f", {mask}"}, sem="relaxed")'

    def dims(self, operand: int, index: str | None = None) -> Dims:
        """The dimensions along which an operand's address varies."""
        strides = self.spec.operands[operand].strides
        own = {self.dimension[a] for a, s in enumerate(strides) if s != 0 and a in self.dimension}
        return frozenset(own) | (self.varies[index] if index else frozenset())

    def masked(self, dims: Iterable[int]) -> str:
        """The mask of a tile that varies along some dimensions; empty where it needs none."""
        return " & ".join(self.mask[d] for d in sorted(dims) if d in self.mask)

    def address(self, operand: int, index: str | None = None) -> str:
        """An operand's address at the tile's indices."""
        terms = [f"p{operand}"]
        for axis, stride in enumerate(self.spec.operands[operand].strides):
            if stride == 1:
                terms.append(self.index[axis])
            elif stride != 0:
                terms.append(f"{self.index[axis]} * {self.use(f's{operand}_{axis}')}")
        if index:
            terms.append(f"{index} * {self.use(f's{operand}_i')}")
        return " + ".join(terms)

    def use(self, name: str) -> str:
        """The name of a size or a stride, which becomes a parameter."""
        self.used[name] = None
        return name
