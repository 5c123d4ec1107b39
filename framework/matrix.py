"""Matrix products and diagonals: matmul and its relatives, einsum.

All reduce to the one contraction op.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from compiler.ops.compare import eq
from compiler.ops.compare import where as select_where
from compiler.ops.contraction import dot as dot_product
from compiler.ops.contraction import matmul as contract
from compiler.ops.creation import iota
from framework.apply import apply_op, create_op
from framework.elementwise import add, labelled, mul, sub
from framework.graph import shape_of
from framework.joining import atleast_2d
from framework.reductions import norm
from framework.reductions import sum as sum_over
from framework.size import axis_index
from framework.tensor import Tensor
from framework.views import (
    adjoint,
    broadcast_tensors,
    cat,
    permute,
    reshape,
    sliced,
    squeeze,
    stack,
    unsqueeze,
)
from kernels import dtypes
from kernels.dtypes import DType

_BOOL = dtypes.bool_.numpy
# Names of einsum; lists of labels number them in this order.
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def _product(a: Tensor, b: Tensor) -> Tensor:
    left, right = a._data, b._data
    if left is None or right is None or left.dtype is not right.dtype or left.dtype is _BOOL:
        _require_numbers(a.dtype, b.dtype)
    return apply_op(contract, (a, b), {})


def _require_numbers(dtype: DType, other: DType) -> None:
    if dtype is not other:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {dtype.name} != {other.name}"
        )
    if dtype is dtypes.bool_:
        raise RuntimeError("matmul is not implemented for 'Bool'; convert with int() or float()")


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Matrix product: vectors as rows or columns, leading dimensions broadcast."""
    a, b = input, other
    left, right = shape_of(a), shape_of(b)
    if len(left) == 2 == len(right):
        return _mm(a, b, left, right)
    if not left or not right:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D; use * "
            "with scalars"
        )
    if len(left) == 1 == len(right):
        return dot(a, b)
    if len(left) == 1:
        return squeeze(matmul(unsqueeze(a, 0), b), -2)
    if len(right) == 1:
        return squeeze(matmul(a, unsqueeze(b, 1)), -1)
    if len(right) == 2 and len(left) > 2:
        # One large product instead of one per batch element, and no broadcast copy of b's gradient.
        rows = mm(reshape(a, (math.prod(left[:-1]), left[-1])), b)
        return labelled("UnsafeViewBackward0", reshape(rows, (*left[:-1], right[-1])))
    return labelled("BmmBackward0", _product(a, b))


def _mm(a: Tensor, b: Tensor, left: tuple[int, ...], right: tuple[int, ...]) -> Tensor:
    (m, k), (rows, n) = left, right
    if k != rows:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {rows}x{n}); "
            "the inner sizes must be equal"
        )
    return labelled("MmBackward0", _product(a, b))


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Product of two matrices."""
    if input.ndim != 2 or mat2.ndim != 2:
        raise RuntimeError(f"mm needs two matrices, got {input.ndim}D and {mat2.ndim}D; use matmul")
    return _mm(input, mat2, shape_of(input), shape_of(mat2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Products of two batches of matrices."""
    if input.ndim != 3 or mat2.ndim != 3:
        raise RuntimeError(
            f"bmm needs two batches of matrices, got {input.ndim}D and {mat2.ndim}D; use matmul"
        )
    if input.shape[0] != mat2.shape[0] or input.shape[2] != mat2.shape[1]:
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{input.shape[0]}, "
            f"{input.shape[2]}] but got: "
            f"[{mat2.shape[0]}, {mat2.shape[1]}]."
        )
    return labelled("BmmBackward0", _product(input, mat2))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Product of a matrix and a vector."""
    if input.ndim != 2 or vec.ndim != 1 or input.shape[1] != vec.shape[0]:
        raise RuntimeError(
            f"size mismatch, got input ({list(input.shape)}), vec ({list(vec.shape)}); inner sizes must agree"
        )
    return labelled("MvBackward0", matmul(input, vec))


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Sum of products of two vectors."""
    left, right = shape_of(input), shape_of(tensor)
    if len(left) != 1 or len(right) != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.ndim}D and {tensor.ndim}D tensors")
    if left != right:
        raise RuntimeError(
            "inconsistent tensor size, expected tensor "
            f"{list(input.shape)} and src {list(tensor.shape)} to have the same number of elements"
        )
    _require_numbers(input.dtype, tensor.dtype)
    return apply_op(dot_product, (input, tensor), {})


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Products of every pair of elements of two vectors."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise RuntimeError(f"outer: Expected 1-D arguments, but got {input.ndim}D and {vec2.ndim}D")
    return mul(unsqueeze(input, 1), vec2)


def _scaled_sum(input: Tensor, product: Tensor, beta: Any, alpha: Any, name: str) -> Tensor:
    product = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        # PyTorch: nan and inf of `input` are ignored then.
        return product
    return labelled(name, add(input if beta == 1 else mul(input, beta), product))


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    return _scaled_sum(input, mm(mat1, mat2), beta, alpha, "AddmmBackward0")


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return _scaled_sum(input, mv(mat, vec), beta, alpha, "AddmvBackward0")


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    return _scaled_sum(input, outer(vec1, vec2), beta, alpha, "AddrBackward0")


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2)."""
    return _scaled_sum(input, bmm(batch1, batch2), beta, alpha, "BaddbmmBackward0")


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sum of products over the last dimensions."""
    if input.ndim == 0 or other.ndim == 0:
        return mul(input, other)
    flat = matmul(reshape(input, (-1, input.shape[-1])), adjoint(reshape(other, (-1, other.shape[-1]))))
    return reshape(flat, (*input.shape[:-1], *other.shape[:-1]))


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sum of products over `dims`: a number of adjoining dimensions, or a list for each operand."""
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        pairs = [given if isinstance(given, tuple | list) else (given,) for given in dims]
        pairs = pairs if len(pairs) == 2 else [pairs[0], pairs[0]]
        left, right = ([axis_index(d, x.ndim) for d in given] for given, x in zip(pairs, (a, b), strict=True))
    if len(left) != len(right):
        raise RuntimeError(f"tensordot needs as many dimensions of each operand, got {left} and {right}")
    for i, j in zip(left, right, strict=True):
        if a.shape[i] != b.shape[j]:  # one of them is 1, and stands for all
            a = sum_over(a, i, keepdim=True) if b.shape[j] == 1 else a
            b = sum_over(b, j, keepdim=True) if a.shape[i] == 1 else b
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    count = math.prod(a.shape[i] for i in left)
    rows = reshape(permute(a, free_a + left), (math.prod(a.shape[i] for i in free_a), count))
    columns = reshape(permute(b, right + free_b), (count, math.prod(b.shape[i] for i in free_b)))
    return reshape(mm(rows, columns), (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b)))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as the last dimension; a view where strides allow."""
    a, b = axis_index(dim1, input.ndim), axis_index(dim2, input.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rest = [i for i in range(input.ndim) if i not in (a, b)]
    x = permute(input, (*rest, a, b))
    rows, columns = x.shape[-2:]
    row, column = max(-offset, 0), max(offset, 0)
    count = max(min(rows - row, columns - column), 0)
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    start = row * columns + column if count else 0
    stop = start + (count - 1) * (columns + 1) + 1 if count else 0
    return labelled("DiagonalBackward0", sliced(flat, flat.ndim - 1, start, stop, columns + 1))


def diag_embed(input: Tensor, offset: int = 0) -> Tensor:
    """Square matrices with the last dimension on a diagonal, zeros elsewhere."""
    n = input.shape[-1]
    size = n + abs(offset)
    row = create_op(input, iota, {"shape": (n, size, size), "axis": 1, "dtype": dtypes.int64})
    column = create_op(input, iota, {"shape": (n, size, size), "axis": 2, "dtype": dtypes.int64})
    element = create_op(input, iota, {"shape": (n, size, size), "axis": 0, "dtype": dtypes.int64})
    here = (row == element + max(-offset, 0)) & (column == element + max(offset, 0))
    spread = apply_op(select_where, (here, reshape(input, (*input.shape, 1, 1)), 0), {})
    return labelled("DiagEmbedBackward0", sum_over(spread, -3, dtype=input.dtype))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with the vector on a diagonal, or a diagonal of the matrix."""
    if input.ndim not in (1, 2):
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D")
    return diag_embed(input, diagonal) if input.ndim == 1 else _diagonal_copy(input, diagonal)


def _diagonal_copy(input: Tensor, offset: int) -> Tensor:
    return labelled("DiagonalBackward0", diagonal(input, offset).clone())


def trace(input: Tensor) -> Tensor:
    """Sum of the main diagonal of a matrix."""
    if input.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    return labelled("TraceBackward0", sum_over(diagonal(input)))


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sum of products over named indices, e.g. "bij,bjk->bik"; `...` stands for leading dimensions.

    Also `einsum(a, [0, 1], b, [1, 2], [0, 2])`, with numbers as names.
    """
    if isinstance(equation, Tensor):
        equation, operands = _from_lists(equation, *operands)
    tensors = (
        list(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else list(operands)
    )
    if not tensors:
        raise ValueError("einsum(): must specify the equation string and at least one operand")
    inputs, output = _parse(equation, tensors)
    labels, result = _without_repeats(inputs[0], tensors[0])
    for i, (other_labels, other) in enumerate(zip(inputs[1:], tensors[1:], strict=True), 1):
        later = set(output).union(*inputs[i + 1 :])
        labels, result = _contract_pair(labels, result, *_without_repeats(other_labels, other), later)
    labels, result = _summed_alone(labels, result, set(output))
    return permute(result, [labels.index(n) for n in output])


def _from_lists(*given: Any) -> tuple[str, tuple[Tensor, ...]]:
    """The equation and the operands of (operand, labels) pairs, which may end in the labels of the output."""
    pairs, rest = given[: len(given) // 2 * 2], given[len(given) // 2 * 2 :]
    terms = [_letters(labels) for labels in pairs[1::2]]
    equation = ",".join(terms) + "".join(f"->{_letters(labels)}" for labels in rest)
    return equation, pairs[::2]


def _letters(labels: Sequence[Any]) -> str:
    if any(n is not Ellipsis and not 0 <= n < len(_LETTERS) for n in labels):
        raise RuntimeError(
            f"einsum(): expected subscripts to be within [0, {len(_LETTERS)}), got {list(labels)}"
        )
    return "".join("..." if n is Ellipsis else _LETTERS[n] for n in labels)


def _check_output(output: list[str], inputs: list[list[str]]) -> None:
    """Raise RuntimeError for an output that repeats or invents a name."""
    known = {name for labels in inputs for name in labels}
    for name in output:
        if name not in known:
            raise RuntimeError(
                f"einsum(): output subscript {name} does not appear in the equation for any input operand"
            )
        if output.count(name) > 1:
            raise RuntimeError(f"einsum(): output subscript {name} appears more than once in the output")


def _parse(equation: str, tensors: list[Tensor]) -> tuple[list[list[str]], list[str]]:
    """Labels of each operand and of the output; dimensions under `...` are "0", "1", … from the right."""
    equation = equation.replace(" ", "")
    for name in equation.replace("...", "").replace("->", "", 1):
        if name not in _LETTERS and name != ",":
            raise RuntimeError(
                f"einsum(): invalid subscript {name!r} in the equation {equation!r}, subscripts must be in "
                "[a-zA-Z]"
            )
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise RuntimeError(f"einsum(): {len(terms)} subscripts in {equation!r} but {len(tensors)} operands")
    inputs, ellipsis = [], 0
    for term, x in zip(terms, tensors, strict=True):
        head, dots, tail = term.partition("...")
        hidden = x.ndim - len(head) - len(tail)
        if hidden < 0 or (hidden and not dots):
            raise RuntimeError(
                f"einsum(): the number of subscripts in the equation ({len(head) + len(tail)}) does not "
                "match the number of "
                f"dimensions ({x.ndim}) for operand {len(inputs)} and no ellipsis was given"
            )
        ellipsis = max(ellipsis, hidden)
        inputs.append([*head, *(str(k) for k in reversed(range(hidden))), *tail])
    hidden_labels = [str(k) for k in reversed(range(ellipsis))]
    if arrow:
        head, dots, tail = right.partition("...")
        _check_output([*head, *tail], inputs)
        return inputs, [*head, *(hidden_labels if dots else []), *tail]
    counts = [n for labels in inputs for n in labels]
    return inputs, hidden_labels + sorted(n for n in set(counts) if counts.count(n) == 1 and not n.isdigit())


def _without_repeats(labels: list[str], x: Tensor) -> tuple[list[str], Tensor]:
    """The diagonal over every label that occurs twice in one operand."""
    for name in labels:
        if labels.count(name) > 1:
            a = labels.index(name)
            b = labels.index(name, a + 1)
            size = x.shape[a]
            shape = tuple(size if i in (a, b) else 1 for i in range(x.ndim))
            rows = create_op(x, iota, {"shape": shape, "axis": a, "dtype": dtypes.int64})
            columns = create_op(x, iota, {"shape": shape, "axis": b, "dtype": dtypes.int64})
            kept = apply_op(select_where, (apply_op(eq, (rows, columns), {}), x, 0), {})
            return _without_repeats(labels[:b] + labels[b + 1 :], sum_over(kept, b, dtype=x.dtype))
    return labels, x


def _contract_pair(
    left: list[str], a: Tensor, right: list[str], b: Tensor, later: set[str]
) -> tuple[list[str], Tensor]:
    """The product of two operands, summed over labels that nothing later needs."""
    left, a = _summed_alone(left, a, later | set(right))
    right, b = _summed_alone(right, b, later | set(left))
    batch = [n for n in left if n in right and n in later]
    summed = [n for n in left if n in right and n not in later]
    rows = [n for n in left if n not in right]
    columns = [n for n in right if n not in left]
    sizes = {
        n: max(x.shape[k.index(n)] for k, x in ((left, a), (right, b)) if n in k) for n in {*left, *right}
    }
    x = _grouped(a, left, (batch, rows, summed), sizes)
    y = _grouped(b, right, (batch, summed, columns), sizes)
    names = [*batch, *rows, *columns]
    return names, reshape(_product(x, y), tuple(sizes[n] for n in names))


def _summed_alone(labels: list[str], x: Tensor, needed: set[str]) -> tuple[list[str], Tensor]:
    alone = [k for k, n in enumerate(labels) if n not in needed]
    return ([n for n in labels if n in needed], sum_over(x, alone, dtype=x.dtype)) if alone else (labels, x)


def _grouped(x: Tensor, labels: list[str], groups: tuple[list[str], ...], sizes: dict[str, int]) -> Tensor:
    """Dimensions merged into one per group, size-1 ones first grown to the common size."""
    order = [n for group in groups for n in group]
    x = permute(x, [labels.index(n) for n in order]).expand(*(sizes[n] for n in order)) if order else x
    return reshape(x, tuple(math.prod(sizes[n] for n in group) for group in groups))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Sum of products of two vectors."""
    return dot(input, other)


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product of three-element vectors along `dim` (the first of size 3)."""
    a, b = broadcast_tensors(input, other)
    if dim is None:
        dim = next((i for i, n in enumerate(a.shape) if n == 3), -1)
    axis = axis_index(dim, a.ndim)
    if a.shape[axis] != 3:
        raise RuntimeError(f"cross: inputs dimension {axis} must have length 3. Got {a.shape[axis]}")
    x, y, z = a.unbind(axis)
    u, v, w = b.unbind(axis)
    return stack([y * w - z * v, z * u - x * w, x * v - y * u], axis)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements on a diagonal."""
    return diag_embed(reshape(input, (-1,)), offset)


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere."""
    blocks = [atleast_2d(x) for x in tensors]
    width = sum(x.shape[1] for x in blocks)
    rows, at = [], 0
    for x in blocks:
        left = x.new_zeros(x.shape[0], at)
        right = x.new_zeros(x.shape[0], width - at - x.shape[1])
        rows.append(cat([left, x, right], 1))
        at += x.shape[1]
    return cat(rows, 0)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """p-norm distances between every row of `x1` and every row of `x2`."""
    return labelled("CdistBackward0", norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p, -1))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Every element of `input` times all of `other`, as blocks."""
    rank = max(input.ndim, other.ndim)
    a = reshape(input, (*(1,) * (rank - input.ndim), *input.shape))
    b = reshape(other, (*(1,) * (rank - other.ndim), *other.shape))
    spread = mul(
        reshape(a, tuple(n for size in a.shape for n in (size, 1))),
        reshape(b, tuple(n for size in b.shape for n in (1, size))),
    )
    return reshape(spread, tuple(n * m for n, m in zip(a.shape, b.shape, strict=True)))
