"""Exceptions of the compiler layer.

Each class also subclasses the builtin a caller would catch.
"""

from __future__ import annotations

import threading


class CompilerError(Exception):
    """Any failure between a recorded graph and a program."""


class _Latest(threading.local):
    error: TraceError | None = None


# The last TraceError of this thread: recorded code may have caught it, and gone another way than it should.
latest = _Latest()


class TraceError(CompilerError, TypeError):
    """Python asked a traced value for something that exists only when the program runs."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        latest.error = self


class VerifyError(CompilerError, ValueError):
    """A graph breaks a type rule; the message shows the neighbourhood."""


class LoweringError(CompilerError, NotImplementedError):
    """An op has no compiled form here; the function runs eagerly instead."""
