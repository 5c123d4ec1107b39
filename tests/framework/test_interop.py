"""NumPy, DLPack and files: memory shared both ways, and files that cannot run code."""

from __future__ import annotations

import collections
import io
import pickle
from pathlib import Path

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


def test_files_round_trip(tmp_path: Path) -> None:
    base = fw.arange(6.0).view(2, 3)
    state = collections.OrderedDict(
        base=base,
        row=base[1],
        turned=base.t(),
        half=fw.ones(2, dtype=fw.bfloat16),
        flag=fw.tensor(True),
        empty=fw.zeros(0, 2),
        leaf=fw.ones(1, requires_grad=True),
        plain=[1, (2.5, None), {"k": "v"}, fw.float16],
    )
    fw.save(state, tmp_path / "file.pt")
    back = fw.load(tmp_path / "file.pt")
    assert isinstance(back, collections.OrderedDict) and back["plain"] == state["plain"]
    for key in ("base", "row", "turned", "half", "flag", "empty", "leaf"):
        assert back[key].equal(state[key]) and back[key].dtype is state[key].dtype
    assert back["leaf"].requires_grad and back["turned"].stride() == base.t().stride()
    back["row"].zero_()
    assert back["base"][1].tolist() == [0, 0, 0] and back["turned"][0, 1].item() == 0


class Custom:
    pass


def test_load_builds_only_what_is_safe() -> None:
    stream = io.BytesIO()
    fw.save({"x": Custom()}, stream)
    stream.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Custom"):
        fw.load(stream)
    stream.seek(0)
    assert isinstance(fw.load(stream, weights_only=False)["x"], Custom)


def test_other_files_are_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="zip"):
        fw.load(io.BytesIO(b"not a zip"))
    with pytest.raises(RuntimeError, match="detach"):
        fw.save(fw.ones(1, requires_grad=True) * 2, io.BytesIO())
