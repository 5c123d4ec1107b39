"""Every timed step of ours, at a tiny size, beside NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.steppers.timed import Timed
from benchmarks.steppers.tracefuse import make, make_eager
from benchmarks.works import WORKS, Work
from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp
from tests.benchmarks.reference import results
from tests.fuzz.interpreted import interpreting

# The first step records, the second replays, the third shows gradients and moments of both.
STEPS = 3
TINY: dict[str, Work] = {
    "mlp": Mlp((3, 4, 2), 5),
    "cnn": Cnn(image=8, channels=(1, 2, 3), widths=(4, 3), batch=2),
    "gpt": Gpt(layers=1, width=4, heads=2, vocabulary=5, context=3, batch=2),
    "lstm": Lstm(width=3, times=3, batch=2),
    "softmax": Softmax(3, 5),
    "layer_norm": LayerNorm(3, 5),
    "cross_entropy": CrossEntropy(3, 5),
    "gelu_chain": GeluChain(7),
    "black_scholes": BlackScholes(7),
    "adamw": AdamW(tensors=3, elements=5),
}
# Machine code of these takes seconds.
INTERPRETED = {"cnn", "gpt", "lstm"}


def test_every_kind_of_work_is_tried() -> None:
    assert {type(work) for work in TINY.values()} == {type(work) for work in WORKS.values()}


@pytest.mark.parametrize("maker", [make_eager, make])
@pytest.mark.parametrize("name", TINY)
def test_step_computes_what_numpy_does(name: str, maker: Callable[[Work], Timed]) -> None:
    with interpreting() if name in INTERPRETED else contextlib.nullcontext():
        _require_numpys_results(TINY[name], maker)


def _require_numpys_results(work: Work, maker: Callable[[Work], Timed]) -> None:
    step, batches, look = maker(work)
    for number, wanted in enumerate(results(work, STEPS)):
        got = look(step(*batches[number % len(batches)]))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())
    if maker is make:
        assert step.explain().mode == "replay", step.explain()


def test_weights_and_batches_are_the_same_for_each_framework() -> None:
    for work in TINY.values():
        for a, b in zip(work.weights().values(), work.weights().values(), strict=True):
            np.testing.assert_array_equal(a, b)
        for one, other in zip(work.batches(), work.batches(), strict=True):
            for a, b in zip(one, other, strict=True):
                np.testing.assert_array_equal(a, b)
