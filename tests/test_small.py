"""The whole stack in a few seconds: run this first.

Each test goes one floor higher; everything else in tests/ says which floor is broken.
"""

from __future__ import annotations

import numpy as np

import framework as fw
import framework.nn.functional as F
from compiler.ir import Graph, Input
from compiler.ops import add, exp, mul, sum
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from kernels import dtypes
from kernels.cpu import runner
from kernels.spec import Call, Load, LoopSpec, Operand, Store
from kernels.work import Work


def test_a_kernel() -> None:
    vector = Operand(dtypes.float32, (1,))
    steps = (Load("x", 0), Call("y", "add", ("x", "x"), dtypes.float32), Store("y", 1))
    spec = LoopSpec("double", 1, 0, "rows", (vector, vector), steps)
    program = runner.Program([Work(spec, (19,), ((1,), (1,)), (0, 0))], [0])
    x, y = np.arange(19, dtype=np.float32), np.zeros(19, np.float32)
    for operand, array in enumerate((x, y)):
        program.table[program.pointer_slot(0, operand)] = array.ctypes.data
    assert runner.native_run()(program.address, 0) == 0
    np.testing.assert_array_equal(y, 2 * x)


def test_a_graph() -> None:
    x = Input(TensorType((3, 5), dtypes.float32), name="x")
    total = sum.trace(mul.trace(exp.trace(x), add.trace(x, 1.0)), axes=(1,))
    executable = Executable(Request(Graph((x,), (total,))))
    array = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    (out,) = executable(array)
    np.testing.assert_allclose(out, (np.exp(array) * (array + 1)).sum(1, keepdims=True), rtol=1e-6)
    assert len(executable.kernels) == 1
    assert "def kernel(" in executable.kernels[0].source


def test_eager_and_backward() -> None:
    x = fw.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = (x @ x.t()).relu().mean()
    loss.backward()
    assert loss.item() == 13.0
    # d/dx of mean(x xᵀ) is (column sums, twice) / 4, in every row.
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), [[2, 3], [2, 3]])


def training_step() -> tuple[nn.Module, CompiledFunction]:
    """A model, and its whole training step compiled."""
    fw.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    optimizer = optim.AdamW(model.parameters(), lr=0.05)

    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, CompiledFunction(step, strict=True)


def test_a_compiled_step_is_the_eager_step() -> None:
    x, y = fw.randn(11, 5), fw.randint(0, 3, (11,))
    compiled_model, compiled = training_step()
    eager_model, eager = training_step()
    losses = []
    for _ in range(5):
        losses.append(compiled(x, y).item())
        np.testing.assert_allclose(losses[-1], eager.function(x, y).item(), rtol=1e-5)
    assert losses[-1] < losses[0]
    for a, b in zip(compiled_model.parameters(), eager_model.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-6)
    explanation = compiled.explain()
    assert explanation.mode == "replay"
    assert len(compiled.variants) == 1
    text = str(explanation)
    assert "step: replay" in text
    assert "test_small.py:" in text
    assert len(compiled.kernels) == len(explanation.kernels) > 0
    assert all("def kernel(" in kernel.source for kernel in compiled.kernels)
