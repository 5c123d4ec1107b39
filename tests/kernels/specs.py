"""Specs that both back ends are tested with."""

from __future__ import annotations

from kernels import dtypes
from kernels.spec import PRODUCT, Call, Literal, Load, MatmulSpec, Operand, Store

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
