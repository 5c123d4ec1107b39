"""Misuse: PyTorch's error types, and messages that say what was given."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import framework as fw

x = fw.ones(2, 3)


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (lambda: x + fw.ones(4), RuntimeError, r"\[2, 3\] and \[4\]"),
        (lambda: x @ fw.ones(4, 2), RuntimeError, "2x3 and 4x2"),
        (lambda: x @ fw.ones(3, 2, dtype=fw.float64), RuntimeError, "float32 != float64"),
        (lambda: x.view(7), RuntimeError, "invalid for input of size 6"),
        (lambda: x.view(-1, -1), RuntimeError, "only one dimension"),
        (lambda: x.reshape(-1, 4), RuntimeError, "invalid for input of size 6"),
        (lambda: x.sum(2), IndexError, "Dimension out of range"),
        (lambda: x.sum("rows"), TypeError, "a dimension must be an int, not str: 'rows'"),
        (lambda: fw.cat([x, x], 1.0), TypeError, "a dimension must be an int, not float"),
        (lambda: fw.cat([x, x], 2), IndexError, "Dimension out of range"),
        (lambda: x.sum((0, 0)), RuntimeError, "twice"),
        (lambda: x.transpose(0, 5), IndexError, "Dimension out of range"),
        (lambda: x.permute(0, 0), RuntimeError, "each of them once"),
        (lambda: x.expand(4, 3), RuntimeError, "must match the existing size"),
        (lambda: x.split([1, 3]), RuntimeError, "sum exactly to 2"),
        (lambda: x.chunk(0), RuntimeError, "greater than 0"),
        (lambda: fw.cat([]), RuntimeError, "non-empty"),
        (lambda: fw.cat([x, fw.ones(2, 2, 2)]), RuntimeError, "same number of dimensions"),
        (lambda: fw.cat([x, fw.ones(2, 4)]), RuntimeError, "except in dimension 0"),
        (lambda: fw.stack([x, fw.ones(3)]), RuntimeError, "equal size"),
        (lambda: -fw.tensor([True]), RuntimeError, "bool tensor"),
        (lambda: x.clamp(), RuntimeError, "must not be None"),
        (lambda: fw.where(x, 1, 2), RuntimeError, "boolean tensor"),
        (lambda: x.narrow(0, 1, 2), RuntimeError, "exceeds dimension size"),
        (lambda: fw.zeros(-1), RuntimeError, "negative dimension"),
        (lambda: fw.arange(0, 5, 0), RuntimeError, "nonzero"),
        (lambda: fw.arange(0, 5, -1), RuntimeError, "step sign"),
        (lambda: x.gather(0, fw.tensor([0])), RuntimeError, "same number of dimensions"),
        (lambda: x.gather(0, x), RuntimeError, "int64"),
        (lambda: fw.tensor([1]).requires_grad_(), RuntimeError, "floating point"),
        (lambda: x.argmax(3), IndexError, "Dimension out of range"),
        (lambda: fw.einsum("ij,jk", x), RuntimeError, "operands"),
        (lambda: fw.einsum("ij"), ValueError, "at least one operand"),
        (lambda: fw.einsum("ij->ik", x), RuntimeError, "output subscript k does not appear"),
        (lambda: fw.einsum("ij->ijj", x), RuntimeError, "subscript j appears more than once"),
        (lambda: fw.einsum("i1->i", x), RuntimeError, "invalid subscript '1'"),
        (lambda: fw.einsum("ij->j->i", x), RuntimeError, "invalid subscript '-'"),
        (lambda: fw.einsum(x, [0, 52]), RuntimeError, r"within \[0, 52\)"),
        (lambda: fw.stack([x, 1]), TypeError, "expected Tensor as element 1"),
        (lambda: fw.cat([1]), TypeError, "expected Tensor as element 0"),
        (lambda: fw.tensor(1).split(1), RuntimeError, "at least a 1-dimensional"),
        (lambda: fw.tensor(1).chunk(1), RuntimeError, "at least a 1-dimensional"),
        (lambda: x.split(), TypeError, "needs the size"),
        (lambda: (x > 0).topk(1), RuntimeError, "does not support bool"),
        (lambda: fw.multinomial(fw.ones(2), 3), RuntimeError, "cannot sample"),
        (lambda: x.half().masked_fill(x > 0, -1e9), RuntimeError, "to type float16 without overflow"),
        (lambda: x.masked_fill(x > 0, 1e39), RuntimeError, "to type float32 without overflow"),
        (lambda: x.char().masked_fill(x > 0, 300), RuntimeError, "to type int8 without overflow"),
        (lambda: x.long().masked_fill(x > 0, math.inf), RuntimeError, "to type int64 without overflow"),
        (lambda: fw.tensor(1).t()[0], IndexError, "too many indices"),
        (lambda: x + "a", TypeError, "unsupported operand"),
        (lambda: x.to("nowhere"), RuntimeError, "Invalid device string"),
        (lambda: fw.zeros("a"), TypeError, "ints"),
        (lambda: fw.ones(3).mm(x), RuntimeError, "two matrices"),
        (lambda: setattr(x.detach(), "grad", fw.ones(5)), RuntimeError, "different size"),
    ],
)
def test_misuse(misuse: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        misuse()
