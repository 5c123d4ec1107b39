"""Named kernels, written as specs by hand: what a benchmark measures, and examples of what a spec can say.

Each is a function of a dtype and sizes; nothing here runs. Sizes are (elements,) of an elementwise kernel,
(rows, columns) of one over rows, ([batch,] m, k, n) of a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels import dtypes
from kernels.cpu.matmul import block, walk
from kernels.cpu.target import lanes
from kernels.dtypes import DType
from kernels.files import Placed, placed
from kernels.recorder import Recorder, Register
from kernels.spec import (
    PRODUCT,
    RUNTIME,
    Call,
    Load,
    LoopSpec,
    MatmulSpec,
    Operand,
    Reduce,
    Scan,
    Step,
    Store,
    Stride,
    pattern,
)
from kernels.work import Work

Sizes = tuple[int, ...]
# What one operand looks like to NumPy.
Shape = tuple[int, ...]
Make = Callable[[DType, Sizes], Placed]
ELEMENTWISE, ROWS, MATMUL = "elementwise", "rows", "matmul"
# Far beyond caches. Not a power of two: arrays that lie so far apart collide in memory, and a copy of 2**24
# float32 takes 1.5 times as long.
DEFAULT_SIZES: dict[str, Sizes] = {
    ELEMENTWISE: (16_000_000,),
    ROWS: (4000, 4096),
    MATMUL: (1024, 1024, 1024),
}
# Products in a batch from which on threads need not share a product.
_MANY = 16
# AdamW's options: learning rate, decay of the means, epsilon, weight decay; and the step's corrections.
RATE, BETA1, BETA2, EPSILON, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2
CORRECTION1, CORRECTION2 = 1 - BETA1**10, 1 - BETA2**10


@dataclass(frozen=True)
class Named:
    """A kernel of the library: `make(dtype, sizes)` is the kernel, `shapes(sizes)` one shape per operand."""

    name: str
    family: str
    make: Make
    shapes: Callable[[Sizes], Sequence[Shape]]
    words: str
    default: Sizes = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", self.default or DEFAULT_SIZES[self.family])


class LoopBuilder(Recorder):
    """A loop spec being written: operands are added as they are loaded and stored, words are methods.

    k = LoopBuilder("relu", rows=1)
    k.store(k.maximum(k.load(float32, (1,)), 0.0), float32, (1,))
    """

    def __init__(self, name: str, rows: int, inner: int = 0, vector: str = "") -> None:
        super().__init__()
        self.name, self.rows, self.inner = name, rows, inner
        self.vector = vector or ("inner" if inner else "rows")
        self.operands: list[Operand] = []

    def operand(self, dtype: DType, strides: Sequence[Stride]) -> int:
        """A new operand's number."""
        self.operands.append(Operand(dtype, tuple(strides)))
        return len(self.operands) - 1

    def load(self, dtype: DType, strides: Sequence[Stride], index: Register | None = None) -> Register:
        """The element of a new operand, at `index` if one is given, in the dtype arithmetic runs in."""
        out = self.fresh(dtype.arithmetic)
        self.steps.append(Load(out.name, self.operand(dtype, strides), index.name if index else None))
        return out

    def store(self, value: Register, dtype: DType, strides: Sequence[Stride]) -> None:
        """Write `value`, rounded to `dtype`, to a new operand."""
        self.overwrite(self.operand(dtype, strides), value)

    def overwrite(self, operand: int, value: Register) -> None:
        """Write `value`, rounded to the operand's dtype, to an operand that there is."""
        dtype = self.operands[operand].dtype
        self.steps.append(Store(self.cast(value, dtype).name, operand))

    def reduce(self, value: Register, combine: str) -> Register:
        """`value` combined over the inner axes: "add", "mul", "max" or "min"."""
        out = self.fresh(value.dtype)
        self.steps.append(Reduce(out.name, value.name, combine, value.dtype))
        return out

    def scan(self, value: Register, combine: str, factor: Register | None = None) -> Register:
        """`value` combined with all before it along the inner axis, which `factor` multiplies each time."""
        out = self.fresh(value.dtype)
        name = factor.name if factor else None
        self.steps.append(Scan(out.name, value.name, combine, value.dtype, name))
        return out

    def spec(self) -> LoopSpec:
        """The spec written so far."""
        operands, steps = tuple(self.operands), tuple(self.steps)
        return LoopSpec(self.name, self.rows, self.inner, self.vector, operands, steps)


# Elementwise --------------------------------------------------------------------------------------

Body = Callable[..., Any]


def _gelu(k: Any, x: Any) -> Any:
    return k.mul(k.mul(x, 0.5), k.add(k.erf(k.mul(x, math.sqrt(0.5))), 1.0))


def _gelu_tanh(k: Any, x: Any) -> Any:
    cubic = k.add(x, k.mul(k.mul(x, k.mul(x, x)), 0.044715))
    return k.mul(k.mul(x, 0.5), k.add(k.tanh(k.mul(cubic, math.sqrt(2 / math.pi))), 1.0))


_ELEMENTWISE: dict[str, tuple[int, Body, str]] = {
    "copy": (1, lambda k, x: x, "y = x"),
    "add": (2, lambda k, x, y: k.add(x, y), "z = x + y"),
    "triad": (2, lambda k, x, y: k.add(x, k.mul(y, 3.0)), "z = x + 3 y"),
    "relu": (1, lambda k, x: k.maximum(x, 0.0), "y = max(x, 0)"),
    "exp": (1, lambda k, x: k.exp(x), "y = exp x"),
    "log": (1, lambda k, x: k.log(x), "y = log x"),
    "tanh": (1, lambda k, x: k.tanh(x), "y = tanh x"),
    "erf": (1, lambda k, x: k.erf(x), "y = erf x"),
    "sin": (1, lambda k, x: k.sin(x), "y = sin x"),
    "sigmoid": (1, lambda k, x: k.sigmoid(x), "y = 1 / (1 + exp -x)"),
    "silu": (1, lambda k, x: k.mul(x, k.sigmoid(x)), "y = x sigmoid x"),
    "gelu": (1, _gelu, "y = x / 2 (1 + erf(x / √2))"),
    "gelu_tanh": (1, _gelu_tanh, "GELU by tanh"),
}


def elementwise(name: str, inputs: int, body: Body, dtype: DType, sizes: Sizes) -> Placed:
    """The kernel that stores `body(k, *elements)` of `inputs` contiguous operands."""
    k = LoopBuilder(name, rows=1)
    k.store(body(k, *[k.load(dtype, (1,)) for _ in range(inputs)]), dtype, (1,))
    return _bound(k, sizes)


def _adamw(dtype: DType, sizes: Sizes) -> Placed:
    """Parameter, gradient, mean and mean square; all but the gradient are read and written."""
    k: Any = LoopBuilder("adamw", rows=1)
    p, g, m, v = (k.load(dtype, (1,)) for _ in range(4))
    m = k.add(k.mul(m, BETA1), k.mul(g, 1 - BETA1))
    v = k.add(k.mul(v, BETA2), k.mul(k.mul(g, g), 1 - BETA2))
    size = k.add(k.mul(k.sqrt(v), CORRECTION2**-0.5), EPSILON)
    p = k.sub(k.mul(p, 1 - RATE * DECAY), k.div(k.mul(m, RATE / CORRECTION1), size))
    for operand, value in ((0, p), (2, m), (3, v)):
        k.overwrite(operand, value)
    return _bound(k, sizes)


# Over rows ----------------------------------------------------------------------------------------

_ROW, _COLUMN, _EACH = (RUNTIME, 1), (1, 0), (0, 1)


def _softmax(k: Any, x: Any) -> Any:
    exponential = k.exp(k.sub(x, k.reduce(x, "max")))
    return k.div(exponential, k.reduce(exponential, "add"))


def _log_softmax(k: Any, x: Any) -> Any:
    shifted = k.sub(x, k.reduce(x, "max"))
    return k.sub(shifted, k.log(k.reduce(k.exp(shifted), "add")))


def _row_by_row(name: str, body: Body, dtype: DType, sizes: Sizes) -> Placed:
    """The kernel that stores `body(k, x)` of rows x."""
    k = LoopBuilder(name, rows=1, inner=1)
    k.store(body(k, k.load(dtype, _ROW)), dtype, _ROW)
    return _bound(k, sizes)


def _layer_norm(dtype: DType, sizes: Sizes) -> Placed:
    k: Any = LoopBuilder("layer_norm", rows=1, inner=1)
    x, weight, bias = (k.load(dtype, strides) for strides in (_ROW, _EACH, _EACH))
    centred = k.sub(x, k.div(k.reduce(x, "add"), float(sizes[1])))
    variance = k.div(k.reduce(k.mul(centred, centred), "add"), float(sizes[1]))
    scale = k.rsqrt(k.add(variance, 1e-5))
    k.store(k.add(k.mul(k.mul(centred, scale), weight), bias), dtype, _ROW)
    return _bound(k, sizes)


def _rms_norm(dtype: DType, sizes: Sizes) -> Placed:
    k: Any = LoopBuilder("rms_norm", rows=1, inner=1)
    x, weight = k.load(dtype, _ROW), k.load(dtype, _EACH)
    scale = k.rsqrt(k.add(k.div(k.reduce(k.mul(x, x), "add"), float(sizes[1])), 1e-5))
    k.store(k.mul(k.mul(x, scale), weight), dtype, _ROW)
    return _bound(k, sizes)


def _cross_entropy(dtype: DType, sizes: Sizes) -> Placed:
    """log sum exp of each row, less the logit of its target."""
    rows, columns = sizes
    k: Any = LoopBuilder("cross_entropy", rows=1, inner=1)
    x, target = k.load(dtype, _ROW), k.load(dtypes.int64, _COLUMN)
    chosen = k.load(dtype, (RUNTIME, 0), target)
    most = k.reduce(x, "max")
    total = k.reduce(k.exp(k.sub(x, most)), "add")
    k.store(k.sub(k.add(k.log(total), most), chosen), dtype, _COLUMN)
    strides = ((columns, 1), (1, 0), (columns, 0), (1, 0))
    work = Work(k.spec(), sizes, strides, (0, 0, 1, 0))
    return Placed(work, (0, 1, 0, 2), (0, 0, 0, 0), (rows * columns, rows, rows))


def _row_reduction(name: str, combine: str, dtype: DType, sizes: Sizes) -> Placed:
    k = LoopBuilder(name, rows=1, inner=1)
    k.store(k.reduce(k.load(dtype, _ROW), combine), dtype, _COLUMN)
    return _bound(k, sizes)


def _running_sum(k: Any, x: Any) -> Any:
    return k.scan(x, "add")


def _recurrence(dtype: DType, sizes: Sizes) -> Placed:
    """Each row's y = factor * (y before) + x."""
    k = LoopBuilder("recurrence", rows=1, inner=1)
    factor, x = k.load(dtype, _ROW), k.load(dtype, _ROW)
    k.store(k.scan(x, "add", factor), dtype, _ROW)
    return _bound(k, sizes)


def _column_sum(dtype: DType, sizes: Sizes) -> Placed:
    """Sums down the columns; lanes run along them, and the loop over (columns, rows) walks downwards."""
    rows, columns = sizes
    k = LoopBuilder("column_sum", rows=1, inner=1, vector="rows")
    k.store(k.reduce(k.load(dtype, (1, RUNTIME)), "add"), dtype, _COLUMN)
    return placed(Work(k.spec(), (columns, rows), ((1, columns), (1, 0)), (0, 0)))


def _bound(k: LoopBuilder, sizes: Sizes) -> Placed:
    """The kernel over `sizes`; a stride that is not known is a row's length."""
    strides = tuple(tuple(sizes[-1] if s == RUNTIME else int(s) for s in o.strides) for o in k.operands)
    return placed(Work(k.spec(), sizes, strides, (0,) * len(strides)))


# Matrix products ----------------------------------------------------------------------------------


def matmul(name: str, form: str, dtype: DType, sizes: Sizes) -> Placed:
    """C = A B for sizes ([batch,] m, k, n), everything contiguous; "t" in `form` for a factor stored
    transposed.
    """
    *batch, m, k, n = sizes
    wide = dtype.arithmetic
    many = math.prod(batch) >= _MANY
    rows, vectors = block(m, n, lanes(), wide is dtypes.float64, many, strided=form[0] == "t")
    left = (1, m) if form[0] == "t" else (k, 1)
    right = (1, k) if form[1] == "t" else (n, 1)
    strides = [
        (*((size,) if batch else ()), *(0 if extent == 1 else s for s, extent in zip(own, ext, strict=True)))
        for own, ext, size in (
            (left, (m, k), m * k),
            (right, (k, n), k * n),
            ((n, 1), (m, n), m * n),
        )
    ]
    # A row of C and of a B that is not transposed is contiguous, be it one element long.
    strides[2] = (*strides[2][:-1], 1)
    operands = tuple(Operand(dtype, tuple(pattern(s) for s in own)) for own in strides)
    steps: tuple[Step, ...] = (Store(PRODUCT, 2),)
    if wide is not dtype:
        steps = (Call("rounded", "cast", (PRODUCT,), dtype), Store("rounded", 2))
    walked = walk(m, n, (k,), operands, (rows, vectors), lanes())
    spec = MatmulSpec(name, len(batch), wide, rows, vectors, operands, steps, walk=walked)
    return placed(Work(spec, (*batch, m, n, k), tuple(strides), (0, 0, 0)))


def _same(count: int, sizes: Sizes) -> Sequence[Shape]:
    return [sizes] * count


def _matmul_shapes(form: str, sizes: Sizes) -> Sequence[Shape]:
    *batch, m, k, n = sizes
    left = (k, m) if form[0] == "t" else (m, k)
    right = (n, k) if form[1] == "t" else (k, n)
    return [(*batch, *left), (*batch, *right), (*batch, m, n)]


# The library --------------------------------------------------------------------------------------


def _entries() -> Iterator[Named]:
    for name, (inputs, body, words) in _ELEMENTWISE.items():
        make: Make = partial(elementwise, name, inputs, body)
        yield Named(name, ELEMENTWISE, make, partial(_same, inputs + 1), words)
    yield Named("adamw", ELEMENTWISE, _adamw, partial(_same, 4), "AdamW: parameter, gradient, two moments")
    for name, body in (("softmax", _softmax), ("log_softmax", _log_softmax)):
        yield Named(name, ROWS, partial(_row_by_row, name, body), partial(_same, 2), f"{name} of rows")
    yield Named("layer_norm", ROWS, _layer_norm, lambda s: [s, s[1:], s[1:], s], "with weight and bias")
    yield Named("rms_norm", ROWS, _rms_norm, lambda s: [s, s[1:], s], "with weight")
    yield Named(
        "cross_entropy", ROWS, _cross_entropy, lambda s: [s, s[:1], s, s[:1]], "a loss per row, of a target"
    )
    for name, combine in (("row_sum", "add"), ("row_max", "max")):
        yield Named(name, ROWS, partial(_row_reduction, name, combine), lambda s: [s, s[:1]], "of each row")
    row_by_row = partial(_row_by_row, "running_sum", _running_sum)
    yield Named("running_sum", ROWS, row_by_row, partial(_same, 2), "of each row, up to each element")
    yield Named("recurrence", ROWS, _recurrence, partial(_same, 3), "y = factor * (y before) + x in each row")
    yield Named("column_sum", ROWS, _column_sum, lambda s: [s, s[1:]], "sums down the columns")
    for form in ("nn", "nt", "tn", "tt"):
        name = "matmul" if form == "nn" else f"matmul_{form}"
        words = "C = " + " ".join(x + ("ᵀ" if f == "t" else "") for x, f in zip("AB", form, strict=True))
        yield Named(name, MATMUL, partial(matmul, name, form), partial(_matmul_shapes, form), words)
    yield Named(
        "batched_matmul",
        MATMUL,
        partial(matmul, "batched_matmul", "nn"),
        partial(_matmul_shapes, "nn"),
        "a batch of products",
        (96, 128, 64, 128),
    )


LIBRARY: dict[str, Named] = {kernel.name: kernel for kernel in _entries()}
