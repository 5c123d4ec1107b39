"""Reading and writing by position, against NumPy, and what raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw

_ARRAY = np.arange(36.0, dtype=np.float32).reshape(3, 3, 4)
_POSITIONS = np.array([0, -1])
_GRID = np.array([[0, 1], [2, 0]])
_MASK = np.array([True, False, True])
_PLANE = _ARRAY[:, :, 0] % 2 == 0
INDICES: list[Any] = [
    0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(-2, None), None, Ellipsis,
    (0, 1), (slice(None), 1), (..., 2), (1, ..., None), (None, 0, None),
    (slice(1, 3), slice(0, 2), slice(None, None, 3)), [0, 2], _POSITIONS, (slice(None), _POSITIONS),
    (_POSITIONS, slice(None), _POSITIONS), (_POSITIONS, _POSITIONS),
    (slice(None), _POSITIONS, _POSITIONS), _GRID, (_GRID, 0), (0, _GRID), (slice(None), _GRID, None),
    _MASK, (slice(None), _MASK), _PLANE, (_PLANE, 1), (_MASK, _POSITIONS), (1, _MASK),
    (_GRID, slice(None), _GRID),
]  # fmt: skip


def _ours(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_ours(i) for i in index)
    return fw.tensor(index) if isinstance(index, np.ndarray) else index


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_read_as_numpy(index: Any) -> None:
    got = fw.tensor(_ARRAY)[_ours(index)]
    np.testing.assert_array_equal(got.numpy(), _ARRAY[index])


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("kind", ["number", "tensor", "row"])
def test_write_as_numpy(index: Any, kind: str) -> None:
    expected, got = _ARRAY.copy(), fw.tensor(_ARRAY)
    part = expected[index]
    value: Any = -1.0
    if kind != "number":
        # All equal, for repeated positions may be written in any order.
        value = np.full(part.shape if kind == "tensor" else part.shape[-1:], 50, np.float32)
    expected[index] = value
    got[_ours(index)] = fw.tensor(value) if isinstance(value, np.ndarray) else value
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_gradient_reaches_what_was_read(index: Any) -> None:
    x = fw.tensor(_ARRAY, requires_grad=True)
    x[_ours(index)].sum().backward()
    expected = np.zeros_like(_ARRAY)
    np.add.at(expected, index, 1)
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_basic_indices_are_views() -> None:
    x = fw.zeros(3, 4)
    x[1:, None, 2][0] = 7
    assert x[1, 2].item() == 7
    x[[0]][0] = 9
    assert x[0, 0].item() == 0


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ((0, 0, 0, 0), IndexError),
        (1.5, IndexError),
        ("a", IndexError),
        (slice(None, None, -1), ValueError),
        (fw.tensor([3]), IndexError),
        (fw.tensor([-4]), IndexError),
        (fw.tensor([0.0]), IndexError),
        (fw.tensor([True, False]), IndexError),
        ((fw.tensor([0, 1]), fw.tensor([0, 1, 2])), IndexError),
    ],
    ids=repr,
)
def test_bad_indices_raise_and_write_nothing(index: Any, error: type[Exception]) -> None:
    x = fw.tensor(_ARRAY)
    with pytest.raises(error):
        x[index]
    with pytest.raises(error):
        x[index] = 0.0
    np.testing.assert_array_equal(x.numpy(), _ARRAY)


@pytest.mark.parametrize("position", [-1, 3, 100])
def test_named_functions_reject_and_write_nothing(position: int) -> None:
    x, index, row = fw.zeros(3, 2), fw.tensor([position]), fw.ones(1, 2)
    grid = fw.tensor([[position, 0]])
    for write in (
        lambda: x.index_add_(0, index, row),
        lambda: x.index_copy_(0, index, row),
        lambda: x.scatter_(0, grid, 1.0),
        lambda: x.scatter_add_(0, grid, row),
        lambda: x.gather(0, grid),
        lambda: x.index_select(0, index),
    ):
        with pytest.raises(IndexError, match="out of range"):
            write()
    assert not x.any() and x._version == 0


def test_index_put_accumulates() -> None:
    x = fw.zeros(3)
    x.index_put_((fw.tensor([0, 0, 2]),), fw.tensor([1.0, 2.0, 3.0]), accumulate=True)
    assert x.tolist() == [3, 0, 3]


def test_masked_functions() -> None:
    x = fw.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.masked_select(x > 2).tolist() == [3, 4]
    assert x.masked_fill(fw.tensor([True, False]), 0).tolist() == [[0, 2], [0, 4]]
    assert x.masked_scatter(x > 1, fw.tensor([7.0, 8.0, 9.0])).tolist() == [[1, 7], [8, 9]]
    assert fw.nonzero(x > 2).tolist() == [[1, 0], [1, 1]]
    assert [i.tolist() for i in fw.nonzero(x > 2, as_tuple=True)] == [[1, 1], [0, 1]]


def test_gather_and_scatter_are_inverse() -> None:
    x = fw.arange(12.0).view(3, 4)
    index = x.argsort(1, descending=True)
    assert fw.zeros(3, 4).scatter(1, index, x.gather(1, index)).equal(x)


def test_order_functions() -> None:
    x = fw.tensor([[3.0, 1.0, 2.0], [float("nan"), 5.0, 4.0]])
    values, indices = x.sort(1, descending=True)
    np.testing.assert_array_equal(values.numpy(), [[3, 2, 1], [np.nan, 5, 4]])
    assert indices.tolist() == [[0, 2, 1], [0, 1, 2]]
    top = x[0].topk(2)
    assert top.values.tolist() == [3, 2] and top.indices.tolist() == [0, 2]
    assert x[0].median().item() == 2 and x[0].kthvalue(2).values.item() == 2
    assert fw.unique(fw.tensor([3, 1, 3]), return_counts=True)[1].tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="out of range"):
        x.topk(4)


def test_an_index_leads_elsewhere_in_another_shape() -> None:
    for shape in ((3, 4), (5, 2), (1, 1), (2, 3, 4)):
        array = np.arange(float(np.prod(shape))).reshape(shape)
        for index in (-1, (0, ...), (slice(-3, None), None, 0), (Ellipsis, slice(None, None, 2))):
            np.testing.assert_array_equal(fw.tensor(array)[index].numpy(), array[index])


def test_a_view_of_several_movements_is_written_through() -> None:
    x = fw.ones(3, 4, requires_grad=True)
    y = x * 2
    column = y[1:, 3]
    assert column.grad_fn is not None
    assert [node.name() for node, _ in column.grad_fn.next_functions if node] == ["SliceBackward0"]
    column.mul_(5)
    assert y[2, 3].item() == 10
    y.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy()[:, 3], [2, 10, 10])


def test_a_number_is_no_truth_in_an_index() -> None:
    x = fw.arange(3)
    assert x[1].shape == () and x[True].shape == (1, 3)
