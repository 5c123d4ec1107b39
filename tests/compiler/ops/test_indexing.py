"""Index ops: bad indices change nothing, repeated ones accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.ir import Apply, Graph, Input
from compiler.types import TensorType
from kernels import dtypes
from tests.reverse_mode import pull_back


@pytest.mark.parametrize("bad", [3, -1])
@pytest.mark.parametrize("name", ["gather", "take", "scatter_add", "take_add"])
def test_a_bad_index_raises_and_nothing_is_written(name: str, bad: int) -> None:
    x = np.zeros((3, 2))
    index = np.array([[0, 1], [2, bad]]) if name in ("gather", "scatter_add") else np.array([0, bad])
    operands: list[Any] = [x, index, np.ones((2, 2))] if name.endswith("add") else [x, index]
    with pytest.raises(IndexError, match=rf"index {bad} is out of range for axis 0 of size 3"):
        ops.TABLE[name](*operands, axis=0)
    assert not x.any()


def test_gather_is_torchs() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert ops.gather(x, np.array([[0, 0], [1, 0]]), axis=1).tolist() == [[1, 1], [4, 3]]
    assert ops.gather(x, np.array([[1]]), axis=0).tolist() == [[3]]


def test_repeated_indices_accumulate() -> None:
    x = np.array([1.0, 2.0])
    assert ops.take_add(x, np.array([0, 0]), np.array([1.0, 1.0]), axis=0).tolist() == [3, 2]
    assert ops.scatter_add(x, np.array([1, 1]), np.array([1.0, 5.0]), axis=0).tolist() == [1, 8]
    assert x.tolist() == [1, 2]


def test_sixteen_bit_accumulation_rounds_once() -> None:
    x, count = np.zeros(1, np.float16), 5000
    out = ops.take_add(x, np.zeros(count, np.int64), np.full(count, 0.5, np.float16), axis=0)
    # In float16, 1024 + 0.5 is 1024.
    assert out.tolist() == [2500]


def test_empty_index() -> None:
    none = np.zeros(0, np.int64)
    assert ops.take(np.zeros((0, 2)), none, axis=0).shape == (0, 2)
    assert ops.take_add(np.ones((3, 2)), none, np.zeros((0, 2)), axis=0).tolist() == np.ones((3, 2)).tolist()


def test_gradient_of_reading_one_element_a_row_needs_no_scatter() -> None:
    x, index, seed = (
        Input(TensorType(*t))
        for t in (((4, 9), dtypes.float32), ((4, 1), dtypes.int64), ((4, 1), dtypes.float32))
    )
    (gradient,) = pull_back(ops.gather(x, index, axis=1), seed, [x])
    names = {v.op.name for v in Graph((x, index, seed), (gradient,)).nodes if isinstance(v, Apply)}
    assert "where" in names
    assert "scatter_add" not in names


def test_types_are_checked_before_work() -> None:
    x, index = np.zeros((3, 2)), np.zeros((3, 2), np.int64)
    with pytest.raises(RuntimeError, match="int64 indices"):
        ops.take(x, np.array([0], np.int32), axis=0)
    with pytest.raises(RuntimeError, match="no larger elsewhere"):
        ops.gather(x, np.zeros((3, 5), np.int64), axis=0)
    with pytest.raises(RuntimeError, match="source of the index's shape"):
        ops.scatter_add(x, index, np.zeros((2, 2)), axis=0)
    with pytest.raises(RuntimeError, match=r"needs a source float64\[1, 2\]"):
        ops.take_add(x, np.array([0]), np.zeros((2, 2)), axis=0)
