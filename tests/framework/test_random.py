"""Random tensors: seeds, streams, distributions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import framework as fw

DRAWS: list[Callable[[], fw.Tensor]] = [
    lambda: fw.rand(3),
    lambda: fw.randn(2, 2),
    lambda: fw.randint(10, (3,)),
    lambda: fw.randperm(8),
    lambda: fw.bernoulli(fw.full((5,), 0.5)),
    lambda: fw.normal(1.0, 2.0, (3,)),
    lambda: fw.multinomial(fw.tensor([0.2, 0.8]), 4, replacement=True),
    lambda: fw.empty(3).uniform_(-1, 1),
    lambda: fw.empty(3).exponential_(),
    lambda: fw.zeros(3, dtype=fw.int64).random_(5),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_repeats_and_the_next_draw_differs(draw: Callable[[], fw.Tensor]) -> None:
    fw.manual_seed(7)
    first, second = draw(), fw.rand(4)
    fw.manual_seed(7)
    again, third = draw(), fw.rand(4)
    assert first.equal(again) and second.equal(third)
    fw.manual_seed(8)
    assert not fw.rand(4).equal(second)


def test_state_round_trip() -> None:
    fw.manual_seed(1)
    fw.rand(2)
    state = fw.get_rng_state()
    first = fw.rand(3)
    fw.set_rng_state(state)
    assert fw.rand(3).equal(first)
    with fw.random.fork_rng():
        fw.rand(5)
    assert fw.initial_seed() == 1


def test_generators_are_independent_of_the_default() -> None:
    fw.manual_seed(0)
    generator = fw.Generator().manual_seed(0)
    own = fw.rand(3, generator=generator)
    assert own.equal(fw.rand(3))
    assert generator.initial_seed() == 0


def test_moments() -> None:
    fw.manual_seed(0)
    uniform, normal = fw.rand(100_000), fw.randn(100_000)
    # Four standard errors of the mean.
    assert abs(uniform.mean().item() - 0.5) < 4 * 0.289 / 316 and uniform.min() >= 0 and uniform.max() < 1
    assert abs(normal.mean().item()) < 4 / 316 and abs(normal.std().item() - 1) < 0.01
    assert abs(fw.empty(100_000).exponential_(2).mean().item() - 0.5) < 4 * 0.5 / 316


def test_integers_and_permutations() -> None:
    drawn = fw.randint(-3, 4, (2000,))
    assert set(drawn.tolist()) == set(range(-3, 4)) and drawn.dtype is fw.int64
    assert sorted(fw.randperm(50).tolist()) == list(range(50))
    wide = fw.randint(0, 2**40, (100,))
    assert wide.max().item() > 2**32 and wide.min().item() >= 0


def test_multinomial_without_replacement_names_each_once() -> None:
    weights = fw.tensor([[0.1, 0.0, 0.9, 0.5], [1.0, 1.0, 1.0, 1.0]])
    drawn = fw.multinomial(weights, 3).numpy()
    assert all(len(set(row)) == 3 for row in drawn.tolist()) and 1 not in drawn[0]
    assert sorted(fw.multinomial(fw.tensor([1.0, 0.0]), 2).tolist()) == [0, 1]
    assert fw.multinomial(fw.ones(0, 3), 1).shape == (0, 1)
    for bad in ([-1.0, 1.0], [0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(RuntimeError):
            fw.multinomial(fw.tensor(bad), 1)


def test_multinomial_never_draws_what_has_no_weight() -> None:
    drawn = fw.multinomial(fw.tensor([0.0, 0.3, 0.0, 0.7, 0.0]), 4000, replacement=True).numpy()
    counts = np.bincount(drawn, minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    # Four standard deviations of a binomial count.
    assert abs(counts[1] - 1200) < 4 * np.sqrt(4000 * 0.3 * 0.7)


def test_bernoulli_limits() -> None:
    assert not fw.bernoulli(fw.zeros(1000)).any() and fw.bernoulli(fw.ones(1000)).all()


def test_errors_leave_the_generator() -> None:
    fw.manual_seed(3)
    before = fw.get_rng_state()
    for bad in (
        lambda: fw.randint(5, 5, (2,)),
        lambda: fw.rand(2, dtype=fw.int64),
        lambda: fw.empty(2).normal_(0, -1),
    ):
        with pytest.raises(RuntimeError):
            bad()
    np.testing.assert_array_equal(fw.get_rng_state().numpy(), before.numpy())


def test_a_number_is_drawn_as_an_array() -> None:
    drawn = fw.rand_like(fw.tensor(1.5))
    assert drawn.numpy().ctypes.data == drawn.data_ptr() and 0 <= drawn.mul_(2).item() < 2
