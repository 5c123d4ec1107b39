"""When kernels run and where their memory is: levels of kernels that may run at once, places in the arena.

Knows kernels by what they read and write; not what they compute.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from compiler.lower import Bound, Buffer

# Arena places start on a cache line.
ALIGNMENT = 64


Accesses = tuple[set[Buffer], set[Buffer]]


class Touched:
    """The last level at which each buffer was read, or written: itself, or something in it."""

    def __init__(self) -> None:
        self.itself: dict[Buffer, int] = {}
        self.inside: dict[Buffer, int] = {}

    def last(self, buffer: Buffer) -> int:
        """The last level that touched memory of `buffer`; -1 before any."""
        return max(self.inside.get(buffer, -1), *(self.itself.get(b, -1) for b in buffer.around))

    def note(self, buffer: Buffer, level: int) -> None:
        """`level` touches `buffer`."""
        self.itself[buffer] = max(self.itself.get(buffer, -1), level)
        for b in buffer.around:
            self.inside[b] = max(self.inside.get(b, -1), level)


def accesses(kernel: Bound) -> Accesses:
    """Buffers a kernel reads and writes."""
    reads = {p.buffer for i, p in enumerate(kernel.places) if p.buffer and i in kernel.spec.read}
    writes = {p.buffer for i, p in enumerate(kernel.places) if p.buffer and i in kernel.spec.written}
    return reads, writes


def conflicts(kernel: Bound, checks: Sequence[Buffer], visible: Collection[Buffer]) -> Accesses:
    """What a kernel reads, or waits for as if it did, and what it writes.

    Whatever the caller can see is written after every check: an output may be the memory of an earlier
    gradient.
    """
    reads, writes = accesses(kernel)
    if kernel.indexed or any(b.root in visible for b in writes):
        reads = {*reads, *checks}
    return reads, writes


def assign_levels(found: Sequence[Accesses], units: Sequence[Sequence[int]] | None = None) -> list[int]:
    """The launch each kernel belongs to: after all it conflicts with. `units` are kernels that share one, in
    an order in which they can run.
    """
    written, read = Touched(), Touched()
    levels = [0] * len(found)
    for unit in units or [(number,) for number in range(len(found))]:
        reads = set[Buffer]().union(*(found[number][0] for number in unit))
        writes = set[Buffer]().union(*(found[number][1] for number in unit))
        level = max((1 + written.last(b) for b in reads | writes), default=0)
        level = max(level, 1 + max(map(read.last, writes), default=-1))
        for b in reads:
            read.note(b, level)
        for b in writes:
            written.note(b, level)
        for number in unit:
            levels[number] = level
    return levels


def following(found: Sequence[Accesses]) -> list[set[int]]:
    """Per kernel those that must run after it, directly."""
    after: list[set[int]] = [set() for _ in found]
    wrote: dict[Buffer, list[tuple[int, Buffer]]] = {}
    read: dict[Buffer, list[tuple[int, Buffer]]] = {}
    for number, (reads, writes) in enumerate(found):
        for buffer in reads | writes:
            for kind in (wrote, read) if buffer in writes else (wrote,):
                for earlier, other in kind.get(buffer.root, ()):
                    if earlier != number and (other in buffer.around or buffer in other.around):
                        after[earlier].add(number)
        for kind, touched in ((wrote, writes), (read, reads)):
            for buffer in touched:
                kind.setdefault(buffer.root, []).append((number, buffer))
    return after


def makes_cycle(
    after: Sequence[Collection[int]], members: Collection[int], unit: Callable[[int], Collection[int]]
) -> bool:
    """Whether something else needs one of these kernels and is needed by another; `unit` gives those that are
    one with a kernel.
    """
    waiting, seen = list(members), set[int]()
    while waiting:
        for number in set(after[waiting.pop()]) - seen:
            if number in members:
                continue
            together = unit(number)
            if any(n in members for other in together for n in after[other]):
                return True
            seen.update(together)
            waiting += together
    return False


def ordered(after: Sequence[Collection[int]], together: Iterable[Sequence[int]]) -> list[list[int]]:
    """Kernels in an order in which they can run; those of each of `together` are one."""
    units = {numbers[0]: list(numbers) for numbers in together}
    first = {n: n for n in range(len(after))}
    first |= {n: numbers[0] for numbers in units.values() for n in numbers}
    missing = dict.fromkeys(first.values(), 0)
    later = {unit: {first[m] for n in units.get(unit, [unit]) for m in after[n]} - {unit} for unit in missing}
    for units_after in later.values():
        for unit in units_after:
            missing[unit] += 1
    ready = [unit for unit, count in missing.items() if not count]
    found: list[list[int]] = []
    heapq.heapify(ready)
    while ready:
        unit = heapq.heappop(ready)
        found.append(units.get(unit, [unit]))
        for other in later[unit]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    assert len(found) == len(missing), "kernels that are one form a cycle with others"
    return found


def pack(
    kernels: Sequence[Bound], levels: Sequence[int], checks: Iterable[Buffer], outside: Collection[Buffer]
) -> tuple[dict[Buffer, int], int]:
    """Offsets in the arena: large buffers first, each at the lowest place free for all its life."""
    life: dict[Buffer, tuple[int, int]] = {}
    for kernel, level in zip(kernels, levels, strict=True):
        for place in kernel.places:
            if place.buffer is not None and (b := place.buffer.root) not in outside:
                first, last = life.get(b, (level, level))
                life[b] = (min(first, level), max(last, level))
    for b in (check.root for check in checks):
        if b in life:
            life[b] = (life[b][0], max(levels))
    return _packed(life)


def _packed(life: Mapping[Buffer, tuple[int, int]]) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers with these lives (first and last level), and where the last one ends."""
    # Of the buffers placed, by where they start: first and last level of the life, start and end.
    firsts, lasts, starts, ends = np.zeros((4, len(life)), np.int64)
    offsets: dict[Buffer, int] = {}
    for count, b in enumerate(sorted(life, key=lambda b: -b.type.nbytes)):
        size = -(-max(b.type.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        first, last = life[b]
        meets = np.flatnonzero((firsts[:count] <= last) & (lasts[:count] >= first))
        # Everything before a gap has ended where it begins.
        begins = np.zeros(len(meets) + 1, np.int64)
        np.maximum.accumulate(ends[meets], out=begins[1:])
        fits = (begins[:-1] + size <= starts[meets]).nonzero()[0]
        offset = int(begins[fits[0] if len(fits) else -1])
        at = int(starts[:count].searchsorted(offset, "right"))
        for column, entry in ((firsts, first), (lasts, last), (starts, offset), (ends, offset + size)):
            column[at + 1 : count + 1] = column[at:count]
            column[at] = entry
        offsets[b] = offset
    return offsets, int(ends.max(initial=0))
