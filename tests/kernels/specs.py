"""Specs that both back ends are tested with."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels import dtypes
from kernels.dtypes import DType
from kernels.spec import PRODUCT, Call, Literal, Load, LoopSpec, MatmulSpec, Operand, Reduce, Scan, Store

ROW_MAJOR, TRANSPOSED = ("s", 1), (1, "s")


def epilogue_spec(block: tuple[int, int] = (4, 2)) -> MatmulSpec:
    """relu(a @ b + bias), transposed; that less a number a row, added in place to an operand; its mask."""
    f = dtypes.float32
    operands = (
        Operand(f, ROW_MAJOR),
        Operand(f, ROW_MAJOR),
        Operand(f, (0, 1)),  # bias
        Operand(f, TRANSPOSED),
        Operand(f, (1, 0)),  # one number a row
        Operand(f, ROW_MAJOR),  # read and written
        Operand(dtypes.bool_, ROW_MAJOR),
    )
    steps = (
        Load("bias", 2),
        Call("sum", "add", (PRODUCT, "bias"), f),
        Literal("zero", 0.0, f),
        Call("positive", "gt", ("sum", "zero"), dtypes.bool_),
        Call("relu", "where", ("positive", "sum", "zero"), f),
        Load("row", 4),
        Load("old", 5),
        Call("less", "sub", ("relu", "row"), f),
        Call("new", "add", ("old", "less"), f),
        Store("relu", 3),
        Store("new", 5),
        Store("positive", 6),
    )
    return MatmulSpec("epilogue", 0, f, *block, operands, steps)


def scan_spec(combine: str, dtype: DType, vector: str, factor: bool = False) -> LoopSpec:
    """Running totals of rows, and how far each is from the largest of its row."""
    operands = (Operand(dtype, ("s", 1)), Operand(dtype, (1, "s")), Operand(dtype, ("s", "s")))
    operands += (Operand(dtype, ("s", "s")),)
    wide = dtype.arithmetic
    steps = (
        Load("x", 0),
        *((Load("f", 1),) if factor else ()),
        Scan("t", "x", combine, wide, "f" if factor else None),
        Store("t", 2),
        Call("size", "maximum" if dtype is dtypes.bool_ else "mul", ("t", "t"), wide),
        Reduce("most", "size", "max", wide),
        Call("rest", "minimum" if dtype is dtypes.bool_ else "sub", ("most", "size"), wide),
        Store("rest", 3),
    )
    return LoopSpec("scan", 1, 1, vector, operands, steps)


def scan_arrays(dtype: DType, rows: int, size: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """Operands of such a spec and their strides: the factors lie transposed, the last result backwards."""
    rng = np.random.default_rng(rows * size)
    count = rows * size
    x = rng.integers(-3, 4, count).astype(dtype.numpy)
    if dtype.is_floating_point:
        x = ((x + 0.5) / 4).astype(dtype.numpy)  # of 0.0 and -0.0 either may be the maximum
    if dtype.is_floating_point and size > 5:
        x[[0, 4]] = -0.0, np.nan
    factors = rng.uniform(-1, 1, count).astype(dtype.numpy)
    return [x, factors, np.zeros_like(x), np.zeros_like(x)], [(size, 1), (1, rows), (size, 1), (size, 1)]
