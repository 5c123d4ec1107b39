"""Compiled models and losses whose results are differentiated outside: as eager, to the second derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from framework.state import ambient
from tests.framework import capture_check
from tests.framework.capture_check import Cube, grad_of, same

pytestmark = pytest.mark.replays

Function = Callable[..., Any]


def leaf(*numbers: float) -> fw.Tensor:
    return fw.tensor(list(numbers), dtype=fw.float64).requires_grad_()


def copies(tensors: tuple[fw.Tensor, ...]) -> tuple[fw.Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


def agree(use: Function, function: Function, *tensors: fw.Tensor, mode: str = "replay") -> CompiledFunction:
    """`use(function, *tensors)` gives, three times, the same with `function` compiled, and the same
    gradients.
    """
    compiled = CompiledFunction(function)
    for number in range(3):
        fw.manual_seed(number)
        ours, theirs = copies(tensors), copies(tensors)
        wanted = use(function, *theirs)
        fw.manual_seed(number)
        got = use(compiled, *ours)
        where = f"call {number}"
        same(detached(got), detached(wanted), 1e-6, where)
        for a, b in zip(ours, theirs, strict=True):
            same(a.grad, b.grad, 1e-6, f"{where}: gradient")
    capture_check.expect_mode(compiled, mode)
    return compiled


def detached(x: Any) -> Any:
    if isinstance(x, fw.Tensor):
        return x.detach()
    return [detached(item) for item in x] if isinstance(x, list | tuple) else x


X = leaf(0.5, -1.5, 2.0)
W = leaf(1.5, 0.25, -0.75)

# First derivatives
# --------------------------------------------------------------------------------------------------


def test_several_backward_calls() -> None:
    def use(f: Function, w: fw.Tensor) -> Any:
        y = f(w)
        y.sum().backward(retain_graph=True)
        y.sum().backward(retain_graph=True)
        (y * 3).sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        return y

    agree(use, lambda w: (w * w).tanh(), W)


def test_hooks_on_what_is_outside_run_once() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        seen: list[Any] = []
        w.register_hook(lambda g: g * 10)
        inner = x * 3
        inner.register_hook(lambda g: g + 1)
        inner.retain_grad()
        y = f(inner, w)
        y.register_hook(lambda g: seen.append(g.detach()))
        y.register_hook(lambda g: g * 2)
        (y * y).sum().backward()
        return [y, grad_of(inner), *seen]

    agree(use, lambda x, w: (x * w).exp(), X, W)


def test_module_hooks_outside() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: Function) -> None:
            super().__init__()
            self.weight = nn.Parameter(fw.ones(3, dtype=fw.float64))
            self.inner = inner

        def forward(self, x: fw.Tensor) -> fw.Tensor:
            return self.inner(x * self.weight)

    def use(f: Function, x: fw.Tensor) -> Any:
        outer, seen = Outer(f), []
        outer.register_forward_hook(lambda m, given, out: out * 2)
        outer.register_full_backward_hook(lambda m, g, out: seen.append([g[0].detach(), out[0].detach()]))
        outer(x).sum().backward()
        return [seen, grad_of(outer.weight)]

    agree(use, lambda x: (x * x).sin(), X)


def test_pure_hooks_inside() -> None:
    def function(w: fw.Tensor) -> fw.Tensor:
        y = w * 2
        y.register_hook(lambda g: g * 5)
        return (y * y).sum()

    agree(lambda f, w: f(w).backward(), function, W)


def test_hooks_inside_that_do_more_run_each_time() -> None:
    seen: list[float] = []

    def function(w: fw.Tensor) -> fw.Tensor:
        y = w * 2
        y.register_hook(lambda g: seen.append(1.0))
        return (y * y).sum()

    compiled = CompiledFunction(function)
    for number in range(4):
        compiled(leaf(1.0, 2.0)).backward()
        assert len(seen) == number + 1


def test_what_hooks_and_custom_gradients_read_is_guarded() -> None:
    scale = {"hook": 2.0, "function": 3.0}

    class Scaled(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            return g * scale["function"]

    def function(w: fw.Tensor) -> fw.Tensor:
        y = Scaled.apply(w)
        y.register_hook(lambda g: g * scale["hook"])
        return y

    compiled = CompiledFunction(function)
    for hook, own in ((2.0, 3.0), (2.0, 3.0), (5.0, 3.0), (5.0, 7.0)):
        scale.update(hook=hook, function=own)
        w = leaf(1.0)
        compiled(w).backward()
        assert grad_of(w).tolist() == [hook * own]


def test_a_result_that_retains_its_gradient() -> None:
    def function(w: fw.Tensor) -> fw.Tensor:
        y = w * 2
        y.retain_grad()
        return y

    def use(f: Function, w: fw.Tensor) -> Any:
        y = f(w)
        (y * y).sum().backward()
        return grad_of(y)

    agree(use, function, W, mode="driven")


def test_an_argument_made_from_another() -> None:
    def use(f: Function, x: fw.Tensor) -> None:
        f(x, x * 3).backward()

    agree(use, lambda x, h: (x * h * h).sum(), X)


def test_an_argument_that_is_not_row_major() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        y = f(x.t(), w)
        (g,) = fw.autograd.grad(y, w, create_graph=True)
        (y + g.square().sum()).backward()
        return g

    tensors = (fw.rand(4, 3, requires_grad=True), fw.rand(3, 4, requires_grad=True))
    agree(use, lambda x, w: (x * w * w).sum(), *tensors)


def test_a_saved_result_changed_in_place() -> None:
    def use(f: Function, w: fw.Tensor) -> Any:
        y = f(w)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()

    agree(use, lambda w: w.exp(), W)


def test_a_result_that_nobody_saved_may_change() -> None:
    def use(f: Function, w: fw.Tensor) -> Any:
        y = f(w)
        y.add_(1)
        y.sum().backward()
        return y

    agree(use, lambda w: w * 2, W)
    agree(use, lambda w: w.exp() * 1.5, W)


def test_a_saved_argument_changed_in_place() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        x = x.detach()
        y = f(x, w)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()

    agree(use, lambda x, w: x * w, X, W)


@pytest.mark.replays
def test_a_gradient_that_depends_on_a_number() -> None:
    compiled = CompiledFunction(lambda w, p: ((w * p).tanh() * p).sum())
    kept = []
    for p in (0.5, 0.25, 2.0, 3.0):
        w = leaf(1.0, 2.0)
        kept.append((w, p, compiled(w, p)))
    # Each backward runs with the number of its own forward.
    for w, p, loss in reversed(kept):
        loss.backward()
        v = leaf(1.0, 2.0)
        ((v * p).tanh() * p).sum().backward()
        same(grad_of(w), grad_of(v))
    assert len(compiled.variants) == 2


def test_a_gradient_that_depends_on_a_probability() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = fw.compile(model)
    x = fw.rand(3, 4)
    for p in (0.5, 0.2, 0.7):
        model[1].p = p
        for f in (model, compiled):
            model.zero_grad()
            fw.manual_seed(1)
            f(x).square().sum().backward()
            if f is model:
                wanted = [grad_of(q).clone() for q in model.parameters()]
        same([grad_of(q) for q in model.parameters()], wanted)


def test_dropout_after_a_softmax() -> None:
    agree(
        lambda f, x: f(x).square().sum().backward(),
        lambda x: F.dropout(x.softmax(-1), 0.4),
        fw.rand(5, 7, requires_grad=True),
    )


@pytest.mark.replays
def test_cheap_values_are_computed_again_and_costly_ones_kept() -> None:
    def use(f: Function, x: fw.Tensor) -> Any:
        f(x).backward()
        return None

    compiled = agree(use, lambda x: (x * x.exp() * (x * 0.5)).sum(), X)
    backward = compiled.variants[0].backward
    assert backward is not None
    assert "exp" in [getattr(getattr(v, "op", None), "name", "") for v in backward.kept]
    # The products follow from it and from the argument, which is saved anyway.
    assert len(backward.kept) == 1


# An argument that has a gradient already, and views of what requires one
# --------------------------------------------------------------------------------------------------


def test_gradients_are_added_to_those_of_arguments() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        loss = (x * x * y).sum()
        loss.backward()
        return loss.detach()

    compiled = CompiledFunction(function)
    x, y, u, v = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(1.0, 2.0), leaf(3.0, 4.0)
    for number in range(8):
        before = x.grad
        compiled(x, y)
        function(u, v)
        same(x, u)
        same(y, v)
        assert before is None or x.grad is before
        if number == 2:
            x, u = leaf(5.0, 6.0), leaf(5.0, 6.0)
        if number == 4:
            x.grad = u.grad = None
    capture_check.expect_mode(compiled, "replay")
    assert len(compiled.variants) <= 4


def test_a_gradient_of_an_argument_that_is_an_argument_too() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> None:
        (x * y.detach()).sum().backward()

    found = []
    for f in (function, CompiledFunction(function)):
        x = leaf(1.0, 2.0)
        for _ in range(4):
            f(x, leaf(3.0, 4.0))
        f(x, grad_of(x))
        f(x, grad_of(x))
        found.append(grad_of(x))
    same(*found)


def test_versions_of_an_arguments_gradient() -> None:
    compiled = CompiledFunction(lambda x: (x * x).sum().backward())
    x = leaf(1.0, 2.0)
    for _ in range(4):
        compiled(x)
    assert grad_of(x)._version == 3


def test_returned_views_of_what_requires_grad() -> None:
    def function(w: fw.Tensor) -> Any:
        return w[1:], w.view(3, 1).t(), (w * 2).sum()

    def use(f: Function, w: fw.Tensor) -> Any:
        a, b, c = f(w)
        (a.square().sum() + b.exp().sum() + c).backward()
        assert a._is_view() and a._base is w
        assert b._base is w
        return [a, b, c]

    agree(use, function, W)


def test_a_returned_view_of_a_parameter_and_of_history() -> None:
    w = leaf(1.0, 2.0, 3.0)

    def use(f: Function, x: fw.Tensor) -> Any:
        w.grad = None
        a, b = f(x * 2)
        (a * b).sum().backward()
        return [a, b, grad_of(w)]

    agree(use, lambda x: (w[:2], x[1:]), X)


def test_a_returned_view_with_a_hook() -> None:
    def function(w: fw.Tensor) -> fw.Tensor:
        y = w[1:]
        y.register_hook(lambda g: g * 7)
        return y

    agree(lambda f, w: f(w).sum().backward(), function, W, mode="driven")


def test_returned_detached_tensors() -> None:
    w = leaf(1.0, 2.0, 3.0)

    def use(f: Function, x: fw.Tensor) -> Any:
        a, b, c, d = f(x)
        assert a is not x
        assert a._is_view()
        a.add_(1)
        c.mul_(2)
        flags = [t.requires_grad for t in (a, b, c, d)]
        d.sum().backward()
        with fw.no_grad():
            w.copy_(fw.tensor([1.0, 2.0, 3.0]))
        return [a * 1, b * 1, c * 1, d * 1, flags, grad_of(d), x._version, w.grad]

    agree(use, lambda x: (x.detach(), w.detach(), w.detach()[1:], x.detach().requires_grad_()), X)


def test_a_leaf_made_inside_gets_the_gradient() -> None:
    def function(x: fw.Tensor) -> Any:
        a = x.detach().requires_grad_()
        return a, a * a

    def use(f: Function, x: fw.Tensor) -> Any:
        a, b = f(x)
        b.sum().backward()
        return [grad_of(a), x.grad]

    agree(use, function, X, mode="driven")


# Second derivatives
# --------------------------------------------------------------------------------------------------


def second(f: Function, *tensors: fw.Tensor) -> Any:
    """Gradients, and the gradients of a function of them."""
    first = fw.autograd.grad(f(*tensors).sum(), tensors, create_graph=True, allow_unused=True)
    known = [g for g in first if g is not None]
    sum(((g * g * (i + 1)).sum() for i, g in enumerate(known)), fw.zeros(())).backward()
    return known


SECOND: dict[str, Function] = {
    "power": lambda x, w: x**4 * w**3,
    "chain": lambda x, w: (x * w).tanh() * (w.exp() + x.sin()),
    "detached": lambda x, w: x * x.detach() * w + (x.detach() * w).exp(),
    "not recorded": lambda x, w: _partly(x, w),
    "saved result": lambda x, w: (x * w).exp().sigmoid(),
    "products": lambda x, w: (x.view(3, 1) @ w.view(1, 3)).softmax(-1) @ x,
    "one of them": lambda x, w: x * x * x,
    "linear": lambda x, w: x * w,
    "written": lambda x, w: _written(x, w),
    "norm": lambda x, w: (x * w).norm() * w,
    "reduced": lambda x, w: (x * x).sum() * (w * x).logsumexp(0),
}


def _partly(x: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
    with fw.no_grad():
        scale = x.exp() * w
    return x * x * scale * w


def _written(x: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
    y = (x * w).clone()
    y.mul_(x)
    y[1:].mul_(2)
    return y * y


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    agree(second, SECOND[name], X, W)


def test_second_derivatives_through_the_incoming_gradient() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        scale = (w * 2).exp()
        y = f(x)
        (g,) = fw.autograd.grad(y, x, grad_outputs=scale, create_graph=True)
        (g * g).sum().backward()
        return g

    agree(use, lambda x: x.sin() * x, X, W)


def test_a_gradient_penalty() -> None:
    def make() -> tuple[nn.Module, optim.Optimizer]:
        fw.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        return model, optim.SGD(model.parameters(), lr=0.1)

    (model, optimizer), (twin, other) = make(), make()
    compiled = fw.compile(model)
    for number in range(4):
        fw.manual_seed(number)
        x = fw.rand(5, 4, requires_grad=True)
        for f, o in ((compiled, optimizer), (twin, other)):
            o.zero_grad()
            out = f(x)
            (g,) = fw.autograd.grad(out.sum(), x, create_graph=True)
            (out.mean() + ((g.norm(2, 1) - 1) ** 2).mean()).backward()
            o.step()
        same(list(model.parameters()), list(twin.parameters()))
    capture_check.expect_mode(compiled, "replay")


def test_second_derivatives_of_several_results_and_unused_ones() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        a, b = f(x, w)
        g, h = fw.autograd.grad((a * 2).sum(), (x, w), create_graph=True)
        ((g * h).sum() + b.sum()).backward()
        return [a, b, g, h]

    agree(use, lambda x, w: (x * x * w.exp(), (x - w) ** 3), X, W)


def test_create_graph_in_backward_keeps_history_in_gradients() -> None:
    def use(f: Function, x: fw.Tensor) -> Any:
        f(x).sum().backward(create_graph=True)
        g = grad_of(x)
        (h,) = fw.autograd.grad(g.sum(), x)
        x.grad = None
        return [g, h]

    agree(use, lambda x: x**4, X)


@pytest.mark.replays
def test_second_derivatives_with_numbers_and_random_numbers() -> None:
    compiled = CompiledFunction(lambda x, p: F.dropout((x * p).exp(), 0.5) * p)
    for p in (0.5, 0.25, 2.0):
        results = []
        for f in (compiled, compiled.function):
            fw.manual_seed(7)
            x = leaf(0.1, 0.2, 0.3)
            results.append([*detached(second(lambda x, f=f, p=p: f(x, p), x)), grad_of(x)])
        same(*results, 1e-6)
    assert len(compiled.variants) == 2


def test_second_derivatives_after_a_change_in_place() -> None:
    def use(f: Function, x: fw.Tensor, w: fw.Tensor) -> Any:
        x = x.detach()
        (g,) = fw.autograd.grad(f(x, w).sum(), w, create_graph=True)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            g.sum().backward()

    agree(use, lambda x, w: x * w * w, X, W)


def test_a_buffer_that_forward_writes() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Tanh()).double()

    fw.manual_seed(0)
    model = make()
    fw.manual_seed(0)
    twin = make()
    compiled = fw.compile(model)
    x = fw.rand(6, 3, dtype=fw.float64, requires_grad=True)
    for _ in range(3):
        found = []
        for f, m in ((compiled, model), (twin, twin)):
            m.zero_grad()
            (g,) = fw.autograd.grad(f(x).square().sum(), x, create_graph=True)
            g.square().sum().backward(inputs=list(m.parameters()))
            found.append([g.detach(), *(grad_of(p) for p in m.parameters()), *m.buffers()])
        same(*found, 1e-4)


@pytest.mark.replays
def test_a_third_derivative_is_refused_and_not_wrong() -> None:
    compiled = CompiledFunction(lambda x: x**4)
    for _ in range(2):
        x = leaf(1.0, 2.0)
        (g,) = fw.autograd.grad(compiled(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="third"):
            fw.autograd.grad(g.sum(), x, create_graph=True)


def test_second_derivatives_of_a_custom_function() -> None:
    agree(second, lambda x: Cube.apply(x), X)


def test_second_derivatives_are_freed_with_the_graph() -> None:
    compiled = CompiledFunction(lambda x: x**4)
    x = leaf(1.0, 2.0)
    (g,) = fw.autograd.grad(compiled(x).sum(), x, create_graph=True)
    g.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        g.sum().backward()


def test_a_driven_call_stays_driven_after_second_derivatives() -> None:
    inner = CompiledFunction(lambda x: (x * x.exp()).tanh())
    driven = []

    def outer(x: fw.Tensor, f: Function) -> fw.Tensor:
        y = f(x * 1.0)
        driven.append(y.sum().item())
        (g,) = fw.autograd.grad(y.sum(), x, create_graph=True)
        driven.append(ambient.tracer)
        (g * g).sum().backward()
        return g.detach() * 2

    compiled = CompiledFunction(outer)
    for _ in range(2):
        x, y = leaf(0.1, 0.2), leaf(0.1, 0.2)
        same(compiled(x, inner), outer(y, inner.function))
        same(grad_of(x), grad_of(y))
        assert driven[1] is not None
        driven.clear()
