"""Shapes and an example for the docstring of each public name, kept apart from the code in tables of text.

Attached once when a module is imported, so that `help()`, `?` and editors show them; tests run every example.
In a table a line `# shapes` holds for the names that follow, each a line `= name` with its example as a
session.
"""

from __future__ import annotations

import inspect
from typing import Any

Entry = tuple[str, str]


def entries(table: str, prefix: str = "") -> dict[str, Entry]:
    """(shapes, session) by name; with `prefix` of the names `prefix.name` alone, without it."""
    start = f"{prefix}." if prefix else ""
    found: dict[str, Entry] = {}
    for group in table.strip().removeprefix("# ").split("\n# "):
        shapes, *blocks = group.split("\n= ")
        for block in blocks:
            name, _, session = block.partition("\n")
            if name.startswith(start):
                found[name.removeprefix(start)] = shapes.strip(), session
    return found


def attach(owner: Any, table: str, prefix: str = "") -> None:
    """Put shapes and examples into the docstrings of what a module's names, or a class's, stand for."""
    names = owner if isinstance(owner, dict) else vars(owner)
    for name, (shapes, session) in entries(table, prefix).items():
        thing = names.get(name) if isinstance(owner, dict) else inspect.getattr_static(owner, name)
        doc = thing.__doc__
        if doc is None or ">>>" in doc:  # another name of what has it already
            continue
        indented = "\n".join(f"    {line}" for line in session.splitlines())
        thing.__doc__ = f"{inspect.cleandoc(doc)}\n\nShapes: {shapes}.\n\nExample::\n\n{indented}\n"
