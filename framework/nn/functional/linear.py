"""Linear maps, table look-up and attention."""

from __future__ import annotations

import math

from compiler.ops.compare import where
from compiler.ops.indexing import take
from framework.creation import arange
from framework.nn.functional.activation import softmax
from framework.nn.functional.dropout import dropout
from framework.state import composite
from framework.tensor import Tensor
from kernels import dtypes


@composite
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight.T + bias`: (..., in) with weight (out, in) to (..., out). RuntimeError when sizes
    differ.
    """
    if input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({list(input.shape)} and {list(weight.shape)} "
            f"transposed): the last size of the input must be {weight.shape[-1]}"
        )
    result = input @ weight.t()
    return result if bias is None else result + bias


@composite
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., k] = input1[..., i] * weight[k, i, j] * input2[..., j] + bias[k]."""
    rows = (input1.unsqueeze(-2).unsqueeze(-2) @ weight).squeeze(-2)
    result = (rows * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


@composite
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of `weight` at integer indices of any shape. Raises IndexError for negative or too large ones.

    The row `padding_idx` takes no gradient.
    """
    if input.dtype.category != dtypes.INTEGER:
        raise RuntimeError(f"Expected integer indices for embedding, got {input.dtype}: use input.long()")
    index = input.long()
    rows = take(weight, index, axis=0)
    if padding_idx is None:
        return rows
    return where((index == padding_idx % weight.shape[0]).unsqueeze(-1), rows.detach(), rows)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 tensor of one more dimension with 1 at each class index; -1 takes the largest index + 1 (reads
    values).
    """
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError(f"num_classes must be positive, got {num_classes}")
    # scatter checks the range, which comparing with arange would not.
    zeros = tensor.new_zeros((*tensor.shape, num_classes))
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)


@composite
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over (..., L, E), (..., S, E), (..., S, V).

    A bool mask keeps what is True, a floating one is added; `enable_gqa` repeats key and value heads
    (dimension -3).
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError("scaled_dot_product_attention: give attn_mask or is_causal=True, not both")
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        attn_mask = arange(rows).unsqueeze(1) >= arange(columns)
    if attn_mask is not None:
        is_bool = attn_mask.dtype is dtypes.bool_
        scores = where(attn_mask, scores, -math.inf) if is_bool else scores + attn_mask
    return dropout(softmax(scores, -1), dropout_p) @ value


@composite
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(norm of x along `dim`, eps)."""
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


@composite
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 / (|x1| |x2|) along `dim`, each norm at least `eps`."""
    norms = x1.norm(2, dim).clamp(min=eps) * x2.norm(2, dim).clamp(min=eps)
    return (x1 * x2).sum(dim) / norms
