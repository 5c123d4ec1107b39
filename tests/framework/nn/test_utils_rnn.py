"""Padding sequences of different lengths, and cutting them again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.nn.utils.rnn import pad_sequence, unpad_sequence
from tests.framework.capture_check import check
from tests.framework.finite_differences import check_gradients

A, B = fw.arange(3.0), fw.arange(2.0)


def test_values() -> None:
    assert pad_sequence([A, B], padding_value=-1).tolist() == [[0, 0], [1, 1], [2, -1]]
    assert pad_sequence([A, B], True, padding_side="left").tolist() == [[0, 1, 2], [0, 0, 1]]
    assert pad_sequence(x for x in (A, B)).shape == (3, 2)
    assert pad_sequence(fw.ones(2, 3)).shape == (3, 2)
    mixed = pad_sequence([B.long(), A], padding_value=0.5)
    assert mixed.dtype is fw.int64 and mixed.tolist() == [[0, 0], [1, 1], [0, 2]]


def test_and_back() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 2)) for n in (2, 3, 1)]
    for batch_first in (False, True):
        padded = pad_sequence([fw.tensor(a) for a in arrays], batch_first)
        for lengths in ([2, 3, 1], fw.tensor([2, 3, 1])):
            for got, wanted in zip(unpad_sequence(padded, lengths, batch_first), arrays, strict=True):
                np.testing.assert_array_equal(got.numpy(), wanted)
    check_gradients(lambda *xs: pad_sequence(xs, padding_side="left"), *arrays)
    check(lambda a, b: pad_sequence([a, b]) * 2, (A, B))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([A, B], {"padding_side": "up"}, "one of left or right, but got up"),
        ([], {}, "empty list"),
        (3, {}, "Expected iterable"),
        ([fw.ones(2, 3), fw.ones(1, 2)], {}, r"\[3\] at entry 0 and \[2\] at entry 1"),
        ([fw.tensor(1.0)], {}, "0-d"),
    ],
)
def test_wrong_input(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        pad_sequence(given, **options)
