"""One kernel of a program as its author sees it: its texts, its speed, and ways to run and to change it.

Nothing here is on the way of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compiler import binding
from kernels.cpu import edits, runner
from kernels.files import Placed

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class KernelView(binding.KernelView):
    """One kernel: `source` is what was generated (or the edited text that runs instead), `path` its file.

    `spec`, `llvm` and `asm` are the levels above and below; `run_python` and `run` run it alone; `edit` puts
    a file in its place, `restore` undoes that; `bench` measures it.
    """

    path: str
    cached: bool
    compile_seconds: float
    followed: Callable[[], None] = field(repr=False, compare=False)

    @property
    def edited(self) -> Path | None:
        """The file that stands for the generated source; None when there is none."""
        edit = edits.find(self.spec)
        return None if edit is None else edit.path

    @property
    def llvm(self) -> str:
        """The kernel in LLVM's language, after its passes. Compiles it anew (about 0.1 s; the first, 1 s)."""
        from kernels.cpu.compile import intermediate

        return intermediate(self._file(), "kernel")

    @property
    def asm(self) -> str:
        """The kernel's assembly. Compiles it anew."""
        from kernels.cpu.compile import assembly

        return assembly(self._file(), "kernel")

    def bench(self, seconds: float = 0.3, threads: int | None = None) -> Any:
        """Measure the kernel on memory of its own: a `kernels.bench` Measurement, with time and roofline."""
        from kernels.bench.measuring import measure

        return measure(self.kernel.placed(), seconds=seconds, threads=threads)

    # Running it alone

    def arrays(self) -> list[Array]:
        """Memory for the kernel, flat and one array for each buffer: numbers it is defined on."""
        from kernels.prepared import filled

        return filled(self.kernel.placed())

    def run(self, *arrays: Any) -> list[Array]:
        """The memory after the compiled kernel ran on copies of `arrays` (of `self.arrays()` without any)."""
        from kernels.prepared import Prepared

        placed, memory = memory_of(self.kernel.placed(), arrays)
        Prepared(placed, arrays=memory)()
        return memory

    def run_python(self, *arrays: Any) -> list[Array]:
        """As `run`, by the source as plain Python: the same bits, and `breakpoint()` and `print()` in an
        edited file work. Raises KernelError, naming the operand, where the source leaves its memory.
        """
        from kernels.cpu.plain.run import run as run_plain

        placed, memory = memory_of(self.kernel.placed(), arrays)
        path = self.edited
        source = self.source if path is None else path.read_text()
        run_plain(source, path or self._file(), placed, memory)
        return memory

    # Changing it

    def edit(self, path: str | Path | None = None) -> Path:
        """Write the source to a file (or take the one at `path` as it is) and use that from the next call on.

        Every program of this process with this kernel follows the file whenever it changes, until it is
        removed or `restore()` is called. What does not compile is warned of, and not used.
        """
        place = edits.begin(self.spec, runner.source_of(self.spec), path)
        self.followed()
        return place

    def restore(self) -> None:
        """Remove the edited file: the generated kernel runs from the next call on."""
        edits.end(self.spec)

    def _file(self) -> Path:
        """The file of the source that runs."""
        path = Path(self.path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.source)
        return path

    def __repr__(self) -> str:
        edited = "" if self.edited is None else f", edited in {self.edited}"
        return f"<kernel {self.spec.name} {list(self.kernel.extents)}{edited}>"


def memory_of(placed: Placed, arrays: tuple[Any, ...]) -> tuple[Placed, list[Array]]:
    """A kernel and its memory, with what `arrays` hold, or without any with numbers it is defined on.

    Raises ValueError for arrays of other types or sizes.
    """
    from kernels.prepared import aligned, filled

    if not arrays:
        return placed, filled(placed)
    wanted = [f"{d.numpy}[{n}]" for d, n in zip(placed.dtypes, placed.sizes, strict=True)]
    given = [np.asarray(x) for x in arrays]
    if [f"{x.dtype}[{x.size}]" for x in given] != wanted:
        raise ValueError(
            f"{placed.work.spec.name} works on {len(wanted)} arrays, {', '.join(wanted)}; "
            f"got {', '.join(f'{x.dtype}[{x.size}]' for x in given)}: arrays() makes some"
        )
    memory = [aligned(x.size, d) for x, d in zip(given, placed.dtypes, strict=True)]
    for target, x in zip(memory, given, strict=True):
        target[:] = x.reshape(-1)
    return placed, memory
