"""Hook tables and the handles that remove entries from them. Knows nothing of what a hook is called with."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from framework.state import structure_changed

_numbers = itertools.count()


class HookTable(dict[int, Callable[..., Any]]):
    """Hooks in calling order, keyed by the number of their handle."""

    # A plain dict takes no weak reference, and a handle must not keep a dead module's hooks alive.
    __slots__ = ("__weakref__",)

    def register(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Add `hook`, last or first, and return the handle that removes it."""
        handle = RemovableHandle(self)
        earlier = dict(self) if prepend else {}
        if prepend:
            self.clear()
        self[handle.id] = hook
        self.update(earlier)
        structure_changed()
        return handle


class RemovableHandle:
    """Removes one hook: by `remove()`, or at the end of a `with` block. Removing twice is harmless."""

    def __init__(self, table: HookTable) -> None:
        self.id = next(_numbers)
        self._table = weakref.ref(table)

    def remove(self) -> None:
        """Take the hook out of its table."""
        table = self._table()
        if table is not None and table.pop(self.id, None) is not None:
            structure_changed()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
