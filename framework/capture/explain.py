"""What became of a compiled function: the facts, as a tree of frozen data.

Reads variants and programs, which it looks into only when asked to; how it looks is framework/inspect's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.facts import KernelFacts, ProgramFacts
    from framework.inspect.lines import Lines
    from kernels.roofline import Roofline


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
    executable: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        how = f"op by op: {self.failure}" if self.failure else f"{self.kernels} kernels"
        return (
            f"stretch up to {self.where}: {self.ops} ops, {how}; {self.runs} runs; "
            f"made in {self.seconds * 1e3:.0f} ms"
        )


@dataclass(frozen=True)
class Compilation:
    """One recording of a function: why, how long it took, and, where it became a program, what that needs.

    `tensors`, `numbers` and `streams` are the program's inputs; `guards` are what must be so for it to
    stand for a call, in words; `sizes` what its symbols are and the conditions on them.
    """

    number: int
    reason: str
    seconds: float
    is_program: bool
    calls: int = 0
    tensors: int = 0
    numbers: int = 0
    streams: int = 0
    guards: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    making: str = ""


@dataclass(frozen=True)
class Explanation:
    """Mode, variants with their guards, and kernels of a compiled function. Print it, or look at its facts.

    A notebook shows it as HTML; `save("report.html")` writes a page with graph, kernels and their sources.
    """

    name: str
    history: Sequence[Any] = field(repr=False)
    driven: Sequence[str] = ()
    stretches: Sequence[StretchFacts] = ()
    interpreted: int = 0
    refused: int = 0
    measure: bool = False
    function: Any = field(default=None, repr=False, compare=False)

    @property
    def mode(self) -> str:
        """ "replay", "driven", "mixed", or "not called"."""
        if not self.history:
            return "not called"
        replayed = any(r.variant is not None for r in self.history)
        return ("mixed" if self.driven else "replay") if replayed else "driven"

    @cached_property
    def roof(self) -> Roofline | None:
        """What the machine can do, where kernels are to be measured."""
        from kernels.roofline import roofline

        return roofline() if self.measure else None

    @cached_property
    def lines(self) -> Lines:
        """The text of the user's lines."""
        from framework.inspect.lines import Lines

        return Lines(self.function)

    @property
    def why(self) -> str:
        """What the mode means, and what decided it."""
        return {
            "not called": "nothing is recorded before the first call",
            "replay": "its Python only reads, so that its programs stand for whole calls",
            "driven": "its Python runs at every call, and the tensor work between reads is compiled",
            "mixed": "some kinds of calls are replayed, for others its Python runs",
        }[self.mode]

    @cached_property
    def compilations(self) -> tuple[Compilation, ...]:
        """Every recording, oldest first."""
        return tuple(_compilation(number, record) for number, record in enumerate(self.history))

    @cached_property
    def programs(self) -> tuple[tuple[str, ProgramFacts], ...]:
        """Programs by title: the newest that stands for a call, and its gradients'; or those of stretches."""
        from compiler.facts import program_facts

        variants = [r.variant for r in self.history if r.variant is not None]
        if not variants:
            made = [s for s in self.stretches if s.executable is not None]
            return tuple((f"up to {s.where}", program_facts(s.executable, self.roof)) for s in made)
        newest = variants[-1]
        found = [("the call", newest.executable)]
        backward = None if newest.backward is None else newest.backward.program.executable
        found += [] if backward is None else [("its gradients", backward)]
        return tuple((title, program_facts(executable, self.roof)) for title, executable in found)

    @property
    def program(self) -> ProgramFacts | None:
        """The newest program that stands for a call; None where there is none."""
        replayed = any(r.variant is not None for r in self.history)
        return self.programs[0][1] if replayed else None

    @property
    def kernels(self) -> list[KernelFacts]:
        """Kernels of the newest program."""
        return [] if self.program is None else list(self.program.kernels)

    @property
    def text(self) -> str:
        """Everything as plain text."""
        from framework.inspect.text import as_text

        return as_text(self)

    def save(self, path: str | Path) -> Path:
        """Write a page that a browser shows without a network; a path that ends in .json gets the facts."""
        from framework.inspect.page import page, report

        place = Path(path)
        place.write_text(report(self) if place.suffix == ".json" else page(self), encoding="utf-8")
        return place

    def __str__(self) -> str:
        from framework.inspect.text import as_shown

        return as_shown(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from framework.inspect.text import as_html

        return as_html(self)


def _compilation(number: int, record: Any) -> Compilation:
    variant = record.variant
    if variant is None:
        return Compilation(number, record.reason, record.seconds, False)
    executable = variant.executable
    planned, made = executable.plan_seconds * 1e3, executable.build_seconds * 1e3
    return Compilation(
        number,
        record.reason,
        record.seconds,
        True,
        variant.calls,
        variant.tensor_count,
        len(variant.scalars),
        len(variant.draws),
        tuple(guard.words for guard in (*variant.names, *variant.structures)),
        () if variant.recording is None else tuple(variant.recording.words()),
        f"{len(executable.plan.kernels)} kernels in {len(set(executable.plan.levels))} launches, "
        f"arena {executable.plan.arena_bytes} bytes; planned in {planned:.0f} ms, "
        f"kernels made in {made:.0f} ms",
    )
