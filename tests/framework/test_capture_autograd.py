"""Autograd inside compiled functions: custom functions, hooks, higher derivatives, gradients read and
kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import Cube, Twins, World, check, grad_of, nothing, same


def leaf(*numbers: float) -> fw.Tensor:
    return fw.tensor(list(numbers)).requires_grad_()


class Scaled(fw.autograd.Function):
    """x times a number that is kept as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: fw.Tensor, scale: float) -> fw.Tensor:
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: fw.Tensor) -> tuple[fw.Tensor, None]:
        return g * ctx.scale * 2, None


def test_a_custom_function() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        Cube.apply(x).sum().backward()
        return grad_of(x) * 1

    twins = check(function, (leaf(1.0, 2.0),))
    assert twins.compiled(leaf(1.0, 2.0)).tolist() == [6, 24]


def test_a_custom_function_that_keeps_a_number() -> None:
    def function(x: fw.Tensor, scale: float) -> fw.Tensor:
        Scaled.apply(x, scale).sum().backward()
        return grad_of(x) * 1

    # An attribute is assigned, of what is not known before it happens.
    check(function, (leaf(1.0, 2.0), 3.0), (leaf(1.0, 2.0), 4.0), mode="driven")


def world(function: Callable[[fw.Tensor, fw.Tensor], Any]) -> Callable[[], World]:
    """A function of a weight of its own and an argument."""

    def make() -> World:
        w = leaf(0.5, -1.0, 2.0)
        return (lambda x: function(w, x)), lambda: w

    return make


def gradient_read(w: fw.Tensor, x: fw.Tensor) -> fw.Tensor:
    w.grad = None
    (w * x).sum().backward()
    return grad_of(w).norm()


def gradient_of_before(w: fw.Tensor, x: fw.Tensor) -> fw.Tensor:
    before = fw.zeros(3) if w.grad is None else w.grad.clone()
    (w * x).sum().backward()
    return before


def gradient_scaled(w: fw.Tensor, x: fw.Tensor) -> None:
    w.grad = None
    (w * x).sum().backward()
    grad_of(w).mul_(0.5)


def gradient_assigned(w: fw.Tensor, x: fw.Tensor) -> None:
    w.grad = x * 3


def gradient_deleted(w: fw.Tensor, x: fw.Tensor) -> None:
    (w * x).sum().backward()
    w.grad = None


def backward_twice(w: fw.Tensor, x: fw.Tensor) -> None:
    loss = (w * w * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def intermediate_retained(w: fw.Tensor, x: fw.Tensor) -> Any:
    y = w * x
    y.retain_grad()
    (y * y).sum().backward()
    return grad_of(y) * 1


def tensor_hook(w: fw.Tensor, x: fw.Tensor) -> None:
    y = w * x
    handle = y.register_hook(lambda g: g * 10)
    z = y * 2
    z.register_hook(lambda g: g + 1)
    z.sum().backward()
    handle.remove()


def penalty(w: fw.Tensor, x: fw.Tensor) -> fw.Tensor:
    x = x.detach().requires_grad_()
    (g,) = fw.autograd.grad((w * x * x).sum(), x, create_graph=True)
    loss = ((g.norm() - 1) ** 2).sum()
    loss.backward()
    return loss.detach()


def unused(w: fw.Tensor, x: fw.Tensor) -> Any:
    other = fw.ones(2).requires_grad_()
    return fw.autograd.grad((w * x).sum(), [w, other], allow_unused=True)


def detached_and_changed(w: fw.Tensor, x: fw.Tensor) -> Any:
    y = w * x
    z = y.detach()
    z.add_(1)
    return y.detach() * 1, z


def loss_twice(w: fw.Tensor, x: fw.Tensor) -> Any:
    loss = (w * x).sum()
    loss.backward()
    return loss.detach(), loss.detach() * 2


def modes(w: fw.Tensor, x: fw.Tensor) -> Any:
    with fw.no_grad():
        y = w * 2
        with fw.enable_grad():
            (w * x).sum().backward()
        frozen = y * x
    return frozen, frozen.requires_grad, y.requires_grad


def gradient_with_weights(w: fw.Tensor, x: fw.Tensor) -> None:
    (w * x).backward(fw.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "function",
    [
        gradient_read,
        gradient_of_before,
        gradient_scaled,
        gradient_assigned,
        gradient_deleted,
        backward_twice,
        intermediate_retained,
        tensor_hook,
        penalty,
        unused,
        detached_and_changed,
        loss_twice,
        modes,
        gradient_with_weights,
    ],
)
def test_gradients_inside(function: Callable[..., Any]) -> None:
    twins = Twins(world(function))
    for i in range(5):
        twins.call(fw.tensor([1.0, 2.0, 3.0]) * (i + 1))
    twins.expect("replay")
    assert len(twins.compiled.variants) <= 2


def test_a_hook_after_accumulation_added_later() -> None:
    def make() -> World:
        w = leaf(1.0, 2.0)
        seen: list[Any] = []

        def run(x: fw.Tensor) -> None:
            (w * x).sum().backward()

        def add() -> None:
            w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))

        run.add = add  # type: ignore[attr-defined]
        return run, lambda: (w, list(seen))

    twins = Twins(make)
    for i in range(5):
        if i == 2:
            twins.eager.add()  # type: ignore[attr-defined]
            twins.compiled.function.add()
        twins.call(fw.tensor([3.0, 4.0]))


def test_an_optimizer_that_steps_in_a_hook() -> None:
    def make() -> World:
        w = leaf(1.0, 2.0)
        optimizer = optim.SGD([w], lr=0.1)

        def update(t: fw.Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        w.register_post_accumulate_grad_hook(update)
        return (lambda x: (w * x).sum().backward()), lambda: w

    twins = Twins(make)
    for _ in range(4):
        twins.call(fw.tensor([3.0, 4.0]))


def test_a_closure_passed_to_the_optimizer() -> None:
    def make() -> World:
        w = leaf(1.0, 2.0)
        optimizer = optim.SGD([w], lr=0.1)

        def run(x: fw.Tensor) -> fw.Tensor:
            def closure() -> fw.Tensor:
                optimizer.zero_grad()
                loss = (w * x).square().sum()
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return run, lambda: w

    twins = Twins(make)
    for _ in range(4):
        twins.call(fw.tensor([0.3, 0.4]))
    twins.expect("replay")


def test_gradients_reach_arguments_and_accumulate_there() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        loss = (x * y).sum()
        loss.backward()
        return loss.detach()

    compiled = CompiledFunction(function)
    x, y, u, v = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(1.0, 2.0), leaf(3.0, 4.0)
    for _ in range(4):
        compiled(x, y)
        function(u, v)
        same(x, u)
        same(y, v)


def test_gradients_flow_on_through_an_argument_with_history() -> None:
    def function(h: fw.Tensor) -> fw.Tensor:
        return (h * h).sum()

    compiled = CompiledFunction(function)
    for _ in range(3):
        a, b = leaf(1.0, 2.0), leaf(1.0, 2.0)
        compiled(a * 3).backward()
        function(b * 3).backward()
        same(a.grad, b.grad)


def test_backward_inside_reaches_leaves_outside() -> None:
    compiled = CompiledFunction(lambda h: (h * h).sum().backward())
    for _ in range(3):
        a = leaf(1.0, 2.0)
        compiled(a * 3)
        assert a.grad is not None and a.grad.tolist() == [18, 36]


def test_a_loss_between_two_compiled_functions() -> None:
    model = nn.Linear(3, 2)
    forward, loss_of = CompiledFunction(model), CompiledFunction(lambda out, t: F.cross_entropy(out, t))
    x, t = fw.rand(4, 3), fw.tensor([0, 1, 1, 0])
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(x), t).backward()
        wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        loss_of(forward(x), t).backward()
        same([p.grad for p in model.parameters()], wanted)


def test_results_that_require_grad_say_so() -> None:
    w = leaf(1.0, 2.0)

    def function(x: fw.Tensor) -> Any:
        y = w * x
        return y, y.detach(), (y.sum(), x * 2)

    twins = Twins(lambda: (function, nothing))
    for _ in range(3):
        twins.call(fw.ones(2))


def test_a_deep_graph() -> None:
    def function(x: fw.Tensor) -> None:
        y = x
        for _ in range(300):
            y = y * 1.01
        y.sum().backward()

    compiled = CompiledFunction(function)
    for _ in range(2):
        x = leaf(1.0, 2.0)
        compiled(x)
        assert x.grad is not None and x.grad[0].item() == pytest.approx(1.01**300, rel=1e-4)


def test_results_are_differentiated_one_by_one() -> None:
    def gradients(call: Any) -> list[Any]:
        weight = fw.tensor([0.0, 1.0, 4.0]).requires_grad_()
        double, root = call(weight)
        found = []
        for result in (double, root):
            result.sum().backward()
            found.append(grad_of(weight).tolist())
        with pytest.raises(RuntimeError, match="second time"):
            double.sum().backward()
        return found

    def function(weight: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        return (weight * 2).sin(), (weight + 0).sqrt()

    # The derivative of a square root at zero is infinite: it must not reach the first gradient as nan.
    np.testing.assert_allclose(gradients(fw.compile(function)), gradients(function), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 4, 5, 6)])
def test_a_leaf_is_returned_with_its_gradient(sizes: tuple[int, ...]) -> None:
    def function(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        made, viewed = x.tanh().requires_grad_(), x.detach().requires_grad_()
        (made.square() * viewed).sum().backward()
        return made, viewed

    compiled = fw.compile(function)
    for size in sizes:
        for got, wanted in zip(compiled(fw.ones(size)), function(fw.ones(size)), strict=True):
            same(got, wanted)
            same(grad_of(got), grad_of(wanted))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("written", ["result", "input"])
def test_a_write_through_data_changes_what_was_saved(written: str, inside: bool) -> None:
    def trained(wrap: Callable[[Any], Any]) -> fw.Tensor:
        weight = fw.tensor([0.1, 0.5, 0.9], requires_grad=True)

        def function(x: fw.Tensor) -> fw.Tensor:
            y = (weight * x).tanh()
            z = y * weight
            (y if written == "result" else weight).data.mul_(0.5)
            if inside:
                z.sum().backward()
            return z.sum()

        called = wrap(function)
        for _ in range(3):
            loss = called(fw.ones(3))
            if not inside:
                loss.backward()
        return grad_of(weight)

    same(trained(CompiledFunction), trained(lambda function: function))


def test_a_view_that_is_an_argument_gets_a_history() -> None:
    """The recording that is refused for it takes back what it did to the tensor that is viewed."""
    bias = fw.ones(4, requires_grad=True)

    def function(x: fw.Tensor) -> None:
        x.mul_(bias)
        x.square().mean().backward()

    compiled = fw.compile(function)
    compiled(fw.ones(2, 4))
    for number in range(2, 5):
        whole = fw.ones(6, 4)
        compiled(whole[:2])
        same(grad_of(bias), fw.full((4,), number * 0.5))
        assert whole.grad_fn is not None and whole.grad_fn.name() == "CopySlices"


def test_a_constant_gradient_reaches_every_element_of_a_bias() -> None:
    def make() -> World:
        norm = nn.LayerNorm(4)

        def function(x: fw.Tensor) -> fw.Tensor:
            y = norm(x)
            y.backward(fw.ones_like(y) * 0.1)
            return y.detach()

        return function, lambda: [grad_of(p) for p in norm.parameters()]

    twins = Twins(make)
    for _ in range(2):
        twins.call(fw.randn(5, 4))


def test_a_view_that_exists_follows_its_base() -> None:
    """A refused recording leaves it the history that it had."""

    def make() -> World:
        weight, bias = fw.ones(4, 4).requires_grad_(), fw.ones(4, requires_grad=True)
        history = fw.ones(3, 4)
        row = history[1]

        def function(x: fw.Tensor) -> fw.Tensor:
            history.add_(bias * x)
            ((weight.tanh() + row) * 0.5).square().mean().backward()
            return row.detach() * 1.0

        return function, lambda: [grad_of(weight), grad_of(bias)]

    Twins(make).call(fw.ones(4))


@pytest.mark.parametrize("way", ["function", "hook", "leaf"])
def test_code_of_a_users_among_library_functions_is_watched(way: str) -> None:
    """What runs unwatched in a recording is the library's alone: an effect in the midst of it is seen."""

    def make() -> World:
        w, seen = leaf(1.0, 2.0, 3.0), list[str]()

        class Noted(fw.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
                seen.append("backward")
                return g * 2

        def run(x: fw.Tensor) -> None:
            y = F.gelu(F.linear(x * w, fw.ones(2, 3)))
            if way == "function":
                y = Noted.apply(y)
            elif way == "hook":
                y.register_hook(lambda g: seen.append("hook"))
            F.softmax(y, -1).square().sum().backward()

        if way == "leaf":
            w.register_hook(lambda g: seen.append("leaf"))
        return run, lambda: (w, list(seen))

    twins = Twins(make)
    for i in range(4):
        twins.call(fw.tensor([[3.0, 4.0, float(i)]]))
    assert len(twins.look()[1]) == 4
    twins.expect("driven")
