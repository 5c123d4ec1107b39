"""Bytes and FLOPs counted from specs, against numbers counted by hand."""

from __future__ import annotations

import pytest

from kernels import dtypes
from kernels.cost import cost
from kernels.library import LIBRARY


@pytest.mark.parametrize(
    ("name", "sizes", "read", "written", "flops"),
    [
        ("copy", (1000,), 4000, 4000, 0),
        ("triad", (1000,), 8000, 4000, 2000),
        ("adamw", (1000,), 16000, 12000, 14000),
        # A row each for the weight and the bias, however many rows use them.
        ("layer_norm", (10, 100), 4000 + 800, 4000, 7 * 1000 + 4 * 10),
        # The chosen logits are some of the logits.
        ("cross_entropy", (10, 100), 4000 + 80, 40, 4 * 1000 + 3 * 10),
        ("column_sum", (10, 100), 4000, 400, 1000),
        ("running_sum", (10, 100), 4000, 4000, 1000),
        ("recurrence", (10, 100), 8000, 4000, 2000),
        ("matmul_tn", (2, 3, 5), 4 * (6 + 15), 40, 60),
        ("batched_matmul", (7, 2, 3, 5), 7 * 4 * (6 + 15), 280, 420),
    ],
)
def test_least_work(name: str, sizes: tuple[int, ...], read: int, written: int, flops: int) -> None:
    counted = cost(LIBRARY[name].make(dtypes.float32, sizes))
    assert (counted.read, counted.written, counted.flops) == (read, written, flops)


def test_passes_over_a_row() -> None:
    # Maximum, exponentials that are kept, division: x twice, the exponentials written, read, and the result.
    counted = cost(LIBRARY["softmax"].make(dtypes.float32, (8, 64)))
    assert counted.moved == 5 * 8 * 64 * 4
    assert counted.least == 2 * 8 * 64 * 4


def test_in_place() -> None:
    assert cost(LIBRARY["adamw"].make(dtypes.float32, (8,))).in_place
    assert not cost(LIBRARY["add"].make(dtypes.float32, (8,))).in_place


def test_arithmetic_of_narrow_floats_is_wide() -> None:
    counted = cost(LIBRARY["add"].make(dtypes.bfloat16, (8,)))
    assert counted.dtype is dtypes.float32 and counted.least == 48
