"""What recorded Python reads and changes without naming it: objects in containers, slots, iterators, caches,
and changes that C code makes.
"""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import itertools
import operator
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from tests.framework.capture_check import Twins, World, check

X = fw.tensor([1.0, 2.0, 3.0])


class Box:
    """An object with attributes."""

    def __init__(self, value: int = 1) -> None:
        self.value = value


class Slotted:
    """An object with a slot."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


class Lazy:
    """An object that computes a value when it is first asked."""

    @functools.cached_property
    def weights(self) -> fw.Tensor:
        return fw.ones(3) * 2


def increase(x: Any) -> None:
    x.value += 1


def in_a_tuple() -> World:
    box = Box()
    boxes = [(box,)]
    return lambda x: x * boxes[0][0].value, lambda: increase(box)


def in_a_dict() -> World:
    box = Box()
    boxes = {"a": {"b": box}}

    def function(x: fw.Tensor) -> fw.Tensor:
        for found in boxes["a"].values():
            x = x * found.value
        return x

    return function, lambda: increase(box)


def from_a_function() -> World:
    box = Box()

    def get() -> Box:
        return box

    return lambda x: x * get().value, lambda: increase(box)


def in_a_slot() -> World:
    box = Slotted()
    return lambda x: x * box.value, lambda: increase(box)


def in_a_deque() -> World:
    items = collections.deque([1], maxlen=3)
    return lambda x: x * items[0], lambda: items.appendleft(items[0] + 1)


def behind_a_reference() -> World:
    box = Box()
    reference = weakref.ref(box)

    def function(x: fw.Tensor) -> fw.Tensor:
        found = reference()
        assert found is not None
        return x * found.value

    return function, lambda: increase(box)


def in_an_array() -> World:
    items = array.array("d", [1.0])
    return lambda x: x * items[0], lambda: items.__setitem__(0, items[0] + 1)


def in_bytes() -> World:
    items = bytearray(b"\x01")
    return lambda x: x * items[0], lambda: items.__setitem__(0, items[0] + 1)


def in_a_shown_dict() -> World:
    items = {"a": 1}
    shown = types.MappingProxyType(items)
    return lambda x: x * shown["a"], lambda: items.__setitem__("a", items["a"] + 1)


def in_a_wrapped_dict() -> World:
    items = collections.UserDict({"a": 1})
    return lambda x: x * items["a"], lambda: items.data.__setitem__("a", items["a"] + 1)


def in_a_context_variable() -> World:
    variable = contextvars.ContextVar("variable", default=1)
    return lambda x: x * variable.get(), lambda: variable.set(variable.get() + 1) and None


def in_a_thread() -> World:
    values = threading.local()
    values.value = 1
    return lambda x: x * values.value, lambda: increase(values)


def by_a_getter() -> World:
    box, get = Box(), operator.attrgetter("value")
    return lambda x: x * get(box), lambda: increase(box)


def of_a_function() -> World:
    def scaled(x: fw.Tensor) -> fw.Tensor:
        return x * scaled.value  # type: ignore[attr-defined]

    scaled.value = 1  # type: ignore[attr-defined]
    return scaled, lambda: increase(scaled)


def of_a_metaclass() -> World:
    class Kind(type):
        value = 1

    class Thing(metaclass=Kind):
        pass

    return lambda x: x * Thing.value, lambda: increase(Kind)


READS = [
    *(in_a_tuple, in_a_dict, from_a_function, in_a_slot, in_a_deque, behind_a_reference, in_an_array),
    *(in_bytes, in_a_shown_dict, in_a_wrapped_dict, in_a_context_variable, in_a_thread, by_a_getter),
    *(of_a_function, of_a_metaclass),
]


@pytest.mark.parametrize("make", READS)
def test_what_is_read_without_a_name(make: Callable[[], World]) -> None:
    twins = Twins(make)
    for _ in range(4):
        twins.call(X)


@pytest.mark.parametrize("make", [in_a_tuple, in_a_slot, in_a_deque, from_a_function])
def test_what_is_read_without_a_name_is_replayed(make: Callable[[], World]) -> None:
    twins = Twins(lambda: (make()[0], lambda: None))
    for _ in range(3):
        twins.call(X)
    twins.expect("replay", 1)


def added_to(items: Any, more: Callable[[], Any]) -> World:
    def function(x: fw.Tensor) -> fw.Tensor:
        alias = items
        alias += more()
        return x * len(items)

    return function, lambda: list(items)


def merged() -> World:
    items = {"n": 0}

    def function(x: fw.Tensor) -> fw.Tensor:
        alias = items
        alias |= {"n": alias["n"] + 1}
        return x * items["n"]

    return function, lambda: dict(items)


def set_by_an_operator() -> World:
    items = {"n": 0}

    def function(x: fw.Tensor) -> fw.Tensor:
        operator.setitem(items, "n", items["n"] + 1)
        return x * items["n"]

    return function, lambda: dict(items)


def mapped() -> World:
    items: list[int] = []

    def function(x: fw.Tensor) -> fw.Tensor:
        list(map(items.append, [1, 2]))
        return x * len(items)

    return function, lambda: list(items)


def missing() -> World:
    items: Any = collections.defaultdict(int)

    def function(x: fw.Tensor) -> fw.Tensor:
        return x * (items["a"] + len(items))

    return function, lambda: dict(items)


def set_past_the_class() -> World:
    box = Box()

    def function(x: fw.Tensor) -> fw.Tensor:
        object.__setattr__(box, "value", box.value + 1)
        return x * box.value

    return function, lambda: box.value


def then_an_effect() -> World:
    items: list[int] = []
    log: list[int] = []

    def function(x: fw.Tensor) -> fw.Tensor:
        alias = items
        alias += [1]
        log.append(len(items))
        return x * len(items)

    return function, lambda: (list(items), list(log))


def from_an_iterator() -> World:
    numbers = {"a": [map(float, range(1, 99))]}

    def function(x: fw.Tensor) -> fw.Tensor:
        for number in numbers["a"][0]:
            return x * number
        return x

    return function, lambda: None


def from_a_zipped_counter() -> World:
    held = {"a": itertools.count(1)}

    def function(x: fw.Tensor) -> fw.Tensor:
        for _, number in zip([1], held["a"], strict=False):
            x = x * number
        return x

    return function, lambda: None


CHANGES: list[Callable[[], World]] = [
    lambda: added_to([1], lambda: [2]),
    lambda: added_to(collections.deque([1]), lambda: [2]),
    *(merged, set_by_an_operator, mapped, missing, set_past_the_class, then_an_effect, from_an_iterator),
    from_a_zipped_counter,
]


@pytest.mark.parametrize("make", CHANGES)
def test_what_c_code_changes_happens_once_a_call(make: Callable[[], World]) -> None:
    twins = Twins(make)
    for _ in range(3):
        twins.call(X)
    twins.expect("driven")


def test_containers_that_are_arguments() -> None:
    def extended(x: fw.Tensor, items: list[int]) -> fw.Tensor:
        items += [1]
        return x * len(items)

    check(extended, (X, [1, 2]), mode="driven")

    compiled = fw.compile(lambda x, items: x * (5 if 3 in items else 7))
    items = {1}
    assert compiled(X, items).tolist() == [7.0, 14.0, 21.0]
    items.add(3)
    assert compiled(X, items).tolist() == [5.0, 10.0, 15.0]


def test_a_cached_property_is_filled_and_then_replayed() -> None:
    def make() -> World:
        lazy = Lazy()
        return lambda x: x * lazy.weights, lambda: lazy.weights

    twins = Twins(make)
    for _ in range(3):
        twins.call(X)
    twins.expect("replay")


GENERATOR = np.random.default_rng(0)
DRAWS = [np.random.rand, GENERATOR.normal, np.random.RandomState(0).uniform]


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_of_bound_methods(draw: Callable[[], float]) -> None:
    compiled = fw.compile(lambda x: x * float(draw()))
    assert len({compiled(X)[0].item() for _ in range(4)}) == 4


def test_identities_are_asked_each_time() -> None:
    compiled = fw.compile(lambda x: x * (id(x) % 1000))
    kept = [X.clone() for _ in range(3)]
    for x in kept:
        assert compiled(x)[0].item() == id(x) % 1000
