"""The debug ladder: how much the compiler tells and checks, on stderr. Each step includes those below it.

| level | what is told or checked |
|---|---|
| 0 | nothing |
| 1 | every recording of a function with its reason and time; what is driven, and the line that decided |
| 2 | every program with its kernels: ops, sizes, bytes, compile time |
| 3 | the graph as it was recorded, the graph after the passes, and the specs of the kernels |
| 4 | the source of every kernel, and the file it is in |
| 5 | every graph is verified after every pass, every result of a program compared with its graph's |

Knows texts; who has something to tell calls `tell`.
"""

from __future__ import annotations

import os
import sys

HIGHEST = 5
RECORDINGS, PROGRAMS, GRAPHS, SOURCES, VERIFYING = range(1, HIGHEST + 1)


class Ladder:
    """The step in force, in all threads."""

    level: int = 0


ladder = Ladder()


def set_level(level: int) -> None:
    """Tell and check what `level` says. Raises ValueError outside 0 to 5."""
    if isinstance(level, bool) or level not in range(HIGHEST + 1):
        raise ValueError(f"the debug level is a whole number from 0 to {HIGHEST}, not {level!r}")
    ladder.level = level


def tell(text: str) -> None:
    """Write to stderr, each line marked as ours."""
    print("\n".join(f"tracefuse: {line}" for line in text.splitlines()), file=sys.stderr)


def _from_environment() -> int:
    given = os.environ.get("TRACEFUSE_DEBUG", "").strip() or "0"
    if not given.isdigit() or int(given) > HIGHEST:
        tell(f"TRACEFUSE_DEBUG is a whole number from 0 to {HIGHEST}, not {given!r}: taken as 0")
        return 0
    return int(given)


ladder.level = _from_environment()
