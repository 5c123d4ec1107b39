"""Reductions against NumPy over every choice of dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import framework as fw

_X = np.random.default_rng(0).standard_normal((3, 4, 2))
DIMS = [None, 0, -1, (0, 2), (0, 1, 2)]
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "mean": np.mean, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all,
    "var": lambda x, **k: np.var(x, ddof=1, **k), "std": lambda x, **k: np.std(x, ddof=1, **k),
    "norm": lambda x, axis, keepdims: np.sqrt(np.sum(x**2, axis=axis, keepdims=keepdims)),
    "logsumexp": special.logsumexp, "nansum": np.nansum, "nanmean": np.nanmean,
}  # fmt: skip


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, dim: Any, keepdim: bool) -> None:
    expected = REDUCTIONS[name](_X, axis=dim, keepdims=keepdim)
    got = getattr(fw.tensor(_X), name)(dim=dim, keepdim=keepdim)
    assert tuple(got.shape) == np.shape(expected)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["argmax", "argmin", "prod", "cumsum", "cumprod"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_along_one_dimension(name: str, dim: int) -> None:
    got = getattr(fw, name)(fw.tensor(_X), dim).numpy()
    np.testing.assert_allclose(got, getattr(np, name)(_X, axis=dim), rtol=1e-12)


def test_softmax_rows() -> None:
    x = fw.tensor(_X)
    np.testing.assert_allclose(x.softmax(1).numpy(), special.softmax(_X, 1), rtol=1e-12)
    np.testing.assert_allclose(x.log_softmax(-1).numpy(), special.log_softmax(_X, -1), rtol=1e-12)
    assert fw.tensor([1000.0, 0.0]).softmax(0).tolist() == [1, 0]


def test_max_and_min_give_fields() -> None:
    x = fw.tensor(_X)
    values, indices = x.max(1)
    assert x.gather(1, indices.unsqueeze(1)).squeeze(1).equal(values)
    assert x.min(dim=0, keepdim=True).values.shape == (1, 4, 2)
    assert fw.max(x, -x).equal(x.abs())


def test_moments() -> None:
    variance, mean = fw.var_mean(fw.tensor(_X), 0, correction=0)
    np.testing.assert_allclose(variance.numpy(), _X.var(0), rtol=1e-12)
    np.testing.assert_allclose(mean.numpy(), _X.mean(0), rtol=1e-12)
    assert fw.tensor([1.0, 3.0]).var(unbiased=False).item() == 1


def test_other_norms() -> None:
    x = fw.tensor([3.0, -4.0, 0.0])
    assert [x.norm(p).item() for p in (1, 2, float("inf"), 0)] == [7, 5, 4, 2]


def test_scalars_have_one_dimension_to_reduce() -> None:
    x = fw.tensor(2.0)
    assert x.sum(0).item() == x.max(0).values.item() == x.mean(-1).item() == 2
    assert x.argmax(0).item() == 0
    with pytest.raises(IndexError):
        x.sum(1)
