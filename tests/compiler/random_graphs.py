"""Random graphs over the op table, for laws of passes and programs.

Values stay small and finite, and every op is drawn with the operands and attributes it is defined on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler import ops
from compiler.ir import Graph, Input, Value
from compiler.types import TensorType
from kernels import dtypes
from kernels.dtypes import DType

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# Exact on every back end: the bits do not depend on who computes.
EXACT_UNARY = ("neg", "abs", "relu", "square", "sign")
ROUNDING = ("floor", "ceil", "trunc", "round")
EXACT_BINARY = ("add", "sub", "mul", "maximum", "minimum")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
INEXACT_UNARY = ("sigmoid", "tanh", "sin", "cos", "erf", "exp")


@dataclass
class Maker:
    """Grows one random graph, node by node. `exact` keeps to ops whose bits are the same everywhere."""

    rng: np.random.Generator
    dtype: DType
    exact: bool
    values: list[Value]

    def pick(self, *kinds: DType) -> Value:
        """A value of one of the dtypes, the newest most likely."""
        found = [v for v in self.values if v.dtype in kinds]
        at = min(int(self.rng.geometric(0.3)), len(found))
        return found[-at]

    def partner(self, x: Value) -> Value:
        """A value that broadcasts with `x`: made from any other by a reduction and a reshape if need be."""
        y = self.pick(x.dtype)
        try:
            shape = np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            shape = ()
        if shape and np.prod(shape) <= 600:
            return y
        z = ops.amax.trace(y, axes=tuple(range(y.ndim)))
        return ops.reshape.trace(z, shape=(1,) * int(self.rng.integers(0, 3)))

    def step(self) -> None:
        """Add one node."""
        makers: list[Callable[[], Value]] = [
            self.unary,
            self.binary,
            self.binary,
            self.compare_and_select,
            self.reduction,
            self.scan,
            self.view,
            self.view,
            self.copy,
            self.cast,
            self.index,
        ]
        self.values.append(makers[self.rng.integers(len(makers))]())

    def unary(self) -> Value:
        x = self.pick(self.dtype)
        names = (*EXACT_UNARY, *(ROUNDING if self.dtype.is_floating_point else ()))
        if not self.exact and self.rng.random() < 0.5:
            names = INEXACT_UNARY
            x = ops.minimum.trace(ops.maximum.trace(x, -4), 4)  # exp of a square overflows
        return ops.TABLE[str(self.rng.choice(names))].trace(x)

    def binary(self) -> Value:
        x = self.pick(self.dtype)
        op = ops.TABLE[str(self.rng.choice(EXACT_BINARY))]
        y = self.partner(x) if self.rng.random() < 0.8 else float(self.rng.integers(-2, 3))
        if not isinstance(y, Value) and not self.dtype.is_floating_point:
            y = int(y)
        out = op.trace(x, y) if self.rng.random() < 0.5 else op.trace(y, x)
        # Products of products would leave the range where errors stay relative.
        return ops.minimum.trace(ops.maximum.trace(out, -50), 50)

    def compare_and_select(self) -> Value:
        x = self.pick(self.dtype)
        y = self.partner(x)
        condition = ops.TABLE[str(self.rng.choice(COMPARISONS))].trace(x, y)
        return ops.where.trace(condition, x, y)

    def reduction(self) -> Value:
        x = self.pick(self.dtype)
        if x.ndim == 0 or 0 in x.shape:
            return ops.neg.trace(x)
        axes = tuple(sorted(self.rng.permutation(x.ndim)[: self.rng.integers(1, x.ndim + 1)].tolist()))
        names = ["amax", "amin"]
        if not self.exact or not self.dtype.is_floating_point:
            names += ["sum", "sum", "sum"]
        return ops.TABLE[str(self.rng.choice(names))].trace(x, axes=axes)

    def scan(self) -> Value:
        x = self.pick(self.dtype)
        if x.ndim == 0:
            return ops.neg.trace(x)
        names = ["cummax", "cummin"]
        if not self.exact or not self.dtype.is_floating_point:
            names += ["cumsum", "cumsum"]
        out = ops.TABLE[str(self.rng.choice(names))].trace(x, axis=int(self.rng.integers(x.ndim)))
        return ops.minimum.trace(ops.maximum.trace(out, -50), 50)

    def view(self) -> Value:
        x = self.pick(self.dtype)
        n = x.ndim
        kinds = ["reshape", "permute", "expand", "slice", "flip"]
        match str(self.rng.choice(kinds)):
            case "permute":
                return ops.permute.trace(x, axes=tuple(self.rng.permutation(n).tolist()))
            case "flip" if n:
                return ops.flip.trace(x, axes=(int(self.rng.integers(n)),))
            case "slice" if n:
                starts = [int(self.rng.integers(0, max(s, 1))) for s in x.shape]
                steps = [int(self.rng.integers(1, 3)) for _ in x.shape]
                return ops.slice.trace(x, starts=tuple(starts), stops=tuple(x.shape), steps=tuple(steps))
            case "expand" if x.type.size <= 100:
                shape = tuple(2 if s == 1 else s for s in x.shape)
                return ops.expand.trace(x, shape=(*((2,) if n < 3 else ()), *shape))
            case "reshape" if x.type.size:
                return ops.reshape.trace(x, shape=self.factored(x.type.size))
        return ops.neg.trace(x)

    def factored(self, size: int) -> Shape:
        """A random shape of `size` elements."""
        shape: list[int] = []
        for factor in (2, 3, 5):
            while size % factor == 0 and self.rng.random() < 0.6:
                shape.append(factor)
                size //= factor
        return tuple(self.rng.permutation([*shape, size]).tolist())

    def copy(self) -> Value:
        """Ops that need memory of their own: pad, concatenate, an update of a slice."""
        x = self.pick(self.dtype)
        n = x.ndim
        if not n or x.type.size > 200:
            return ops.relu.trace(x)
        axis = int(self.rng.integers(n))
        match int(self.rng.integers(3)):
            case 0:
                low = tuple(int(self.rng.integers(0, 2)) for _ in range(n))
                return ops.pad.trace(x, low=low, high=low[::-1], value=1)
            case 1:
                return ops.concatenate.trace(x, ops.neg.trace(x), axis=axis)
        stops = tuple(max(s - 1, 0) if a == axis else s for a, s in enumerate(x.shape))
        part = ops.slice.trace(x, starts=(0,) * n, stops=stops, steps=(1,) * n)
        return ops.slice_update.trace(x, ops.square.trace(part), starts=(0,) * n, stops=stops, steps=(1,) * n)

    def cast(self) -> Value:
        """To another dtype and back."""
        x = self.pick(self.dtype)
        other = self.rng.choice([dtypes.int32, dtypes.float64, dtypes.bool_, dtypes.int64])  # type: ignore[arg-type]
        small = ops.minimum.trace(ops.maximum.trace(x, -9), 9)
        return ops.cast.trace(ops.cast.trace(small, dtype=other), dtype=self.dtype)

    def index(self) -> Value:
        """take and gather, at positions made of a value."""
        x = self.pick(self.dtype)
        if not x.ndim or 0 in x.shape:
            return ops.neg.trace(x)
        axis = int(self.rng.integers(x.ndim))
        positions = ops.cast.trace(
            ops.abs.trace(ops.minimum.trace(ops.maximum.trace(x, -9), 9)), dtype=dtypes.int64
        )
        index = ops.remainder.trace(positions, x.shape[axis])
        if self.rng.random() < 0.5:
            return ops.gather.trace(x, index, axis=axis)
        flat = ops.slice.trace(
            ops.reshape.trace(index, shape=(index.type.size,)),
            starts=(0,),
            stops=(min(4, index.type.size),),
            steps=(1,),
        )
        return ops.take.trace(x, flat, axis=axis)


def random_graph(seed: int, dtype: DType, nodes: int = 14, exact: bool = True) -> tuple[Graph, list[Array]]:
    """A graph of about `nodes` nodes with three outputs, and arrays to run it on."""
    rng = np.random.default_rng(seed)
    shapes: list[Shape] = [(3, 4), (4,), (2, 3, 4), (3, 1)]
    inputs = tuple(Input(TensorType(s, dtype), name=f"x{i}") for i, s in enumerate(shapes))
    maker = Maker(rng, dtype, exact, list(inputs))
    for _ in range(nodes):
        maker.step()
    outputs = dict.fromkeys([maker.values[-1], maker.pick(dtype), maker.pick(dtype)])
    arrays = []
    for x in inputs:
        drawn = rng.normal(0, 2, x.shape) if dtype.is_floating_point else rng.integers(-5, 6, x.shape)
        arrays.append(np.asarray(drawn, dtype.numpy))
    return Graph(inputs, tuple(outputs)), arrays
