"""Datasets, samplers and the loader, under PyTorch's names."""

from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.utils.data.collate import default_collate
from framework.utils.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from framework.utils.data.loader import DataLoader
from framework.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "default_collate",
    "random_split",
]

_attach(globals(), _training.TABLE, "data")
