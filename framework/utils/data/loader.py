"""DataLoader: batches of a dataset, made in the calling process.

Batches of tensor rows are gathered once per tensor instead of sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from framework.capture.tree import map_leaves
from framework.creation import tensor
from framework.cuda import is_available
from framework.state import ambient
from framework.tensor import Tensor, concrete, wrap
from framework.utils.data.collate import default_collate
from framework.utils.data.dataset import Dataset, IterableDataset, Subset, TensorDataset
from framework.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler


class DataLoader:
    """Iterate over batches of `dataset`: `batch_size` samples (None: single ones), joined by `collate_fn`.

    `shuffle` draws a new order on each pass from `generator` or the default one; `sampler` or `batch_sampler`
    replace it. Raises ValueError for options that exclude each other and for worker processes, of which there
    are none.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        generator: Any = None,
    ) -> None:
        if num_workers != 0:
            raise ValueError(
                f"num_workers={num_workers}: this loader reads in the calling process; use num_workers=0, "
                "and for speed a TensorDataset, whose batches are single gathers"
            )
        self.stream = isinstance(dataset, IterableDataset)
        _check_options(self.stream, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset, self.num_workers, self.pin_memory, self.generator = (
            dataset,
            num_workers,
            pin_memory,
            generator,
        )
        self.batch_size = batch_size if batch_sampler is None else None
        self.drop_last = drop_last
        if not self.stream and sampler is None:
            kind = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)  # type: ignore
            sampler = kind
        self.sampler: Any = sampler
        if batch_sampler is None and batch_size is not None and not self.stream:
            batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.batch_sampler: Any = batch_sampler
        batched = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else _unchanged)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        return map(_pinned, batches) if self.pin_memory and is_available() else batches

    def _batches(self) -> Iterator[Any]:
        if self.stream:
            return self._stream_batches()
        if self.batch_sampler is None:
            return (self.collate_fn(self.dataset[i]) for i in self.sampler)
        return (self._batch(indices) for indices in self.batch_sampler)

    def __len__(self) -> int:
        if not self.stream:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        count = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def _batch(self, indices: list[int]) -> Any:
        if self.collate_fn is default_collate:
            source, positions = _rows(self.dataset, indices)
            if source is not None:
                return [_selected(t, positions) for t in source.tensors]
        return self.collate_fn([self.dataset[i] for i in indices])

    def _stream_batches(self) -> Iterator[Any]:
        samples = iter(self.dataset)  # type: ignore[call-overload]
        if self.batch_size is None:
            yield from (self.collate_fn(sample) for sample in samples)
            return
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)


def _rows(dataset: Any, indices: list[int]) -> tuple[TensorDataset | None, list[int]]:
    """The tensor dataset under `dataset` and the rows that `indices` mean in it; None when there is none."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    plain = type(dataset) is TensorDataset and all(type(i) is int for i in indices)
    return (dataset if plain else None), indices


def _selected(t: Tensor, positions: list[int]) -> Tensor:
    """The rows of `t` at `positions`, in memory of their own."""
    if ambient.tracer is not None or t.requires_grad or t.is_cuda:
        return t[tensor(positions)]
    # Plain data needs none of what an op does: 37 us a batch of two tensors instead of 200.
    return wrap(np.take(concrete(t), positions, axis=0))


def _pinned(batch: Any) -> Any:
    """A batch with its tensors in page-locked memory."""
    return map_leaves(lambda x: x.pin_memory() if isinstance(x, Tensor) and not x.is_cuda else x, batch)


def _unchanged(sample: Any) -> Any:
    return sample


def _check_options(
    stream: bool,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
) -> None:
    if stream and (shuffle or sampler is not None or batch_sampler is not None):
        raise ValueError(
            "DataLoader with IterableDataset: expected unspecified shuffle, sampler and batch_sampler, "
            "because the dataset decides the order"
        )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
        )
    if batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )
    if batch_size is not None and batch_sampler is None and batch_size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
