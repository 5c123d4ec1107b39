"""Dropout: masks, scaling, limits, and its use of the generator."""

from __future__ import annotations

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.nn import functional as F


def test_keeps_the_expected_share_and_scales_it() -> None:
    fw.manual_seed(0)
    out = nn.Dropout(0.25)(fw.ones(20000)).numpy()
    kept = out != 0
    assert abs(kept.mean() - 0.75) < 0.01
    np.testing.assert_allclose(out[kept], 1 / 0.75, rtol=1e-6)


def test_one_seed_gives_one_mask_and_calls_differ() -> None:
    m, x = nn.Dropout(0.5), fw.ones(64)
    fw.manual_seed(5)
    first, second = m(x).tolist(), m(x).tolist()
    fw.manual_seed(5)
    assert m(x).tolist() == first and m(x).tolist() == second and first != second


def test_limits_are_exact_and_gradients_finite() -> None:
    x = fw.ones(8).requires_grad_()
    out = F.dropout(x, 1.0)
    out.sum().backward()
    assert out.tolist() == [0.0] * 8 and x.grad.tolist() == [0.0] * 8
    assert F.dropout(fw.tensor([float("inf")]), 1.0).tolist() == [0.0]
    assert F.dropout(x, 0.0) is x and nn.Dropout(0.0)(x) is x


def test_evaluation_is_the_identity_and_draws_nothing() -> None:
    x = fw.ones(4)
    fw.manual_seed(1)
    expected = fw.rand(3).tolist()
    fw.manual_seed(1)
    assert nn.Dropout(0.9).eval()(x) is x and F.dropout(x, 0.9, training=False) is x
    assert fw.rand(3).tolist() == expected


def test_gradient_has_the_mask_of_the_forward() -> None:
    x = fw.ones(100).requires_grad_()
    out = nn.Dropout(0.5)(x)
    out.sum().backward()
    assert x.grad.tolist() == out.tolist()


def test_probability_may_be_a_tensor() -> None:
    fw.manual_seed(2)
    by_tensor = F.dropout(fw.ones(50), fw.tensor(0.3, dtype=fw.float64)).tolist()
    fw.manual_seed(2)
    np.testing.assert_allclose(F.dropout(fw.ones(50), 0.3).numpy(), by_tensor, rtol=1e-6)
    assert F.dropout(fw.ones(5), fw.tensor(1.0, dtype=fw.float64)).tolist() == [0.0] * 5


def test_in_place_and_errors() -> None:
    x = fw.ones(10)
    assert F.dropout(x, 0.5, inplace=True) is x and set(x.tolist()) <= {0.0, 2.0}
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            nn.Dropout(p)
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, p)
