"""The text of single steps of a loop nest: arithmetic, and loads and stores at the nest's indices.

Knows the names the nest gives to addresses, strides and indices, not how the nest is built. Operand o lies
at address p<o> and has strides s<o>_<axis>; i<axis> and c<axis> index row and inner axes, `j` is the first
lane's index on the vector's axis and `active` the mask of the lanes inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels import dtypes
from kernels.dtypes import DType
from kernels.source import Source
from kernels.spec import KERNEL, ROW, RUNTIME, Call, Index, Literal, Load, LoopSpec, Reduce, Scan, Step


@dataclass
class Steps:
    """Writes steps of `spec` to `out`, each as one line in which values bear their own names."""

    spec: LoopSpec
    lanes: int
    out: Source = field(default_factory=Source)

    def __post_init__(self) -> None:
        self.dtype = _dtypes(self.spec)

    def compute(self, step: Step) -> None:
        """Write the line that gives a Load, Literal, Index or Call its value."""
        line = self.out.line
        match step:
            case Load(out, operand, index):
                line(f"{out} = {self.load(operand, index)}")
            case Literal(out, value, dtype):
                number = repr(float(value)) if dtype.is_floating_point else repr(int(value))
                line(f"{out} = constant_{dtype.arithmetic.name}({number})")
            case Index(out, operand):
                stride, start = self.vector_stride(operand), f"p{operand} + {self.base(operand)}"
                lanes = f"{start}, 0" if stride == "0" else f"{start} + j * {stride}, {stride}"
                line(f"{out} = steps({lanes})")
            case Call(out, "cast", (value,), dtype):
                source = self.dtype[value].arithmetic
                # A cast to a 16-bit type rounds; the value stays in float32 lanes.
                line(f"{out} = cast_{source.name}_{dtype.name}({value})")
            case Call(out, function, inputs):
                line(f"{out} = {function}({', '.join(inputs)})")

    @property
    def vector_axis(self) -> int:
        """The axis along which the lanes of a vector lie."""
        return self.spec.axes - 1 if self.spec.vector == "inner" else self.spec.rows - 1

    def index(self, axis: int) -> str:
        """The scalar index of a non-vector axis."""
        return f"i{axis}" if axis < self.spec.rows else f"c{axis}"

    def base(self, operand: int) -> str:
        """Offset of an operand along every axis but the vector's."""
        terms = []
        for axis, stride in enumerate(self.spec.operands[operand].strides):
            if stride == 0 or axis == self.vector_axis:
                continue
            terms.append(self.index(axis) + ("" if stride == 1 else f" * s{operand}_{axis}"))
        return " + ".join(terms) or "0"

    def vector_stride(self, operand: int) -> str:
        """ "0", "1", or the name of the operand's stride along the vector axis."""
        stride = self.spec.operands[operand].strides[self.vector_axis]
        return f"s{operand}_{self.vector_axis}" if stride == RUNTIME else str(stride)

    def load(self, operand: int, index: str | None) -> str:
        """The expression that loads a vector of an operand, at `index` if that is given."""
        name, base = self.spec.operands[operand].dtype.name, self.base(operand)
        stride = self.vector_stride(operand)
        if index is not None:
            # Outside the loop over the vector's axis every lane holds the same index, and no mask is made.
            level = max(self.spec.operand_level(operand), self.spec.levels[index])
            uniform = level == KERNEL or (level == ROW and self.spec.vector == "inner")
            lanes = f"mask({self.lanes})" if uniform else "active"
            return f"gather_{name}(p{operand}, {self.indexed(operand, index)}, {lanes})"
        if stride == "0":
            return f"load_one_{name}(p{operand}, {base})"
        if stride == "1":
            return f"load_{name}(p{operand}, {base} + j, active)"
        return f"gather_{name}(p{operand}, steps({base} + j * {stride}, {stride}), active)"

    def indexed(self, operand: int, index: str) -> str:
        """The offsets of an operand that is addressed by a value."""
        stride = self.vector_stride(operand)
        start = self.base(operand) + ("" if stride == "0" else f" + j * {stride}")
        return f"add(steps({start}, {stride}), mul({index}, steps(s{operand}_i, 0)))"

    def store(self, value: str, operand: int, index: str | None) -> str:
        """The statement that stores a vector to an operand, or adds it there at `index`."""
        name, base = self.spec.operands[operand].dtype.name, self.base(operand)
        stride = self.vector_stride(operand)
        if index is not None:
            return f"scatter_add_{name}(p{operand}, {self.indexed(operand, index)}, {value}, active)"
        if stride == "0":
            return f"store_one_{name}(p{operand}, {base}, {value})"
        if stride == "1":
            return f"store_{name}(p{operand}, {base} + j, {value}, active)"
        return f"scatter_{name}(p{operand}, steps({base} + j * {stride}, {stride}), {value}, active)"


def _dtypes(spec: LoopSpec) -> dict[str, DType]:
    known: dict[str, DType] = {}
    for step in spec.steps:
        match step:
            case Load(out, operand):
                known[out] = spec.operands[operand].dtype
            case Literal(out, _, dtype) | Call(out, _, _, dtype):
                known[out] = dtype
            case Reduce(out=out, dtype=dtype) | Scan(out=out, dtype=dtype):
                known[out] = dtype
            case Index(out):
                known[out] = dtypes.int64
    return known
