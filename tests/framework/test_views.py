"""Movement of elements against NumPy: shapes, joins, splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw

_X = np.arange(24.0).reshape(2, 3, 4)
_M = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (lambda x: x.reshape(4, -1), lambda x: x.reshape(4, -1)),
        (lambda x: x.flatten(1), lambda x: x.reshape(2, 12)),
        (lambda x: x.unflatten(2, (2, -1)), lambda x: x.reshape(2, 3, 2, 2)),
        (lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
        (lambda x: x.mT, lambda x: x.swapaxes(-1, -2)),
        (lambda x: x.movedim(0, -1), lambda x: np.moveaxis(x, 0, -1)),
        (lambda x: x.unsqueeze(-1).squeeze(), lambda x: x),
        (lambda x: x[:1].expand(5, -1, 4), lambda x: np.broadcast_to(x[:1], (5, 3, 4))),
        (lambda x: x.flip(0, 2), lambda x: np.flip(x, (0, 2))),
        (lambda x: x.roll((1, -1), (0, 2)), lambda x: np.roll(x, (1, -1), (0, 2))),
        (lambda x: x.roll(5), lambda x: np.roll(x, 5)),
        (lambda x: x.rot90(3, (0, 2)), lambda x: np.rot90(x, 3, (0, 2))),
        (lambda x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
        (lambda x: x.tile(2), lambda x: np.tile(x, 2)),
        (lambda x: x.repeat_interleave(2, 1), lambda x: np.repeat(x, 2, 1)),
        (lambda x: x.narrow(2, 1, 2), lambda x: x[:, :, 1:3]),
        (lambda x: x.select(1, -1), lambda x: x[:, -1]),
        (lambda x: x.tril(-1), lambda x: np.tril(x, -1)),
        (lambda x: x.triu(1), lambda x: np.triu(x, 1)),
        (lambda x: x.diagonal(1, 1, 2), lambda x: np.diagonal(x, 1, 1, 2)),
        (lambda x: fw.stack([x, x], 1), lambda x: np.stack([x, x], 1)),
        (lambda x: fw.cat([x, x], -1), lambda x: np.concatenate([x, x], -1)),
        (lambda x: fw.hstack([x, x]), lambda x: np.hstack([x, x])),
        (lambda x: fw.vstack([x, x]), lambda x: np.vstack([x, x])),
        (lambda x: fw.dstack([x, x]), lambda x: np.dstack([x, x])),
        (lambda x: x.unfold(2, 2, 1), lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 2)),
        (lambda x: x.select_scatter(x[:, 0] * 9, 1, 2),
         lambda x: np.concatenate([x[:, :2], x[:, :1] * 9], 1)),
    ],
)  # fmt: skip
def test_movement(ours: Callable[[Any], Any], numpys: Callable[[Any], Any]) -> None:
    np.testing.assert_array_equal(ours(fw.tensor(_X)).numpy(), numpys(_X))


def test_splits() -> None:
    x = fw.arange(10)
    assert [len(p) for p in x.split(4)] == [4, 4, 2]
    assert [len(p) for p in x.chunk(3)] == [4, 4, 2]
    assert [len(p) for p in x.tensor_split(3)] == [4, 3, 3]
    assert [p.tolist() for p in x.tensor_split([2, 9])] == [[0, 1], list(range(2, 9)), [9]]
    assert [p.item() for p in x.unbind()] == list(range(10))
    assert [len(p) for p in x.split(split_size=[3, 7])] == [3, 7]
    x.split(5)[1].zero_()
    assert x.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("rows", "columns", "offset"), [(3, 3, 0), (3, 4, 1), (4, 2, -1), (0, 2, 0)])
def test_triangle_indices(rows: int, columns: int, offset: int) -> None:
    for ours, numpys in ((fw.tril_indices, np.tril_indices), (fw.triu_indices, np.triu_indices)):
        got = ours(rows, columns, offset)
        assert got.dtype is fw.int64
        np.testing.assert_array_equal(got.numpy(), np.stack(numpys(rows, offset, columns)))
    assert fw.triu_indices(2, 2, dtype=fw.int32).dtype is fw.int32


def test_grids() -> None:
    a, b = fw.arange(2), fw.arange(3)
    for indexing in ("ij", "xy"):
        expected = np.meshgrid(np.arange(2), np.arange(3), indexing=indexing)
        for got, wanted in zip(fw.meshgrid(a, b, indexing=indexing), expected, strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)


def test_diagonals() -> None:
    m = fw.tensor(_M)
    assert m.diag().tolist() == [0, 5, 10] and m.trace().item() == 15
    np.testing.assert_array_equal(fw.diag(fw.tensor([1.0, 2.0]), 1).numpy(), np.diag([1.0, 2.0], 1))
    m.diagonal().zero_()
    assert m.trace().item() == 0
    np.testing.assert_array_equal(fw.kron(fw.tensor(_M), fw.eye(2)).numpy(), np.kron(_M, np.eye(2)))


def test_in_place_forms_of_views() -> None:
    x = fw.arange(6.0).view(2, 3)
    assert (
        x.t_() is x
        and x.shape == (3, 2)
        and x.unsqueeze_(0).shape == (1, 3, 2)
        and x.squeeze_().shape == (3, 2)
    )


def test_expansions_are_views_of_their_memory() -> None:
    x = fw.arange(6.0).reshape(2, 3)
    wide = x[1:].expand(4, 3)
    assert wide.storage_offset() == 3 and wide.stride() == (0, 1)
    assert wide.as_strided((2, 2), (3, 1), 0).tolist() == [[0, 1], [3, 4]]
