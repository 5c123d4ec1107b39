"""Linear maps, table look-up, and lengths and angles of vectors."""

from __future__ import annotations

from compiler.ops.compare import where
from compiler.ops.indexing import take
from framework.creation import arange
from framework.state import composite
from framework.tensor import Tensor
from framework.views import broadcast_tensors
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
    if tensor.dtype is not dtypes.int64:
        raise RuntimeError(f"one_hot is only applicable to index tensor of dtype int64, got {tensor.dtype}")
    if num_classes == -1:
        if tensor.numel() == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        num_classes = int(tensor.max().item()) + 1
    if num_classes < 1:
        raise RuntimeError(f"num_classes must be positive, got {num_classes}")
    classes = arange(num_classes, device=tensor.device)
    # Looking every class up checks its range, which comparing alone would not.
    return (take(classes, tensor, axis=0).unsqueeze(-1) == classes).long()


@composite
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(norm of x along `dim`, eps)."""
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


@composite
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 · x2 / (|x1| |x2|) along `dim`, each norm at least `eps`."""
    x1, x2 = broadcast_tensors(x1, x2)
    norms = x1.norm(2, dim).clamp(min=eps) * x2.norm(2, dim).clamp(min=eps)
    return (x1 * x2).sum(dim) / norms
