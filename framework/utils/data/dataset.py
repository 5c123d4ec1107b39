"""Datasets: what a loader reads samples from, and ways to cut and join them. Knows no batches."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from framework.random import randperm
from framework.tensor import Tensor

Sample = TypeVar("Sample", covariant=True)


class Dataset(Generic[Sample]):
    """Samples by index: a subclass defines `__getitem__` and, for most samplers, `__len__`."""

    def __getitem__(self, index: Any) -> Sample:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(self, index)")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Sample]):
    """Samples in a stream: a subclass defines `__iter__`."""

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__(self)")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Rows of tensors of equal first size. Raises ValueError when they differ."""

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [t.shape[0] for t in tensors]
        if len(set(sizes)) > 1:
            raise ValueError(f"Size mismatch between tensors: first sizes {sizes} must be equal")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class Subset(Dataset[Sample]):
    """The samples of `dataset` at `indices`, in that order."""

    def __init__(self, dataset: Dataset[Sample], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Sample]):
    """Several datasets one after the other. Raises ValueError for none and for a stream."""

    def __init__(self, datasets: Iterable[Dataset[Sample]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ValueError("ConcatDataset does not support IterableDataset: chain the iterators instead")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Sample:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        which = bisect_right(self.cumulative_sizes, position)
        return self.datasets[which][position - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Dataset[Sample], lengths: Sequence[int | float], generator: Any = None
) -> list[Subset[Sample]]:
    """Cut `dataset` at random into subsets of `lengths`, or of fractions that add up to 1 (remainders go to
    the first).

    Raises ValueError when the lengths do not add up.
    """
    total = len(dataset)  # type: ignore[arg-type]
    sizes = list(lengths)
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        sizes = _of_fractions(sizes, total)
    if sum(sizes) != total:
        raise ValueError(
            f"Sum of input lengths does not equal the length of the input dataset: {sum(sizes)} and {total}"
        )
    order = randperm(total, generator=generator).tolist()
    ends = list(itertools.accumulate(int(n) for n in sizes))
    return [Subset(dataset, order[end - int(n) : end]) for end, n in zip(ends, sizes, strict=True)]


def _of_fractions(fractions: Sequence[float], total: int) -> list[int | float]:
    for i, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(f"Fraction at index {i} is not between 0 and 1, got {fraction}")
    sizes: list[int | float] = [math.floor(total * fraction) for fraction in fractions]
    for i in range(total - int(sum(sizes))):
        sizes[i % len(sizes)] += 1
    return sizes
