"""An explanation as one page, and as JSON: graph, kernels with their sources beside the user's lines.

The page is a template beside this file with the facts put into it; the browser draws.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.facts import ProgramFacts

if TYPE_CHECKING:
    from framework.capture.explain import Explanation

FORM = "tracefuse report 1"
# Lines around a user line that are shown with it.
AROUND = 3
_TEMPLATE = "report.html"
_PLACE = "/*REPORT*/"


def report(e: Explanation) -> str:
    """Every fact as JSON."""
    return json.dumps(facts(e), ensure_ascii=False, allow_nan=False)


def facts(e: Explanation) -> dict[str, Any]:
    """Every fact, of types that JSON has."""
    sources: dict[str, int] = {}
    programs = [_program(title, program, sources) for title, program in e.programs]
    named = {line for _, p in e.programs for k in p.kernels for line in k.lines}
    named |= {n.where for _, p in e.programs for n in p.nodes if n.where}
    return {
        "form": FORM,
        "name": e.name,
        "mode": e.mode,
        "why": e.why,
        "driven": list(dict.fromkeys(e.driven)),
        "stretches": [str(s) for s in e.stretches],
        "interpreted": e.interpreted,
        "refused": e.refused,
        "compilations": [asdict(c) for c in e.compilations],
        "programs": programs,
        "sources": list(sources),
        "files": _files(e, named),
        "roof": None if e.roof is None else e.roof.as_json() | {"noisy": e.roof.noisy},
    }


def _program(title: str, program: ProgramFacts, sources: dict[str, int]) -> dict[str, Any]:
    """A program whose kernels name their sources by number: most are met many times."""
    content: dict[str, Any] = {"title": title} | asdict(program)
    for kernel in content["kernels"]:
        kernel["source"] = sources.setdefault(kernel["source"], len(sources))
    return content


def _files(e: Explanation, named: set[str]) -> dict[str, dict[str, str]]:
    """The named lines of each file and those around them, by number."""
    found: dict[str, dict[str, str]] = {}
    for where in sorted(named):
        name, _, number = where.rpartition(":")
        if number.isdigit():
            lines = e.lines.around(name, int(number) - AROUND, int(number) + AROUND)
            found.setdefault(name, {}).update({str(n): text for n, text in lines})
    return {name: dict(sorted(lines.items(), key=lambda x: int(x[0]))) for name, lines in found.items()}


@cache
def _template() -> str:
    return Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8")


def page(e: Explanation) -> str:
    """The page with its facts in it."""
    # A text inside a script element must not end it.
    content = report(e).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return _template().replace(_PLACE, content)
