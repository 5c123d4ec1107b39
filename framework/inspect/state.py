"""The state that a call may change, put aside and put back: memory, versions, gradients, random streams.

Knows tensors; which of them a call can reach is its caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from framework.state import structure
from framework.tensor import Tensor, concrete
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


class Snapshot:
    """Tensors with their gradients, and generators, as they are now."""

    def __init__(self, tensors: Iterable[Tensor], generators: Iterable[Any]) -> None:
        found = {id(t): t for t in tensors if t._data is not None}
        self.gradients = [(t, t._grad) for t in found.values()]
        found |= {id(g): g for _, g in self.gradients if g is not None and g._data is not None}
        self.tensors = list(found.values())
        self.memory = [(t, t._data, arrays.copied(t._data), t._storage.version) for t in self.tensors]
        self.generators = [(g, g.seed_value, g.offset) for g in generators]

    def values(self) -> list[tuple[str, Any]]:
        """What the state is now, with words for each part."""
        found: list[tuple[str, Any]] = []
        for t in self.tensors:
            found.append((f"the memory of a {_kind(t)}", _copied(t)))
        for t, _ in self.gradients:
            found.append((f"the gradient of a {_kind(t)}", None if t._grad is None else _copied(t._grad)))
        found += [("the state of a generator", (g.seed_value, g.offset)) for g, _, _ in self.generators]
        return found

    def restore(self) -> None:
        """Put everything back."""
        for t, data, content, version in self.memory:
            t._data = data
            if arrays.is_device(data) or (data is not None and data.flags.writeable):
                arrays.overwrite(data, content)
            t._storage.writes = version - t._storage.clock.time
        for t, gradient in self.gradients:
            if t._grad is not gradient:
                t._grad = gradient
                structure.gradients += 1
        for generator, seed, offset in self.generators:
            generator.seed_value, generator.offset = seed, offset


def _copied(t: Tensor) -> Array:
    return np.array(arrays.get(concrete(t)))  # not numpy(), after which memory counts as known to others


def _kind(t: Tensor) -> str:
    return f"{t.dtype.name}{list(t.shape)}"
