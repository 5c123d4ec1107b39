"""Datasets, samplers, collation and the loader."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.utils import data


class Squares(data.Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        return index * index

    def __len__(self) -> int:
        return self.count


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def rows(count: int = 10) -> data.TensorDataset:
    return data.TensorDataset(fw.arange(count * 2).float().reshape(count, 2), fw.arange(count))


def test_tensor_dataset() -> None:
    d = rows(3)
    assert len(d) == 3 and [t.tolist() for t in d[1]] == [[2.0, 3.0], 1]
    with pytest.raises(ValueError, match=r"first sizes \[2, 3\]"):
        data.TensorDataset(fw.ones(2), fw.ones(3))


def test_subset_concat_and_split() -> None:
    d = data.Subset(Squares(10), [3, 1])
    assert len(d) == 2 and [d[i] for i in range(2)] == [9, 1]
    joined = Squares(2) + Squares(3)
    assert len(joined) == 5 and [joined[i] for i in range(5)] == [0, 1, 0, 1, 4] and joined[-1] == 4
    with pytest.raises(IndexError, match="out of range"):
        joined[5]
    with pytest.raises(ValueError, match="empty iterable"):
        data.ConcatDataset([])
    a, b = data.random_split(Squares(10), [7, 3], generator=fw.Generator().manual_seed(0))
    assert sorted([*a.indices, *b.indices]) == list(range(10)) and (len(a), len(b)) == (7, 3)
    again, _ = data.random_split(Squares(10), [7, 3], generator=fw.Generator().manual_seed(0))
    assert again.indices == a.indices
    assert [len(s) for s in data.random_split(Squares(10), [0.5, 0.25, 0.25])] == [6, 2, 2]
    with pytest.raises(ValueError, match="9 and 10"):
        data.random_split(Squares(10), [6, 3])
    with pytest.raises(ValueError, match="Fraction at index 0"):
        data.random_split(Squares(10), [-0.5, 1.5])


def test_samplers() -> None:
    d = Squares(6)
    assert list(data.SequentialSampler(d)) == list(range(6))
    fw.manual_seed(0)
    sampler = data.RandomSampler(d)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(6)) and first != second
    fw.manual_seed(0)
    assert list(sampler) == first, "the order comes from the framework's generator"
    assert len(list(data.RandomSampler(d, num_samples=8))) == 8
    drawn = list(data.RandomSampler(d, replacement=True, num_samples=100))
    assert set(drawn) == set(range(6)) and len(drawn) == 100
    assert sorted(data.SubsetRandomSampler([5, 7])) == [5, 7]
    with pytest.raises(ValueError, match="num_samples should be a positive"):
        data.RandomSampler(d, num_samples=0)


def test_batch_sampler() -> None:
    assert list(data.BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    dropped = data.BatchSampler(range(5), 2, True)
    assert list(dropped) == [[0, 1], [2, 3]] and len(dropped) == 2
    assert len(data.BatchSampler(range(5), 2, False)) == 3
    with pytest.raises(ValueError, match="batch_size should be a positive"):
        data.BatchSampler(range(5), 0, False)


def test_default_collate() -> None:
    collate = data.default_collate
    assert collate([fw.ones(2), fw.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert collate([1.5, 2.5]).dtype is fw.float64 and collate([1, 2]).dtype is fw.int64
    assert collate([True, False]).dtype is fw.bool
    arrays = collate([np.ones(2, np.float32), np.zeros(2, np.float32)])
    assert arrays.dtype is fw.float32 and arrays.shape == (2, 2)
    assert collate([np.float64(1.0), np.float64(2.0)]).tolist() == [1, 2]
    assert collate(["a", "b"]) == ["a", "b"]
    x, y = collate([(1, "a"), (2, "b")])
    assert x.tolist() == [1, 2] and list(y) == ["a", "b"]
    assert collate([{"k": 1}, {"k": 2}])["k"].tolist() == [1, 2]
    pair = namedtuple("pair", "left right")
    assert collate([pair(1, 2), pair(3, 4)]).right.tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="equal size"):
        collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="found <class 'object'>"):
        collate([object()])


@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_of_tensor_rows_equals_the_item_by_item_one(drop_last: bool) -> None:
    d = rows()
    fast = data.DataLoader(d, batch_size=4, drop_last=drop_last)
    slow = data.DataLoader(d, batch_size=4, drop_last=drop_last, collate_fn=lambda b: data.default_collate(b))
    assert len(fast) == len(list(fast)) == (2 if drop_last else 3)
    for a, b in zip(fast, slow, strict=True):
        assert isinstance(a, list) and [t.tolist() for t in a] == [t.tolist() for t in b]
        assert [t.dtype for t in a] == [t.dtype for t in b]


def test_loader_gathers_tensor_rows_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    whole = data.TensorDataset.__getitem__
    monkeypatch.setattr(data.TensorDataset, "__getitem__", lambda self, i: calls.append(i) or whole(self, i))
    list(data.DataLoader(rows(), batch_size=4))
    subset = data.Subset(data.Subset(rows(), [9, 8, 7, 6]), [3, 0])
    ((x, y),) = data.DataLoader(subset, batch_size=4)
    assert y.tolist() == [6, 9] and calls == []
    x.fill_(-1)
    assert float(subset.dataset.dataset.tensors[0].min()) >= 0, "a batch is a copy"


def test_shuffled_loader_visits_all_anew_each_pass() -> None:
    loader = data.DataLoader(rows(), batch_size=3, shuffle=True, generator=fw.Generator().manual_seed(1))
    first, second = ([i for _, y in loader for i in y.tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10)) and first != second


def test_loader_options() -> None:
    d = Squares(5)
    assert list(data.DataLoader(d, batch_size=None)) == [0, 1, 4, 9, 16]
    assert [b.tolist() for b in data.DataLoader(d, sampler=[4, 0], batch_size=2)] == [[16, 0]]
    loader = data.DataLoader(d, batch_sampler=[[1], [2, 3]])
    assert [b.tolist() for b in loader] == [[1], [4, 9]] and len(loader) == 2
    assert [b.tolist() for b in data.DataLoader(Stream(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [b.tolist() for b in data.DataLoader(Stream(), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(data.DataLoader(Stream(), batch_size=None)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 2}, "num_workers=2: this loader reads in the calling process"),
        ({"shuffle": True, "sampler": [0]}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "disables auto-batching"),
        ({"batch_size": 0}, "positive integer"),
    ],
)
def test_loader_rejects_contradictions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Squares(3), **options)
    with pytest.raises(ValueError, match="IterableDataset"):
        data.DataLoader(Stream(), shuffle=True)
