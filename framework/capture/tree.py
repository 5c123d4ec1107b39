"""Nested containers of tensors: flatten to leaves, and build again from other leaves.

Knows list, tuple, named tuple, dict and dataclass; everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

Structure = Hashable


def is_leaf(x: Any) -> bool:
    """Whether `x` is no container known here."""
    return not isinstance(x, list | tuple | dict) and not (
        dataclasses.is_dataclass(x) and not isinstance(x, type)
    )


def flatten(x: Any, leaves: list[Any]) -> Structure:
    """Append the leaves of `x` in order; what is returned names the structure and is hashable."""
    if isinstance(x, list | tuple):
        return (type(x), tuple([flatten(item, leaves) for item in x]))
    if isinstance(x, dict):
        return (type(x), tuple([(key, flatten(item, leaves)) for key, item in x.items()]))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return (
            type(x),
            tuple([(f.name, flatten(getattr(x, f.name), leaves)) for f in dataclasses.fields(x)]),
        )
    leaves.append(x)
    return None


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
