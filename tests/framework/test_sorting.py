"""Order statistics and running extrema against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import framework as fw

nan = float("nan")
_X = np.random.default_rng(0).integers(0, 5, (4, 6)).astype(np.float64)


@pytest.mark.parametrize("dim", [0, 1])
def test_sorting(dim: int) -> None:
    values, indices = fw.tensor(_X).sort(dim)
    np.testing.assert_array_equal(values.numpy(), np.sort(_X, dim))
    np.testing.assert_array_equal(indices.numpy(), np.argsort(_X, dim, kind="stable"))


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_quantile(q: float) -> None:
    x = fw.tensor(_X)
    np.testing.assert_allclose(x.quantile(q, 1).numpy(), np.quantile(_X, q, 1), rtol=1e-12)
    np.testing.assert_allclose(x.quantile(q).item(), np.quantile(_X, q), rtol=1e-12)


def test_medians() -> None:
    x = fw.tensor([[4.0, 1.0, 3.0, 2.0], [nan, 1.0, 5.0, 2.0]])
    assert x.median(1).values[0].item() == 2 and np.isnan(x.median(1).values[1].item())
    assert x.nanmedian(1).values.tolist() == [2, 2]


def test_running_extrema() -> None:
    values, indices = fw.tensor([1.0, 3.0, 2.0, 3.0, nan, 5.0]).cummax(0)
    np.testing.assert_array_equal(values.numpy(), [1, 3, 3, 3, nan, nan])
    assert indices.tolist()[:5] == [0, 1, 1, 3, 4]
    np.testing.assert_allclose(
        fw.tensor(_X).logcumsumexp(1).numpy(), np.log(np.cumsum(np.exp(_X), 1)), rtol=1e-12
    )


def test_unique() -> None:
    x = fw.tensor([[3, 1], [1, 3]])
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert values[inverse].equal(x) and counts.tolist() == [2, 2]
    assert fw.unique_consecutive(fw.tensor([1, 1, 2, 1]), return_counts=True)[1].tolist() == [2, 1, 1]


def test_searching() -> None:
    edges = fw.tensor([1.0, 3.0, 5.0])
    assert fw.searchsorted(edges, fw.tensor([0.0, 3.0, 6.0])).tolist() == [0, 1, 3]
    assert fw.bucketize(fw.tensor([3.0]), edges, right=True).tolist() == [2]
    assert fw.tensor([0, 2, 2]).bincount(minlength=4).tolist() == [1, 0, 2, 0]
    assert fw.histc(fw.tensor([0.0, 1.0, 1.0, 4.0]), 4, 0, 4).tolist() == [1, 2, 0, 1]
