"""A graph as a picture: Mermaid text, or SVG. Nodes of one kernel share a box in Mermaid and a colour in SVG.

Knows the IR alone, and what is handed to it of kernels: a name and the nodes of each.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.ir import Apply, Const, Graph, Input, Value

# Sizes of the SVG in pixels.
_WIDTH, _HEIGHT, _GAP, _RISE, _MARGIN = 168, 46, 18, 38, 16
# Backgrounds of kernels, in turn; black text is readable on each.
_COLOURS = ("#cfe3f7", "#d7efd2", "#fbe3c0", "#ecd9f2", "#f7d4d4", "#d3efee", "#f3efbd", "#e0e0ea")
_PLAIN, _INPUT, _OUTPUT = "#ffffff", "#f0f0f0", "#444444"
# How often a layer's order is improved after its neighbours'.
_SWEEPS = 4


@dataclass(frozen=True)
class Part:
    """A kernel in the picture: its name, and the nodes it computes."""

    name: str
    nodes: tuple[Value, ...]


@dataclass(frozen=True)
class Picture:
    """A graph with its kernels: `print(p)` is the IR, a notebook shows the SVG, and `save` writes a file."""

    graph: Graph
    parts: tuple[Part, ...] = ()

    @property
    def nodes(self) -> tuple[Value, ...]:
        """The nodes of the graph, inputs first, operands before what reads them."""
        return self.graph.nodes

    @property
    def mermaid(self) -> str:
        """The picture as Mermaid text, for a README, an issue or a notebook."""
        return mermaid(self.graph, self.parts)

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return svg(self.graph, self.parts)

    def save(self, path: str | Path) -> Path:
        """Write the picture as its suffix says: `.svg`, `.mmd` or `.md` (Mermaid), or `.txt` (the IR)."""
        target = Path(path)
        match target.suffix:
            case ".svg":
                text = self.svg
            case ".mmd":
                text = self.mermaid
            case ".md":
                text = f"```mermaid\n{self.mermaid}\n```\n"
            case ".txt":
                text = str(self.graph)
            case other:
                raise ValueError(
                    f"a picture is written as .svg, .mmd, .md or .txt, not {other or 'without suffix'}"
                )
        target.write_text(text)
        return target

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return str(self.graph)

    def __repr__(self) -> str:
        shown, kernels = len(_shown(self.graph)), len(self.parts)
        return f"<graph of {shown} nodes in {kernels} kernels; str() shows it, .svg and .mermaid draw it>"


def _shown(graph: Graph) -> dict[Value, int]:
    """The nodes that get a box, by number: numbers without axes are written where they are used."""
    return {
        v: i for i, v in enumerate(graph.nodes) if not isinstance(v, Const) or v.ndim or v in graph.outputs
    }


def _title(value: Value) -> str:
    match value:
        case Input(name=name):
            return f"input {name}"
        case Const():
            return "constant"
        case Apply(op=op, inputs=inputs, attrs=attrs):
            numbers = [f"{x.data.item():.6g}" for x in inputs if isinstance(x, Const) and not x.ndim]
            notes = numbers + [f"{key}={item}" for key, item in attrs.items() if key != "dtype"]
            text = f"{op.name} {', '.join(notes)}".strip()
            return text if len(text) <= 24 else f"{text[:23]}…"
        case _:
            return type(value).__name__.lower()


def _inputs(value: Value, shown: Mapping[Value, int]) -> list[Value]:
    return [x for x in dict.fromkeys(value.inputs) if x in shown] if isinstance(value, Apply) else []


def mermaid(graph: Graph, parts: Sequence[Part] = ()) -> str:
    """A flowchart in Mermaid's language; the nodes of a kernel are a subgraph."""
    shown, inside = _shown(graph), {v for part in parts for v in part.nodes}
    lines = ["flowchart TD"]
    for v in shown:
        if v not in inside:
            lines.append(f"  {_box(v, shown)}")
    for number, part in enumerate(parts):
        members = [v for v in part.nodes if v in shown]
        if members:
            lines.append(f'  subgraph k{number}["kernel {number}: {_quoted(part.name)}"]')
            lines += [f"    {_box(v, shown)}" for v in members]
            lines.append("  end")
    for v in shown:
        lines += [f"  n{shown[x]} --> n{shown[v]}" for x in _inputs(v, shown)]
    for i, v in enumerate(graph.outputs):
        lines.append(f"  n{shown[v]} --> out{i}([output {i}])")
    return "\n".join(lines)


def _box(value: Value, shown: Mapping[Value, int]) -> str:
    left, right = ("([", "])") if isinstance(value, Input) else ("[", "]")
    where = f"<br/>{value.where}" if value.where else ""
    return f'n{shown[value]}{left}"{_quoted(_title(value))}<br/>{value.type}{where}"{right}'


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")


# SVG: layers from top to bottom, each node below all that it reads


def svg(graph: Graph, parts: Sequence[Part] = ()) -> str:
    """A drawing of the graph: a box for each node, below what it reads, with its line as tooltip."""
    shown = _shown(graph)
    place = _places(graph, shown)
    kernel = {v: number for number, part in enumerate(parts) for v in part.nodes}
    width = max((x for x, _ in place.values()), default=0) + _WIDTH + _GAP + _MARGIN
    height = max((y for _, y in place.values()), default=0) + _HEIGHT + _MARGIN
    body: list[str] = []
    for v in shown:
        for x in _inputs(v, shown):
            body.append(_edge(place[x], place[v]))
    outputs = set(graph.outputs)
    for v in shown:
        number = kernel.get(v)
        name = "" if number is None else f"kernel {number}: {parts[number].name}"
        body += _drawn(v, place[v], number, name, v in outputs)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="11">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#888"/></marker></defs>\n'
        f'<rect width="100%" height="100%" fill="#fbfbfb"/>\n{chr(10).join(body)}\n</svg>\n'
    )


def _drawn(v: Value, at: tuple[int, int], number: int | None, name: str, is_output: bool) -> list[str]:
    x, y = at
    fill = _INPUT if isinstance(v, Input) else _PLAIN if number is None else _COLOURS[number % len(_COLOURS)]
    border, thick = (_OUTPUT, 2) if is_output else ("#999", 1)
    round_ = 14 if isinstance(v, Input) else 4
    tip = " · ".join(filter(None, (_title(v), str(v.type), v.where, name, "output" if is_output else "")))
    mark = "" if number is None else f'<tspan fill="#777"> k{number}</tspan>'
    return [
        f'<g data-kernel="{"" if number is None else number}"><title>{html.escape(tip)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{round_}" fill="{fill}" '
        f'stroke="{border}" stroke-width="{thick}"/>',
        f'<text x="{x + 8}" y="{y + 19}" fill="#111">{html.escape(_title(v))}</text>',
        f'<text x="{x + 8}" y="{y + 36}" fill="#555">{html.escape(str(v.type))}{mark}</text></g>',
    ]


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + _WIDTH // 2, start[1] + _HEIGHT
    u, w = end[0] + _WIDTH // 2, end[1]
    middle = (y + w) // 2
    path = f"M{x} {y} C{x} {middle} {u} {middle} {u} {w}"
    if w - y > _RISE and abs(x - u) < _WIDTH:
        # Past the boxes between, and not behind them.
        x, y, u, w = start[0] + _WIDTH, y - _HEIGHT // 2, end[0] + _WIDTH, w + _HEIGHT // 2
        beside = max(x, u) + _GAP
        path = f"M{x} {y} C{beside} {y} {beside} {w} {u} {w}"
    return f'<path d="{path}" fill="none" stroke="#888" stroke-width="1" marker-end="url(#tip)"/>'


def _places(graph: Graph, shown: Mapping[Value, int]) -> dict[Value, tuple[int, int]]:
    """The corner of every box."""
    layer: dict[Value, int] = {}
    for v in shown:
        layer[v] = max((layer[x] + 1 for x in _inputs(v, shown)), default=0)
    users: dict[Value, list[Value]] = {v: [] for v in shown}
    for v in shown:
        for x in _inputs(v, shown):
            users[x].append(v)
    # An input stands right above what reads it first.
    for v in shown:
        if not _inputs(v, shown) and users[v]:
            layer[v] = min(layer[u] for u in users[v]) - 1
    lowest = min(layer.values(), default=0)
    rows: list[list[Value]] = [[] for _ in range(max(layer.values(), default=0) - lowest + 1)]
    for v in shown:
        rows[layer[v] - lowest].append(v)
    column = {v: float(i) for row in rows for i, v in enumerate(row)}
    for _ in range(_SWEEPS):
        for row in rows:
            _settle(row, column, {v: _inputs(v, shown) for v in row})
        for row in reversed(rows):
            _settle(row, column, users)
    step = _WIDTH + _GAP
    left = min(column.values(), default=0.0)
    return {
        v: (_MARGIN + round((column[v] - left) * step), _MARGIN + number * (_HEIGHT + _RISE))
        for number, row in enumerate(rows)
        for v in row
    }


def _settle(row: list[Value], column: dict[Value, float], near: Mapping[Value, Sequence[Value]]) -> None:
    """Order a layer by where its neighbours are, and put each node as near to them as there is room."""
    wanted: dict[Value, Any] = {}
    for v in row:
        at = [column[x] for x in near[v]]
        wanted[v] = sum(at) / len(at) if at else column[v]
    row.sort(key=wanted.__getitem__)
    free = float("-inf")
    for v in row:
        column[v] = max(wanted[v], free)
        free = column[v] + 1
    # Pushed to the right by its neighbours, the row as a whole goes back.
    shift = sum(column[v] - wanted[v] for v in row) / max(len(row), 1)
    for v in row:
        column[v] -= shift
