"""Nested containers of tensors: flatten to leaves, and build again from other leaves.

Knows list, tuple, named tuple, dict and dataclass; everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

Structure = tuple[Any, ...] | None
_PLAIN = (list, tuple, dict)


def is_leaf(x: Any) -> bool:
    """Whether `x` is no container known here."""
    return not isinstance(x, list | tuple | dict) and not (
        dataclasses.is_dataclass(x) and not isinstance(x, type)
    )


def flatten(x: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of `x` in order; what is returned names the structure and is hashable."""
    if isinstance(x, list | tuple):
        items: Any = tuple([flatten(item, leaves) for item in x])
        return (type(x), items, *_attributes(x, (), leaves))
    if isinstance(x, dict):
        items = tuple([(key, flatten(item, leaves)) for key, item in x.items()])
        return (type(x), items, *_attributes(x, (), leaves))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [f.name for f in dataclasses.fields(x)]
        items = tuple([(name, flatten(getattr(x, name), leaves)) for name in names])
        return (type(x), items, *_attributes(x, names, leaves))
    leaves.append(x)
    return None


def _attributes(x: Any, known: Collection[str], leaves: list[Any]) -> tuple[Any, ...]:
    """Names of what a container holds besides its items, each a leaf: code may read that too."""
    if type(x) in _PLAIN:
        return ()
    held = getattr(x, "__dict__", {})
    names = tuple([name for name in held if name not in known])
    leaves += [held[name] for name in names]
    return names


def map_leaves(function: Callable[[Any], Any], x: Any) -> Any:
    """A new container like `x` with `function` applied to every leaf."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(map_leaves(function, item) for item in x))
    if isinstance(x, list | tuple):
        return type(x)([map_leaves(function, item) for item in x])
    if isinstance(x, dict):
        # `copy` keeps a defaultdict's factory and an OrderedDict's type.
        new = x.copy()
        for key, item in x.items():
            new[key] = map_leaves(function, item)
        return new
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x, **{f.name: map_leaves(function, getattr(x, f.name)) for f in dataclasses.fields(x)}
        )
    return function(x)


def once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function`, which answers the same object the same: one object in two places stays one."""
    answers: dict[int, tuple[Any, Any]] = {}

    def answer(x: Any) -> Any:
        found = answers.get(id(x))
        if found is None:
            found = answers[id(x)] = x, function(x)  # with `x`, whose id must not be used again
        return found[1]

    return answer
