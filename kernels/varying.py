"""Which sizes of kernels differ among the programs of one function: those are compiled for many sizes.

Kernels of two programs are the same where their specs are, in the order of the programs. Knows no addresses
and no text.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kernels.blocks import AnyWork
from kernels.spec import BLOCKS, MatmulSpec


class Varying:
    """What programs of one function had for sizes. The first has what is best for its own; of those after it,
    an axis that had another size before is expected to have yet others."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], tuple[tuple[int, ...], frozenset[int]]] = {}
        self.lock = threading.Lock()

    def marked(self, works: Sequence[AnyWork]) -> list[AnyWork]:
        """The kernels of one more program, with the axes of each that vary."""
        seen: Counter[str] = Counter()
        found: list[AnyWork] = []
        with self.lock:
            for work in works:
                digest = _digest(work)
                key = digest, seen[digest]
                seen[digest] += 1
                sizes, axes = self.known.get(key, (work.extents, frozenset[int]()))
                pairs = enumerate(zip(sizes, work.extents, strict=True))
                axes |= {axis for axis, (one, other) in pairs if one != other}
                self.known[key] = work.extents, axes
                found.append(replace(work, varying=axes))
        return found


def _digest(work: AnyWork) -> str:
    """What kernels of two programs have in common; how the CPU walks a product follows from its sizes."""
    spec = work.spec
    if isinstance(spec, MatmulSpec):
        spec = replace(spec, rows=0, vectors=0, walk=BLOCKS)
    return spec.digest
