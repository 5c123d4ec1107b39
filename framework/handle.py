"""Handles that take a registered hook away again.

Knows no tensors.
"""

from __future__ import annotations

from typing import Any

from framework.state import structure


class RemovableHandle:
    """Takes a hook away again: `remove()`, or leaving a `with` block."""

    _next = 0

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        RemovableHandle._next += 1
        self.id = RemovableHandle._next
        self.hooks = hooks
        hooks[self.id] = hook
        structure.version += 1

    def remove(self) -> None:
        """Take the hook away; harmless when it is gone already."""
        if self.hooks.pop(self.id, None) is not None:
            structure.version += 1

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()
