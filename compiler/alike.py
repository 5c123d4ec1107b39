"""Groups of one structure are lowered once: the steps of an unrolled loop become one spec with other memory.

Knows what of a group its spec depends on: ops, types, strides and which operands are one. Offsets and buffers
are filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.ir import Apply, Const, Value
from compiler.lower import Buffer, Geometry, Kernel, Place, index_geometry, resolve
from compiler.ops import creation, indexing
from compiler.schedule import Group
from kernels.spec import LoopSpec, MatmulSpec

Output = tuple[Apply, Buffer, Geometry]


@dataclass(frozen=True)
class _Pattern:
    """A kernel without its memory: per place the number of its spot, its strides, and that of an index."""

    spec: LoopSpec | MatmulSpec
    extents: tuple[int, ...]
    places: tuple[tuple[int, tuple[int, ...], int], ...]


class Outline:
    """What the kernel of a group depends on, as a `key`, and the `spots` its operands lie at, each a buffer
    and an offset; the key is None where a group is better lowered on its own.
    """

    def __init__(
        self,
        group: Group,
        buffers: Mapping[Value, Buffer],
        stored: Callable[[Value], Geometry | None],
        outputs: Sequence[Output],
    ) -> None:
        self.buffers, self.stored = buffers, stored
        self.spots: dict[tuple[Buffer | None, int], int] = {}
        numbers: dict[Value, int] = {}
        rows: list[object] = []
        self.key: object = None
        for node in group.nodes:
            if node.op in (indexing.take, indexing.gather):
                return
            for x in node.inputs:
                if x not in numbers:
                    numbers[x] = len(numbers)
                    rows.append(self._operand(x))
            inputs = tuple([numbers[x] for x in node.inputs])
            numbers[node] = len(numbers)
            rows.append((node.op, node.type.shape, node.type.dtype, inputs, node.attrs_text))
        written = [(numbers[n], self._spot(b, offset), strides) for n, b, (_, strides, offset) in outputs]
        # A product reads an index grid from memory, its epilogue need not.
        if group.kind == "loop" or not any(b is None for b, _ in self.spots):
            self.key = group.kind, group.domain, group.inner, tuple(rows), tuple(written)

    def _spot(self, buffer: Buffer | None, offset: int) -> int:
        return self.spots.setdefault((buffer, offset), len(self.spots))

    def _operand(self, x: Value) -> tuple[Any, ...]:
        """What of a value from outside a kernel depends on."""
        if isinstance(x, Const) and x.ndim == 0:
            return Const, x.dtype, x.data.tobytes()
        if isinstance(x, Apply) and x.op is creation.full:
            return x.op, x.dtype, x.attrs_text
        base, (shape, strides, offset) = resolve(x, self._known)
        is_index = isinstance(base, Apply) and base.op is creation.iota
        spot = self._spot(None if is_index else self.buffers[base], offset)
        return base.dtype if is_index else None, x.dtype, shape, strides, spot

    def _known(self, value: Value) -> Geometry | None:
        return index_geometry(value) or self.stored(value)


class Alike:
    """Kernels made so far in one plan, by what they depend on."""

    def __init__(self) -> None:
        self.patterns: dict[object, _Pattern] = {}

    def kernel(self, group: Group, outline: Outline) -> Kernel | None:
        """The kernel of a group, if one like it was made."""
        pattern = None if outline.key is None else self.patterns.get(outline.key)
        if pattern is None:
            return None
        spots = list(outline.spots)
        places = tuple([Place(*spots[number], strides, step) for number, strides, step in pattern.places])
        return Kernel(pattern.spec, pattern.extents, places, tuple(group.nodes))

    def note(self, outline: Outline, kernels: Sequence[Kernel]) -> None:
        """Remember what a group was lowered to, unless it has memory of its own or is cut into parts."""
        if outline.key is None or len(kernels) != 1 or kernels[0].parts or kernels[0].serial:
            return
        (kernel,) = kernels
        numbers = [outline.spots.get((p.buffer, p.offset)) for p in kernel.places]
        if None not in numbers:
            rows = zip(numbers, kernel.places, strict=True)
            places = tuple([(n, p.strides, p.index_stride) for n, p in rows if n is not None])
            self.patterns[outline.key] = _Pattern(kernel.spec, kernel.extents, places)
