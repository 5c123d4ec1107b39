"""`python -m kernels.bench softmax gelu --sweep`: the command line of the kernel benchmark.

Exit codes: 0; 1 slower than the baseline; 2 wrong arguments; 3 the machine is too busy to say.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels import machine
from kernels.bench import baseline, peers, report
from kernels.bench.child import Request, measurements
from kernels.bench.measuring import fitting, subject
from kernels.bench.result import OURS, Measurement
from kernels.bench.sweeps import sweep
from kernels.dtypes import DTYPES
from kernels.errors import KernelError
from kernels.library import LIBRARY
from kernels.roofline import Roofline, roofline
from kernels.timing import MOST_SPREAD, MOST_WAITED

SLOWER, WRONG, BUSY = 1, 2, 3
# A sweep with so large a share of doubtful measurements is refused; fewer are marked.
MOST_BUSY = 0.1
Case = tuple[str, tuple[int, ...] | None, str]


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser("python -m kernels.bench", description=__doc__)
    add = made.add_argument
    add("kernels", nargs="*", help="names of the library, or files of kernels; none lists the names")
    add("--shapes", nargs="+", default=[], metavar="AxB", help="sizes, e.g. 1000000 or 4096x1024")
    add("--sweep", action="store_true", help="many sizes of each kernel")
    add("--dtypes", nargs="+", default=["float32"], choices=list(DTYPES), metavar="DTYPE")
    add("--threads", nargs="+", type=int, default=[machine.cores()], metavar="N")
    add(
        "--against", nargs="*", default=[], choices=peers.NAMES, metavar="LIBRARY", help=" ".join(peers.NAMES)
    )
    add("--seconds", type=float, default=0.3, help="time for each measurement (0.3)")
    add("--noisy", action="store_true", help="report even if the machine is too busy")
    add("--measure-roofline", action="store_true", help="measure the machine's peaks anew")
    add("--json", type=Path, metavar="FILE")
    add("--csv", type=Path, metavar="FILE")
    add("--plots", type=Path, metavar="FOLDER", help="roofline and sweep curves; needs matplotlib")
    add("--format", default="png", choices=("png", "svg"), help="of the plots (png)")
    add("--baseline", type=Path, metavar="FILE", help="an earlier --json to compare with")
    add("--tolerance", type=float, default=0.25, help="how much slower is a regression (0.25: a quarter)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if not options.kernels and not options.measure_roofline:
        for named in LIBRARY.values():
            print(f"{named.name:16}{named.family:14}{named.words}")
        return 0
    try:
        cases = cases_of(options)
        before = report.read_json(options.baseline) if options.baseline else None
        plots = importlib.import_module("kernels.bench.plots") if options.plots else None
    except (KernelError, ValueError, OSError) as error:
        made.error(str(error))
    except ModuleNotFoundError as error:
        made.error(f'--plots needs {error.name}: pip install "tracefuse[bench]"')
    roofs = [roofline(threads, options.measure_roofline) for threads in options.threads]
    if not options.noisy and (busy := [roof for roof in roofs if roof.noisy]):
        return refuse(f"its peaks were measured while threads waited {busy[0].waited:.0%} of the time")
    for roof in roofs:
        print(report.peaks(roof) + "\n")
    found = [m for roof in roofs for m in measured(cases, roof, options)]
    if not found:
        return 0
    ours = [m for m in found if m.library == OURS]
    busy = [m for m in ours if m.noisy]
    if len(busy) > MOST_BUSY * len(ours) and not options.noisy:
        worst = max(busy, key=lambda m: (m.waited, m.spread))
        return refuse(
            f"{len(busy)} of {len(ours)} measurements say so after several tries, e.g. {worst.kernel} "
            f"{worst.shape}: spread {worst.spread:.0%} (limit {MOST_SPREAD:.0%}), threads waited for a core "
            f"{worst.waited:.0%} of the time (limit {MOST_WAITED:.0%})"
        )
    report.show(found)
    write(found, roofs, options, plots)
    return compared(found, before, options.tolerance) if before else 0


def cases_of(options: Any) -> list[Case]:
    """What to measure. Raises KernelError for kernels and sizes that do not exist."""
    shapes = [tuple(int(size) for size in text.split("x")) for text in options.shapes]
    cases: list[Case] = []
    for kernel in options.kernels:
        named = LIBRARY.get(kernel)
        if named is None:
            cases.append((kernel, None, subject(kernel).dtype))
            continue
        chosen = [fitting(named, shape) for shape in shapes] or [named.default]
        for sizes in sweep(named) if options.sweep else chosen:
            cases += [(kernel, sizes, dtype) for dtype in options.dtypes]
    return cases


def measured(cases: Sequence[Case], roof: Roofline, options: Any) -> list[Measurement]:
    """Measure on the threads of a roofline, showing progress on standard error."""
    if not cases:
        return []
    request = Request(tuple(cases), roof.threads, options.seconds, tuple(options.against), roof)
    found: list[Measurement] = []
    for item in measurements(request):
        if isinstance(item, str):
            print(item, file=sys.stderr)
            continue
        found.append(item)
        if sys.stderr.isatty():
            text = f"{item.kernel} {item.shape} {item.dtype} {item.library}"
            print(f"\r\033[K{len(found)}: {text}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def refuse(why: str) -> int:
    """Say why there is no report; the exit code."""
    print(
        f"The machine is too busy: {why}. End other programs, or say --noisy to report all the same.",
        file=sys.stderr,
    )
    return BUSY


def write(found: Sequence[Measurement], roofs: Sequence[Roofline], options: Any, plots: Any) -> None:
    """The files asked for."""
    if options.json:
        report.write_json(options.json, found, roofs)
    if options.csv:
        report.write_csv(options.csv, found)
    if plots:
        for path in plots.draw(options.plots, found, roofs, options.format):
            print(f"wrote {path}")


def compared(found: Sequence[Measurement], before: tuple[str, list[Measurement]], tolerance: float) -> int:
    """Print what changed since the baseline; the exit code."""
    where, known = before
    if where != machine.describe():
        print(f"The baseline is of another machine: {where}", file=sys.stderr)
    pairs = baseline.changes(known, found)
    slower = baseline.regressions(pairs, tolerance)
    print(f"\n{len(pairs)} of {len(found)} measurements are in the baseline; time now over then:")
    for change in sorted(pairs, key=lambda c: -c.ratio):
        m = change.now
        mark = "  slower" if change in slower else ""
        print(f"{change.ratio:6.2f}  {m.kernel} {m.shape} {m.dtype}, {m.threads} threads{mark}")
    return SLOWER if slower else 0


if __name__ == "__main__":
    sys.exit(main())
