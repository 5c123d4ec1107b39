"""The text of user lines: nodes name them as `file.py:41`, and people want to read them.

Knows files and Python's cache of their lines; a notebook's cells are in that cache too.
"""

from __future__ import annotations

import linecache
import os.path
import sys
from functools import cached_property
from typing import Any


class Lines:
    """Lines of the files that a function's nodes may name; `function` says which of two of a name it is."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    @cached_property
    def files(self) -> dict[str, str]:
        """Paths by their last part: of the function first, then of loaded modules, the oldest first."""
        paths = [path for path in linecache.cache if isinstance(path, str)]
        modules = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
        function = getattr(self.function, "__func__", self.function)
        code = getattr(function, "__code__", None) or getattr(
            getattr(type(function), "forward", None), "__code__", None
        )
        own = [] if code is None else [code.co_filename]
        found: dict[str, str] = {}
        for path in (*own, *(m for m in modules if m), *paths):
            found.setdefault(os.path.basename(path), path)
        return found

    def text(self, where: str) -> str:
        """The line `file.py:41` stands for, without its indentation; empty where it cannot be found."""
        name, _, number = where.rpartition(":")
        path = self.files.get(name)
        return linecache.getline(path, int(number)).strip() if path and number.isdigit() else ""

    def around(self, name: str, first: int, last: int) -> list[tuple[int, str]]:
        """Lines of a file with their numbers."""
        path = self.files.get(name)
        if path is None:
            return []
        lines = linecache.getlines(path)
        return [(n, lines[n - 1].rstrip("\n")) for n in range(max(first, 1), min(last, len(lines)) + 1)]
