"""Sizes that vary: how many kernels are compiled for them, and that those compute what they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from compiler.gpu.program import DeviceExecutable
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value
from compiler.ops import TABLE
from compiler.plan import Request
from compiler.types import TensorType
from kernels import dtypes
from kernels.gpu.arguments import Arguments
from kernels.gpu.emulator import Emulator
from kernels.gpu.interpret import interpreting
from kernels.spec import LoopSpec, Operand
from kernels.varying import Varying
from kernels.work import Work

F32 = dtypes.float32
# Every size of small ones, then more of every class.
SIZES = (
    *range(2, 65),
    65,
    100,
    128,
    144,
    255,
    256,
    300,
    513,
    768,
    1000,
    1024,
    1040,
    2047,
    2048,
    3001,
    4096,
    5000,
)


class Counting(Emulator):
    """A machine that compiles nothing, and counts what it would compile."""

    def __init__(self) -> None:
        self.codes: set[tuple[object, ...]] = set()

    def prepare(self, arguments: Arguments) -> Any:
        self.codes |= {unit.launch.code for unit in arguments.units}
        return super().prepare(arguments)


def softmax_of_rows(n: int) -> Request:
    """Rows of `n`: a scaled softmax with its mask."""
    x = Input(TensorType((6, n), F32))
    return _softmax(x, x)


def rows(n: int) -> Request:
    """`n` rows, with a bias, through a softmax."""
    x, bias = Input(TensorType((n, 300), F32)), Input(TensorType((300,), F32))
    return _softmax(x, TABLE["add"].trace(x, TABLE["reshape"].trace(bias, shape=(1, 300))), bias)


def _softmax(x: Input, of: Value, *more: Input) -> Request:
    most = TABLE["amax"].trace(of, axes=(1,))
    powers = TABLE["exp"].trace(TABLE["sub"].trace(of, most))
    total = TABLE["sum"].trace(powers, axes=(1,))
    return Request(Graph((x, *more), (TABLE["div"].trace(powers, total),)))


def product(n: int) -> Request:
    """A product of `n` rows, with what follows."""
    x, w = Input(TensorType((n, 48), F32)), Input(TensorType((48, 32), F32))
    return Request(Graph((x, w), (TABLE["tanh"].trace(TABLE["matmul"].trace(x, w)),)))


def columns(n: int) -> Request:
    """The sum of each column, over `n` rows."""
    x = Input(TensorType((n, 40), F32))
    return Request(Graph((x,), (TABLE["sum"].trace(x, axes=(0,)),)))


def elements(n: int) -> Request:
    """`n` numbers."""
    x = Input(TensorType((n,), F32))
    return Request(Graph((x,), (TABLE["exp"].trace(TABLE["mul"].trace(x, x)),)))


MADE = (softmax_of_rows, rows, product, columns, elements)


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


@pytest.mark.parametrize("make", MADE)
def test_few_kernels_serve_all_sizes(make: Callable[[int], Request]) -> None:
    machine, varying = Counting(), Varying()
    kernels = len(DeviceExecutable(make(100), machine, None, False, varying).kernels)
    counts: list[int] = []
    for n in SIZES:
        DeviceExecutable(make(n), machine, None, False, varying)
        counts.append(len(machine.codes))
    # Classes of a row's length, and whether 1, 4 or 16 divides it.
    assert counts[-1] <= 16 * kernels + 2, counts
    # Whoever went through the small ones and some of each class meets nothing new.
    again = len(machine.codes)
    for n in range(7, 5001, 277):
        DeviceExecutable(make(n), machine, None, False, varying)
    assert len(machine.codes) - again <= 2


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("n", [2, 15, 64, 300])
def test_kernels_for_many_sizes_are_right(make: Callable[[int], Request], n: int) -> None:
    varying = Varying()
    DeviceExecutable(make(7), Counting(), None, False, varying)
    request = make(n)
    executable = DeviceExecutable(request, Emulator(), None, False, varying)
    assert any(w.varying for w in executable.program.works)
    random = np.random.default_rng(n)
    given = [random.standard_normal(x.shape).astype(np.float32) for x in request.graph.inputs]
    for got, wanted in zip(executable(*given), evaluate(request.graph, given), strict=True):
        np.testing.assert_allclose(got, wanted, 2e-5, 1e-5)


def test_what_varies() -> None:
    varying = Varying()

    def marked(*sizes: Sequence[int]) -> list[frozenset[int]]:
        spec = LoopSpec("x", 2, 0, "rows", (Operand(F32, ("s", 1)),), ())
        works = [Work(spec, tuple(n), ((n[1], 1),), (0,)) for n in sizes]
        return [w.varying for w in varying.marked(works)]

    assert marked((2, 3), (4, 5)) == [frozenset(), frozenset()]
    assert marked((2, 3), (6, 5)) == [frozenset(), frozenset({0})]
    # Once an axis varies it always does.
    assert marked((2, 9), (6, 5), (1, 1)) == [frozenset({1}), frozenset({0}), frozenset()]
    assert marked((2, 9), (6, 8)) == [frozenset({1}), frozenset({0, 1})]
