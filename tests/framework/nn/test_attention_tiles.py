"""Compiled attention goes tile by tile and recomputes scores: the eager values, no scores in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import framework as fw
from compiler.passes import recomputing
from framework.nn import functional as F
from tests.compiler.small_tiles import allow_small_chains
from tests.framework.capture_check import grad_of


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 rows, chains and recomputed products however little they save."""
    allow_small_chains(monkeypatch)
    for name, value in (("LEAST", 0), ("KEPT", 0), ("SMALLER", 1)):
        monkeypatch.setattr(recomputing, name, value)


@pytest.fixture
def threads() -> Iterator[None]:
    before = fw.get_num_threads()
    yield
    fw.set_num_threads(before)


def weights(*sizes: int) -> fw.Tensor:
    fw.manual_seed(3)
    return fw.randn(*sizes)


def operands(batch: int, heads: int, rows: int, columns: int, width: int) -> list[fw.Tensor]:
    fw.manual_seed(rows + columns)
    shapes = [(batch, heads, rows, width)] + [(batch, heads, columns, width)] * 2
    return [fw.randn(*shape) for shape in shapes]


def forward(**options: Any) -> Callable[..., Any]:
    def attend(q: fw.Tensor, k: fw.Tensor, v: fw.Tensor, mask: fw.Tensor | None = None) -> Any:
        return (F.scaled_dot_product_attention(q, k, v, mask, **options),)

    return attend


def training(**options: Any) -> Callable[..., Any]:
    """Attention, a projection of it, and the gradients of a loss of that."""

    def attend(q: fw.Tensor, k: fw.Tensor, v: fw.Tensor, w: fw.Tensor, mask: fw.Tensor | None = None) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, **options)
        joined = mixed.transpose(1, 2).reshape(q.shape[0], q.shape[2], w.shape[0])
        loss = ((joined @ w) ** 2).mean()
        loss.backward()
        return loss.detach(), grad_of(q), grad_of(k), grad_of(v)

    return attend


def same_as_eager(function: Callable[..., Any], *given: fw.Tensor, tolerance: float = 2e-5) -> Any:
    """The compiled function, called twice."""
    compiled = fw.compile(function)
    compiled(*given)
    fw.manual_seed(7)
    got = compiled(*given)
    fw.manual_seed(7)
    for a, b in zip(got, function(*given), strict=True):
        x, y = a.numpy(), b.numpy()
        largest = float(np.nanmax(np.abs(np.where(np.isfinite(y), y, 0)), initial=1e-6))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest)
    return compiled


SIZES = [(2, 3, 37, 41, 8), (1, 2, 64, 64, 16), (2, 2, 1, 30, 4), (2, 2, 45, 1, 4), (1, 1, 33, 200, 5)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_forward(sizes: tuple[int, ...], causal: bool) -> None:
    compiled = same_as_eager(forward(is_causal=causal), *operands(*sizes))
    batch, heads, rows, columns, _ = sizes
    if rows > 1 and columns > 1:
        (_, program) = compiled.explain().programs[0]
        assert program.chains and program.memory.arena < 4 * batch * heads * rows * columns


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_training(sizes: tuple[int, ...], causal: bool) -> None:
    batch, heads, rows, columns, width = sizes
    w = weights(heads * width, 7)
    compiled = same_as_eager(training(is_causal=causal), *operands(*sizes), w)
    if rows * columns > 64 * width and rows > 16:
        (_, program) = compiled.explain().programs[0]
        kinds = [b.kind for b in program.memory.buffers]
        assert f"float32[{batch}, {heads}, {rows}, {columns}]" not in kinds
        assert len(program.chains) >= 2


def masks(batch: int, heads: int, rows: int, columns: int) -> list[fw.Tensor]:
    rng = np.random.default_rng(5)
    keep = rng.random((rows, columns)) < 0.7
    keep[3] = False
    by_head = rng.random((batch, heads, rows, columns)) < 0.7
    added = np.where(keep, rng.standard_normal(keep.shape), -np.inf).astype(np.float32)
    return [fw.tensor(x) for x in (keep, by_head, added)]


@pytest.mark.parametrize("number", range(3))
def test_masks(number: int) -> None:
    sizes = 2, 2, 40, 50, 8
    mask = masks(*sizes[:4])[number]
    same_as_eager(forward(), *operands(*sizes), mask)
    compiled = same_as_eager(training(), *operands(*sizes), weights(16, 5), mask)
    (_, program) = compiled.explain().programs[0]
    assert program.chains


def test_dropout_drops_the_same() -> None:
    sizes = 2, 2, 40, 50, 8
    q, k, _ = operands(*sizes)
    eye = fw.eye(50).expand(2, 2, 50, 50)
    compiled, eager = fw.compile(forward(dropout_p=0.4)), forward(dropout_p=0.4)
    for seed in (1, 2, 1):
        fw.manual_seed(seed)
        (got,) = compiled(q, k, eye)
        fw.manual_seed(seed)
        (wanted,) = eager(q, k, eye)
        np.testing.assert_array_equal(got.numpy() == 0, wanted.numpy() == 0)
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5)
    same_as_eager(training(dropout_p=0.4, is_causal=True), *operands(*sizes), weights(16, 5))


def test_special_values() -> None:
    q, k, v = operands(2, 2, 40, 50, 8)
    q[0, 0, 7, 3] = float("nan")
    k[0, 1, 11, 2] = float("inf")
    v[1, 0, 20, 1] = float("-inf")
    compiled, eager = fw.compile(forward()), forward()
    got, wanted = compiled(q, k, v)[0].numpy(), eager(q, k, v)[0].numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_another_number_of_threads_gives_the_same_bits(threads: None) -> None:
    given = (*operands(2, 3, 70, 60, 8), weights(24, 5))
    compiled = fw.compile(training())
    fw.set_num_threads(1)
    first = compiled(*given)
    for count in (3, 1, 2):
        fw.set_num_threads(count)
        for a, b in zip(compiled(*given), first, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_what_looks_at_kernels_sees_each() -> None:
    given = (*operands(2, 2, 40, 50, 8), weights(16, 5))
    compiled = fw.compile(training())
    wanted = compiled(*given)
    count = len(compiled.kernels)
    with fw.profile() as p:
        got = compiled(*given)
    assert sum(span.kind == "kernel" for span in p.spans) == count
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-5 * np.abs(b.numpy()).max())
    assert "chain " in str(compiled.explain())
    assert compiled.compare(*given).difference is None
