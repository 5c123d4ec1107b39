"""Indented source text, one line at a time.

Knows nothing of any language but indentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Source:
    """Lines of generated code; `with source.block("for i in range(n):"):` indents what is written inside."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Add one line at the current depth."""
        self.lines.append("    " * self._depth + text)

    def open(self, head: str) -> None:
        """Write `head` and indent what follows."""
        self.line(head)
        self._depth += 1

    def close(self, blocks: int = 1) -> None:
        """End the innermost `blocks` blocks."""
        self._depth -= blocks

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Open a block, and close it where the `with` ends."""
        self.open(head)
        yield
        self.close()

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"
