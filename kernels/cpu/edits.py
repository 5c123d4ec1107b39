"""Kernel sources that a user edits: while its file is there, it is compiled in place of what was generated.

Keyed by what a kernel computes, so that every program with that kernel follows. Costs a program nothing
while there is no edit. Knows files and machine code; knows nothing of programs.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels import cache
from kernels.cpu import engine
from kernels.cpu.engine import Machine
from kernels.spec import LoopSpec, MatmulSpec

# What the generated source needs of the words; an edited one may use any.
_WORDS = re.compile(r"^(from kernels\.cpu\.vocabulary import) .*$", re.MULTILINE)
_LINE = re.compile(r"line (\d+)")


@dataclass
class Edit:
    """One file that stands for a kernel, as it was last compiled; `failure` says why its text now is not."""

    path: Path
    stamp: int = -1
    machine: Machine | None = None
    failure: str = ""


_lock = threading.RLock()
_edits: dict[str, Edit] = {}


def folder() -> Path:
    """Where files go that were given no path."""
    return cache.folder() / "edited"


def begin(spec: LoopSpec | MatmulSpec, source: str, path: str | Path | None = None) -> Path:
    """Let a file stand for the kernel of `spec`; a new one gets `source`. Returns its path."""
    place = Path(path) if path is not None else folder() / f"{spec.digest}.py"
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.write_text(_WORDS.sub(r"\1 *  # every word there is", source))
    with _lock:
        _edits[spec.digest] = Edit(place.resolve())
    return place.resolve()


def end(spec: LoopSpec | MatmulSpec) -> None:
    """Use what was generated again, and remove the file, if there is one."""
    with _lock:
        edit = _edits.pop(spec.digest, None)
    if edit is not None:
        edit.path.unlink(missing_ok=True)


def find(spec: LoopSpec | MatmulSpec) -> Edit | None:
    """The edit that stands for a kernel; None when there is none, or its file is gone."""
    edit = _edits.get(spec.digest) if _edits else None
    return edit if edit is not None and edit.path.exists() else None


def active() -> bool:
    """Whether any kernel is edited."""
    return bool(_edits)


def state() -> tuple[tuple[str, int], ...]:
    """Every edited kernel with the time of its file; those whose files are gone are no more edited."""
    found: dict[str, int] = {}
    with _lock:
        for name, edit in list(_edits.items()):
            try:
                found[name] = os.stat(edit.path).st_mtime_ns
            except FileNotFoundError:
                del _edits[name]
    return tuple(found.items())


def machine(spec: LoopSpec | MatmulSpec, generated: Callable[[], Machine]) -> Machine:
    """What runs for `spec`: machine code of its edited file as it is now, else what was `generated`.

    A file that does not compile changes nothing: a warning says why.
    """
    with _lock:
        edit = _edits.get(spec.digest)
        if edit is None:
            return generated()
        try:
            stamp = os.stat(edit.path).st_mtime_ns
        except FileNotFoundError:
            del _edits[spec.digest]
            return generated()
        if stamp != edit.stamp:
            edit.stamp = stamp
            _compile(edit)
        return edit.machine or generated()


def _compile(edit: Edit) -> None:
    source = edit.path.read_text()
    try:
        edit.machine, edit.failure = engine.load(engine.Request("edited", source, "kernel")), ""
    except Exception as error:  # noqa: BLE001 -- whatever a user's text makes Python, Numba or LLVM say
        said = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        line = _LINE.search(str(error))
        edit.failure = said[0].strip()
        before = "generated kernel" if edit.machine is None else "kernel of its last good text"
        warnings.warn_explicit(
            f"the edited kernel does not compile, and the {before} runs: {edit.failure}. "
            "run_python() takes print() and breakpoint(), machine code does not",
            UserWarning,
            str(edit.path),
            int(line[1]) if line else 1,
        )
