"""The verifier: valid graphs pass at every stage, faults are shown with their neighbourhood."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import compiler.ops as ops
from compiler.errors import VerifyError
from compiler.ir import Apply, Const, Graph, Input
from compiler.passes import PIPELINE
from compiler.types import TensorType
from compiler.verify import verify
from kernels import dtypes
from tests.compiler.random_graphs import random_graph

F32 = dtypes.float32


def test_random_graphs_are_valid_after_every_pass() -> None:
    for seed in range(40):
        graph, _ = random_graph(seed, F32, nodes=20)
        for run in PIPELINE:
            graph = run(graph)
            verify(graph, run.__name__)


def test_a_wrong_type_is_shown_with_its_neighbourhood() -> None:
    x = Input(TensorType((4, 8), F32), name="x")
    y = ops.exp(x)
    wrong = replace(y, type=TensorType((4, 1), F32))
    with pytest.raises(VerifyError, match=r"after fusing: %1 says float32\[4, 1\] but exp") as error:
        verify(Graph((x,), (wrong,)), "fusing")
    assert "exp(%0) gives float32[4, 8]" in str(error.value)
    assert '%0: float32[4, 8] = input "x"' in str(error.value) and " > %1" in str(error.value)


def test_an_invalid_application_a_foreign_input_and_a_false_constant_are_found() -> None:
    x, y = (Input(TensorType((n,), F32), name="xy"[n - 3]) for n in (3, 4))
    total = ops.add(x, x)
    assert isinstance(total, Apply)
    with pytest.raises(VerifyError, match="no valid application"):
        verify(Graph((x, y), (replace(total, inputs=(x, y)),)), "a pass")
    with pytest.raises(VerifyError, match="not an input of the graph"):
        verify(Graph((), (total,)), "a pass")
    with pytest.raises(VerifyError, match="holds float64"):
        verify(Graph((), (Const(TensorType((), F32), data=np.zeros(())),)), "a pass")
