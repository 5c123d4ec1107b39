"""Where in the user's program a node was made: the innermost frame outside the packages of this project.

Knows frames only.
"""

from __future__ import annotations

import os.path
import re
import sys
import threading
from functools import lru_cache
from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN = tuple(os.path.join(_ROOT, package) for package in ("framework", "compiler", "kernels"))


class GradientLine(str):
    """The line of a backward pass, at nodes that are part of the gradient of `op`; `made` is the line that
    applied it, empty where that is not known.
    """

    op: str
    made: str

    def __new__(cls, line: str, op: str, made: str) -> GradientLine:
        place = super().__new__(cls, line)
        place.op, place.made = op, made
        return place

    def __getnewargs__(self) -> Any:
        return str(self), self.op, self.made

    def __repr__(self) -> str:
        return f"GradientLine{self.__getnewargs__()}"

    @property
    def words(self) -> str:
        """Of which op, and where that is."""
        return f"gradient of {self.op} at {self.made}" if self.made else f"gradient of {self.op}"


@lru_cache(1024)
def gradient_line(line: str, op: str, made: str) -> GradientLine:
    """The place of what is part of the gradient of `op`: one object for all of a loop's."""
    return GradientLine(line, op, made)


class _Inherited(threading.local):
    line: str = ""


_inherited = _Inherited()


# What a file is called, empty for the project's own: an op is some twelve calls deep in those.
_files: dict[str, str] = {}


def _named(path: str) -> str:
    """What a user calls a file: its name, or the number of a notebook's cell, whose file has none."""
    if match := re.match(r"<ipython-input-(\d+)-", path):
        return f"cell {match[1]}"
    if "ipykernel_" in path:
        # Not `get_ipython()`: a capture would see that it imports, and what it imports.
        kind = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
        shell = getattr(kind, "_instance", None)
        cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
        if path in cells:
            return f"cell {cells[path]}"
    return os.path.basename(path)


def user_line() -> str:
    """`file.py:41` of the innermost caller outside the project; empty when there is none."""
    if _inherited.line:
        return _inherited.line
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        file = _files.get(path)
        if file is None:
            file = _files[path] = "" if path.startswith(_OWN) else _named(path)
        if file:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_own(filename: str) -> bool:
    """Whether a file is one of this project's packages."""
    return filename.startswith(_OWN)


class made_at:  # noqa: N801 -- a context manager, as those of the standard library
    """Nodes made inside inherit `line`: they stand for a node of the user's."""

    __slots__ = ("before", "line")

    def __init__(self, line: str) -> None:
        self.line = line

    def __enter__(self) -> made_at:
        self.before, _inherited.line = _inherited.line, self.line
        return self

    def move(self, line: str) -> None:
        """What is made from here on inherits another line."""
        _inherited.line = line

    def __exit__(self, *error: object) -> None:
        _inherited.line = self.before


def user_line_of(error: BaseException) -> str:
    """`file:line: ` of the user's innermost frame that `error` passed through; empty when there is none."""
    found, step = "", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(_OWN):
            found = f"{_named(code.co_filename)}:{step.tb_lineno}: "
        step = step.tb_next
    return found
