"""The profile hook of a thread: taken away where none but our own code runs, and given back.

A capture watches every call for effects of the user's code; two thirds of them are inside single ops. Knows
hooks only as what `sys.getprofile` gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def unwatched(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """`function(*arguments, **named)`, which runs no user's code, without a word to the profile hook."""
    hook = sys.getprofile()
    if hook is None:
        return function(*arguments, **named)
    sys.setprofile(None)
    try:
        return function(*arguments, **named)
    finally:
        watch(hook)


def watch(hook: Any) -> None:
    """Make what `sys.getprofile()` gave the profile hook again.

    A profiler written in C, as cProfile is, is no function of Python: it is asked to go on itself.
    """
    if hook is None or callable(hook):
        sys.setprofile(hook)
    else:
        sys.setprofile(None)
        getattr(hook, "enable", int)()
