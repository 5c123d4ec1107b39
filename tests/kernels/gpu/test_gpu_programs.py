"""The loops of compiled training steps, and of the kernel library, as Triton kernels against the reference.

Each kernel runs alone, on memory of its own; whole programs are in tests/compiler/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import framework as fw
import framework.nn.functional as functional
from compiler.plan import Request
from framework import nn, optim
from kernels import dtypes
from kernels.dtypes import DType
from kernels.files import Placed
from kernels.gpu.interpret import interpreting
from kernels.gpu.render import launch_of
from kernels.library import LIBRARY, MATMUL
from kernels.spec import LoopSpec
from tests.compiler.random_graphs import random_graph
from tests.compiler.simulate import planned
from tests.kernels.gpu.interpreted import check_placed

# Sums of float32 in another order, and their differences.
TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-12}


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


# The kernel library -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", [k.name for k in LIBRARY.values() if k.family != MATMUL])
def test_kernels_of_the_library(name: str, dtype: DType) -> None:
    named = LIBRARY[name]
    for sizes in ((2500,),) if len(named.default) == 1 else ((3, 700), (300, 60), (2, 20000)):
        check_placed(named.make(dtype, sizes), TOLERANCE[dtype.itemsize])


# Compiled training steps --------------------------------------------------------------------------


def trained(model: nn.Module, loss: Callable[..., Any], optimizer: optim.Optimizer, *inputs: Any) -> Any:
    """A compiled step that has run once."""

    @fw.compile
    def step(*inputs: Any) -> Any:
        optimizer.zero_grad()
        value = loss(*inputs)
        value.backward()
        optimizer.step()
        return value

    step(*inputs)
    return step


def norms() -> Any:
    """Layer norms, GELU and a mean over everything, by AdamW."""
    model = nn.Sequential(nn.LayerNorm(70), nn.GELU(), nn.LayerNorm(70))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    x = fw.randn(600, 70)
    return trained(model, lambda x, y: ((model(x) - y) ** 2).mean(), optimizer, x, fw.randn(600, 70))


def classifier() -> Any:
    """A cross entropy with targets to ignore, by SGD with momentum."""
    model = nn.Linear(16, 300)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return trained(
        model,
        lambda x, y: functional.cross_entropy(model(x), y, ignore_index=7),
        optimizer,
        fw.randn(70, 16),
        fw.randint(0, 300, (70,)),
    )


class Words(nn.Module):
    """Embeddings, dropout, a causal attention and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop, self.out = nn.Embedding(50, 24), nn.Dropout(0.3), nn.Linear(24, 50)

    def forward(self, words: Any) -> Any:
        x = self.drop(self.words(words))
        heads = x.reshape(4, 9, 2, 12).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.out(x + mixed.transpose(1, 2).reshape(4, 9, 24))


def language() -> Any:
    """A step of `Words`, by Adam."""
    model = Words()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    def loss(words: Any, targets: Any) -> Any:
        return functional.cross_entropy(model(words).reshape(-1, 50), targets.reshape(-1))

    return trained(model, loss, optimizer, fw.randint(0, 50, (4, 9)), fw.randint(0, 50, (4, 9)))


def images() -> Any:
    """A convolution, a batch norm and a pool."""
    features = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*features, nn.Flatten(), nn.Linear(54, 5))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return trained(
        model,
        lambda x, y: functional.cross_entropy(model(x), y),
        optimizer,
        fw.randn(4, 3, 6, 6),
        fw.randint(0, 5, (4,)),
    )


def queries() -> Any:
    """Argmax, gather, take, and reductions along both axes."""

    @fw.compile
    def f(x: Any, i: Any) -> Any:
        chosen = x.gather(1, i[:, None].expand(-1, 3) % 3)
        return (
            x.argmax(-1),
            x.amax(0),
            x.std(1),
            x.T.contiguous() + 1,
            x[i],
            x.logsumexp(0),
            (x * 2).sum(),
            chosen,
        )

    f(fw.randn(70, 300), fw.randint(0, 70, (70,)))
    return f


@pytest.mark.parametrize("make", [norms, classifier, language, images, queries], ids=lambda f: f.__name__)
def test_kernels_of_compiled_functions(make: Callable[[], Any]) -> None:
    kernels = [k for view in make().kernels if isinstance((k := view.kernel).spec, LoopSpec)]
    distinct: dict[object, Placed] = {launch_of(k.work()).code: k.placed() for k in kernels}
    for kernel in distinct.values():
        check_placed(kernel, TOLERANCE[4])


# Random graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_kernels_of_random_graphs(seed: int) -> None:
    dtype = (dtypes.float32, dtypes.float64, dtypes.int64)[seed % 3]
    graph, _ = random_graph(seed, dtype)
    for kernel in planned(Request(graph)).kernels:
        if isinstance(kernel.spec, LoopSpec):
            check_placed(kernel.placed(), TOLERANCE[dtype.itemsize])
