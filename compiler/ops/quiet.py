"""Calls without NumPy's floating-point warnings, cheaper than np.errstate: in a context that has none.

Knows functions, not ops.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np


def _quiet() -> Callable[..., Any]:
    """What calls a function in a context in which NumPy neither warns nor raises for floating-point
    errors."""
    context = contextvars.copy_context()
    context.run(partial(np.seterr, all="ignore"))
    return context.run


class _Quiet(threading.local):
    def __init__(self) -> None:
        self.run = _quiet()


own = _Quiet()
# For the shortest of calls: to ask for a thread's own context takes longer than to enter one. One thread at a
# time can; another gets a RuntimeError, and does better with its own.
quiet = _quiet()


def run_quietly(function: Callable[..., Any], *arguments: Any, **attrs: Any) -> Any:
    """`function(...)` without NumPy's floating-point warnings: 0.3 µs, where entering np.errstate takes 1.4
    µs."""
    try:
        return own.run(function, *arguments, **attrs)
    except RuntimeError as error:
        if not is_inside(error):
            raise
    with np.errstate(all="ignore"):
        return function(*arguments, **attrs)


def is_inside(error: RuntimeError) -> bool:
    """Whether this thread is in the context already: a debugger or a finalizer may compute at any point."""
    return str(error).startswith("cannot enter context")
