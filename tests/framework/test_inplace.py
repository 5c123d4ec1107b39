"""Writing into tensors: history through views, what raises, and that nothing changes when it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import framework as fw


def test_a_leaf_that_requires_grad_and_its_views_refuse() -> None:
    x = fw.ones(3, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: x[0].mul_(2), lambda: x.__setitem__(0, 5.0), lambda: x.zero_()):
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            write()
    assert x.tolist() == [1, 1, 1] and x._version == 0
    with fw.no_grad():
        x.add_(1)
        x[0] = 7
    assert x.tolist() == [7, 2, 2] and x.is_leaf


def test_overlapping_memory_refuses() -> None:
    x = fw.zeros(1, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(2, 3).add_(1)
    y = fw.arange(4.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        y[1:].add_(y[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        y[1:].copy_(y[:-1])
    assert y.tolist() == [0, 1, 2, 3] and x.tolist() == [[0, 0, 0]]
    y.add_(y)
    assert y.tolist() == [0, 2, 4, 6]


def test_a_write_through_a_view_joins_the_base_history() -> None:
    w = fw.tensor([2.0, 3.0], requires_grad=True)
    base = fw.zeros(3)
    other = base[:2]
    base[1:].copy_(w * w)
    assert base.grad_fn.name() == "CopySlices" and other.requires_grad
    (base.sum() + other.sum()).backward()
    assert w.grad.tolist() == [8, 6]


def test_the_written_part_of_a_base_loses_its_old_gradient() -> None:
    x = fw.ones(2, 2, requires_grad=True)
    y = x * 3
    y[0] = 5.0
    y.sum().backward()
    assert x.grad.tolist() == [[0, 0], [3, 3]]


def test_overwriting_gives_zero_gradient() -> None:
    x = fw.ones(2, requires_grad=True)
    y = x * 2
    y.zero_()
    assert y.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [0, 0]


def test_views_made_without_grad_refuse_in_grad_mode() -> None:
    x = fw.ones(2, requires_grad=True) * 1
    with fw.no_grad():
        view = x[0]
    with pytest.raises(RuntimeError, match="no_grad mode"):
        view.mul_(2)


def test_writing_to_a_detached_alias_changes_values_not_history() -> None:
    x = fw.ones(2, requires_grad=True)
    y = x * 2
    y.detach().mul_(5)
    assert y.tolist() == [10, 10] and y.grad_fn.name() == "MulBackward0"
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_retained_gradient_follows_a_write() -> None:
    x = fw.ones(1, requires_grad=True)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    (y * 5).backward()
    assert y.grad.tolist() == [5] and x.grad.tolist() == [30]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(fw.ones(2, 3)),
        lambda x: x.add_(fw.ones(4, 1)),
        lambda x: x.copy_(fw.ones(2)),
        lambda x: x.masked_fill_(fw.ones(3), 1.0),
    ],
)
def test_a_write_that_does_not_fit_changes_nothing(write: Callable[[fw.Tensor], fw.Tensor]) -> None:
    x = fw.zeros(3)
    with pytest.raises(RuntimeError):
        write(x)
    assert x.tolist() == [0, 0, 0] and x._version == 0


def test_integers_do_not_take_fractions() -> None:
    x = fw.ones(2, dtype=fw.int64)
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.div_(2)
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.add_(0.5)
    x.copy_(fw.tensor([1.9, -1.9]))
    assert x.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda x: x.add_(1, alpha=3), [4, 5, 6]),
        (lambda x: x.addcmul_(x, x, value=2), [3, 10, 21]),
        (lambda x: x.addcdiv_(x, x, value=2), [3, 4, 5]),
        (lambda x: x.lerp_(fw.zeros(3), 0.5), [0.5, 1, 1.5]),
        (lambda x: x.clamp_(max=2), [1, 2, 2]),
        (lambda x: x.fill_(4), [4, 4, 4]),
        (lambda x: x.masked_fill_(x > 1, 0), [1, 0, 0]),
        (lambda x: x.index_add_(0, fw.tensor([0, 0]), fw.ones(2)), [3, 2, 3]),
        (lambda x: x.scatter_(0, fw.tensor([2]), 9.0), [1, 2, 9]),
        (lambda x: x.pow_(2), [1, 4, 9]),
        (lambda x: x.relu_().neg_(), [-1, -2, -3]),
    ],
)
def test_in_place_forms(write: Callable[[fw.Tensor], fw.Tensor], expected: list[float]) -> None:
    x = fw.tensor([1.0, 2.0, 3.0])
    view = x[:]
    assert write(x) is x
    assert x.tolist() == view.tolist() == expected


def test_augmented_assignment_writes() -> None:
    x = fw.zeros(2)
    alias = x
    x += 1
    x *= 3
    x[0] -= 1
    assert alias is x and alias.tolist() == [2, 3]


def test_data_assignment_swaps_memory() -> None:
    x = fw.ones(2, requires_grad=True)
    x.data = fw.tensor([5.0, 6.0])
    assert x.tolist() == [5, 6] and x.requires_grad
    x.data.mul_(2)
    assert x.tolist() == [10, 12] and x._version == 0


def test_a_write_to_an_expanded_tensor_of_the_same_shape() -> None:
    x = fw.ones(2, 3)
    x.expand_as(x).mul_(2)
    assert x.tolist() == [[2.0] * 3] * 2
    with pytest.raises(RuntimeError, match="more than one element"):
        fw.ones(2, 1).expand(2, 3).mul_(2)


@pytest.mark.parametrize("dtype", [fw.float16, fw.float32, fw.float64, fw.int64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_a_write_gives_the_bits_of_the_operation(name: str, dtype: fw.dtype) -> None:
    if name == "div" and dtype is fw.int64:
        pytest.skip("a quotient of whole numbers is no whole number")
    x, y = fw.arange(1.0, 13.0).reshape(3, 4).to(dtype), fw.arange(3.0, 7.0).to(dtype)
    for operand in (y, 3, y[1], x.clone()):
        expected = getattr(fw, name)(x, operand)
        written = x.clone()
        row = written[1]
        version = written._version
        assert getattr(written, f"{name}_")(operand) is written and written._version == version + 1
        assert written.tolist() == expected.tolist() and row.tolist() == expected[1].tolist()


def test_a_write_that_fits_no_shape_changes_nothing() -> None:
    x = fw.ones(3)
    for operand in (fw.ones(2, 3), fw.ones(4)):
        with pytest.raises(RuntimeError):
            x.add_(operand)
    assert x.tolist() == [1.0, 1.0, 1.0] and x._version == 0
