"""Where in the user's program a node was made: the innermost frame outside the packages of this project.

Knows frames only.
"""

from __future__ import annotations

import os.path
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_OWN = tuple(str(_ROOT / package) for package in ("framework", "compiler", "kernels"))


def user_line() -> str:
    """`file.py:41` of the innermost caller outside the project; empty when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_OWN):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
