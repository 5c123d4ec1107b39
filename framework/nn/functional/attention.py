"""Attention: scaled dot products, and the heads that project what they compare.

Knows no modules. PyTorch's two conventions of bool masks meet here: True keeps in
scaled_dot_product_attention, and shuts out in multi-head attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.ops.compare import where
from framework.creation import arange, zeros_like
from framework.nn.functional.activation import softmax
from framework.nn.functional.dropout import dropout
from framework.nn.functional.linear import linear
from framework.nn.functional.shape import pad, unstacked
from framework.state import composite
from framework.tensor import Tensor
from framework.views import cat
from kernels import dtypes
from kernels.dtypes import DType


@composite
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over (..., L, E), (..., S, E), (..., S, V).

    A bool mask keeps what is True, a floating one is added; a query that may see nothing gets zeros.
    `enable_gqa` repeats key and value heads (dimension -3).
    """
    _check_attention(query, key, value, attn_mask, dropout_p, is_causal)
    if enable_gqa:
        key, value = _repeated_heads(key, query), _repeated_heads(value, query)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        # Every query sees the first key at least.
        rows = arange(query.shape[-2], device=query.device)
        seen = rows.unsqueeze(1) >= arange(key.shape[-2], device=query.device)
        return dropout(softmax(where(seen, scores, -math.inf), -1), dropout_p) @ value
    if attn_mask is None:
        return dropout(softmax(scores, -1), dropout_p) @ value
    # The softmax of a row of -inf would be nan, and so would its gradient.
    if attn_mask.dtype is dtypes.bool_:
        blind = ~attn_mask.any(-1, keepdim=True)
        scores = where(attn_mask | blind, scores, -math.inf)
    else:
        blind = (attn_mask == -math.inf).all(-1, keepdim=True)
        scores = (scores + where(blind, 0.0, attn_mask)).to(query.dtype)
    return dropout(where(blind, 0.0, softmax(scores, -1)), dropout_p) @ value


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: Any, is_causal: bool
) -> None:
    dims = [x.dim() for x in (query, key, value)]
    if min(dims) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{dims[0]} key.dim: {dims[1]} and value.dim: {dims[2]} instead."
        )
    kinds = [x.dtype for x in (query, key, value)]
    if any(kind is not kinds[0] for kind in kinds):
        raise RuntimeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {kinds[0]} "
            f"key.dtype: {kinds[1]} and value.dtype: {kinds[2]} instead."
        )
    if mask is not None and is_causal:
        raise RuntimeError(
            "scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True"
        )
    if mask is not None and mask.dtype not in (dtypes.bool_, dtypes.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
            f"attn_mask.dtype: {mask.dtype} and query.dtype: {query.dtype} instead."
        )
    if not isinstance(dropout_p, Tensor) and not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")


def _repeated_heads(x: Tensor, query: Tensor) -> Tensor:
    """`x` with each head repeated until there are as many as the query has."""
    if x.dim() < 3 or query.dim() < 3 or query.shape[-3] % x.shape[-3]:
        raise RuntimeError(
            "Number of heads in key and value must divide the number of heads in query, got shapes "
            f"{list(x.shape)} and {list(query.shape)}"
        )
    *batch, heads, length, features = tuple(x.shape)
    repeats = query.shape[-3] // heads
    # An expanded dimension, not a gather: its gradient is a sum.
    spread = x.unsqueeze(-3).expand(*batch, heads, repeats, length, features)
    return spread.reshape(*batch, heads * repeats, length, features)


@dataclass(frozen=True)
class Projections:
    """What multi-head attention learns: one weight for query, key and value together, or one each."""

    joint: Tensor | None
    each: tuple[Tensor, Tensor, Tensor] | None
    bias: Tensor | None
    # A key and a value (1, 1, E) that every query may see beside those given.
    extra_key: Tensor | None
    extra_value: Tensor | None
    out: Tensor
    out_bias: Tensor | None


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Projections,
    num_heads: int,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    dropout_p: Any,
    is_causal: bool,
    need_weights: bool,
    add_zero_attn: bool,
) -> tuple[Tensor, Tensor | None]:
    """Outputs (L, N, E) for (L, N, E), (S, N, …), (S, N, …), and weights (N, heads, L, S) if needed.

    Bool masks shut out what is True. With `need_weights` a query that may see nothing gets nan, as PyTorch's.
    Vaswani et al., 2017.
    """
    attn_mask = additive_mask(attn_mask, "attn_mask", query.dtype)
    key_padding_mask = additive_mask(key_padding_mask, "key_padding_mask", query.dtype)
    hint = _causal_hint(attn_mask, key_padding_mask, is_causal, need_weights)
    length, batch, features = tuple(query.shape)
    mask = None if hint else _by_head(attn_mask, (batch, num_heads, length, key.shape[0]))
    if key_padding_mask is not None:
        _check_padding(key_padding_mask, batch, key.shape[0])
        padding = key_padding_mask.reshape(batch, 1, 1, key.shape[0])
        mask = padding if mask is None else mask + padding
    q, k, v = _projected(query, key, value, weights)
    if weights.extra_key is not None and weights.extra_value is not None:
        k = cat([k, weights.extra_key.expand(1, batch, features)])
        v = cat([v, weights.extra_value.expand(1, batch, features)])
        mask = None if mask is None else pad(mask, (0, 1))
    if add_zero_attn:
        k, v = (cat([x, zeros_like(x[:1])]) for x in (k, v))
        mask = None if mask is None else pad(mask, (0, 1))
    q, k, v = (_heads(x, num_heads) for x in (q, k, v))
    if need_weights:
        scores = q * math.sqrt(num_heads / features) @ k.transpose(-2, -1)
        shares = dropout(softmax(scores if mask is None else mask + scores, -1), dropout_p)
        mixed = shares @ v
    else:
        shares, mixed = None, scaled_dot_product_attention(q, k, v, mask, dropout_p, hint)
    joined = mixed.permute(2, 0, 1, 3).reshape(length, batch, features)
    return linear(joined, weights.out, weights.out_bias), shares


def additive_mask(mask: Tensor | None, name: str, dtype: DType) -> Tensor | None:
    """A bool mask that shuts out what is True as one of -inf and 0; a floating one as it is."""
    if mask is None or mask.is_floating_point():
        return mask
    if mask.dtype is not dtypes.bool_:
        raise AssertionError(f"only bool and floating types of {name} are supported, got {mask.dtype}")
    return where(mask, -math.inf, zeros_like(mask, dtype=dtype))


def _causal_hint(mask: Tensor | None, padding: Tensor | None, is_causal: bool, need_weights: bool) -> bool:
    """Whether `mask` can stay unread, as it is said to be the causal one."""
    if is_causal and mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    return is_causal and padding is None and not need_weights


def _by_head(mask: Tensor | None, wanted: tuple[int, int, int, int]) -> Tensor | None:
    """A mask (L, S) or (N * heads, L, S) in a shape that broadcasts to `wanted`, (N, heads, L, S)."""
    if mask is None:
        return None
    batch, heads, length, source = wanted
    full = (length, source) if mask.dim() == 2 else (batch * heads, length, source)
    if tuple(mask.shape) != full:
        raise RuntimeError(
            f"The shape of the {mask.dim()}D attn_mask is {list(mask.shape)}, but should be {full}."
        )
    return mask if mask.dim() == 2 else mask.reshape(*wanted)


def _check_padding(mask: Tensor, batch: int, source: int) -> None:
    for axis, size in enumerate((batch, source)):
        if mask.shape[axis] != size:
            raise AssertionError(
                f"Expected key_padded_mask.shape[{axis}] to be {size}, but got {mask.shape[axis]}"
            )


def _projected(query: Tensor, key: Tensor, value: Tensor, weights: Projections) -> tuple[Tensor, ...]:
    """Query, key and value in the features of all heads; one product where they are one tensor."""
    bias = weights.bias
    if weights.joint is not None and query is key and key is value:
        made = linear(query, weights.joint, bias)
        return unstacked(made.reshape(*tuple(made.shape)[:-1], 3, query.shape[-1]), -2)
    each = weights.each or _thirds(weights.joint)
    biases = (None, None, None) if bias is None else _thirds(bias)
    return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), each, biases, strict=True))


def _thirds(x: Any) -> tuple[Tensor, ...]:
    return unstacked(x.reshape(3, -1, *tuple(x.shape)[1:]), 0)


def _heads(x: Tensor, count: int) -> Tensor:
    """(L, N, E) as (N, heads, L, E / heads)."""
    length, batch, features = tuple(x.shape)
    return x.reshape(length, batch, count, features // count).permute(1, 2, 0, 3)
