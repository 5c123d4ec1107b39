"""Functions at the edge of what they take: tensors without axes, and sizes of one that stand for any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda x: fw.kthvalue(x, 1, 0).values, 3.0),
        (lambda x: fw.median(x, 0).values, 3.0),
        (lambda x: fw.median(x, 0).indices, 0),
        (lambda x: fw.nanmedian(x, 0, keepdim=True).values, 3.0),
        (lambda x: fw.index_add(x, 0, fw.tensor([0, 0]), fw.tensor([1.0, 2.0])), 6.0),
        (lambda x: x.unfold(0, 1, 1), [3.0]),
        (lambda x: F.prelu(-x, fw.tensor([0.5])), -1.5),
        (lambda x: F.cosine_similarity(x, -x, 0), -1.0),
    ],
)
def test_a_tensor_without_axes_has_one_element(call: Callable[[fw.Tensor], Any], wanted: Any) -> None:
    x = fw.tensor(3.0, requires_grad=True)
    y = call(x)
    assert y.tolist() == wanted and tuple(y.shape) == np.shape(wanted)
    if y.requires_grad:
        y.sum().backward()
        assert x.grad is not None and x.grad.shape == ()


def test_cosine_similarity_broadcasts_before_it_sums() -> None:
    x, y = np.random.default_rng(0).normal(size=(1, 2, 3)), np.random.default_rng(1).normal(size=(2, 1, 3))
    wide = [np.broadcast_to(v, (2, 2, 3)) for v in (x, y)]
    norms = [np.sqrt((v * v).sum(-2)) for v in wide]
    wanted = (wide[0] * wide[1]).sum(-2) / (norms[0] * norms[1])
    got = F.cosine_similarity(fw.tensor(x), fw.tensor(y), dim=-2)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)


def test_tensordot_takes_a_dimension_of_one_for_any() -> None:
    a, b = np.arange(1.0, 3.0).reshape(1, 2), np.arange(12.0).reshape(3, 4)
    got = fw.tensordot(fw.tensor(a), fw.tensor(b), dims=([0], [0]))
    np.testing.assert_array_equal(got.numpy(), a.T @ b.sum(0, keepdims=True))
    with pytest.raises(RuntimeError, match="as many dimensions of each operand"):
        fw.tensordot(fw.tensor(a), fw.tensor(b), dims=([0, 1], [0]))


def test_take_along_dim_counts_from_the_end() -> None:
    x, index = np.arange(6.0).reshape(2, 3), np.array([[-1, 0], [1, -3]])
    for axis, at in ((1, index), (None, index.reshape(-1))):
        got = fw.take_along_dim(fw.tensor(x), fw.tensor(at), axis)
        np.testing.assert_array_equal(got.numpy(), np.take_along_axis(x, at, axis))


def test_what_is_filled_has_no_gradient() -> None:
    x, value = fw.tensor([1.0, float("nan")], requires_grad=True), fw.tensor(2.0, requires_grad=True)
    y = fw.fill(x, value)
    y.sum().backward()
    assert y.tolist() == [2.0, 2.0]
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0]
    assert value.grad is not None and value.grad.item() == 2.0
