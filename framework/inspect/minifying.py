"""`f.minify(*args)`: what is wrong in a call, as a few lines of code that show it.

Looks with `compare`, shrinks with `compiler.minify`, and runs the code it gives before it gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.compare import HOST, Case, Difference, failing
from compiler.minify import minify
from compiler.plan import Request
from compiler.program import Executable
from framework.inspect.code import code_of
from framework.inspect.comparing import compare_call, place_of

if TYPE_CHECKING:
    from framework.capture.compile import CompiledFunction


@dataclass(frozen=True)
class Minified:
    """A wrong call made small: `code` to run, `where` the user's line, and what differs in it.

    `reproduced` says that running the code showed the fault. Without a fault, `code` is empty.
    """

    code: str
    difference: Difference | None
    reproduced: bool
    note: str = field(default="")

    @property
    def where(self) -> str:
        """The user's line that the fault is in."""
        return "" if self.difference is None else self.difference.where

    @property
    def lines(self) -> list[str]:
        """Lines of the code."""
        return self.code.splitlines()

    def save(self, path: str | Path) -> None:
        """Write the code to a file."""
        Path(path).write_text(self.code + "\n")

    def __str__(self) -> str:
        head = [f"# {self.difference}"] if self.difference is not None else []
        note = [f"# {self.note}"] if self.note else []
        return "\n".join([*head, *note, *self.lines])

    __repr__ = __str__


def minify_call(
    function: CompiledFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Minified:
    """Shrink a call in which compiled and eager differ."""
    found, place, device = compare_call(function, args, kwargs).difference, HOST, ""
    if function.on_gpu:
        with function.lock:
            variant, _, made = function.variant_for(args, kwargs)
            for undo in reversed(variant.undo if variant is not None and made else ()):
                undo()
        if variant is not None:
            place, device = place_of(variant), f"cuda:{variant.device}"
    if found is None:
        return Minified("", None, False, "compiled and eager agree: there is nothing to shrink")
    case = next((c for c in found.cases if failing(c, place=place) is not None), None)
    if case is None:
        return Minified("", found, False, f"{found.looked_at} is wrong only in the call as a whole")
    small = minify(case, lambda c: failing(c, place=place) is not None)
    edits = {} if device else _edits(small)
    code: list[str] = []
    for plainly in (False, True):
        code = code_of(small, edits, plainly, device)
        if _shows(code):
            return Minified("\n".join(code), found, True)
    return Minified("\n".join(code), found, False, "run on its own this did not show the fault")


def _edits(case: Case) -> dict[int, str]:
    """Files that stand for kernels of a case's program."""
    views = Executable(Request(case.graph)).kernels
    return {number: str(view.edited) for number, view in enumerate(views) if view.edited is not None}


def _shows(code: list[str]) -> bool:
    """Whether code, run, prints a comparison that does not agree."""
    printed: list[Any] = []
    try:
        exec(compile("\n".join(code), "minified.py", "exec"), {"print": printed.append})
    except Exception:  # noqa: BLE001 -- code that does not run does not show the fault
        return False
    return bool(printed) and not printed[-1].agrees
