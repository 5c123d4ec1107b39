"""The nodes of the gradient graph that stand for compiled calls: their gradients are programs.

Knows the tensors and arrays of one call; which programs there are is backward.py's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.errors import TraceError
from framework.capture.backward import Backward, Second
from framework.deferred import known
from framework.graph import Node, Saved, raise_freed
from framework.state import is_recording
from framework.tensor import Tensor, concrete, edge_of, wrap
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


class FreedNode(Node):
    """Stands for history that the program has used up: asking it for gradients is a second backward."""

    __slots__ = ()

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        raise_freed()


class CompiledBackward(Node):
    """The gradient of one call of a compiled function: its results' history.

    `results` are the kept values that are results too, which the caller may write to.
    """

    __slots__ = (
        "arrays",
        "arrived",
        "backward",
        "freed",
        "kept",
        "output_count",
        "results",
        "shapes",
        "storages",
        "versions",
    )

    def __init__(
        self,
        backward: Backward,
        kept: list[Array],
        inputs: Sequence[Tensor],
        roots: list[tuple[Any, Any]],
        results: list[Saved],
    ) -> None:
        super().__init__(tuple(edge_of(inputs[i]) for i in backward.targets))
        self.backward = backward
        self.kept: list[Array] | None = kept
        # Lists, for a Saved each takes three times as long to make.
        tensors = [inputs[i] for i in backward.sources]
        self.arrays: list[Any] = [t._data for t in tensors]
        self.storages = [t._storage for t in tensors]
        self.versions = [storage.version for storage in self.storages]
        self.results = results
        self.shapes = roots
        self.output_count = len(roots)
        # Results that gradients come from now, and steps whose values earlier passes have let go of.
        self.arrived: tuple[bool, ...] = ()
        self.freed: frozenset[int] = frozenset()

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        kept, backward = self.kept, self.backward
        arrived = self.arrived = tuple([g is not None for g in grads])
        if kept is None or (self.freed and self._needs_freed(arrived)):
            raise_freed()
        if is_recording():
            raise TraceError(
                "a result of an earlier compiled call is differentiated inside @compile: return the loss and "
                "differentiate it outside"
            )
        # Computing what was deferred carries out writes: their versions count.
        seeds = _arrays(grads, self.shapes)
        _check(self, self.read(range(backward.direct)), self.results)
        arrays = [*seeds, *kept[: backward.read], *self.arrays[: backward.direct]]
        if any(isinstance(g, Tensor) for g in grads):
            found: list[Any] = self._with_history(backward.program.run(arrays), grads, seeds, kept)
        elif all(arrived):
            found = backward.program.run(arrays)
        else:
            program, numbers = backward.part(arrived)
            found = [None] * len(backward.types)
            for number, g in zip(numbers, program.run(arrays), strict=True):
                found[number] = g
        return [*found, *[None] * (len(self.edges) - len(found))]

    def _needs_freed(self, arrived: tuple[bool, ...]) -> bool:
        """Whether a pass from these results meets values that are gone."""
        return any(here and used & self.freed for here, used in zip(arrived, self.backward.uses, strict=True))

    def read(self, positions: Sequence[int]) -> list[Saved]:
        """What the call read of its inputs at these positions among those it keeps, as it was then."""
        return [Saved.made(self.arrays[i], self.storages[i], self.versions[i], None) for i in positions]

    def _with_history(
        self, found: list[Array], grads: list[Any], seeds: list[Array], kept: list[Array]
    ) -> list[Any]:
        """The gradients as tensors that can be differentiated."""
        tensors = [wrap(g) for g in found]
        second = self.backward.second()
        if isinstance(second, str):
            refused = NotDifferentiable(self.edges, second)
            refused.output_count = len(tensors)
            for number, t in enumerate(tensors):
                t._node, t._output = refused, number
        elif second.live:
            node = SecondBackward(self, second, grads, seeds, kept)
            for number, i in enumerate(second.live):
                tensors[i]._node, tensors[i]._output = node, number
        return tensors

    def release(self) -> None:
        uses = self.backward.uses
        self.freed |= frozenset[int]().union(*itertools.compress(uses, self.arrived))
        if all(used & self.freed for used in uses):
            self.kept = None
            self.arrays, self.storages, self.results = [], [], []


class SecondBackward(Node):
    """The gradient of the gradients of one call."""

    __slots__ = ("kept", "output_count", "results", "saved", "second", "seeds", "shapes")

    def __init__(
        self, first: CompiledBackward, second: Second, grads: list[Any], seeds: list[Array], kept: list[Array]
    ) -> None:
        through = [grads[k] for k in second.seeds]
        super().__init__(
            (
                *(first.edges[i] for i in second.targets),
                *(edge_of(g) if isinstance(g, Tensor) else None for g in through),
            )
        )
        self.second = second
        self.kept: list[Array] | None = kept
        self.seeds = seeds
        given = [Saved.made(concrete(g), g._storage, g._version, g) for g in grads if isinstance(g, Tensor)]
        self.saved = first.read(second.sources)
        self.results = [*first.results, *given]
        self.shapes = [first.backward.types[i] for i in second.live]
        self.output_count = len(second.live)

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        if self.kept is None:
            raise_freed()
        if any(isinstance(g, Tensor) for g in grads):
            raise RuntimeError(
                "the third derivative of a compiled function is not available: call the function uncompiled, "
                "or compute the derivatives inside @compile"
            )
        if is_recording():
            raise TraceError("the gradient of an earlier compiled call is differentiated inside @compile")
        incoming = _arrays(grads, self.shapes)
        _check(self, self.saved, self.results)
        sources = [known(e.data) for e in self.saved]
        return self.second.program.run([*incoming, *self.seeds, *self.kept, *sources])

    def release(self) -> None:
        self.kept = None
        self.saved, self.results, self.seeds = [], [], []


class NotDifferentiable(Node):
    """The history of gradients that cannot be differentiated, with the reason."""

    __slots__ = ("output_count", "reason")

    def __init__(self, edges: tuple[Any, ...], reason: str) -> None:
        super().__init__(edges)
        self.reason = reason

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        raise RuntimeError(
            f"the gradient of a compiled function has no gradient here ({self.reason}): call the function "
            "uncompiled for create_graph=True, or compute the second derivative inside @compile"
        )


def _check(node: Node, *lists: Sequence[Saved]) -> None:
    for entries in lists:
        for entry in entries:
            entry.check(node)


def _arrays(grads: list[Any], kinds: Sequence[tuple[Any, Any]]) -> list[Array]:
    """Incoming gradients as row-major arrays, zeros where none came."""
    return [
        np.zeros(*kind)
        if g is None
        else arrays.row_major(concrete(g) if isinstance(g, Tensor) else known(g)).reshape(kind[0])
        for g, kind in zip(grads, kinds, strict=True)
    ]
