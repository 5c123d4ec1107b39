"""Selection, conversion and comparison at the edges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from compiler import ops
from compiler.ir import Input
from compiler.types import TensorType
from kernels import dtypes


def test_comparisons_with_nan_are_false_but_ne() -> None:
    x, y = np.array([np.nan]), np.array([1.0])
    assert [op(x, y).item() for op in (ops.eq, ops.lt, ops.le, ops.gt, ops.ge)] == [False] * 5
    assert ops.ne(x, y).item() is True


def test_where_with_numbers_takes_the_default_dtype() -> None:
    condition = np.array([True, False])
    assert ops.where(condition, 1.0, 0.0).dtype == np.float32
    assert ops.where(condition, np.array([1.0, 2.0]), 0.0).dtype == np.float64
    traced = ops.where(Input(TensorType((2,), dtypes.bool_)), 1.0, 0.0)
    assert traced.type == TensorType((2,), dtypes.float32)


def test_where_needs_a_bool_condition() -> None:
    with pytest.raises(TypeError, match="bool condition"):
        ops.where(np.array([1, 0]), np.array([1.0, 2.0]), 0.0)


def test_where_gives_an_exact_zero_to_the_other_branch() -> None:
    condition, g = np.array([True, False]), np.array([np.inf, np.inf])
    to_x, to_y = (ops.where.grads[i](g, None, condition, g, g) for i in (1, 2))  # type: ignore[misc]
    assert to_x.tolist() == [np.inf, 0.0]
    assert to_y.tolist() == [0.0, np.inf]


@pytest.mark.parametrize("dtype", list(dtypes.DTYPES.values()), ids=lambda d: d.name)
def test_cast_reaches_every_dtype(dtype: dtypes.DType) -> None:
    x = np.array([0.0, 1.0, 2.75])
    out = ops.cast(x, dtype=dtype)
    assert out.dtype == dtype.numpy
    np.testing.assert_array_equal(out, x.astype(dtype.numpy))
    traced = ops.cast.trace(Input(TensorType((3,), dtypes.float64)), dtype=dtype)
    assert traced.dtype is dtype


def test_cast_to_the_same_dtype_is_a_copy() -> None:
    x = np.array([1.0])
    assert not np.shares_memory(x, ops.cast(x, dtype=dtypes.float64))


def test_cast_to_sixteen_bits_goes_through_float32() -> None:
    # Just above the middle of two float16 numbers; float32 cannot tell, and the tie goes to even, as in
    # PyTorch.
    x = np.array([1 + 2**-11 + 2**-40])
    assert ops.cast(x, dtype=dtypes.float16).item() == 1.0
    assert ops.cast(np.array([1 + 2**-8 + 2**-40]), dtype=dtypes.bfloat16).astype(np.float64).item() == 1.0
    assert x.astype(np.float16).item() != 1.0


def test_the_gradient_of_cast_has_the_input_dtype() -> None:
    x, g = np.ones(2, np.float64), np.ones(2, ml_dtypes.bfloat16)
    assert ops.cast.grads[0](g, None, x, dtype=dtypes.bfloat16).dtype == np.float64  # type: ignore[misc]
