"""Exceptions of the compiler layer.

Each class also subclasses the builtin a caller would catch.
"""

from __future__ import annotations


class CompilerError(Exception):
    """Any failure between a recorded graph and a program."""


class TraceError(CompilerError, TypeError):
    """Python asked a traced value for something that exists only when the program runs."""


class VerifyError(CompilerError, ValueError):
    """A graph breaks a type rule; the message shows the neighbourhood."""


class LoweringError(CompilerError, NotImplementedError):
    """An op has no compiled form here; the function runs eagerly instead."""
