"""default_collate: many samples to one batch. Knows containers and tensors, not datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from framework.creation import from_numpy, tensor
from framework.tensor import Tensor
from framework.views import stack
from kernels import dtypes


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack tensors, arrays and numbers along a new first dimension, inside mappings, tuples and lists.

    Python floats become float64, strings stay a list. Raises TypeError for another type, RuntimeError for
    sequences of unequal lengths.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch), 0)
    if isinstance(first, np.ndarray | np.generic) and first.dtype.kind not in "USOV":
        return from_numpy(np.stack([np.asarray(x) for x in batch]))
    if isinstance(first, float):
        return tensor(list(batch), dtype=dtypes.float64)
    if isinstance(first, bool | int):
        return tensor(list(batch))
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*_collate_fields(batch))
    if isinstance(first, Sequence):
        return _collate_fields(batch)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{type(first)}: give the loader a collate_fn"
    )


def _collate_fields(batch: Sequence[Sequence[Any]]) -> list[Any]:
    lengths = {len(sample) for sample in batch}
    if len(lengths) > 1:
        raise RuntimeError(
            f"each element in list of batch should be of equal size, got lengths {sorted(lengths)}"
        )
    return [default_collate(field) for field in zip(*batch, strict=True)]
