"""Where in the user's program a node was made: the innermost frame outside the packages of this project.

Knows frames only.
"""

from __future__ import annotations

import os.path
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN = tuple(os.path.join(_ROOT, package) for package in ("framework", "compiler", "kernels"))


class _Inherited(threading.local):
    line: str = ""


_inherited = _Inherited()


def user_line() -> str:
    """`file.py:41` of the innermost caller outside the project; empty when there is none."""
    if _inherited.line:
        return _inherited.line
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextmanager
def made_at(line: str) -> Iterator[None]:
    """Nodes made inside inherit `line`: they stand for a node of the user's."""
    before, _inherited.line = _inherited.line, line
    try:
        yield
    finally:
        _inherited.line = before


def user_line_of(error: BaseException) -> str:
    """`file:line: ` of the user's innermost frame that `error` passed through; empty when there is none."""
    found, step = "", error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(_OWN):
            found = f"{os.path.basename(code.co_filename)}:{step.tb_lineno}: "
        step = step.tb_next
    return found
