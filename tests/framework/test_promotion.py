"""Promotion: the whole table of dtype pairs, and the weakness of 0-d tensors and numbers."""

from __future__ import annotations

import itertools

import pytest

import framework as fw
from kernels.dtypes import DTYPES, DType

ORDER = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
# PyTorch's table, upper triangle by rows; a row starts at its own dtype.
TABLE = {
    "bool": "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64",
    "uint8": "uint8 int16 int16 int32 int64 float16 bfloat16 float32 float64",
    "int8": "int8 int16 int32 int64 float16 bfloat16 float32 float64",
    "int16": "int16 int32 int64 float16 bfloat16 float32 float64",
    "int32": "int32 int64 float16 bfloat16 float32 float64",
    "int64": "int64 float16 bfloat16 float32 float64",
    "float16": "float16 float32 float32 float64",
    "bfloat16": "bfloat16 float32 float64",
    "float32": "float32 float64",
    "float64": "float64",
}
PAIRS = [
    (DTYPES[a], DTYPES[b], DTYPES[c])
    for a, row in TABLE.items()
    for b, c in zip(ORDER[ORDER.index(a) :], row.split(), strict=True)
]


@pytest.mark.parametrize(("a", "b", "c"), PAIRS, ids=lambda d: d.name)
def test_pairs(a: DType, b: DType, c: DType) -> None:
    assert fw.promote_types(a, b) is fw.promote_types(b, a) is c
    assert (fw.ones(2, dtype=a) + fw.ones(2, dtype=b)).dtype is c
    assert (fw.ones((), dtype=a) * fw.ones((), dtype=b)).dtype is c
    assert fw.cat([fw.ones(1, dtype=a), fw.ones(1, dtype=b)]).dtype is c


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES.values(), repeat=2)), ids=lambda d: d.name)
def test_a_scalar_tensor_counts_only_by_a_higher_category(a: DType, b: DType) -> None:
    expected = b if b.category > a.category else a
    assert (fw.ones(2, dtype=a) + fw.ones((), dtype=b)).dtype is expected


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)
def test_numbers_are_weak(dtype: DType) -> None:
    x = fw.ones(2, dtype=dtype)
    assert (x + True).dtype is dtype
    assert (x + 1).dtype is (fw.int64 if dtype is fw.bool else dtype)
    assert (x + 1.0).dtype is (dtype if dtype.is_floating_point else fw.float32)
    assert (2.0 * x).dtype is (dtype if dtype.is_floating_point else fw.float32)
    assert (x > 0.5).dtype is fw.bool


def test_default_dtype() -> None:
    fw.set_default_dtype(fw.float64)
    try:
        assert fw.tensor(1.0).dtype is fw.ones(1).dtype is (fw.tensor(1) + 0.5).dtype is fw.float64
    finally:
        fw.set_default_dtype(fw.float32)
    with pytest.raises(TypeError, match="floating-point"):
        fw.set_default_dtype(fw.int64)


def test_division_of_integers_is_floating() -> None:
    assert (fw.tensor([7]) / fw.tensor([2])).tolist() == [3.5]
    assert fw.div(fw.tensor([-7]), 2, rounding_mode="floor").tolist() == [-4]
    assert fw.div(fw.tensor([-7]), 2, rounding_mode="trunc").tolist() == [-3]


def test_result_type_and_can_cast() -> None:
    assert fw.result_type(fw.tensor([1, 2], dtype=fw.int32), 1.0) is fw.float32
    assert fw.can_cast(fw.int64, fw.float16) and not fw.can_cast(fw.float32, fw.int64)


def test_wheres_branches_promote() -> None:
    assert fw.where(fw.tensor([True]), fw.tensor([1]), 0.5).dtype is fw.float32
    assert fw.where(fw.tensor([True]), 1, 0).dtype is fw.int64
