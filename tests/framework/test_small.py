"""Ops on small arrays take a shorter way: the same values, histories, versions and errors as in general."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import framework as fw
from compiler.ops import arithmetic, compare
from compiler.ops.op import quiet
from framework.state import ambient, unusual
from kernels.memory import LARGE


def test_operators_of_small_and_large_tensors_agree() -> None:
    rng = np.random.default_rng(0)
    small = [fw.tensor(rng.standard_normal(100, np.float32)) for _ in range(2)]
    large = [fw.tensor(np.tile(t.numpy(), LARGE // 400 + 1)) for t in small]
    for function in (
        lambda a, b: a + b,
        lambda a, b: a - 2.5,
        lambda a, b: 3 * b,
        lambda a, b: 1 / b,
        lambda a, b: a < b,
        lambda a, b: a.exp(),
        lambda a, b: a.relu(),
        lambda a, b: fw.sigmoid(a),
    ):
        x, y = function(*small), function(*large)
        assert x.dtype is y.dtype
        assert x.numpy().tobytes() == y.numpy()[:100].tobytes()


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        (fw.ones(2, dtype=fw.int32), 2.5, fw.float32),
        (fw.ones(2, dtype=fw.uint8), 300, fw.uint8),
        (fw.ones(2, dtype=fw.float16), 1, fw.float16),
        (fw.ones(2, dtype=fw.bool), True, fw.bool),
        (fw.ones(2, dtype=fw.bool), 1, fw.int64),
        (fw.ones(2, dtype=fw.float64), fw.ones(2), fw.float64),
        (fw.tensor(1.5), fw.tensor([1, 2]), fw.float32),
        (2.0, fw.ones(2, dtype=fw.float64), fw.float64),
    ],
)
def test_numbers_take_the_dtype_of_tensors(left: Any, right: Any, dtype: Any) -> None:
    assert (left + right).dtype is dtype


def test_results_without_axes_and_of_transposed_operands() -> None:
    a = fw.tensor(2.0)
    assert isinstance((a * a)._data, np.ndarray)
    assert (a * a).shape == ()
    t = fw.ones(3, 2).t()
    assert (t + t).is_contiguous()


def test_floating_errors_are_silent() -> None:
    with np.errstate(all="raise"):
        assert (fw.ones(2) / fw.zeros(2)).tolist() == [np.inf, np.inf]
        assert fw.tensor([1e4]).exp().tolist() == [np.inf]


def test_an_occupied_context_changes_nothing() -> None:
    """Another thread may be in the context that small ops share, as may this one, in a debugger."""
    a = fw.ones(2, requires_grad=True)
    out = quiet(lambda: (a + a) / 0.0 + a.exp() * 2)
    assert out.tolist() == [np.inf, np.inf]
    assert out.requires_grad


def test_shapes_that_do_not_broadcast_are_said_in_our_words() -> None:
    with pytest.raises(RuntimeError, match="cannot be broadcast together"):
        fw.ones(2) + fw.ones(3)


def test_what_is_no_operand_is_asked_itself() -> None:
    class Other:
        def __radd__(self, x: Any) -> str:
            return "asked"

    assert fw.ones(2) + Other() == "asked"
    with pytest.raises(TypeError):
        fw.ones(2) + "x"


def test_unusual_threads_are_counted() -> None:
    before = unusual.threads
    with fw.no_grad():
        assert unusual.threads == before + 1
        with fw.enable_grad():
            assert unusual.threads == before
            assert (fw.ones(2, requires_grad=True) * 2).requires_grad
        assert not (fw.ones(2, requires_grad=True) * 2).requires_grad
    assert unusual.threads == before

    def elsewhere() -> None:
        ambient.grad_enabled = False
        assert unusual.threads == before + 1
        found.append((fw.ones(2, requires_grad=True) * 2).requires_grad)
        ambient.grad_enabled = True

    found: list[bool] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]
    assert unusual.threads == before


def test_a_leaf_has_one_node_where_users_look() -> None:
    x = fw.ones(2, requires_grad=True)
    y = x * 2 + x
    (mul, _), (leaf, number) = y.grad_fn.next_functions
    assert leaf is mul.next_functions[0][0]
    assert (leaf.variable is x, number, leaf.name()) == (True, 0, "AccumulateGrad")


def test_a_result_that_is_saved_keeps_its_version() -> None:
    x = fw.ones(2, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_chain_without_branches_is_freed_and_hooked() -> None:
    x = fw.ones(3, requires_grad=True)
    y = x.exp()
    seen: list[Any] = []
    y.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: seen.append(g.tolist()))
    loss = y.sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.e * np.ones(3), rtol=1e-6)
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_sum_of_everything_differentiates_twice() -> None:
    x = fw.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (g,) = fw.autograd.grad((x**3).sum(), x, create_graph=True)
    g.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.detach().numpy())
    assert (x**3).sum().grad_fn.name() == "SumBackward0"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [8, 4096, LARGE // 4])
def test_zeros_are_selected_exactly(dtype: Any, size: int) -> None:
    """Signed zeros, infinities and the bits of NaNs pass."""
    x = np.resize(np.array([-0.0, 0.0, -np.inf, np.inf, np.nan, -np.nan, 1, -1], dtype), size)
    condition = np.resize(np.array([False, True, False]), size)
    zero = dtype(0)
    wanted = np.where(condition, zero, x)
    assert compare.where(condition, 0.0, x).tobytes() == wanted.tobytes()
    assert compare.where(condition, -0.0, x).tobytes() == np.where(condition, dtype(-0.0), x).tobytes()
    assert arithmetic.relu(x).tobytes() == np.where(x < 0, zero, x).tobytes()
    rows = condition.reshape(-1, 1)[:3]
    assert compare.where(rows, 0.0, x).tobytes() == np.where(rows, zero, x).tobytes()


def test_a_condition_must_be_bool() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(TypeError, match="bool condition"):
        compare.where(x, 0.0, x)
