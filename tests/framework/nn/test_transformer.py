"""Transformer layers: the order of their parts against a composition by hand, masks, parameters, captures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn, optim
from framework.nn import functional as F
from tests.framework.capture_check import Twins, World
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(17)
SIZES: dict[str, Any] = {"d_model": 4, "nhead": 2, "dim_feedforward": 6, "dropout": 0.0}


def sequence(length: int = 3, batch: int = 2) -> fw.Tensor:
    return fw.tensor(RNG.standard_normal((length, batch, 4)))


def attended(attention: nn.Module, x: fw.Tensor, memory: fw.Tensor, **masks: Any) -> fw.Tensor:
    return attention(x, memory, memory, **masks)[0]


def fed(m: Any, x: fw.Tensor, activation: Callable[[fw.Tensor], fw.Tensor]) -> fw.Tensor:
    return m.linear2(activation(m.linear1(x)))


def close(got: fw.Tensor, wanted: fw.Tensor) -> None:
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), rtol=1e-9, atol=1e-12)


CAUSAL = fw.ones(3, 3).triu(1).bool()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(activation: str) -> None:
    f, x = getattr(F, activation), sequence()
    after = nn.TransformerEncoderLayer(**SIZES, activation=activation).double()
    y = after.norm1(x + attended(after.self_attn, x, x, attn_mask=CAUSAL))
    close(after(x, CAUSAL), after.norm2(y + fed(after, y, f)))
    close(after(x, CAUSAL, is_causal=True), after(x, CAUSAL))
    before = nn.TransformerEncoderLayer(**SIZES, activation=f, norm_first=True, batch_first=True).double()
    t = x.transpose(0, 1)
    normed = before.norm1(t)
    padding = fw.tensor([[False, False, True], [False, False, False]])
    y = t + attended(before.self_attn, normed, normed, key_padding_mask=padding)
    close(before(t, src_key_padding_mask=padding), y + fed(before, before.norm2(y), f))


def test_decoder_layer() -> None:
    x, memory = sequence(), sequence(5)
    padding = fw.tensor([[False] * 4 + [True], [False] * 5])
    masks = {"tgt_mask": CAUSAL, "memory_key_padding_mask": padding}
    after = nn.TransformerDecoderLayer(**SIZES).double()
    y = after.norm1(x + attended(after.self_attn, x, x, attn_mask=CAUSAL))
    y = after.norm2(y + attended(after.multihead_attn, y, memory, key_padding_mask=padding))
    close(after(x, memory, **masks), after.norm3(y + fed(after, y, F.relu)))
    before = nn.TransformerDecoderLayer(**SIZES, norm_first=True).double()
    normed = before.norm1(x)
    y = x + attended(before.self_attn, normed, normed, attn_mask=CAUSAL)
    y = y + attended(before.multihead_attn, before.norm2(y), memory, key_padding_mask=padding)
    close(before(x, memory, **masks), y + fed(before, before.norm3(y), F.relu))


def test_stacks_hold_copies() -> None:
    layer = nn.TransformerEncoderLayer(**SIZES).double()
    layer(sequence()).sum().backward()
    stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4).double())
    first, second = stack.layers
    assert first is not layer and first.linear1.weight is not second.linear1.weight
    assert all(p.grad is None for p in stack.parameters())
    x = sequence()
    close(stack(x, CAUSAL, is_causal=True), stack.norm(second(first(x, CAUSAL), CAUSAL)))
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**SIZES).double(), 2)
    memory = sequence(5)
    wanted = decoder.layers[1](decoder.layers[0](x, memory, CAUSAL), memory, CAUSAL)
    close(decoder(x, memory, CAUSAL), wanted)
    close(decoder(x, memory, CAUSAL, tgt_is_causal=True), wanted)
    assert "(0-1): 2 x TransformerEncoderLayer(" in repr(stack)


def test_transformer() -> None:
    m = nn.Transformer(num_encoder_layers=1, num_decoder_layers=2, **SIZES).double()
    src, tgt = sequence(5), sequence()
    mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=fw.float64)
    assert mask.tolist() == [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]]
    close(m(src, tgt, tgt_mask=mask), m.decoder(tgt, m.encoder(src), CAUSAL))
    kept = nn.Transformer(custom_encoder=m.encoder, custom_decoder=m.decoder, **SIZES)
    assert kept.encoder is m.encoder and kept.decoder is m.decoder
    weight = nn.Transformer(64, 2, 1, 1, 32).encoder.layers[0].linear1.weight.detach().numpy()
    bound = np.sqrt(6 / 96)
    assert 0.9 * bound < np.abs(weight).max() <= bound
    with pytest.raises(RuntimeError, match="batch number of src and tgt must be equal"):
        m(src, sequence(3, 1))
    with pytest.raises(RuntimeError, match="feature number of src and tgt"):
        m(src, tgt[..., :3])
    with pytest.raises(RuntimeError, match="activation should be relu/gelu, not tanh"):
        nn.TransformerEncoderLayer(4, 2, activation="tanh")
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        m.encoder(src, is_causal=True)


def test_parameters_are_those_of_pytorch() -> None:
    parts = ["self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2"]
    assert [name for name, _ in nn.TransformerEncoderLayer(**SIZES).named_children()] == parts
    decoder = nn.TransformerDecoderLayer(**SIZES, bias=False)
    parts = ["self_attn", "multihead_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "norm3"]
    parts += ["dropout1", "dropout2", "dropout3"]
    assert [name for name, _ in decoder.named_children()] == parts
    assert not any("bias" in name for name in decoder.state_dict())
    names = list(nn.Transformer(**SIZES).state_dict())
    assert names[0] == "encoder.layers.0.self_attn.in_proj_weight" and names[-1] == "decoder.norm.bias"


def test_gradients() -> None:
    m = nn.TransformerDecoderLayer(**SIZES, activation="gelu").double().requires_grad_(False)
    arrays = [RNG.standard_normal((n, 1, 4)) for n in (2, 3)]
    check_gradients(lambda x, memory: m(x, memory, fw.ones(2, 2).triu(1).bool()), *arrays, tolerance=1e-5)


def test_training_replays() -> None:
    fw.manual_seed(0)
    start = nn.TransformerEncoder(nn.TransformerEncoderLayer(**(SIZES | {"dropout": 0.2})), 2)

    def make() -> World:
        m = copy.deepcopy(start)
        optimizer = optim.SGD(m.parameters(), lr=0.1)

        def step(x: fw.Tensor, padding: fw.Tensor) -> fw.Tensor:
            loss = (m(x, src_key_padding_mask=padding) * x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, lambda: [p.detach() for p in m.parameters()]

    twins = Twins(make, rtol=1e-4)
    for _ in range(3):
        twins.call(fw.randn(3, 2, 4), fw.tensor([[False, False, True], [False, True, True]]))
    twins.expect("replay")
