"""NumPy and DLPack: memory shared both ways."""

from __future__ import annotations

import numpy as np
import pytest

import framework as fw


def test_memory_is_shared_both_ways() -> None:
    array = np.zeros(3, np.float32)
    x = fw.from_numpy(array)
    x.add_(1)
    assert array.tolist() == [1, 1, 1]
    x.numpy()[0] = 5
    np.asarray(x)[1] = 6
    assert x.tolist() == array.tolist() == [5, 6, 1]


def test_numpy_of_a_graph_refuses() -> None:
    x = fw.ones(2, requires_grad=True)
    for read in (x.numpy, lambda: np.asarray(x), lambda: x.__dlpack__()):
        with pytest.raises((RuntimeError, BufferError), match="detach"):
            read()
    assert x.numpy(force=True).tolist() == [1, 1]


def test_operators_with_arrays_on_either_side() -> None:
    x, array = fw.tensor([1.0, 2.0], dtype=fw.float64), np.array([3.0, 4.0])
    for got in (x + array, array + x):
        assert isinstance(got, fw.Tensor) and got.tolist() == [4, 6]
    assert (np.float32(2) * x).tolist() == [2, 4] and (array @ x).item() == 11
    assert isinstance(np.exp(x), fw.Tensor)
    assert np.add.reduce(x).item() == 3


def test_ufuncs_keep_gradients() -> None:
    x = fw.tensor([1.0, 2.0], requires_grad=True)
    (np.ones(2, np.float32) * x).sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_dlpack_shares() -> None:
    x = fw.zeros(2, 3)
    np.from_dlpack(x)
    made = fw.from_dlpack(np.arange(3.0))
    assert made.dtype is fw.float64 and made.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="__dlpack__"):
        fw.from_dlpack(3)


def test_unknown_dtypes_are_named() -> None:
    with pytest.raises(TypeError, match="complex"):
        fw.from_numpy(np.zeros(1, np.complex64))
