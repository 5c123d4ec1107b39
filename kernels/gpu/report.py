"""`python -m kernels.gpu.report [FILE|FOLDER ...]`: what kernels are as machine code, without a GPU.

Of every kernel (those in files that `kernels.files.save` wrote, else the library's) and architecture:
registers, spills, shared memory, widths of accesses, tensor-core instructions, bytes moved against the least,
and what is not as it should be. Knows no programs: others hand in their kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernels import dtypes, files
from kernels.blocks import AnyWork, BlockWork
from kernels.errors import KernelError
from kernels.files import Placed
from kernels.gpu import blocked, matmul, specimens
from kernels.gpu.code import Code
from kernels.gpu.compile import ARCHITECTURES, attempts
from kernels.gpu.inspection import Inspection, inspect
from kernels.gpu.launch import Launch, divisibility
from kernels.gpu.quality import failures
from kernels.gpu.render import launch_of
from kernels.library import LIBRARY
from kernels.spec import MatmulSpec
from kernels.traffic import distinct, touched

# A kernel with its memory; or one that several became, all of whose memories start at multiples of 16 bytes.
Reported = Placed | BlockWork
HEAD = ("kernel", "for", "registers", "spilled", "shared", "accesses", "tensor cores", "moved", "")


@dataclass(frozen=True)
class Row:
    """One kernel's code for one architecture. `moved` and `least`: bytes between a program's processor and
    memory beyond it, and bytes that must be; `failed`: what is wrong, in words.
    """

    kernel: str
    sizes: tuple[int, ...]
    architecture: str
    found: Inspection | None
    moved: int
    least: int
    failed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        sizes = {"kernel": self.kernel, "sizes": self.sizes, "architecture": self.architecture}
        found = self.found.as_json() if self.found else {}
        return sizes | found | {"moved": self.moved, "least": self.least, "failed": self.failed}

    def cells(self) -> tuple[str, ...]:
        """The line of a table."""
        name = f"{self.kernel} {'x'.join(map(str, self.sizes))}"
        if self.found is None:
            return name, self.architecture, *[""] * 6, "; ".join(self.failed)
        found = self.found
        widths = " ".join(f"{n}×{width.replace(' ', '')}" for width, n in found.widths.items())
        tensor = f"{sum(found.tensor.values())} {_short(found.tensor)}" if found.tensor else "-"
        share = f"{self.moved / self.least:.2f}" if self.least else "-"
        numbers = (str(x) for x in (found.registers, found.spilled, found.memory))
        return name, self.architecture, *numbers, widths, tensor, share, "; ".join(self.failed)


def _short(tensor: Iterable[str]) -> str:
    return re.split(r"[._]sync|_async|\.cta|_f32|_f64", min(tensor))[0]


def report(
    kernels: Sequence[tuple[str, Reported]], architectures: Sequence[str] = ARCHITECTURES, tf32: bool = False
) -> list[Row]:
    """Compile named kernels for each architecture, and look at what came out."""
    launches: list[Launch | KernelError] = []
    for _, kernel in kernels:
        try:
            launches.append(_launch(kernel, tf32))
        except KernelError as error:
            launches.append(error)
    requests = [(x, a) for x in launches if isinstance(x, Launch) for a in architectures]
    codes = iter(attempts(requests))
    return [
        _row(name, kernel, architecture, launch, next(codes) if isinstance(launch, Launch) else launch)
        for (name, kernel), launch in zip(kernels, launches, strict=True)
        for architecture in architectures
    ]


def _launch(kernel: Reported, tf32: bool) -> Launch:
    """A kernel's launch, its memories starting at multiples of 16 bytes."""
    if isinstance(kernel, BlockWork):
        return launch_of(kernel, tf32=tf32)
    operands = zip(kernel.work.spec.operands, kernel.offsets, strict=True)
    return launch_of(
        kernel.work, [divisibility(offset * o.dtype.itemsize) for o, offset in operands], tf32=tf32
    )


def _row(
    name: str, kernel: Reported, architecture: str, launch: Launch | KernelError, code: Code | KernelError
) -> Row:
    work = kernel if isinstance(kernel, BlockWork) else kernel.work
    least = sum(map(partial(_distinct, kernel), (work.spec.read, work.spec.written)))
    if isinstance(launch, KernelError) or isinstance(code, KernelError):
        return Row(name, work.extents, architecture, None, 0, least, (str(code).split("\n")[0],))
    found = inspect(code)
    failed = tuple(failures(work, launch, found))
    return Row(name, work.extents, architecture, found, moved(work, launch), least, failed)


def _distinct(kernel: Reported, operands: Iterable[int]) -> int:
    if not isinstance(kernel, BlockWork):
        return distinct(kernel, operands)
    return sum(touched(kernel, o) * kernel.spec.operands[o].dtype.itemsize for o in operands)


def moved(work: AnyWork, launch: Launch) -> int:
    """Bytes that a launch's programs load and store: each operand as often as the text says, factors of a
    product once for each tile across them. What programs share comes from caches.
    """
    spec = work.spec
    times = [
        len(re.findall(rf"(?:load|store|add|to)\((?:p{i}\b)", launch.source))
        for i in range(len(spec.operands))
    ]
    sizes = [touched(work, i) * o.dtype.itemsize for i, o in enumerate(spec.operands)]
    if isinstance(work, BlockWork):
        again = blocked.reads(work, launch)
        times = [count * again[i] for i, count in enumerate(times)]
    elif isinstance(spec, MatmulSpec):
        times[:2] = matmul.reads(work, launch)
    return sum(size * count for size, count in zip(sizes, times, strict=True))


def table(rows: Sequence[Row]) -> str:
    """The report as text, a line for each kernel and architecture."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def summary(rows: Sequence[Row]) -> str:
    """How many kernels are as they should be."""
    bad = [row for row in rows if row.failed]
    return f"{len(rows)} kernels compiled, {len(bad)} of them not as they should be"


def of_files(paths: Iterable[Path]) -> list[tuple[str, Reported]]:
    """The kernels in files and folders, by the names of their files."""
    found = [f for path in paths for f in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    return [(file.stem, files.load(file)) for file in found]


def of_library() -> list[tuple[str, Reported]]:
    """The library's kernels in float32 and float16, and kernels that stand for several."""
    found: list[tuple[str, Reported]] = [
        (f"{name} {dtype.name}", kernel.make(dtype, kernel.default))
        for name, kernel in LIBRARY.items()
        for dtype in (dtypes.float32, dtypes.float16)
    ]
    return [*found, *((f"blocks {name}", work) for name, work in specimens.all_of())]


def publish(rows: Sequence[Row], path: Path | None) -> int:
    """Print a report, and write it to a file as JSON; 1 where anything is not as it should be."""
    print(table(rows), summary(rows), sep="\n\n")
    if path:
        path.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    return int(any(row.failed for row in rows))


def options(program: str, words: str | None) -> argparse.ArgumentParser:
    """The command line that every report has."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=words)
    parser.add_argument("--architectures", nargs="+", default=list(ARCHITECTURES), metavar="sm_90")
    parser.add_argument("--json", type=Path, help="a file to write everything to")
    parser.add_argument("--tf32", action="store_true", help="round float32 factors of products to ten bits")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on the kernels in files, or on the library's."""
    parser = options("kernels.gpu.report", __doc__)
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE|FOLDER")
    given = parser.parse_args(arguments)
    kernels = of_files(given.paths) if given.paths else of_library()
    return publish(report(kernels, given.architectures, given.tf32), given.json)


if __name__ == "__main__":
    sys.exit(main())
