"""Which of a few ways to cut a kernel is fastest on a device: only where a caller asks, and can measure.

What spills or does not fit is left out without a device; the choice is kept in the disk cache. Knows launches
and their code, and no device: the caller times them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels import cache
from kernels.gpu import matmul
from kernels.gpu.code import Code
from kernels.gpu.compile import attempts, digest
from kernels.gpu.inspection import LEAST_SHARED, SHARED, inspect
from kernels.gpu.launch import Launch
from kernels.gpu.render import launch_of
from kernels.spec import MatmulSpec
from kernels.work import Work

# Launches that are compared, and the most warps of a block.
MOST, MOST_WARPS = 4, 32
# Seconds that a launch takes.
Measure = Callable[[Launch, Code], float]


def tuned(
    work: Work,
    architecture: str,
    measure: Measure,
    alignment: Sequence[int] | None = None,
    flags: int = 0,
    tf32: bool = False,
) -> Launch:
    """The fastest launch of a kernel, by what `measure` says or said before on this architecture. The
    arguments are those of `kernels.gpu.render.launch_of`. The usual launch where nothing else fits.
    """
    launches = variants(work, alignment, flags, tf32)
    name = _name(launches, architecture)
    kept = cache.read(name)
    by_digest = {digest(launch, architecture): launch for launch in launches}
    if kept is not None and kept.decode() in by_digest:
        return by_digest[kept.decode()]
    fitting = sound(launches, architecture)
    if not fitting:
        return launches[0]
    best, _ = min(fitting, key=lambda pair: measure(*pair))
    cache.write(name, digest(best, architecture).encode())
    return best


def variants(
    work: Work, alignment: Sequence[int] | None = None, flags: int = 0, tf32: bool = False
) -> list[Launch]:
    """Up to four launches of a kernel, the one that is taken without tuning first."""
    if isinstance(work.spec, MatmulSpec):
        cuts = matmul.cuts(work, tf32)[:MOST]
        return [matmul.render(work, alignment, flags, tf32, cut) for cut in cuts]
    first = launch_of(work, alignment, flags)
    warps = [first.warps, 2 * first.warps, first.warps // 2]
    return [replace(first, warps=count) for count in warps if 1 <= count <= MOST_WARPS]


def sound(launches: Sequence[Launch], architecture: str) -> list[tuple[Launch, Code]]:
    """Those that compile, with their code, which neither spills nor takes more shared memory than there is;
    of several that all spill, the one that spills least.
    """
    made = attempts([(launch, architecture) for launch in launches])
    pairs = [(launch, code) for launch, code in zip(launches, made, strict=True) if isinstance(code, Code)]
    most = SHARED.get(architecture, LEAST_SHARED)
    fitting = [pair for pair in pairs if pair[1].shared <= most]
    clean = [pair for pair in fitting if not inspect(pair[1]).spilled]
    return clean or sorted(fitting, key=lambda pair: inspect(pair[1]).spilled)[:1]


def _name(launches: Sequence[Launch], architecture: str) -> str:
    """Of a choice in the cache: it holds for one set of sizes."""
    content = repr([(digest(x, architecture), x.arguments, x.grid) for x in launches])
    return "tuned_" + hashlib.sha256(content.encode()).hexdigest()[:32]
