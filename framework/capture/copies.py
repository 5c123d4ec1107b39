"""Copies of containers that existed before a capture, to find what was changed in them unseen and to undo it.

Knows Python's containers only; which of them a capture met, observe.py says.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

CONTAINERS = (list, dict, set, deque)


class Copies:
    """What containers and the namespaces of objects held when they were first met."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Any, list[Any], bool]] = {}
        # What got attributes that it did not have.
        self.filled = ""

    def note(self, container: Any, is_namespace: bool = False) -> None:
        """Keep what a list, dict, set or deque, or the namespace of an object, holds."""
        if id(container) not in self.held:
            self.held[id(container)] = container, _items(container), is_namespace

    def put_back(self) -> str:
        """Undo every change. What the first was in words, or nothing; namespaces that were only added to are
        `filled`.
        """
        changed = ""
        for container, items, is_namespace in self.held.values():
            now = _items(container)
            if _same_items(now, items):
                continue
            if is_namespace and _same_items(now[: len(items)], items):
                self.filled = "an object made before the call gets an attribute"
            elif is_namespace:
                changed = changed or "an attribute of an object made before the call is changed"
            else:
                changed = changed or f"a {type(container).__name__} made before the call is changed"
            _fill(container, items)
        return changed


def _items(container: Any) -> list[Any]:
    return list(dict.items(container)) if isinstance(container, dict) else list(container)


def _same_items(now: list[Any], items: list[Any]) -> bool:
    """Whether two lists of items, or of pairs, are of the same objects."""
    return len(now) == len(items) and all(
        a is b or (type(a) is tuple and len(a) == 2 == len(b) and a[0] is b[0] and a[1] is b[1])
        for a, b in zip(now, items, strict=True)
    )


def _fill(container: Any, items: list[Any]) -> None:
    """Give a container other items, past what its class overrides."""
    if isinstance(container, list):
        list.__setitem__(container, slice(None), items)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, items)
    elif isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, items)
    else:
        kind = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        for key, item in items:
            kind.__setitem__(container, key, item)
