"""Objects of this project that recorded code asks without calling them: nothing of theirs is frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
from framework import nn, optim
from framework.utils.data import TensorDataset
from tests.framework.capture_check import same

# The function, and what happens to the object after call number k.
Case = tuple[Callable[[fw.Tensor], fw.Tensor], Callable[[int], Any]]


def training() -> Case:
    model = nn.Sequential(nn.Linear(2, 2))
    return lambda x: x * (2.0 if model.training else 3.0), lambda k: model.train(k % 2 == 1)


def number() -> Case:
    model = nn.Dropout(0.5)
    return lambda x: x * model.p, lambda k: setattr(model, "p", 0.1 * k)


def size() -> Case:
    model = nn.Linear(2, 2)
    return lambda x: x * model.in_features, lambda k: setattr(model, "in_features", k)


def inner() -> Case:
    model = nn.Sequential(nn.Dropout(0.5))
    return lambda x: x * model[0].p, lambda k: setattr(model[0], "p", 0.1 * k)


def hooks() -> Case:
    model = nn.Linear(2, 2)
    return lambda x: x * len(model._forward_hooks), lambda k: model.register_forward_hook(lambda *_: None)


def children() -> Case:
    model = nn.Sequential(nn.Linear(2, 2))
    return lambda x: x * sum(1 for _ in model.children()), lambda k: model.append(nn.ReLU())


def module_list() -> Case:
    modules = nn.ModuleList([nn.Linear(2, 2)])
    return lambda x: x * len(modules), lambda k: modules.append(nn.Linear(2, 2))


def module_dict() -> Case:
    modules = nn.ModuleDict({"a": nn.Linear(2, 2)})
    return lambda x: x * (2.0 if "b" in modules else 1.0), lambda k: modules.update({"b": nn.ReLU()})


def parameter_list() -> Case:
    parameters = nn.ParameterList([fw.ones(2)])
    return lambda x: (x * len(parameters)).detach(), lambda k: parameters.append(fw.ones(2))


def scheduled() -> tuple[Any, Callable[[int], Any]]:
    optimizer = optim.SGD([nn.Parameter(fw.ones(1))], lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def advance(_: int) -> None:
        optimizer.step()
        scheduler.step()

    return scheduler, advance


def learning_rate() -> Case:
    scheduler, advance = scheduled()
    return lambda x: x * scheduler.get_last_lr()[0], advance


def epoch() -> Case:
    scheduler, advance = scheduled()
    return lambda x: x * scheduler.last_epoch, advance


def optimizer_state() -> Case:
    weight = nn.Parameter(fw.ones(1))
    weight.grad = fw.ones(1)
    optimizer = optim.SGD([weight], lr=1.0, momentum=0.9)
    return lambda x: x * len(optimizer.state), lambda k: optimizer.step()


def seed() -> Case:
    generator = fw.Generator()
    generator.manual_seed(3)
    return lambda x: x * (generator.initial_seed() % 100), lambda k: generator.manual_seed(k)


def length() -> Case:
    data = TensorDataset(fw.ones(3, 2))
    return lambda x: x * len(data), lambda k: setattr(data, "tensors", (fw.ones(k + 1, 2),))


def default_seed() -> Case:
    fw.manual_seed(1)
    return lambda x: x * (fw.initial_seed() % 100), lambda k: fw.manual_seed(k + 5)


def version() -> Case:
    held = fw.ones(2)
    return lambda x: x * held._version, lambda k: held.add_(1)


def flag() -> Case:
    held = fw.ones(2)
    return lambda x: x * (2.0 if held.requires_grad else 1.0), lambda k: held.requires_grad_(k % 2 == 0)


def parameter_flag() -> Case:
    model = nn.Linear(2, 2)
    return (
        lambda x: x * (2.0 if model.weight.requires_grad else 1.0),
        lambda k: model.weight.requires_grad_(k % 2 == 1),
    )


def replaced_data() -> Case:
    held = fw.ones(2)
    return lambda x: x * len(held.shape), lambda k: setattr(held, "data", fw.ones((2,) * (k + 1)))


def attribute_of_a_tensor() -> Case:
    held: Any = fw.ones(2)
    held.tag = 7
    return lambda x: x * held.tag, lambda k: setattr(held, "tag", k)


def threads() -> Case:
    return lambda x: x * min(fw.get_num_threads(), 2), lambda k: fw.set_num_threads(1 + k % 2)


CASES = (
    training, number, size, inner, hooks, children, module_list, module_dict, parameter_list, learning_rate,
    epoch, optimizer_state, seed, length, default_seed, version, flag, parameter_flag, replaced_data,
    attribute_of_a_tensor,
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_our_objects_say(case: Callable[[], Case]) -> None:
    function, change = case()
    other, change_other = case()
    compiled = fw.compile(function)
    for k in range(4):
        same(compiled(fw.ones(2)), other(fw.ones(2)))
        change(k)
        change_other(k)


def test_the_number_of_threads() -> None:
    before = fw.get_num_threads()
    try:
        test_what_our_objects_say(threads)
    finally:
        fw.set_num_threads(before)
