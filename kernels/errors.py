"""Exceptions of the kernel layer.

Knows no tensor and no graph; each class also subclasses the builtin a caller would catch.
"""

from __future__ import annotations


class KernelError(Exception):
    """Any failure to describe, build or run a kernel."""


class SpecError(KernelError, ValueError):
    """A kernel spec is inconsistent; the message names the part."""


class BuildError(KernelError, RuntimeError):
    """A spec could not be turned into machine code on this device."""
