"""Backward: accumulation, hooks, saved values, freed graphs, depth, custom functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from tests.framework.capture_check import grad_of


def leaf(*values: float) -> fw.Tensor:
    return fw.tensor(list(values), dtype=fw.float64, requires_grad=True)


def finite_difference(
    fn: Callable[..., fw.Tensor], arrays: list[np.ndarray], k: int, direction: np.ndarray
) -> float:
    step = 1e-6
    ends = []
    for sign in (1, -1):
        moved = [a + sign * step * direction if i == k else a for i, a in enumerate(arrays)]
        ends.append(fn(*(fw.tensor(a) for a in moved)).sum().item())
    return (ends[0] - ends[1]) / (2 * step)


_RNG = np.random.default_rng(3)
_X, _Y = _RNG.uniform(0.3, 2, (3, 4)), _RNG.uniform(0.3, 2, (3, 4))
_INDEX = fw.tensor([[0, 2, 2, 1], [1, 0, 0, 2]])
COMPOSITES: dict[str, Callable[..., fw.Tensor]] = {
    "mean": lambda x, y: (x * y).mean(1),
    "var": lambda x, y: (x * y).var(0),
    "std": lambda x, y: (x * y).std(),
    "norm": lambda x, y: (x - 2 * y).norm(dim=1),
    "p norm": lambda x, y: (x * y).norm(3),
    "softmax": lambda x, y: x.softmax(1) * y,
    "log_softmax": lambda x, y: x.log_softmax(0) * y,
    "logsumexp": lambda x, y: (x * y).logsumexp((0, 1)),
    "broadcast": lambda x, y: x[:, :1] * y[:1] + y[0, 0],
    "clamp": lambda x, y: x.clamp(0.5, 1.5) * y,
    "where": lambda x, y: fw.where(x > y, x * y, x + y),
    "lerp": lambda x, y: fw.lerp(x, y, 0.3) * x,
    "matmul": lambda x, y: x @ y.t() @ x,
    "batched": lambda x, y: fw.stack([x, y]) @ y.t(),
    "einsum": lambda x, y: fw.einsum("ij,kj->ik", x, y) * x[:, :3],
    "gather": lambda x, y: x.gather(0, _INDEX) * y[:2],
    "index": lambda x, y: x[[0, 2, 2], [1, 3, 3]] * y[0, :3],
    "mask": lambda x, y: x[x > 1] * 2 + y.sum(),
    "cat": lambda x, y: fw.cat([x, y, x], 1) ** 2,
    "split": lambda x, y: x.split([1, 3], 1)[1] * y.chunk(2, 1)[0][:, :1],
    "flip": lambda x, y: x.flip(0, 1) * y,
    "roll": lambda x, y: x.roll(1, 0) * y,
    "repeat": lambda x, y: x.repeat(2, 1) * fw.cat([y, y * 2]),
    "tril": lambda x, y: x.tril() * y.triu(),
    "diagonal": lambda x, y: x.diagonal() * y.diagonal(1),
    "cumsum": lambda x, y: x.cumsum(1) * y,
    "cumprod": lambda x, y: x.cumprod(1) * y,
    "sort": lambda x, y: x.sort(1).values * y,
    "topk": lambda x, y: x.topk(2, 0).values * y[:2],
    "scatter_add": lambda x, y: x.scatter_add(0, _INDEX, y[:2] * x[:2]),
    "scatter": lambda x, y: x.scatter(0, _INDEX[:1], y[:1] ** 2) * x,
    "index_add": lambda x, y: x.index_add(0, fw.tensor([0, 0]), y[:2] ** 2) * x,
    "prod": lambda x, y: (x * y).prod(1),
    "amax": lambda x, y: (x * y).amax(1),
    "pow": lambda x, y: x**y,
    "atan2": lambda x, y: fw.atan2(x, y) + fw.asin(x / 3),
    "sinh": lambda x, y: x.sinh() * y.cosh() * x.tan().tanh(),
    "in-place": lambda x, y: _written(x, y),
    "logaddexp": lambda x, y: fw.logaddexp(x, y) * x,
}


def _written(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
    z = x * 2
    z[0].mul_(y[0])
    z[:, 1:3] = y[:, :2] ** 2
    z.t()[3].add_(z[:, 0] * 1)
    return z * x


@pytest.mark.parametrize("name", COMPOSITES)
def test_gradient_in_a_direction(name: str) -> None:
    fn, arrays = COMPOSITES[name], [_X, _Y]
    tensors = [fw.tensor(a, requires_grad=True) for a in arrays]
    grads = fw.autograd.grad(fn(*tensors).sum(), tensors, allow_unused=True)
    for k, g in enumerate(grads):
        direction = np.random.default_rng(k).standard_normal(arrays[k].shape)
        got = 0.0 if g is None else float((g.numpy() * direction).sum())
        assert got == pytest.approx(finite_difference(fn, arrays, k, direction), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    "name", ["softmax", "var", "norm", "matmul", "gather", "cumsum", "in-place", "prod", "pow", "sort"]
)
def test_second_gradient_in_a_direction(name: str) -> None:
    directions = [np.random.default_rng(k).standard_normal(_X.shape) for k in range(2)]

    def directional(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        x = x if x.requires_grad else x.requires_grad_()
        y = y if y.requires_grad else y.requires_grad_()
        value = COMPOSITES[name](x, y).sum()
        gx, gy = fw.autograd.grad(value, (x, y), create_graph=True)
        return (gx * fw.tensor(directions[0])).sum() + (gy * fw.tensor(directions[1])).sum()

    tensors = [fw.tensor(a, requires_grad=True) for a in (_X, _Y)]
    grads = fw.autograd.grad(directional(*tensors), tensors)
    for k, g in enumerate(grads):
        direction = np.random.default_rng(9).standard_normal(_X.shape)
        got = float((g.numpy() * direction).sum())
        assert got == pytest.approx(
            finite_difference(directional, [_X, _Y], k, direction), rel=1e-5, abs=1e-6
        )


def test_grad_accumulates_in_place() -> None:
    x = leaf(1, 2)
    (x * 3).sum().backward()
    first = x.grad
    (x * 4).sum().backward()
    assert x.grad is first and first.tolist() == [7, 7]


def test_gradients_of_two_leaves_do_not_share_memory() -> None:
    x, y = leaf(1, 2), leaf(3, 4)
    (x + y).sum().backward()
    x.grad.add_(1)
    assert y.grad.tolist() == [1, 1]


def test_a_tensor_used_twice() -> None:
    x = leaf(2)
    y = x * x
    (y * y + y).sum().backward()
    assert x.grad.tolist() == [4 * 8 + 4]


def test_second_backward_needs_retain_graph() -> None:
    x = leaf(2)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8]
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_backward_of_what_is_not_scalar() -> None:
    y = leaf(1, 2) * 2
    with pytest.raises(RuntimeError, match="scalar outputs"):
        y.backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(fw.ones(3))
    with pytest.raises(RuntimeError, match="does not require grad"):
        fw.ones(1).backward()


def test_grad_leaves_dot_grad_alone_and_prunes() -> None:
    x, y = leaf(1), leaf(2)
    (g,) = fw.autograd.grad(x * y, x)
    assert g.tolist() == [2] and x.grad is None and y.grad is None
    with pytest.raises(RuntimeError, match="not have been used"):
        fw.autograd.grad(x * 2, y)
    assert fw.autograd.grad(x * 2, y, allow_unused=True) == (None,)
    assert fw.autograd.grad(x * 2, y, materialize_grads=True)[0].tolist() == [0]


def test_grad_of_an_intermediate() -> None:
    x = leaf(3)
    y = x * 2
    gy, gx = fw.autograd.grad(y * y, (y, x))
    assert (gy.item(), gx.item()) == (12, 24)


def test_backward_inputs() -> None:
    x, y = leaf(1), leaf(2)
    (x * y).backward(inputs=[x])
    assert x.grad.tolist() == [2] and y.grad is None


def test_a_modified_saved_value_is_named() -> None:
    x = leaf(1, 2)
    y = x * 1
    z = y * y
    y[0].add_(1)
    with pytest.raises(RuntimeError, match=r"MulBackward0.*version 1; expected version 0"):
        z.sum().backward()


def test_what_backward_does_not_read_may_change() -> None:
    x = leaf(1, 2)
    y = x + 1
    z = y + y
    s = y.sum()
    y.zero_()
    (z.sum() + s).backward()
    assert x.grad.tolist() == [3, 3]


def test_in_place_rules_keep_their_own_operand() -> None:
    x, w = leaf(2, 3), leaf(5, 7)
    y = x * 1
    y.mul_(w)
    y.exp_().log_()
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [2, 3])
    np.testing.assert_allclose(x.grad.numpy(), [5, 7])


def test_hooks_see_and_replace() -> None:
    x = leaf(1, 2)
    seen = []
    handle = x.register_hook(lambda g: seen.append(g.tolist()))
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert seen == [[20, 20]] and x.grad.tolist() == [20, 20]
    handle.remove()
    (x * 2).sum().backward()
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        fw.ones(1).register_hook(print)


def test_a_leaf_hook_sees_the_whole_gradient_once() -> None:
    x = leaf(1)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2 + x * 3).backward()
    assert seen == [5]


def test_post_accumulate_hook() -> None:
    x = leaf(1)
    x.register_post_accumulate_grad_hook(lambda t: setattr(t, "seen", t.grad.item()))
    (x * 3).backward()
    assert x.seen == 3


def test_retain_grad() -> None:
    x = leaf(1)
    y = x * 2
    y.retain_grad()
    (y * 3).backward()
    assert y.grad.tolist() == [3]


def test_modes() -> None:
    x = leaf(1)
    with fw.no_grad():
        assert not (x * 2).requires_grad
        with fw.enable_grad():
            assert (x * 2).requires_grad
    assert not fw.no_grad()(lambda: (x * 2).requires_grad)()
    assert not fw.no_grad(lambda: (x * 2).requires_grad)()
    with fw.set_grad_enabled(False):
        assert not fw.is_grad_enabled()
    assert fw.is_grad_enabled()


def test_detach_shares_memory_and_cuts_history() -> None:
    x = leaf(1, 2)
    y = (x * 2).detach()
    assert y.is_leaf and not y.requires_grad
    z = x * 1
    z.detach_()
    assert z.is_leaf and not z.requires_grad


@pytest.mark.parametrize("depth", [10_000, 100_000])
def test_a_deep_graph_works_and_is_freed(depth: int) -> None:
    x = leaf(1)
    y = x
    for _ in range(depth):
        y = y + 1
    y.backward()
    assert x.grad.tolist() == [1]
    del y


def test_a_graph_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        x = leaf(1, 2)
        y = x.exp()
        node = weakref.ref(y.grad_fn)
        z = (y * y).sum()
        del y, z
        assert node() is None
    finally:
        gc.enable()


def test_grad_fn_names_and_next_functions() -> None:
    x = leaf(1, 2)
    y = (x + 1) * x
    assert y.grad_fn.name() == "MulBackward0"
    assert [node.name() for node, _ in y.grad_fn.next_functions] == ["AddBackward0", "AccumulateGrad"]
    assert y.grad_fn.next_functions[1][0].variable is x


class Scaled(fw.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: fw.Tensor, factor: float) -> tuple[fw.Tensor, fw.Tensor]:
        out = x * factor
        sign = x.sign()
        ctx.save_for_backward(x, out)
        ctx.mark_non_differentiable(sign)
        ctx.factor = factor
        return out, sign

    @staticmethod
    def backward(ctx: Any, g: fw.Tensor, unused: fw.Tensor) -> tuple[fw.Tensor, None]:
        x, out = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return g * ctx.factor + 0 * (out - x * ctx.factor), None


def test_custom_function() -> None:
    x = leaf(1, -2)
    out, sign = Scaled.apply(x, 3.0)
    assert out.requires_grad and not sign.requires_grad
    assert out.grad_fn.name() == "ScaledBackward"
    out.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_custom_function_twice_differentiable() -> None:
    class Cube(fw.autograd.Function):
        @staticmethod
        def forward(x: fw.Tensor) -> fw.Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: fw.Tensor) -> None:
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    x = leaf(2)
    (g,) = fw.autograd.grad(Cube.apply(x), x, create_graph=True)
    (h,) = fw.autograd.grad(g, x)
    assert (g.item(), h.item()) == (12, 12)


def test_custom_function_errors() -> None:
    class Wrong(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            return x + y

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            return g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Wrong.apply(leaf(1), leaf(2)).backward()


def test_a_wrong_gradient_would_be_caught() -> None:
    class Bad(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            return g * 3

    x = leaf(1)
    (g,) = fw.autograd.grad(Bad.apply(x), x)
    numeric = finite_difference(lambda t: Bad.apply(t), [np.ones(1)], 0, np.ones(1))
    assert g.item() != pytest.approx(numeric, rel=1e-6)


def test_what_a_custom_backward_returns_is_not_taken_over() -> None:
    held = fw.tensor([5.0])

    class Constant(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            return held

    x = fw.ones(1, requires_grad=True)
    for _ in range(2):
        Constant.apply(x).backward()
    assert x.grad.tolist() == [10.0] and held.tolist() == [5.0]
    (Constant.apply(x) + Constant.apply(x)).backward()
    assert held.tolist() == [5.0]


def test_gradients_of_large_tensors() -> None:
    # Above the size from which results are in reused memory.
    x = fw.ones(1 << 21, requires_grad=True)
    y = x * 3
    ((y * y).sum() + y.sum()).backward()
    first = x.grad
    assert first is not None and (first == 21).all()
    x.grad = None
    ((x * 2) * (x * 2)).sum().backward()
    assert (first == 21).all() and (x.grad == 8).all()


@pytest.mark.parametrize("kept", [False, True])
def test_a_leaf_has_its_gradient_as_soon_as_it_is_complete(kept: bool) -> None:
    """Whether or not an older graph of the leaf is still alive."""
    w = fw.ones(3, requires_grad=True)
    older = (w * 2).sum() if kept else None
    x = fw.ones(3, requires_grad=True)
    order: list[str] = []
    w.register_hook(lambda g: order.append("leaf"))
    hidden = x.tanh()
    hidden.register_hook(lambda g: order.append("below"))
    (hidden * w * w).sum().backward()
    assert order == ["leaf", "below"]
    assert older is None or older.grad_fn is not None


def test_a_leaf_that_some_paths_do_not_reach() -> None:
    class OnlyFirst(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: fw.Tensor, b: fw.Tensor) -> fw.Tensor:
            return a + b

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> Any:
            return g, None

    a, b = fw.ones(2, requires_grad=True), fw.ones(2, requires_grad=True)
    (OnlyFirst.apply(a, b) + OnlyFirst.apply(b, a) * 3).sum().backward()
    assert (grad_of(a).tolist(), grad_of(b).tolist()) == ([1.0, 1.0], [3.0, 3.0])
    c = fw.ones(2, requires_grad=True)
    OnlyFirst.apply(a, c).sum().backward()
    assert c.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
def test_users_code_in_a_backward_records_only_with_create_graph(create_graph: bool) -> None:
    modes: list[bool] = []

    def note(g: fw.Tensor) -> None:
        modes.append(fw.is_grad_enabled())

    class Noted(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            note(g)
            return g * 2

    a, b = leaf(1.0), leaf(2.0)
    a.register_hook(note)
    a.register_post_accumulate_grad_hook(note)
    inner = a * b
    inner.register_hook(note)
    (Noted.apply(inner) + b).backward(create_graph=create_graph)
    assert modes == [create_graph] * 4 and fw.is_grad_enabled()


def test_a_sum_over_some_axes_is_one_step() -> None:
    x = fw.ones(2, 3, 4, requires_grad=True)
    total = x.sum((0, 2))
    assert total.grad_fn is not None and total.grad_fn.next_functions[0][0].variable is x  # type: ignore[union-attr]
    (total * fw.arange(3.0)).sum().backward()
    assert grad_of(x)[0, :, 0].tolist() == grad_of(x)[1, :, 3].tolist() == [0.0, 1.0, 2.0]
