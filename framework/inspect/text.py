"""An explanation for people: blocks of headings, lines and tables, as plain text, for a terminal, or as HTML.

Knows the facts, and no program; a page with sources and pictures is page.py's.
"""

from __future__ import annotations

import html
import importlib
import importlib.util
import io
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.facts import KernelFacts, ProgramFacts

if TYPE_CHECKING:
    from framework.capture.explain import Explanation

# User lines that a table names of one kernel, and ops; the page has all of them.
MOST_LINES, MOST_OPS = 3, 6


@dataclass(frozen=True)
class Heading:
    """A line above others."""

    text: str


@dataclass(frozen=True)
class Line:
    """A line below a heading, `depth` levels further in."""

    text: str
    depth: int = 1


@dataclass(frozen=True)
class Table:
    """Rows under column names; those in `right` are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()


Block = Heading | Line | Table


def blocks(e: Explanation) -> Iterator[Block]:
    """What there is to say, in order."""
    yield Heading(f"{e.name}: {e.mode}")
    yield Line(e.why)
    for reason in dict.fromkeys(e.driven):
        yield Line(f"driven, its Python runs at every call: {reason}")
    for stretch in e.stretches:
        yield Line(str(stretch))
    if e.interpreted:
        yield Line(f"{e.interpreted} stretches met for the first time were computed op by op")
    if e.refused:
        yield Line(f"{e.refused} calls were not recorded, as too many were before or failed alike")
    for c in e.compilations:
        yield Line(f"compilation {c.number}: {c.reason} ({c.seconds * 1e3:.0f} ms)")
        if c.is_program:
            streams = f", {c.streams} random streams" if c.streams else ""
            yield Line(
                f"{c.tensors} tensors, {c.numbers} runtime scalars{streams}, {c.calls} calls; {c.making}", 2
            )
        for words in c.sizes:
            yield Line(words, 2)
        for words, times in Counter(c.guards).items():
            yield Line(f"guard: {words}" + (f" ({times} of these)" if times > 1 else ""), 2)
    for title, program in e.programs:
        yield from _program(e, title, program)


def _program(e: Explanation, title: str, program: ProgramFacts) -> Iterator[Block]:
    kernels = program.kernels
    moved, flops = sum(k.bytes for k in kernels), sum(k.flops for k in kernels)
    yield Heading(
        f"program of {title}: {program.recorded} recorded ops, {len(kernels)} kernels in {program.launches} "
        f"launches; {size(moved)} at least, {count(flops)}FLOP"
    )
    if kernels:
        yield _kernel_table(program)
    if e.roof is not None and any(k.measured is not None for k in kernels):
        whole = sum(k.measured.seconds for k in kernels if k.measured is not None)
        busy = "; other programs had the cores when this machine was measured" if e.roof.noisy else ""
        yield Line(f"kernels alone take {time(whole)} one after the other, {e.roof.threads} threads{busy}")
    for reason, pairs in _by_reason(program).items():
        yield Line(f"not fused, {reason}: {pairs}")
    for chain in program.chains:
        numbers = "→".join(map(str, chain.kernels))
        rows = f"{chain.rows} rows" if chain.rows != 1 else "all rows"
        yield Line(
            f"chain {numbers}: {chain.tiles} tiles of {rows}, each through all of these kernels; "
            f"{size(chain.private)} a thread in between"
        )
    m = program.memory
    reuse = f" for values of {size(m.without_reuse)}" if m.without_reuse else ""
    yield Line(
        f"memory: an arena of {size(m.arena)}{reuse}; at most {size(m.peak)} alive at once, in launch "
        f"{m.peak_launch}; inputs {size(m.inputs)} ({m.in_place} updated in place), outputs {size(m.outputs)}"
    )
    phases = ", ".join(f"{p.name} {p.seconds * 1e3:.0f} ms" for p in program.phases)
    yield Line(f"made by: {phases}")
    known = f"{program.from_disk} of {len(kernels)} kernels had machine code on disk "
    known += f"({program.distinct} differ); "
    plan = "was there too" if program.plan_from_disk else "was made anew"
    yield Line(f"cache: {'' if program.from_disk is None else known}the plan {plan}")


def _by_reason(program: ProgramFacts) -> dict[str, str]:
    """Pairs of kernels that stay apart, under their reason."""
    found: dict[str, list[str]] = {}
    for pair in program.unfused:
        found.setdefault(pair.reason, []).append(f"{pair.first}→{pair.second}")
    most = 12
    return {
        reason: " ".join(pairs[:most]) + (f" and {len(pairs) - most} more" if len(pairs) > most else "")
        for reason, pairs in found.items()
    }


def _kernel_table(program: ProgramFacts) -> Table:
    timed = any(k.measured is not None for k in program.kernels)
    timing = ("time", "roof") if timed else ()
    columns = ("kernel", "launch", "name", "sizes", "bytes", "FLOPs", *timing, "ops", "lines")
    rows = tuple(_kernel_row(k, timed) for k in program.kernels)
    return Table(columns, rows, ("kernel", "launch", "bytes", "FLOPs", "time", "roof"))


def _kernel_row(k: KernelFacts, timed: bool) -> tuple[str, ...]:
    m = k.measured
    timing = ("–", "–") if m is None else (time(m.seconds), f"{m.share:.0%} of {m.bound_by}")
    name = f"{k.name} (edited)" if k.edited else k.name
    sizes = "×".join(map(str, k.extents))
    numbers = str(k.number), str(k.level), name, sizes, size(k.bytes), count(k.flops)
    return (*numbers, *(timing if timed else ()), _few(k.ops, MOST_OPS), _few(k.lines, MOST_LINES))


def _few(words: tuple[str, ...], most: int) -> str:
    return " ".join(words[:most]) + (f" +{len(words) - most}" if len(words) > most else "")


def size(n: float) -> str:
    """Bytes, in the unit that suits them."""
    return _scaled(n, ("B", "kB", "MB", "GB"))


def count(n: float) -> str:
    """A number, with a prefix for its thousands."""
    return _scaled(n, ("", "k", "M", "G"))


def _scaled(n: float, units: tuple[str, ...]) -> str:
    """A number in the first of `units`, each a thousand of the one before, in which it is below 1000."""
    number = 0
    while n >= 1000 and number < len(units) - 1:
        n, number = n / 1000, number + 1
    return f"{n:.3g} {units[number]}"


def time(seconds: float) -> str:
    """Seconds, in the unit that suits them."""
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


# Ways to show it


def as_text(e: Explanation) -> str:
    """Plain text."""
    lines: list[str] = []
    for block in blocks(e):
        if isinstance(block, Table):
            lines += _plain_table(block)
        else:
            lines.append(block.text if isinstance(block, Heading) else "  " * block.depth + block.text)
    return "\n".join(lines)


def _plain_table(table: Table) -> list[str]:
    rows = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    aligned = [
        [
            text.rjust(width) if column in table.right else text.ljust(width)
            for text, width, column in zip(row, widths, table.columns, strict=True)
        ]
        for row in rows
    ]
    return [f"  {'  '.join(row)}".rstrip() for row in aligned]


def as_shown(e: Explanation) -> str:
    """With colours where standard output is a terminal and rich is installed; else plain text."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    if plain or importlib.util.find_spec("rich") is None:
        return as_text(e)
    return as_rich(e, shutil.get_terminal_size().columns)


def as_rich(e: Explanation, width: int) -> str:
    """Text with a terminal's colours, tables as wide as it is."""
    console_of = importlib.import_module("rich.console").Console
    table_of = importlib.import_module("rich.table").Table
    text_of = importlib.import_module("rich.text").Text
    out = io.StringIO()
    console = console_of(file=out, force_terminal=True, width=width)
    for block in blocks(e):
        if isinstance(block, Heading):
            console.print(text_of(block.text, style="bold cyan"))
        elif isinstance(block, Line):
            head, colon, rest = block.text.partition(": ")
            line = text_of("  " * block.depth)
            console.print(
                line.append(head + colon, style="bold" if colon else "").append(rest), soft_wrap=True
            )
        else:
            grid = table_of(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
            for column in block.columns:
                right = column in block.right
                grid.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
            for row in block.rows:
                grid.add_row(*map(text_of, row))
            console.print(grid)
    return out.getvalue().rstrip("\n")


def as_html(e: Explanation) -> str:
    """A fragment for a notebook, without scripts."""
    parts: list[str] = []
    for block in blocks(e):
        if isinstance(block, Heading):
            parts.append(f"<h4>{html.escape(block.text)}</h4>")
        elif isinstance(block, Line):
            parts.append(f'<div style="margin-left:{block.depth}em">{html.escape(block.text)}</div>')
        else:
            head = "".join(f"<th>{html.escape(c)}</th>" for c in block.columns)
            rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in block.rows]
            body = "".join(f"<tr>{row}</tr>" for row in rows)
            table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            parts.append(f'<div style="overflow-x:auto">{table}</div>')
    return f'<div class="tracefuse-explanation">{"".join(parts)}</div>'
