"""Matrix products: dtypes, broadcasting, errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from compiler import ops


def test_leading_axes_broadcast() -> None:
    a, b = np.ones((2, 1, 3, 4)), np.ones((5, 4, 2))
    assert ops.matmul(a, b).shape == (2, 5, 3, 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_products_add_in_float32(dtype: type) -> None:
    a, b = np.full((1, 4096), 0.5, dtype), np.full((4096, 1), 1.0, dtype)
    out = ops.matmul(a, b)
    assert out.dtype == dtype
    assert out.item() == 2048


def test_integers_wrap() -> None:
    a = np.full((1, 2), 100, np.uint8)
    assert ops.matmul(a, a.T).item() == (20000 % 256)


def test_an_empty_inner_axis_gives_zeros() -> None:
    assert ops.matmul(np.zeros((2, 0)), np.zeros((0, 3))).tolist() == np.zeros((2, 3)).tolist()


def test_mismatches_are_explained() -> None:
    with pytest.raises(RuntimeError, match=r"cannot be multiplied: float64\[2, 3\] and float64\[4, 5\]"):
        ops.matmul(np.zeros((2, 3)), np.zeros((4, 5)))
    with pytest.raises(RuntimeError, match="same dtype"):
        ops.matmul(np.zeros((2, 3)), np.zeros((3, 5), np.float32))
    with pytest.raises(RuntimeError, match="rank 2 or more"):
        ops.matmul(np.zeros(3), np.zeros((3, 5)))
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        ops.matmul(np.zeros((2, 3, 4)), np.zeros((3, 4, 5)))
