"""What a Python value was, kept to be compared later: containers by what they hold, others by identity.

Knows no tensors and no captures.
"""

from __future__ import annotations

from collections import deque
from typing import Any

# Items of a container that are compared at every call; a function that reads a larger one is driven.
MOST_ITEMS = 512
SIMPLE = (int, float, complex, str, bytes, bool, type(None))


class Contents:
    """What a container held, containers inside it included."""

    __slots__ = ("items", "kind")

    def __init__(self, kind: type, items: tuple[Any, ...]) -> None:
        self.kind, self.items = kind, items

    def __repr__(self) -> str:
        return f"{self.kind.__name__} of {len(self.items)}"


class TooLargeError(Exception):
    """A container holds too much to be compared at every call."""


def snapshot(value: Any, budget: list[int] | None = None) -> Any:
    """A value as `same` can compare it later: containers are copied, everything else is itself.

    Raises TooLargeError above `MOST_ITEMS` items in all.
    """
    if not isinstance(value, list | dict | set | tuple | deque):
        return value
    budget = [MOST_ITEMS] if budget is None else budget
    budget[0] -= len(value)
    if budget[0] < 0:
        raise TooLargeError
    if isinstance(value, dict):
        return Contents(type(value), tuple((key, snapshot(item, budget)) for key, item in value.items()))
    return Contents(type(value), tuple(snapshot(item, budget) for item in value))


def same(now: Any, seen: Any) -> bool:
    """Whether a value still is what its snapshot was: equal for plain values, identical for other objects."""
    if isinstance(seen, Contents):
        if type(now) is not seen.kind or len(now) != len(seen.items):
            return False
        if isinstance(now, dict):
            pairs = zip(now.items(), seen.items, strict=True)
            return all(same(key, old) and same(item, before) for (key, item), (old, before) in pairs)
        return all(map(same, now, seen.items))
    if now is seen:
        return True
    # 0.0 and -0.0 are equal and differ; nan differs from itself and may be the same.
    return type(now) is type(seen) and isinstance(now, SIMPLE) and repr(now) == repr(seen)
