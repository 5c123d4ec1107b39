"""Measurements and a roofline as tables, JSON and CSV. Measures nothing."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import machine
from kernels.bench.result import OURS, Measurement, from_json
from kernels.roofline import Roofline

FORM = "tracefuse benchmark 1"


@dataclass(frozen=True)
class Column:
    """A column: its head, its text for one measurement, and whether numbers stand right."""

    head: str
    text: Callable[[Measurement], str]
    right: bool = True


def seconds(value: float | None) -> str:
    """A time with the unit that gives it three digits before the point at most."""
    if value is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:.0f} {unit}"
    return f"{value * 1e9:.0f} ns"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


COLUMNS = (
    Column("kernel", lambda m: m.kernel, False),
    Column("sizes", lambda m: m.shape),
    Column("dtype", lambda m: m.dtype, False),
    Column("thr", lambda m: str(m.threads)),
    Column("library", lambda m: m.library, False),
    Column("median", lambda m: seconds(m.median)),
    Column("best", lambda m: seconds(m.best)),
    Column("spread", lambda m: _percent(m.spread) + (" busy" if m.noisy else "")),
    Column("GB/s", lambda m: f"{m.bandwidth / 1e9:.1f}"),
    Column("GFLOP/s", lambda m: f"{m.speed / 1e9:.1f}"),
    Column("roof", lambda m: f"{_percent(m.roof_share)} {m.bound_by}"),
    Column("copy", lambda m: _percent(m.copy_share)),
    Column("bytes", lambda m: f"{m.excess:.1f}×" if m.excess else ""),
    Column("compile", lambda m: seconds(m.compile_seconds)),
    Column("code", lambda m: f"{m.code_bytes} B" if m.code_bytes else ""),
    Column("vector", lambda m: f"{m.vector_bits} bit" if m.vector_bits else ""),
)


def columns(found: Sequence[Measurement]) -> tuple[Column, ...]:
    """The columns that say something: the library's only where there are several."""
    several = len({m.library for m in found}) > 1
    return tuple(c for c in COLUMNS if several or c.head != "library")


def table(found: Sequence[Measurement]) -> str:
    """Plain text, one line a measurement, a blank line between kernels."""
    shown = columns(found)
    rows = [[c.text(m) for c in shown] for m in found]
    heads = [c.head for c in shown]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if c.right else cell.ljust(width)
            for c, cell, width in zip(shown, cells, widths, strict=True)
        )
        return "  ".join(padded).rstrip()

    lines = [line(heads), line(["─" * width for width in widths])]
    for number, row in enumerate(rows):
        if number and found[number].kernel != found[number - 1].kernel:
            lines.append("")
        lines.append(line(row))
    return "\n".join(lines)


def show(found: Sequence[Measurement]) -> None:
    """Print the table: with rich on a terminal that is wide enough, where it is installed; else as text."""
    try:
        console = importlib.import_module("rich.console").Console()
        rich_table = importlib.import_module("rich.table").Table
    except ModuleNotFoundError:
        print(table(found))
        return
    plain = table(found)
    if not sys.stdout.isatty() or console.width < max(map(len, plain.splitlines())):
        print(plain)
        return
    shown = columns(found)
    grid = rich_table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        grid.add_column(column.head, justify="right" if column.right else "left", no_wrap=True)
    for number, m in enumerate(found):
        ends = number + 1 < len(found) and found[number + 1].kernel != m.kernel
        grid.add_row(*[c.text(m) for c in shown], style=_style(m), end_section=ends)
    console.print(grid)


def _style(m: Measurement) -> str:
    """Other libraries stand back; what is far from the roofline stands out."""
    if m.library != OURS:
        return "dim"
    return "green" if m.roof_share >= 0.8 else "" if m.roof_share >= 0.5 else "yellow"


def peaks(roof: Roofline) -> str:
    """The roofline in words."""
    rows = [("GB/s", "copy", "triad", "read", "update", "")]
    for level in roof.levels:
        held = f"up to {level.capacity / 1024:.0f} KiB" if level.capacity else ""
        rates = [f"{r / 1e9:.1f}" for r in (level.copy, level.triad, level.read, level.update)]
        rows.append((level.name, rates[0], rates[1], rates[2], rates[3], held))
    lines = [f"{a:8}{b:>9}{c:>9}{d:>9}{e:>9}  {f}".rstrip() for a, b, c, d, e, f in rows]
    products = [
        f"{name}: BLAS {roof.blas[name] / 1e9:.1f}, ours {roof.ours[name] / 1e9:.1f}" for name in roof.blas
    ]
    return "\n".join(
        [
            f"{roof.machine}; {roof.threads} thread{'s' if roof.threads > 1 else ''}",
            *lines,
            f"GFLOP/s of a 2048³ product, {'; '.join(products)}",
            f"sharing a launch {seconds(roof.fork_join)}, a call from Python {seconds(roof.call)}",
        ]
    )


def as_json(found: Sequence[Measurement], roofs: Sequence[Roofline]) -> dict[str, Any]:
    """All that was measured, and where."""
    return {
        "form": FORM,
        "machine": machine.describe(),
        "rooflines": [roof.as_json() for roof in roofs],
        "measurements": [m.as_json() for m in found],
    }


def write_json(path: Path, found: Sequence[Measurement], roofs: Sequence[Roofline]) -> None:
    """A file that `read_json` reads, a baseline for later."""
    path.write_text(json.dumps(as_json(found, roofs), indent=1) + "\n")


def read_json(path: Path) -> tuple[str, list[Measurement]]:
    """The machine and the measurements of a file. Raises ValueError when it is none of ours."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("form") != FORM:
        raise ValueError(f"{path} is not a file of the form {FORM!r}")
    return content["machine"], [from_json(m) for m in content["measurements"]]


def write_csv(path: Path, found: Sequence[Measurement]) -> None:
    """One row a measurement, in seconds, bytes and FLOPs."""
    rows = [m.as_json() | {"sizes": m.shape} for m in found]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
