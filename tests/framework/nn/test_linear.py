"""Linear, Embedding and the shape-only layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F
from tests.framework.capture_check import check
from tests.framework.finite_differences import check_gradients


def test_linear_is_the_affine_map() -> None:
    m, x = nn.Linear(3, 2), fw.randn(4, 5, 3)
    expected = x.numpy() @ m.weight.detach().numpy().T + m.bias.detach().numpy()
    np.testing.assert_allclose(m(x).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert nn.Linear(3, 2, bias=False).bias is None
    assert repr(m) == "Linear(in_features=3, out_features=2, bias=True)"
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        m(fw.ones(4, 2))


def test_linear_starts_uniform_within_one_over_sqrt_fan_in() -> None:
    fw.manual_seed(0)
    m = nn.Linear(64, 512)
    bound = 1 / math.sqrt(64)
    for p in (m.weight, m.bias):
        values = p.detach().numpy()
        assert np.abs(values).max() <= bound
        assert abs(values.std() - bound / math.sqrt(3)) < 0.1 * bound
    assert nn.Linear(2, 3, dtype=fw.float64).weight.dtype is fw.float64


def test_linear_gradients() -> None:
    rng = np.random.default_rng(0)
    check_gradients(
        F.linear, rng.standard_normal((2, 3)), rng.standard_normal((4, 3)), rng.standard_normal(4)
    )


def test_bilinear() -> None:
    rng = np.random.default_rng(0)
    a, b, w, c = (rng.standard_normal(s) for s in ((5, 3), (5, 4), (2, 3, 4), (2,)))
    out = F.bilinear(*(fw.tensor(v) for v in (a, b, w, c)))
    np.testing.assert_allclose(out.numpy(), np.einsum("ni,kij,nj->nk", a, w, b) + c, rtol=1e-6)


def test_embedding_picks_rows() -> None:
    m = nn.Embedding(5, 3)
    index = fw.tensor([[0, 4], [2, 2]])
    np.testing.assert_array_equal(m(index).detach().numpy(), m.weight.detach().numpy()[index.numpy()])
    m(index).sum().backward()
    assert m.weight.grad.numpy()[:, 0].tolist() == [1.0, 0.0, 2.0, 0.0, 1.0]
    assert repr(m) == "Embedding(5, 3)"


@pytest.mark.parametrize("bad", [-1, 5])
def test_embedding_rejects_indices_out_of_range(bad: int) -> None:
    with pytest.raises(IndexError):
        nn.Embedding(5, 3)(fw.tensor([0, bad]))
    with pytest.raises(RuntimeError, match="integer indices"):
        nn.Embedding(5, 3)(fw.ones(2))


def test_embedding_padding_row_starts_zero_and_takes_no_gradient() -> None:
    m = nn.Embedding(4, 2, padding_idx=-1)
    assert m.padding_idx == 3 and float(m.weight.detach()[3].abs().sum()) == 0
    m(fw.tensor([1, 3, 3])).sum().backward()
    assert m.weight.grad.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]
    with pytest.raises(ValueError, match="padding_idx must be within"):
        nn.Embedding(4, 2, padding_idx=4)


def test_embedding_from_pretrained() -> None:
    table = fw.arange(6).float().reshape(3, 2)
    m = nn.Embedding.from_pretrained(table)
    assert not m.weight.requires_grad and m(fw.tensor(2)).tolist() == [4.0, 5.0]


def test_shape_layers() -> None:
    x = fw.zeros(2, 3, 4)
    assert nn.Flatten()(x).shape == (2, 12)
    assert nn.Flatten(0, 1)(x).shape == (6, 4)
    assert nn.Unflatten(-1, (2, 2))(x).shape == (2, 3, 2, 2)
    assert nn.Identity(5, word="any")(x) is x


def test_one_hot() -> None:
    assert F.one_hot(fw.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert F.one_hot(fw.tensor([[1]]), 2).tolist() == [[[0, 1]]]
    assert F.one_hot(fw.zeros(0).long(), 3).shape == (0, 3)
    for bad in ([3], [-1, 0]):
        with pytest.raises(IndexError):
            F.one_hot(fw.tensor(bad), 2)
    with pytest.raises(RuntimeError, match="index tensor of dtype int64"):
        F.one_hot(fw.tensor([1.0]), 2)
    with pytest.raises(RuntimeError, match="from empty tensor"):
        F.one_hot(fw.zeros(0).long())
    check(lambda t: F.one_hot(t, 4) * 2, (fw.tensor([1, 3]),), (fw.tensor([0, 2]),))


def test_normalize_and_cosine_similarity() -> None:
    x = fw.tensor([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(F.normalize(x).numpy(), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    y = fw.tensor([[4.0, 3.0], [1.0, 0.0]])
    np.testing.assert_allclose(F.cosine_similarity(x, y).numpy(), [0.96, 0.0], rtol=1e-6)


@pytest.mark.parametrize("amounts", [(1, 2), (0, 1, 2, 0), (-1, 2), (1, -1, -1, 0)])
def test_pad(amounts: tuple[int, ...]) -> None:
    x = np.arange(1.0, 7.0).reshape(2, 3)
    pairs = [(0, 0)] * (2 - len(amounts) // 2) + [amounts[i : i + 2] for i in range(0, len(amounts), 2)][::-1]
    expected = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=7)
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, expected.shape, strict=True))
    np.testing.assert_array_equal(F.pad(fw.tensor(x), amounts, value=7.0).numpy(), expected[cut])
    check_gradients(lambda x: F.pad(x, amounts), x)


def test_pad_errors() -> None:
    with pytest.raises(ValueError, match="two amounts for each of at most 1"):
        F.pad(fw.ones(2), (1, 1, 1, 1))
    with pytest.raises(ValueError, match="not one of constant, reflect"):
        F.pad(fw.ones(2, 2), (1, 1), mode="mirror")
    with pytest.raises(RuntimeError, match="less than the corresponding input dimension"):
        F.pad(fw.ones(2, 2), (2, 1), mode="reflect")


@pytest.mark.parametrize(
    ("mode", "name"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
@pytest.mark.parametrize("amounts", [(1, 2), (2, 1, 1, 0), (-1, 2)])
def test_pad_from_the_input(amounts: tuple[int, ...], mode: str, name: Any) -> None:
    x = np.arange(1.0, 13.0).reshape(3, 4)
    pairs = [(0, 0)] * (2 - len(amounts) // 2) + [amounts[i : i + 2] for i in range(0, len(amounts), 2)][::-1]
    cut = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True))]
    expected = np.pad(cut, [(max(a, 0), max(b, 0)) for a, b in pairs], mode=name)
    np.testing.assert_array_equal(F.pad(fw.tensor(x), amounts, mode=mode).numpy(), expected)
    check_gradients(lambda x: F.pad(x, amounts, mode=mode), x)
