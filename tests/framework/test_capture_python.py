"""Python around the tensors: whatever a function reads may change, and whatever it does happens once per
call."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import Twins, World

SCALE = 2.0
TABLE = {"scale": 2.0}
NUMBERS = [1.0, 2.0]


def ones(n: int = 3) -> fw.Tensor:
    return fw.ones(n)


def values(function: Callable[..., Any]) -> Callable[..., list[float]]:
    """The compiled function, giving lists."""
    compiled = CompiledFunction(function)
    return lambda *args: compiled(*args).tolist()


# What is read
# --------------------------------------------------------------------------------------------------


def test_a_global_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = values(lambda x: x * SCALE)
    for scale in (2.0, 3.0, 3, -0.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert run(ones()) == [scale] * 3


def test_a_global_container_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = values(lambda x: x * TABLE["scale"] + sum(NUMBERS))
    assert run(ones()) == [5.0] * 3
    monkeypatch.setitem(TABLE, "scale", 4.0)
    assert run(ones()) == [7.0] * 3
    NUMBERS.append(3.0)
    try:
        assert run(ones()) == [10.0] * 3
    finally:
        NUMBERS.pop()
    assert run(ones()) == [7.0] * 3


def helper(x: fw.Tensor) -> fw.Tensor:
    return x + SCALE


def test_a_function_it_calls_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = values(lambda x: helper(x))
    assert run(ones()) == [3.0] * 3
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert run(ones()) == [6.0] * 3
    monkeypatch.setitem(globals(), "helper", lambda x: x * 10)
    assert run(ones()) == [10.0] * 3


def test_code_exchanged() -> None:
    def inner(x: fw.Tensor) -> fw.Tensor:
        return x + 1

    run = values(lambda x: inner(x))
    assert run(ones()) == [2.0] * 3
    inner.__code__ = (lambda x: x + 2).__code__
    assert run(ones()) == [3.0] * 3


def test_a_closure_cell_changed() -> None:
    scale = 2.0

    def function(x: fw.Tensor) -> fw.Tensor:
        return x * scale

    run = values(function)
    assert run(ones()) == [2.0] * 3
    scale = 3.0
    assert run(ones()) == [3.0] * 3


def test_a_nested_closure_changed() -> None:
    scale = 2.0

    def middle(x: fw.Tensor) -> fw.Tensor:
        def inner() -> fw.Tensor:
            return x * scale

        return inner()

    run = values(lambda x: middle(x))
    assert run(ones()) == [2.0] * 3
    scale = 3.0
    assert run(ones()) == [3.0] * 3


def test_a_closed_over_list_changed() -> None:
    scales = [2.0]
    nested = {"a": [1.0]}
    run = values(lambda x: x * scales[0] + nested["a"][0])
    assert run(ones()) == [3.0] * 3
    scales[0] = 3.0
    assert run(ones()) == [4.0] * 3
    nested["a"][0] = 5.0
    assert run(ones()) == [8.0] * 3
    nested["a"] = [0.0]
    assert run(ones()) == [3.0] * 3


def test_default_arguments_changed() -> None:
    def function(x: fw.Tensor, scale: float = 2.0, *, bias: float = 0.0) -> fw.Tensor:
        return x * scale + bias

    run = values(function)
    assert run(ones()) == [2.0] * 3
    function.__defaults__ = (3.0,)
    assert run(ones()) == [3.0] * 3
    function.__kwdefaults__ = {"bias": 1.0}
    assert run(ones()) == [4.0] * 3


class Config:
    scale = 2.0
    shift: Any = 0.0


class Owner:
    """A class whose method is compiled."""

    factor = 1.0

    def __init__(self) -> None:
        self.config = Config()
        self.weight = fw.ones(3)

    @property
    def twice(self) -> float:
        return self.factor * 2

    def run(self, x: fw.Tensor) -> fw.Tensor:
        return self.weight * x * self.config.scale * self.factor

    def property_of(self, x: fw.Tensor) -> fw.Tensor:
        return x * self.twice


def test_attributes_of_classes_and_instances_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    run = values(owner.run)
    assert run(ones()) == [2.0] * 3
    monkeypatch.setattr(Config, "scale", 3.0)
    assert run(ones()) == [3.0] * 3
    owner.config.scale = 4.0
    assert run(ones()) == [4.0] * 3
    monkeypatch.setattr(Owner, "factor", 2.0)
    assert run(ones()) == [8.0] * 3
    owner.factor = 3.0
    assert run(ones()) == [12.0] * 3
    owner.config = Config()
    assert run(ones()) == [9.0] * 3
    owner.weight = fw.full((3,), 2.0)
    assert run(ones()) == [18.0] * 3
    owner.weight.fill_(0.5)
    assert run(ones()) == [4.5] * 3


def test_a_property_that_depends_on_an_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    run = values(owner.property_of)
    assert run(ones()) == [2.0] * 3
    owner.factor = 3.0
    assert run(ones()) == [6.0] * 3
    monkeypatch.setattr(Owner, "twice", property(lambda self: 9.0))
    assert run(ones()) == [9.0] * 3


def test_a_configuration_object_passed_as_an_argument() -> None:
    run = values(lambda x, config: x * config.scale)
    config = Config()
    assert run(ones(), config) == [2.0] * 3
    config.scale = 5.0
    assert run(ones(), config) == [5.0] * 3
    other = Config()
    assert run(ones(), other) == [2.0] * 3


def test_attributes_reached_through_getattr_and_vars() -> None:
    config = Config()
    run = values(lambda x: x * getattr(config, "sca" + "le"))
    assert run(ones()) == [2.0] * 3
    config.scale = 5.0
    assert run(ones()) == [5.0] * 3


def test_two_instances_share_one_compiled_method() -> None:
    class Layer:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @fw.compile
        def run(self, x: fw.Tensor) -> fw.Tensor:
            return x * self.scale

    one, two = Layer(1.0), Layer(2.0)
    for _ in range(2):
        assert one.run(ones()).tolist() == [1.0] * 3
        assert two.run(ones()).tolist() == [2.0] * 3
    one.scale = 7.0
    assert one.run(ones()).tolist() == [7.0] * 3
    assert two.run(ones()).tolist() == [2.0] * 3


def test_a_global_tensor_changed_and_exchanged() -> None:
    holder = [fw.ones(3)]
    weight = fw.ones(3)
    run = values(lambda x: x + weight + holder[0])
    assert run(ones()) == [3.0] * 3
    weight.add_(1)
    assert run(ones()) == [4.0] * 3
    weight = fw.full((3,), 10.0)
    assert run(ones()) == [12.0] * 3
    holder[0] = fw.zeros(3)
    assert run(ones()) == [11.0] * 3


def test_partial_functions() -> None:
    run = values(functools.partial(lambda x, y, scale: x * scale + y, scale=3.0))
    assert run(ones(), ones()) == [4.0] * 3


@dataclass
class Settings:
    scale: float = 2.0


def test_a_dataclass_closed_over() -> None:
    settings = Settings()
    run = values(lambda x: x * settings.scale)
    assert run(ones()) == [2.0] * 3
    settings.scale = 3.0
    assert run(ones()) == [3.0] * 3


# Modules and hooks
# --------------------------------------------------------------------------------------------------


@pytest.mark.replays
def test_train_and_eval_are_followed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    compiled = CompiledFunction(model)
    x = ones()
    for _ in range(2):
        model.eval()
        assert compiled(x).tolist() == model(x).tolist()
        model.train()
        fw.manual_seed(1)
        got = compiled(x).tolist()
        fw.manual_seed(1)
        assert got == model(x).tolist()
    assert len(compiled.variants) == 2


def test_hooks_added_and_removed_later() -> None:
    def make() -> World:
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        with fw.no_grad():
            model[0].weight.fill_(0.5)
        log: list[str] = []
        handles: list[Any] = []

        def run(x: fw.Tensor, what: str) -> fw.Tensor:
            for p in model.parameters():
                p.grad = None
            y = model(x).sum()
            y.backward()
            return y.detach()

        def act(what: str) -> None:
            match what:
                case "forward":
                    handles.append(model[1].register_forward_hook(lambda m, a, out: out * 3))
                case "pre":
                    handles.append(model[0].register_forward_pre_hook(lambda m, a: (a[0] + 1,)))
                case "tensor":
                    handles.append(model[0].weight.register_hook(lambda g: g * 2))
                case "logging":
                    handles.append(model[0].register_forward_hook(lambda m, a, out: log.append("called")))
                case "full backward":
                    handles.append(model[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 5,)))
                case "remove":
                    handles.pop().remove()

        run.act = act  # type: ignore[attr-defined]
        return run, lambda: (list(model.parameters()), list(log))

    twins = Twins(make)
    order = ["forward", "pre", "tensor", "remove", "logging", "remove", "full backward", "remove"]
    for what in ["", *order]:
        if what:
            twins.eager.act(what)  # type: ignore[attr-defined]
            twins.compiled.function.act(what)
        for _ in range(2):
            twins.call(ones(2), "same")


def test_a_hook_on_a_tensor_met_inside() -> None:
    def make() -> World:
        w = fw.ones(3).requires_grad_()
        log: list[int] = []

        def run(x: fw.Tensor) -> None:
            y = x * w
            y.register_hook(lambda g: g * 2)
            y.sum().backward()

        return run, lambda: (w, list(log))

    twins = Twins(make)
    for _ in range(3):
        twins.call(ones())


def test_module_attributes_and_children_changed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.scale = 2.0
            self.register_buffer("shift", fw.zeros(3))

        def forward(self, x: fw.Tensor) -> fw.Tensor:
            return self.linear(x) * self.scale + self.shift

    model = Scaled()
    compiled = CompiledFunction(model)
    x = ones()

    def follows() -> None:
        np.testing.assert_allclose(compiled(x).detach().numpy(), model(x).detach().numpy(), rtol=1e-6)

    follows()
    model.scale = 3.0
    follows()
    model.shift = fw.ones(3)
    follows()
    model.linear = nn.Linear(3, 3, bias=False)
    follows()
    model.linear.register_parameter("bias", nn.Parameter(fw.ones(3)))
    follows()
    with fw.no_grad():
        model.linear.weight.copy_(fw.eye(3))
    follows()
    model.double().float()
    follows()
    model.forward = lambda x: x * 100  # type: ignore[method-assign]
    follows()


def test_a_compiled_module_is_still_a_module() -> None:
    model = nn.Linear(3, 2)
    compiled = fw.compile(model)
    assert len(list(compiled.parameters())) == 2
    compiled.eval()
    assert not model.training
    assert compiled(ones()).shape == (2,)


class Named(list[float]):
    """A list with an attribute of its own."""

    scale: float


@dataclass
class Weighted:
    """A dataclass with an attribute that is no field, and may refer back."""

    value: float

    def __post_init__(self) -> None:
        self.scale = 1.0
        self.owner: Any = self


@pytest.mark.parametrize("make", [lambda: Named([2.0]), lambda: Weighted(2.0)])
def test_arguments_that_hold_more_than_their_items(make: Callable[[], Any]) -> None:
    def function(x: fw.Tensor, given: Any) -> fw.Tensor:
        return x * given.scale

    compiled = CompiledFunction(function)
    for scale in (1.0, 5.0, 7.0, 1.0):
        given = make()
        given.scale = scale
        assert compiled(fw.ones(2), given).tolist() == [scale, scale]


@pytest.mark.replays
def test_an_argument_that_the_function_also_knows_by_name() -> None:
    for first in (True, False):
        kept = fw.ones(5)
        compiled = CompiledFunction(lambda x, kept=kept: x + kept.sum())
        other = fw.ones(5) * 2
        for x in (kept, other, kept) if first else (other, kept, other):
            assert compiled(x).tolist() == (x + kept.sum()).tolist()
        assert compiled.explain().mode == "replay"


def test_gradients_of_an_argument_that_is_also_a_weight() -> None:
    weight = fw.ones(3).requires_grad_()

    def step(x: fw.Tensor) -> None:
        (x * 2 * weight).sum().backward()

    compiled = CompiledFunction(step)
    for x in (fw.ones(3).requires_grad_(), weight, fw.ones(3).requires_grad_(), weight):
        x.grad = weight.grad = None
        compiled(x)
        got = (x.grad, weight.grad)
        x.grad = weight.grad = None
        step(x)
        assert [g.tolist() for g in got if g is not None] == [x.grad.tolist(), weight.grad.tolist()]


@fw.compile
def doubled(x: fw.Tensor) -> fw.Tensor:
    """Found by its name when it is pickled."""
    return x * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_compiled_modules_are_copied_and_pickled(copied: Callable[[Any], Any]) -> None:
    model = fw.nn.Sequential(fw.nn.Linear(3, 4), fw.nn.Tanh())
    compiled = fw.compile(model)
    x = fw.ones(2, 3)
    before = compiled(x)
    made = copied(compiled)
    np.testing.assert_allclose(made(x).detach(), before.detach(), rtol=1e-5)
    with fw.no_grad():
        for p in made.parameters():
            p.zero_()
    assert not made(x).any()
    np.testing.assert_allclose(compiled(x).detach(), before.detach(), rtol=1e-5)
    assert copied(doubled) is doubled


class Holder:
    """A class that compiles a static method itself."""

    scaled = fw.compile(staticmethod(lambda x: x * 5))


def test_a_compiled_static_method_is_asked_of_an_instance() -> None:
    x = fw.ones(2)
    assert Holder().scaled(x).tolist() == Holder.scaled(x).tolist() == [5.0, 5.0]
