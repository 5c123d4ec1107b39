"""MultiheadAttention: projections of query, key and value, and of what the heads found."""

from __future__ import annotations

from typing import Any

from framework.creation import empty
from framework.nn import init
from framework.nn.functional.attention import Projections, multi_head_attention
from framework.nn.linear import Linear
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.state import guarded, runtime_scalar
from framework.tensor import Tensor
from kernels.dtypes import DType


class MultiheadAttention(Module):
    """Attention in `num_heads` subspaces over (L, N, embed_dim), (N, L, …) with `batch_first`, or (L, …).

    `add_bias_kv` learns one more key and value, `add_zero_attn` adds one of zeros. Vaswani et al., 2017.
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and "
                f"num_heads={num_heads} instead"
            )
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise AssertionError("embed_dim must be divisible by num_heads")
        joint = self.kdim == embed_dim == self.vdim
        shapes: dict[str, tuple[int, ...] | None] = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if joint else None,
            "q_proj_weight": None if joint else (embed_dim, embed_dim),
            "k_proj_weight": None if joint else (embed_dim, self.kdim),
            "v_proj_weight": None if joint else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
            "bias_k": (1, 1, embed_dim) if add_bias_kv else None,
            "bias_v": (1, 1, embed_dim) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            made = None if shape is None else Parameter(empty(*shape, device=device, dtype=dtype))
            self.register_parameter(name, made)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                init.xavier_normal_(extra)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs in the shape of `query`, and the weights (N, L, S), or (N, heads, L, S) when not averaged.

        Bool masks (N, S) and (L, S) or (N * heads, L, S) shut out what is True; floating ones are added.
        """
        batched = _check_dimensions(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        inputs = (query, key, value)
        # The same tensor stays the same object: it is projected by one product.
        laid_out = {id(x): self._sequence_first(x, batched) for x in inputs}
        query, key, value = (laid_out[id(x)] for x in inputs)
        self._check_sizes(query, key, value)
        padding = key_padding_mask
        output, weights = multi_head_attention(
            query,
            key,
            value,
            self._projections(),
            self.num_heads,
            attn_mask,
            padding if padding is None or batched else padding.unsqueeze(0),
            self._dropout(),
            is_causal,
            need_weights,
            self.add_zero_attn,
        )
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        if not batched:
            return output.squeeze(1), weights
        return (output.transpose(0, 1) if self.batch_first else output), weights

    def _sequence_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(1)
        return x.transpose(0, 1) if self.batch_first else x

    def _dropout(self) -> Any:
        if not self.training or guarded(lambda: self.dropout == 0):
            return 0.0
        return runtime_scalar(lambda: self.dropout)

    def _projections(self) -> Projections:
        q, k, v = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        each = None if q is None or k is None or v is None else (q, k, v)
        out = self.out_proj
        return Projections(
            self.in_proj_weight, each, self.in_proj_bias, self.bias_k, self.bias_v, out.weight, out.bias
        )

    def _check_sizes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.shape[-1] != self.embed_dim:
            raise AssertionError(
                f"was expecting embedding dimension of {self.embed_dim}, but got {query.shape[-1]}"
            )
        if self.in_proj_weight is None and key.shape[:2] != value.shape[:2]:
            raise AssertionError(
                f"key's sequence and batch dims {list(key.shape[:2])} do not match value's "
                f"{list(value.shape[:2])}"
            )
        if self.in_proj_weight is not None and key.shape != value.shape:
            raise AssertionError(
                f"key shape {list(key.shape)} does not match value shape {list(value.shape)}"
            )
        if key.shape[1] != query.shape[1]:
            raise RuntimeError(f"key has a batch of {key.shape[1]}, query one of {query.shape[1]}")


def _check_dimensions(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> bool:
    """Whether the inputs have a batch dimension. Raises AssertionError, as PyTorch, where they disagree."""
    dims = query.dim()
    if dims not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {dims}-D query tensor"
        )
    kind = "batched (3-D)" if dims == 3 else "unbatched (2-D)"
    if key.dim() != dims or value.dim() != dims:
        raise AssertionError(
            f"For {kind} `query`, expected `key` and `value` to be {dims}-D but found {key.dim()}-D and "
            f"{value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != dims - 1:
        raise AssertionError(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {dims - 1}-D but found "
            f"{key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise AssertionError(
            f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
            f"{attn_mask.dim()}-D tensor instead"
        )
    if dims == 2 and attn_mask is not None and attn_mask.dim() == 3:
        expected = (num_heads, query.shape[0], key.shape[0])
        if tuple(attn_mask.shape) != expected:
            raise AssertionError(
                f"Expected `attn_mask` shape to be {expected} but got {list(attn_mask.shape)}"
            )
    return dims == 3
