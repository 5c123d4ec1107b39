"""Pictures of measurements: a roofline plot, sweep curves, and libraries side by side. Loads matplotlib.

Draws what it is given; measures nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from kernels.bench.report import seconds
from kernels.bench.result import OURS, Measurement
from kernels.dtypes import named
from kernels.library import LIBRARY, MATMUL, ROWS
from kernels.roofline import Roofline

importlib.import_module("matplotlib").use("Agg")
pyplot: Any = importlib.import_module("matplotlib.pyplot")

# Distinguished by eyes that see fewer colours too (Okabe and Ito), then by marker.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*X<>"
_GREY = "#808080"
_STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 130,
    "font.size": 10,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def draw(
    folder: Path, found: Sequence[Measurement], roofs: Sequence[Roofline], kind: str = "png"
) -> list[Path]:
    """Every picture that the measurements allow, as files of `folder`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    with pyplot.rc_context(_STYLE):
        for name, figure in _figures(found, roofs):
            paths.append(folder / f"{name}.{kind}")
            figure.savefig(paths[-1], bbox_inches="tight")
            pyplot.close(figure)
    return paths


def _figures(found: Sequence[Measurement], roofs: Sequence[Roofline]) -> Iterator[tuple[str, Any]]:
    for roof in roofs:
        for dtype in dict.fromkeys(m.dtype for m in found):
            mine = [m for m in found if m.dtype == dtype and m.threads == roof.threads]
            ours = [m for m in mine if m.library == OURS]
            where = f"{dtype}_{roof.threads}threads"
            if computing := [m for m in ours if m.flops]:
                yield f"roofline_{where}", _roofline(computing, roof, dtype)
            for family in dict.fromkeys(map(_family, ours)):
                swept = [m for m in ours if _family(m) == family and len(_of(m.kernel, ours)) > 1]
                if swept:
                    yield (
                        f"sweep_{family}_{where}",
                        _sweep(swept, "kernel", family, roof, f"{family} kernels"),
                    )
            for kernel in dict.fromkeys(m.kernel for m in mine):
                beside = _of(kernel, mine)
                if len({m.library for m in beside}) == 1:
                    continue
                if len({m.sizes for m in beside}) == 1:
                    yield f"{kernel}_{where}", _bars(beside, roof)
                else:
                    yield f"{kernel}_{where}", _sweep(beside, "library", _family(beside[0]), roof, kernel)


def _of(kernel: str, found: Sequence[Measurement]) -> list[Measurement]:
    return [m for m in found if m.kernel == kernel]


def _family(m: Measurement) -> str:
    return LIBRARY[m.kernel].family if m.kernel in LIBRARY else m.kernel


def _looks() -> Iterator[dict[str, Any]]:
    """Colour and marker of one line after another."""
    for colour, marker in zip(cycle(_COLOURS), cycle(_MARKERS), strict=False):
        yield {"color": colour, "marker": marker, "markersize": 5}


def _title(axes: Any, what: str, roof: Roofline, dtype: str) -> None:
    threads = f"{roof.threads} thread{'s' if roof.threads > 1 else ''}"
    axes.set_title(f"{what}, {dtype}, {threads}\n{roof.machine}", loc="left", fontsize=10)


# Roofline -----------------------------------------------------------------------------------------


def _roofline(found: Sequence[Measurement], roof: Roofline, dtype: str) -> Any:
    figure, axes = pyplot.subplots(figsize=(8.5, 5))
    intensities = [m.flops / m.bytes for m in found]
    peak = roof.flops(named(dtype)) / 1e9
    low = min([*intensities, 0.1]) / 2
    high = max([*intensities, peak * 1e9 / roof.memory.copy]) * 3
    for kernel, look in zip(dict.fromkeys(m.kernel for m in found), _looks(), strict=False):
        points = _of(kernel, found)
        x = [m.flops / m.bytes for m in points]
        axes.plot(x, [m.flops / m.best / 1e9 for m in points], linestyle="none", label=kernel, **look)
    for level, style in zip(roof.levels, (":", "-.", "--", "-"), strict=False):
        bandwidth = level.copy / 1e9
        line, label = (
            ([low, peak / bandwidth], [bandwidth * low, peak]),
            f"copy {level.name}: {bandwidth:.0f} GB/s",
        )
        axes.plot(*line, style, color=_GREY, linewidth=1.2, label=label, zorder=1)
    ridge = peak / roof.levels[0].copy * 1e9
    label = f"2048³ product: {peak:.0f} GFLOP/s"
    axes.plot([ridge, high], [peak, peak], "-", color="black", linewidth=1.2, label=label, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_xlabel("FLOP per byte that must be moved")
    axes.set_ylabel("GFLOP/s")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    _title(axes, "Roofline", roof, dtype)
    return figure


# Sweeps -------------------------------------------------------------------------------------------


def _sweep(found: Sequence[Measurement], field: str, family: str, roof: Roofline, what: str) -> Any:
    """Speed over sizes, a line for each value of `field`."""
    figure, axes = pyplot.subplots(figsize=(8.5, 4.6))
    sizes = list(dict.fromkeys(m.sizes for m in found))
    speeds: list[float] = []
    for value, look in zip(dict.fromkeys(getattr(m, field) for m in found), _looks(), strict=False):
        line = [m for m in found if getattr(m, field) == value]
        x = [_place(m.sizes, family, sizes) for m in line]
        y = [(m.flops if family == MATMUL else m.bytes) / m.median / 1e9 for m in line]
        wide = 2.4 if value == OURS else 1.4
        axes.plot(x, y, label=value, linewidth=wide, **look)
        speeds += y
    if family == MATMUL:
        _products(axes, sizes, roof, found[0].dtype)
    else:
        _bandwidths(axes, roof, max(speeds))
        axes.set_xscale("log")
        axes.set_xlabel("elements")
        if family == ROWS:
            _columns(axes, sizes)
        axes.set_ylabel("GB/s of the bytes that must be moved")
    axes.set_ylim(bottom=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.14, 0.5))
    _title(axes, what, roof, found[0].dtype)
    return figure


def _bars(found: Sequence[Measurement], roof: Roofline) -> Any:
    """The time of each library on one kernel of one size."""
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.4 * len(found)))
    colours = [_COLOURS[0] if m.library == OURS else _GREY for m in found]
    bars = axes.barh([m.library for m in found], [m.median * 1e3 for m in found], color=colours)
    axes.bar_label(bars, [seconds(m.median) for m in found], padding=4, fontsize=9)
    axes.axvline(found[0].bound * 1e3, color="black", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel("median time, ms; dashed: the roofline")
    _title(axes, f"{found[0].kernel} {found[0].shape}", roof, found[0].dtype)
    return figure


def _place(sizes: tuple[int, ...], family: str, every: Sequence[tuple[int, ...]]) -> int:
    return every.index(sizes) if family == MATMUL else sizes[-1]


def _columns(axes: Any, sizes: Sequence[tuple[int, ...]]) -> None:
    """Ticks at the row lengths that were measured."""
    lengths, totals = sorted({s[-1] for s in sizes}), {round(math.prod(s) / 1e6, 1) for s in sizes}
    axes.set_xticks(lengths, map(str, lengths))
    axes.minorticks_off()
    elements = f", of {totals.pop():g} M elements" if len(totals) == 1 else ""
    axes.set_xlabel(f"columns{elements}")


def _products(axes: Any, sizes: Sequence[tuple[int, ...]], roof: Roofline, dtype: str) -> None:
    texts = ["×".join(map(str, s)) for s in sizes]
    axes.set_xticks(range(len(sizes)), texts, rotation=45, ha="right", fontsize=8)
    axes.set_xlabel("m × k × n")
    axes.set_ylabel("GFLOP/s")
    name = named(dtype).arithmetic.name
    _line(axes, roof.blas[name] / 1e9, "BLAS 2048³")


def _bandwidths(axes: Any, roof: Roofline, highest: float) -> None:
    """A line for each level's copy that is near what was measured."""
    for level in roof.levels:
        if level.copy / 1e9 < 1.5 * highest or level is roof.memory:
            _line(axes, level.copy / 1e9, f"copy {level.name}")


def _line(axes: Any, height: float, text: str) -> None:
    axes.axhline(height, color=_GREY, linestyle="--", linewidth=1)
    axes.annotate(
        text,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=_GREY,
        fontsize=8,
    )
