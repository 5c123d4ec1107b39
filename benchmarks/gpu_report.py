"""`python -m benchmarks.gpu_report [WORK ...]`: what the kernels of whole steps are as GPU machine code.

Records each work as a compiled step, and hands the kernels of its program to `kernels.gpu.report`, once where
several are alike. Needs Triton and no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.steppers.tracefuse import make
from benchmarks.works import WORKS, Work
from benchmarks.works.kernels import AdamW
from benchmarks.works.training import Gpt, Lstm
from compiler.binding import plan_of
from compiler.gpu.blocks import blocked, in_slices
from compiler.lower import BlockKernel
from compiler.plan import Request
from kernels.blocks import AnyWork, BlockWork
from kernels.gpu.report import Reported, options, publish, report

# Of layers and times that repeat, few: their kernels are alike.
SHORTER: dict[str, Work] = {
    "gpt": Gpt(layers=2, width=128, heads=4, vocabulary=65, context=64, batch=12),
    "lstm": Lstm(width=128, times=3, batch=32),
    "adamw": AdamW(tensors=4, elements=250_000),
}


def kernels_of(work: Work, tf32: bool = False) -> list[Reported]:
    """The kernels of a work's compiled step as a GPU has them, in order."""
    made: Any
    made, batches, _ = make(work)
    for batch in batches[:2]:
        made(*batch)
    request: Request = made._newest().executable.recorded
    _, plan = plan_of(replace(request, there=True))
    found = in_slices(blocked(plan), tf32).kernels
    return [k.work() if isinstance(k, BlockKernel) else k.placed() for k in found]


def work_of(kernel: Reported) -> AnyWork:
    """A kernel without its memory."""
    return kernel if isinstance(kernel, BlockWork) else kernel.work


def distinct(kernels: Sequence[Reported]) -> Iterator[tuple[int, Reported]]:
    """The first of each that are alike but for names and places, with its number."""
    seen = set()
    for number, kernel in enumerate(kernels):
        work = work_of(kernel)
        offsets = () if isinstance(kernel, BlockWork) else kernel.offsets
        alike = replace(work, spec=replace(work.spec, name="")), offsets
        if alike not in seen:
            seen.add(alike)
            yield number, kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on the works named, or on all."""
    parser = options("benchmarks.gpu_report", __doc__)
    parser.add_argument("works", nargs="*", default=list(WORKS), metavar="WORK", help=" ".join(WORKS))
    given = parser.parse_args(arguments)
    found = []
    for name in given.works:
        whole = kernels_of(SHORTER.get(name, WORKS[name]), given.tf32)
        found += [
            (f"{name} {number} {work_of(kernel).spec.name[:24]}", kernel)
            for number, kernel in distinct(whole)
        ]
    return publish(report(found, given.architectures, given.tf32), given.json)


if __name__ == "__main__":
    sys.exit(main())
