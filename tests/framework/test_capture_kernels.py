"""Programs for other sizes share the kernels of products: batches of any size compile a few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.capture.compile import CompiledFunction
from kernels.spec import MatmulSpec

pytestmark = pytest.mark.replays


def products(f: CompiledFunction[..., Any]) -> set[str]:
    """Products that programs of `f` have, each once."""
    return {k.spec.digest for k in f.kernels if isinstance(k.spec, MatmulSpec)}


@pytest.mark.parametrize("form", ["rows", "columns", "both", "transposed"])
def test_sizes_share_kernels(form: str) -> None:
    def product(a: fw.Tensor, b: fw.Tensor) -> fw.Tensor:
        return a @ b.t() if form == "transposed" else a @ b

    f = fw.compile(product)
    fw.manual_seed(0)
    seen: dict[str, list[int]] = {}
    for n in (5, *range(2, 65), 100, 300, 1000):
        rows = 40 if form == "columns" else n
        columns = n if form in ("columns", "both") else 70
        a, b = fw.randn(rows, 33), fw.randn(*((columns, 33) if form == "transposed" else (33, columns)))
        got = f(a, b).numpy()
        right = b.numpy().astype("d")
        right = right.T if form == "transposed" else right
        np.testing.assert_allclose(got, a.numpy().astype("d") @ right, rtol=1e-4, atol=1e-4)
        for digest in products(f):
            seen.setdefault(digest, []).append(n)
    # That of the first size, and one or, of columns, three for all others.
    assert len(seen) <= (2 if form in ("rows", "transposed") else 4), seen


def test_a_linear_layer_of_many_batches() -> None:
    layer = fw.nn.Linear(40, 30)

    def step(x: fw.Tensor) -> fw.Tensor:
        loss = layer(x).square().mean()
        loss.backward()
        return loss

    f = fw.compile(step)
    seen: set[str] = set()
    for n in range(2, 65):
        x = fw.randn(n, 40)
        got, gradients = [], []
        for run in (f, step):
            layer.zero_grad()
            got.append(float(run(x)))
            assert layer.weight.grad is not None
            gradients.append(layer.weight.grad.numpy().copy())
        np.testing.assert_allclose(*got, rtol=1e-5)
        np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)
        seen |= products(f)
    # Forward, with rows that vary, is two kernels; the sum over rows for the gradient is one.
    assert len(seen) <= 3
