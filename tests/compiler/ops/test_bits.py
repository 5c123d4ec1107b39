"""Shifts outside the width, and logic on bool."""

from __future__ import annotations

import numpy as np

from compiler import ops


def test_shifts_outside_the_width() -> None:
    one, minus = np.array([1, 1]), np.array([-1, -1])
    assert ops.shift_left(one, np.array([64, -1])).tolist() == [0, 0]
    assert ops.shift_right(minus, np.array([70, -1])).tolist() == [-1, -1]
    assert ops.shift_right(one, np.array([70, 0])).tolist() == [0, 1]


def test_shifts_keep_the_dtype() -> None:
    x = np.array([200], np.uint8)
    assert ops.shift_left(x, 1).dtype == np.uint8
    assert ops.shift_left(x, 1).tolist() == [144]
    assert ops.shift_right(x, 7).tolist() == [1]


def test_invert_of_bool_is_not() -> None:
    assert ops.invert(np.array([True, False])).tolist() == [False, True]
    assert ops.invert(np.array([0, -1])).tolist() == [-1, 0]
