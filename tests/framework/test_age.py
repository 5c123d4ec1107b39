"""What a capture takes for made since it began."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from framework.capture.age import Age


def numbers() -> Any:
    yield 1
    yield 2


@pytest.fixture
def age() -> Iterator[Age]:
    age = Age()
    yield age
    age.end()


def test_old_and_new(age: Age) -> None:
    old = [[], {"a": []}, {1}, numbers()]
    gc.freeze()  # as a program does before a fork: the collector lists these no longer
    age.begin()
    new = [[], {"a": []}, {1}, numbers()]
    assert list(map(age.is_new, old)) == [False] * 4
    assert list(map(age.is_new, new)) == [True] * 4
    assert age.is_new([[]])


def test_generators(age: Age) -> None:
    old = numbers()
    age.begin()
    new = numbers()
    for _ in range(2):
        assert age.is_new_generator(new.gi_frame)
        assert not age.is_new_generator(old.gi_frame)
        assert next(new) == next(old)


def test_one_capture_may_end_within_another(age: Age) -> None:
    old = [[]]
    age.begin()
    other = Age()
    other.begin()
    made = [[]]
    other.end()
    assert not age.is_new(old)
    assert made and gc.get_freeze_count() > 0


def test_everything_is_thawed() -> None:
    age = Age()
    age.begin()
    age.is_new([])
    age.end()
    assert gc.get_freeze_count() == 0
