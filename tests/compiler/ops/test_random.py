"""Distributions: exact bits, moments, quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Apply, Graph, Input
from compiler.ops import random
from compiler.types import TensorType
from kernels import dtypes, philox

SEED, OFFSET = np.asarray(7), np.asarray(3)
# What a back end must round exactly, or move.
EXACT = {
    "add", "sub", "mul", "div", "sqrt", "neg", "abs", "cast", "where", "lt", "le", "eq",
    "bitwise_and", "bitwise_or",
    "shift_left", "shift_right", "random_bits", "reshape", "slice",
}  # fmt: skip


def test_random_bits_are_the_stream() -> None:
    out = ops.random_bits(SEED, OFFSET, shape=(3, 5))
    np.testing.assert_array_equal(out.reshape(-1), philox.stream(7, 3, 15))
    assert out.min() >= 0
    assert out.max() < 2**32


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.DTYPES.values() if d.is_floating_point], ids=lambda d: d.name
)
def test_uniform(dtype: dtypes.DType) -> None:
    out = ops.uniform(SEED, OFFSET, shape=(20000,), dtype=dtype)
    assert out.dtype == dtype.numpy
    values = out.astype(np.float64)
    assert values.min() >= 0
    assert values.max() < 1
    assert stats.kstest(values, "uniform").statistic < 0.012


def test_uniform_float32_uses_the_high_24_bits() -> None:
    bits = ops.random_bits(SEED, OFFSET, shape=(4,))
    np.testing.assert_array_equal(
        ops.uniform(SEED, OFFSET, shape=(4,), dtype=dtypes.float32), (bits >> 8) / 2**24
    )


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.DTYPES.values() if d.is_floating_point], ids=lambda d: d.name
)
def test_normal(dtype: dtypes.DType) -> None:
    out = ops.normal(SEED, OFFSET, shape=(20000,), dtype=dtype)
    assert out.dtype == dtype.numpy
    assert stats.kstest(out.astype(np.float64), "norm").statistic < 0.012


@pytest.mark.parametrize(
    ("quantile", "dtype", "width", "tolerance"),
    [(random._SINGLE, dtypes.float32, 31, 5e-7), (random._DOUBLE, dtypes.float64, 52, 2e-15)],
    ids=["float32", "float64"],
)
def test_normal_quantiles(quantile: Any, dtype: dtypes.DType, width: int, tolerance: float) -> None:
    powers = 2 ** np.arange(width)
    spread = (np.linspace(0, 1, 5001)[:-1] * 2**width).astype(np.int64)
    n = np.unique(np.concatenate([powers, 2**width - powers, spread]))
    out = random._signed_quantile(n << 1, width, dtype, quantile)
    np.testing.assert_allclose(out, special.ndtri((n + 0.5) * 2.0 ** -(width + 1)), rtol=tolerance)
    np.testing.assert_array_equal(random._signed_quantile((n << 1) + 1, width, dtype, quantile), -out)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("draw", [ops.uniform, ops.normal])
def test_traced_draws_are_eager_draws_from_exact_operations(draw: Any, dtype: dtypes.DType) -> None:
    scalar = TensorType((), dtypes.int64)
    seed, offset = Input(scalar), Input(scalar)
    graph = Graph((seed, offset), (draw(seed, offset, shape=(3, 5), dtype=dtype),))
    np.testing.assert_array_equal(
        evaluate(graph, [SEED, OFFSET])[0], draw(SEED, OFFSET, shape=(3, 5), dtype=dtype)
    )
    assert {v.op.name for v in graph.nodes if isinstance(v, Apply)} <= EXACT


def test_the_seed_has_no_axes() -> None:
    with pytest.raises(TypeError, match="without axes"):
        ops.random_bits(np.array([1, 2]), OFFSET, shape=(2,))
