"""Hook tables, the handles that remove entries from them, and how a user's forward hooks are called.

Knows nothing of modules.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from framework.state import python_effect, structure_changed

_numbers = itertools.count()


class HookTable(dict[int, Callable[..., Any]]):
    """Hooks in calling order, keyed by the number of their handle."""

    # A plain dict takes no weak reference, and a handle must not keep a dead module's hooks alive.
    __slots__ = ("__weakref__",)

    @python_effect
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

    @python_effect
    def remove(self) -> None:
        """Take the hook out of its table."""
        table = self._table()
        if table is not None and table.pop(self.id, None) is not None:
            structure_changed()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class ForwardPreHook:
    """A user's forward pre-hook, called with (module, args, kwargs) for the (args, kwargs) to go on with.

    A class, not a closure, so that modules with hooks can be pickled.
    """

    def __init__(self, hook: Callable[..., Any], with_kwargs: bool) -> None:
        self.hook = hook
        self.with_kwargs = with_kwargs

    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        changed = self.hook(module, args, kwargs) if self.with_kwargs else self.hook(module, args)
        if changed is None:
            return args, kwargs
        if not self.with_kwargs:
            return (changed if isinstance(changed, tuple) else (changed,)), kwargs
        if isinstance(changed, tuple) and len(changed) == 2:
            return changed
        raise RuntimeError(
            f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed!r}"
        )


class ForwardHook:
    """A user's forward hook, called with (module, args, kwargs, output)."""

    def __init__(self, hook: Callable[..., Any], with_kwargs: bool) -> None:
        self.hook = hook
        self.with_kwargs = with_kwargs

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self.with_kwargs:
            return self.hook(module, args, kwargs, output)
        return self.hook(module, args, output)
