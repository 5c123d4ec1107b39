"""What became of a compiled function: data first, text from it.

Reads variants and plans; measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.lower import Kernel
from kernels.spec import Call, MatmulSpec


@dataclass(frozen=True)
class KernelFacts:
    """One kernel in numbers: what it computes, over what, and how much it moves and calculates."""

    name: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    extents: tuple[int, ...]
    bytes: int
    flops: int
    level: int
    compile_seconds: float
    cached: bool


def facts(kernel: Kernel, level: int, seconds: float, cached: bool) -> KernelFacts:
    """The numbers of a kernel, read off its spec: bytes are those of distinct memory, flops count vocabulary
    calls.
    """
    spec = kernel.spec
    moved: dict[Any, int] = {}
    for place in kernel.places:
        if place.buffer is not None:
            moved[place.buffer] = place.buffer.type.nbytes
    points = math.prod(kernel.extents)
    calls = sum(isinstance(s, Call) for s in spec.steps)
    if isinstance(spec, MatmulSpec):
        flops = 2 * points + calls * math.prod(kernel.extents[:-1])
    else:
        flops = calls * points
    ops = tuple(n.op.name for n in kernel.nodes) or (spec.name,)
    lines = tuple(dict.fromkeys(n.where for n in kernel.nodes if n.where))
    return KernelFacts(
        spec.name, ops, lines, kernel.extents, sum(moved.values()), flops, level, seconds, cached
    )


@dataclass(frozen=True)
class StretchFacts:
    """The work between two reads of values in driven calls: where it ended, its ops, kernels and runs.

    `failure` says why it has no kernels and is computed op by op.
    """

    where: str
    ops: int
    kernels: int
    runs: int
    seconds: float
    failure: str = ""

    def __str__(self) -> str:
        how = f"op by op: {self.failure}" if self.failure else f"{self.kernels} kernels"
        return (
            f"stretch up to {self.where}: {self.ops} ops, {how}; {self.runs} runs; "
            f"made in {self.seconds * 1e3:.0f} ms"
        )


@dataclass
class Explanation:
    """Mode, variants with their guards, and kernels of a compiled function. Print it."""

    name: str
    history: Sequence[Any]
    driven: Sequence[str]
    stretches: Sequence[StretchFacts] = ()
    interpreted: int = 0
    refused: int = 0

    @property
    def mode(self) -> str:
        """ "replay", "driven", "mixed", or "not called"."""
        if not self.history:
            return "not called"
        replayed = any(r.variant is not None for r in self.history)
        return ("mixed" if self.driven else "replay") if replayed else "driven"

    @property
    def kernels(self) -> list[KernelFacts]:
        """Kernels of the newest program."""
        variants = [r.variant for r in self.history if r.variant is not None]
        if not variants:
            return []
        views = variants[-1].executable.kernels
        return [
            facts(v.kernel, v.level, getattr(v, "compile_seconds", 0.0), getattr(v, "cached", True))
            for v in views
        ]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.mode}"]
        lines += [
            f"  driven, its Python runs at every call: {reason}" for reason in dict.fromkeys(self.driven)
        ]
        lines += [f"  {stretch}" for stretch in self.stretches]
        if self.interpreted:
            lines.append(f"  {self.interpreted} stretches met for the first time were computed op by op")
        if self.refused:
            lines.append(f"  {self.refused} calls were not recorded, as too many were before or failed alike")
        for number, record in enumerate(self.history):
            lines.append(f"  compilation {number}: {record.reason} ({record.seconds * 1e3:.0f} ms)")
            if record.variant is None:
                continue
            variant = record.variant
            executable = variant.executable
            planned, made = executable.plan_seconds * 1e3, executable.build_seconds * 1e3
            lines.append(
                f"    {variant.tensor_count} tensors, {len(variant.scalars)} runtime scalars, "
                f"{len(executable.plan.kernels)} kernels in {len(set(executable.plan.levels))} launches, "
                f"arena {executable.plan.arena_bytes} bytes, {variant.calls} calls; "
                f"planned in {planned:.0f} ms, kernels made in {made:.0f} ms"
            )
            if variant.recording is not None:
                lines += [f"    {words}" for words in variant.recording.words()]
            guards = [*variant.names, *variant.structures]
            lines += [f"    guard: {guard.words}" for guard in guards]
        for kernel in self.kernels:
            lines.append(
                f"  kernel {kernel.level:3d} {kernel.name} {list(kernel.extents)}: {', '.join(kernel.ops)}; "
                f"{kernel.bytes} bytes, {kernel.flops} operations; {' '.join(kernel.lines)}"
            )
        return "\n".join(lines)

    __repr__ = __str__
