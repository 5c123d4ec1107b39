"""The interpreter runs every kind of node."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input
from compiler.types import TensorType
from kernels import dtypes


def test_inputs_constants_and_shared_nodes() -> None:
    x, y = (Input(TensorType((2,), dtypes.float64)) for _ in range(2))
    twice = ops.mul(x, 2.0)
    graph = Graph((x, y), (ops.add(twice, np.array([1.0, 2.0])), ops.sub(twice, y), x))
    outputs = evaluate(graph, [np.array([3.0, 4.0]), np.array([1.0, 1.0])])
    assert [out.tolist() for out in outputs] == [[7, 10], [5, 7], [3, 4]]


def test_checks_run() -> None:
    x, index = Input(TensorType((2,), dtypes.float64)), Input(TensorType((1,), dtypes.int64))
    with pytest.raises(IndexError, match="index 2 is out of range"):
        evaluate(Graph((x, index), (ops.take(x, index, axis=0),)), [np.zeros(2), np.array([2])])


def test_inputs_must_match_in_number() -> None:
    with pytest.raises(ValueError, match="zip"):
        evaluate(Graph((Input(TensorType((), dtypes.float64)),), ()), [])
