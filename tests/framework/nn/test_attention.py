"""Attention against NumPy float64: masks of both conventions, heads, gradients, special values, captures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.capture_check import Twins, World, check
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(11)


def softmax(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any, added: Any = 0.0, scale: float | None = None) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return softmax(scores + added) @ v


def tensors(*arrays: Any) -> tuple[fw.Tensor, ...]:
    return tuple(fw.tensor(a) for a in arrays)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("keys", [4, 2, 6])
def test_attention_is_softmax_of_scores(causal: bool, scale: float | None, keys: int) -> None:
    q, k, v = (
        RNG.standard_normal((2, 4, 3)),
        RNG.standard_normal((2, keys, 3)),
        RNG.standard_normal((2, keys, 5)),
    )
    added = np.where(np.tril(np.ones((4, keys), bool)), 0, -np.inf) if causal else 0.0
    out = F.scaled_dot_product_attention(*tensors(q, k, v), is_causal=causal, scale=scale)
    np.testing.assert_allclose(out.numpy(), attention(q, k, v, added, scale), rtol=1e-10)


def test_attention_masks() -> None:
    x = fw.randn(1, 2, 2)
    keep = fw.tensor([[True, False], [True, True]])
    added = fw.tensor([[0.0, -math.inf], [0.0, 0.0]])
    by_bool = F.scaled_dot_product_attention(x, x, x, keep)
    by_float = F.scaled_dot_product_attention(x, x, x, added)
    np.testing.assert_allclose(by_bool.numpy(), by_float.numpy(), rtol=1e-6)
    np.testing.assert_allclose(by_bool[0, 0].numpy(), x[0, 0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("floating", [False, True])
def test_a_query_that_sees_nothing_gets_zeros_and_no_gradient(floating: bool) -> None:
    keep = np.array([[True, False, True], [False, False, False]])
    mask = fw.tensor(np.where(keep, 0.0, -np.inf)) if floating else fw.tensor(keep)
    q, k, v = (t.requires_grad_() for t in tensors(*(RNG.standard_normal((n, 4)) for n in (2, 3, 3))))
    out = F.scaled_dot_product_attention(q, k, v, mask)
    wanted = attention(q.detach().numpy()[:1], k.detach().numpy()[keep[0]], v.detach().numpy()[keep[0]])
    np.testing.assert_allclose(out.detach().numpy(), [*wanted, np.zeros(4)], rtol=1e-9)
    out.sum().backward()
    for t in (q, k, v):
        assert t.grad is not None and np.isfinite(t.grad.numpy()).all()
    assert q.grad is not None and q.grad[1].tolist() == [0.0] * 4


def test_grouped_queries_share_heads() -> None:
    q, k, v = (
        RNG.standard_normal((2, 4, 3, 5)),
        RNG.standard_normal((2, 2, 6, 5)),
        RNG.standard_normal((2, 1, 6, 5)),
    )
    wanted = attention(q, np.repeat(k, 2, 1), np.repeat(v, 4, 1))
    out = F.scaled_dot_product_attention(*tensors(q, k, v), enable_gqa=True)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-10)
    small = (RNG.standard_normal((2, 1, 2)), RNG.standard_normal((1, 2, 2)), RNG.standard_normal((1, 2, 2)))
    check_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *small, tolerance=1e-5
    )
    with pytest.raises(RuntimeError, match="must divide the number of heads"):
        F.scaled_dot_product_attention(*tensors(q, k[:, :1].repeat(3, 1), v), enable_gqa=True)


def test_dropout_of_everything_and_of_16_bit() -> None:
    x = fw.randn(2, 4, 3)
    assert F.scaled_dot_product_attention(x, x, x, dropout_p=1.0).tolist() == np.zeros((2, 4, 3)).tolist()
    half = x.half()
    out = F.scaled_dot_product_attention(half, half, half, fw.zeros(4, 4))
    assert out.dtype is fw.float16
    np.testing.assert_allclose(out.float().numpy(), attention(*([half.float().numpy()] * 3)), atol=5e-3)


X = fw.ones(1, 2, 2)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((X, X, X, fw.ones(2, 2)), {"is_causal": True}, "should not be set when is_causal=True"),
        ((X, X, X, fw.ones(2, 2).long()), {}, "attn_mask dtype to be bool or float"),
        ((X, X, X, fw.ones(2, 2).double()), {}, "attn_mask dtype to be bool or float"),
        ((X.double(), X, X), {}, "to have the same dtype"),
        ((X[0, 0], X, X), {}, "at least 2 dimensional"),
        ((X, X, X), {"dropout_p": 1.5}, "between 0 and 1, but got 1.5"),
    ],
)
def test_wrong_attention(args: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        F.scaled_dot_product_attention(*args, **options)


def test_attention_replays() -> None:
    def run(q: fw.Tensor, mask: fw.Tensor) -> fw.Tensor:
        F.scaled_dot_product_attention(q, q, q, mask).sum().backward()
        return F.scaled_dot_product_attention(q, q, q, mask).detach()

    q = fw.randn(2, 3, 4).requires_grad_()
    check(
        run, (q, fw.tensor([[True, True, False], [False, False, False], [True] * 3])), (q, fw.ones(3, 3) > 0)
    )


# Multi-head attention


def heads(x: Any, count: int) -> Any:
    """(L, N, E) as (N, heads, L, E / heads)."""
    length, batch, features = x.shape
    return x.reshape(length, batch, count, features // count).transpose(1, 2, 0, 3)


def expected(m: Any, q: Any, k: Any, v: Any, added: Any = 0.0) -> tuple[Any, Any]:
    """Output and weights by head of (L, N, E), (S, N, …), (S, N, …), with `added` to the scores."""
    named = {name: p.detach().numpy() for name, p in m.named_parameters()}
    each = [named.get(f"{n}_proj_weight") for n in "qkv"]
    if each[0] is None:
        each = np.split(named["in_proj_weight"], 3)
    biases = np.split(named.get("in_proj_bias", np.zeros(3 * m.embed_dim)), 3)
    q, k, v = (x @ w.T + b for x, w, b in zip((q, k, v), each, biases, strict=True))
    extra = [(named["bias_k"], named["bias_v"])] if "bias_k" in named else []
    if m.add_zero_attn:
        extra.append((np.zeros(1), np.zeros(1)))
    added = np.broadcast_to(added, (q.shape[1], m.num_heads, len(q), len(k)))
    for more_k, more_v in extra:
        k, v = (np.concatenate([x, np.broadcast_to(y, x[:1].shape)]) for x, y in ((k, more_k), (v, more_v)))
        added = np.concatenate([added, np.zeros((*added.shape[:-1], 1))], -1)
    q, k, v = (heads(x, m.num_heads) for x in (q, k, v))
    shares = softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(m.head_dim) + added)
    joined = (shares @ v).transpose(2, 0, 1, 3).reshape(q.shape[2], q.shape[0], m.embed_dim)
    return joined @ named["out_proj.weight"].T + named.get("out_proj.bias", 0.0), shares


def made(**options: Any) -> nn.MultiheadAttention:
    m = nn.MultiheadAttention(6, 3, **options).double()
    with fw.no_grad():
        for p in m.parameters():
            p.copy_(fw.tensor(RNG.standard_normal(tuple(p.shape))))
    return m


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"kdim": 4, "vdim": 5},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    ],
    ids=str,
)
def test_heads(options: dict[str, Any], need_weights: bool) -> None:
    m = made(**options)
    q, k, v = (RNG.standard_normal((n, 2, d)) for n, d in ((3, 6), (4, m.kdim), (4, m.vdim)))
    hidden = np.array([[False, True, False, False], [False] * 4, [True, True, True, False]])
    padded = np.array([[False] * 4, [False, False, True, False]])
    added = np.where(hidden | padded[:, None, None], -np.inf, 0)
    wanted, shares = expected(m, q, k, v, added)
    given = [x.transpose(1, 0, 2) if m.batch_first else x for x in (q, k, v)]
    masks = {"attn_mask": fw.tensor(hidden), "key_padding_mask": fw.tensor(padded)}
    out, got = m(*tensors(*given), need_weights=need_weights, **masks)
    out = out.detach().numpy()
    np.testing.assert_allclose(out.transpose(1, 0, 2) if m.batch_first else out, wanted, rtol=1e-8)
    if not need_weights:
        assert got is None
        return
    np.testing.assert_allclose(got.detach().numpy(), shares.mean(1), rtol=1e-8, atol=1e-12)
    _, by_head = m(*tensors(*given), average_attn_weights=False, **masks)
    np.testing.assert_allclose(by_head.detach().numpy(), shares, rtol=1e-8, atol=1e-12)


def test_one_tensor_for_all_is_projected_at_once() -> None:
    m = made()
    x = RNG.standard_normal((4, 2, 6))
    t = fw.tensor(x)
    np.testing.assert_allclose(m(t, t, t)[0].detach().numpy(), expected(m, x, x, x)[0], rtol=1e-8)
    check_gradients(lambda x: m.requires_grad_(False)(x, x, x)[0], x, tolerance=1e-5)


def test_unbatched_and_mask_by_head() -> None:
    m = made(batch_first=True)
    x, hidden = RNG.standard_normal((4, 6)), RNG.random((3, 4, 4)) < 0.3
    hidden[..., 0] = False
    wanted, shares = expected(m, *([x[:, None]] * 3), np.where(hidden, -np.inf, 0)[None])
    t = fw.tensor(x)
    out, got = m(t, t, t, attn_mask=fw.tensor(hidden), average_attn_weights=False)
    np.testing.assert_allclose(out.detach().numpy(), wanted[:, 0], rtol=1e-8)
    np.testing.assert_allclose(got.detach().numpy(), shares[0], rtol=1e-8, atol=1e-12)
    padded = np.array([False, True, False, False])
    wanted, _ = expected(m, *([x[:, None]] * 3), np.where(padded, -np.inf, 0))
    out, _ = m(t, t, t, key_padding_mask=fw.tensor(padded))
    np.testing.assert_allclose(out.detach().numpy(), wanted[:, 0], rtol=1e-8)


def test_causal_hint_stands_for_its_mask() -> None:
    m = made()
    t = fw.tensor(RNG.standard_normal((4, 2, 6)))
    causal = fw.ones(4, 4).triu(1).bool()
    wanted = m(t, t, t, attn_mask=causal)[0].detach().numpy()
    for need_weights in (True, False):
        got = m(t, t, t, attn_mask=causal, is_causal=True, need_weights=need_weights)[0]
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-9)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        m(t, t, t, is_causal=True)


def test_a_fully_masked_query_is_nan_with_weights_and_zero_without() -> None:
    m = made(bias=False)
    t = fw.tensor(RNG.standard_normal((2, 1, 6)))
    mask = fw.tensor([[True, True], [False, False]])
    assert np.isnan(m(t, t, t, attn_mask=mask)[0].detach().numpy()[0]).all()
    out = m(t, t, t, attn_mask=mask, need_weights=False)[0].detach().numpy()
    assert (out[0] == 0).all() and np.isfinite(out[1]).all()


def test_gradients_of_heads() -> None:
    m = made(kdim=2, add_bias_kv=True).requires_grad_(False)
    mask = fw.tensor([[False, True], [False, False]])
    arrays = [RNG.standard_normal((2, 1, n)) for n in (6, 2, 6)]
    check_gradients(lambda q, k, v: m(q, k, v, attn_mask=mask)[0], *arrays, tolerance=1e-5)


def test_parameters_are_those_of_pytorch() -> None:
    named = {k: tuple(v.shape) for k, v in nn.MultiheadAttention(4, 2, add_bias_kv=True).state_dict().items()}
    assert named == {
        "in_proj_weight": (12, 4),
        "in_proj_bias": (12,),
        "bias_k": (1, 1, 4),
        "bias_v": (1, 1, 4),
        "out_proj.weight": (4, 4),
        "out_proj.bias": (4,),
    }
    m = nn.MultiheadAttention(64, 2, kdim=3, bias=False)
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert list(m.state_dict()) == names and m.in_proj_weight is None
    bound = math.sqrt(6 / 128)
    largest = np.abs(m.q_proj_weight.detach().numpy()).max()
    assert 0.9 * bound < largest <= bound
    plain = nn.MultiheadAttention(4, 2)
    assert plain.in_proj_bias.tolist() == [0] * 12 and plain.out_proj.bias.tolist() == [0] * 4


def layer() -> nn.MultiheadAttention:
    return nn.MultiheadAttention(4, 2)


Q, K = fw.ones(3, 2, 4), fw.ones(5, 2, 4)


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((Q[0, 0], K, K), {}, AssertionError, "received 1-D query"),
        ((Q, K[0], K), {}, AssertionError, "expected `key` and `value` to be 3-D but found 2-D and 3-D"),
        ((fw.ones(3, 2, 3), K, K), {}, AssertionError, "expecting embedding dimension of 4, but got 3"),
        ((Q, K, K[1:]), {}, AssertionError, "does not match value shape"),
        ((Q, K, K), {"attn_mask": fw.ones(3, 4)}, RuntimeError, "2D attn_mask is"),
        ((Q, K, K), {"attn_mask": fw.ones(2, 3, 5)}, RuntimeError, "3D attn_mask is"),
        ((Q, K, K), {"attn_mask": fw.ones(5)}, AssertionError, "`attn_mask` to be `None`, 2-D or 3-D"),
        ((Q, K, K), {"attn_mask": fw.ones(3, 5).long()}, AssertionError, "only bool and floating types"),
        ((Q, K, K), {"key_padding_mask": fw.ones(2, 4)}, AssertionError, r"shape\[1\] to be 5, but got 4"),
        (
            (Q, K, K),
            {"key_padding_mask": fw.ones(5)},
            AssertionError,
            "`key_padding_mask` to be `None` or 2-D",
        ),
        (
            (Q[:, 0], K[:, 0], K[:, 0]),
            {"attn_mask": fw.ones(1, 3, 5)},
            AssertionError,
            r"shape to be \(2, 3, 5\)",
        ),
    ],
)
def test_wrong_input(args: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        layer()(*args, **options)


def test_wrong_settings() -> None:
    with pytest.raises(AssertionError, match="divisible by num_heads"):
        nn.MultiheadAttention(4, 3)
    with pytest.raises(ValueError, match="must be greater than 0, got embed_dim=0"):
        nn.MultiheadAttention(0, 1)


@pytest.mark.parametrize("need_weights", [True, False])
def test_training_replays(need_weights: bool) -> None:
    def make() -> World:
        m = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)

        def step(x: fw.Tensor, mask: fw.Tensor) -> Any:
            for p in m.parameters():
                p.grad = None
            out, shares = m(x, x, x, attn_mask=mask, need_weights=need_weights)
            (out * out).sum().backward()
            return out.detach(), shares

        return step, lambda: [p.grad for p in m.parameters()]

    twins = Twins(make)
    for _ in range(2):
        twins.call(fw.randn(2, 3, 4), fw.ones(3, 3).triu(1).bool())
    twins.expect("replay")
