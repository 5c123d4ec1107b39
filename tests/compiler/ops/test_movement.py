"""Views, reshapes that need a copy, and writing through slices."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import ops
from compiler.ir import Input
from compiler.ops.movement import reshape_strides
from compiler.types import TensorType
from kernels import dtypes


@pytest.mark.parametrize(
    ("shape", "strides", "new", "expected"),
    [
        ((2, 6), (6, 1), (3, 4), (4, 1)),
        ((6, 2), (1, 6), (12,), None),
        ((6, 2), (1, 6), (2, 3, 2), (3, 1, 6)),
        ((2, 3, 4), (24, 4, 1), (2, 12), (24, 1)),
        ((2, 3, 4), (24, 4, 1), (6, 4), None),
        ((4,), (-1,), (2, 2), (-2, -1)),
        ((3, 1), (1, 7), (3,), (1,)),
        ((2, 3), (0, 0), (6,), (0,)),
        ((0, 3), (3, 1), (0,), (1,)),
    ],
)
def test_reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert reshape_strides(shape, strides, new) == expected


def test_movement_ops_share_memory() -> None:
    x = np.zeros((4, 6))
    views = (
        ops.reshape(x, shape=(24,)),
        ops.permute(x, axes=(1, 0)),
        ops.expand(x, shape=(2, 4, 6)),
        ops.slice(x, starts=(1, 0), stops=(4, 6), steps=(2, 3)),
        ops.flip(x, axes=(0,)),
    )
    assert all(np.shares_memory(x, view) for view in views)


def test_slice_to_nothing() -> None:
    x = np.arange(3.0)
    empty = {"starts": (2,), "stops": (2,), "steps": (5,)}
    assert ops.slice(x, **empty).shape == (0,)
    gradient = ops.slice.grads[0](np.zeros(0), None, x, **empty)  # type: ignore[misc]
    assert gradient.tolist() == [0, 0, 0]


def test_slice_outside_is_rejected() -> None:
    with pytest.raises(ValueError, match="normalise"):
        ops.slice.trace(Input(TensorType((3,), dtypes.float32)), starts=(0,), stops=(4,), steps=(1,))


def test_slice_update_leaves_the_base_alone() -> None:
    base = np.zeros(4)
    out = ops.slice_update(base, np.array([1.0, 2.0]), starts=(0,), stops=(4,), steps=(2,))
    assert out.tolist() == [1, 0, 2, 0]
    assert base.tolist() == [0, 0, 0, 0]


def test_writing_through_an_expanded_view_is_rejected() -> None:
    with pytest.raises(RuntimeError, match=r"one memory location; clone\(\)"):
        ops.expand.unview(np.zeros((1, 3)), np.ones((2, 3)), shape=(2, 3))


def test_impossible_shapes_are_rejected() -> None:
    with pytest.raises(RuntimeError, match=r"shape \[4\] is invalid for input of size 6"):
        ops.reshape(np.zeros((2, 3)), shape=(4,))
    with pytest.raises(RuntimeError, match="only axes of size 1 grow"):
        ops.expand(np.zeros((3, 1)), shape=(1, 1))
    with pytest.raises(RuntimeError, match="equal sizes on the other axes"):
        ops.concatenate(np.zeros((2, 3)), np.zeros((3, 3)), axis=1)
    with pytest.raises(RuntimeError, match="one dtype"):
        ops.concatenate(np.zeros(2), np.zeros(2, np.float32), axis=0)
