"""The NumPy meaning of the scalar vocabulary."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from kernels import dtypes, memory
from kernels.scalar import NumpyScalars, PooledScalars, Scalars

K = NumpyScalars()
BINARY = frozenset("add sub mul div fmod maximum minimum pow eq ne lt le gt ge".split())


def test_every_word_has_a_meaning() -> None:
    words = [name for name, _ in inspect.getmembers(Scalars, inspect.isfunction) if not name.startswith("__")]
    words.remove("_no_init_or_replace_init") if "_no_init_or_replace_init" in words else None
    assert [word for word in words if not callable(getattr(K, word, None))] == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_numbers_are_weak(dtype: type) -> None:
    x = np.ones(2, dtype)
    for word in ("add", "sub", "mul", "maximum", "minimum", "floor_div", "remainder", "fmod", "pow"):
        assert getattr(K, word)(x, 2).dtype == dtype, word
    assert K.where(x > 0, x, 0).dtype == dtype
    assert K.eq(x, 1).dtype == np.bool_


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_quotients_are_pythons_where_exact(dtype: type) -> None:
    grid = np.array([-7.5, -3, -0.5, 0.25, 2, 6], dtype)
    x, y = np.meshgrid(grid, grid)
    np.testing.assert_array_equal(K.floor_div(x, y), np.floor(x / y))
    np.testing.assert_array_equal(K.remainder(x, y), x - y * np.floor(x / y))
    assert K.floor_div(x, y).dtype == dtype


def test_extrema_keep_nan() -> None:
    nan = np.array([np.nan, 1.0])
    assert np.isnan(K.maximum(nan, nan[::-1])).all()
    assert np.isnan(K.minimum(nan, nan[::-1])).all()


def test_cast_truncates() -> None:
    np.testing.assert_array_equal(K.cast(np.array([-1.9, 1.9]), dtypes.int32), [-1, 1])


def test_large_operands_give_the_same_bits() -> None:
    pooled = PooledScalars()
    x = np.linspace(0.1, 3, 6, dtype=np.float32).reshape(2, 3)
    y = x[:, :1].copy()
    for word in vars(PooledScalars):
        if word.startswith("_"):
            continue
        operands = (x, y) if word in BINARY else (x,)
        expected, found = getattr(K, word)(*operands), getattr(pooled, word)(*operands)
        assert found.dtype == expected.dtype and found.flags.c_contiguous, word
        np.testing.assert_array_equal(found, expected, err_msg=word)
        if word in BINARY:
            np.testing.assert_array_equal(getattr(pooled, word)(2, x), getattr(K, word)(2, x), err_msg=word)


def test_large_results_reuse_memory() -> None:
    pooled, x = PooledScalars(), np.ones(memory.LARGE // 4, np.float32)
    first = pooled.add(x, x)
    where = first.ctypes.data
    del first
    second = pooled.mul(x, 3)
    assert second.ctypes.data == where and (second == 3).all()
