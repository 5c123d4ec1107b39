"""Device memory that is kept when it is given back: to free it, the driver would wait for the device.

A block returns when its last owner lets go of it, and is then lent again on the same stream, where the order
of work keeps the old use before the new one. Knows sizes and streams; nothing of what is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernels.gpu.driver import OutOfMemoryError

# Every block starts at a multiple of this, so that every access may be as wide as the device allows.
ALIGNMENT = 256
# Blocks up to SMALL bytes share segments of SEGMENT bytes: the driver gives out 2 MiB at least.
SMALL, SEGMENT = 1 << 20, 1 << 21
_COUNTED = ("allocation", "segment", "allocated_bytes", "reserved_bytes", "requested_bytes")


class Source(Protocol):
    """Where memory comes from: a `kernels.gpu.device.Device`."""

    def allocate(self, size: int) -> int:
        """The address of new memory; raises OutOfMemoryError."""
        ...

    def free(self, address: int) -> None:
        """Take memory back once all that was started is done."""
        ...

    def event(self) -> Any:
        """An event to record on a stream and to query."""
        ...


@dataclass(eq=False)
class _Segment:
    """Memory that came in one piece: how much of it is cut into blocks, and how many of those are lent."""

    address: int
    size: int
    used: int = 0
    lent: int = 0


@dataclass(eq=False)
class _Piece:
    address: int
    size: int
    segment: _Segment
    stream: Any
    requested: int = 0
    # Streams other than its own that used it.
    others: set[Any] = field(default_factory=set)


class Block:
    """Memory on loan, at `address`; `size` bytes were asked for. It goes back with the object."""

    __slots__ = ("_allocator", "_piece", "address", "size")

    def __init__(self, allocator: Allocator, piece: _Piece) -> None:
        self._allocator, self._piece = allocator, piece
        self.address, self.size = piece.address, piece.requested

    def record_stream(self, stream: Any) -> None:
        """The block is used on this stream too: it is not lent again before that is done."""
        if stream is not self._piece.stream:
            self._piece.others.add(stream)

    def __del__(self) -> None:
        # A garbage collection may come while the lock is held: the next call looks at what came back.
        self._allocator._returned.append(self._piece)


class Allocator:
    """Lends the memory of a source. Any thread may call."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._returned: deque[_Piece] = deque()
        self._waiting: list[tuple[_Piece, list[Any]]] = []
        self._free: dict[tuple[Any, int], list[_Piece]] = {}
        # The segment that small blocks of a stream are cut from.
        self._open: dict[Any, _Segment] = {}
        self._segments: set[_Segment] = set()
        self._counts = {name: {"current": 0, "peak": 0, "allocated": 0, "freed": 0} for name in _COUNTED}
        self._retries = self._failures = 0

    def allocate(self, size: int, stream: Any = None) -> Block:
        """At least `size` bytes, for work on `stream`. Raises OutOfMemoryError when the cache is no help."""
        with self._lock:
            self._collect()
            rounded = size_class(size)
            idle = self._free.get((stream, rounded))
            piece = idle.pop() if idle else self._cut(rounded, stream)
            piece.requested = size
            piece.segment.lent += 1
            self._count("allocation", 1)
            self._count("allocated_bytes", rounded)
            self._count("requested_bytes", size)
            return Block(self, piece)

    def _cut(self, size: int, stream: Any) -> _Piece:
        if size > SMALL:
            segment = self._segment(size)
        else:
            segment = self._open.get(stream)
            if segment is None or segment.size - segment.used < size:
                segment = self._open[stream] = self._segment(SEGMENT)
        piece = _Piece(segment.address + segment.used, size, segment, stream)
        segment.used += size
        return piece

    def _segment(self, size: int) -> _Segment:
        try:
            address = self.source.allocate(size)
        except OutOfMemoryError:
            self._retries += 1
            self._empty()
            try:
                address = self.source.allocate(size)
            except OutOfMemoryError as error:
                self._failures += 1
                held, reserved = (self._counts[n]["current"] for n in ("allocated_bytes", "reserved_bytes"))
                error.add_note(f"{size} bytes were needed; {held} bytes are in use, {reserved} reserved")
                raise
        segment = _Segment(address, size)
        self._segments.add(segment)
        self._count("segment", 1)
        self._count("reserved_bytes", size)
        return segment

    def _collect(self) -> None:
        """See what came back, and what other streams are done with."""
        while self._returned:
            piece = self._returned.popleft()
            piece.segment.lent -= 1
            self._count("allocation", -1)
            self._count("allocated_bytes", -piece.size)
            self._count("requested_bytes", -piece.requested)
            events = []
            for stream in piece.others:
                event = self.source.event()
                event.record(stream)
                events.append(event)
            piece.others = set()
            self._waiting.append((piece, events))
        waiting, self._waiting = self._waiting, []
        for piece, events in waiting:
            if all(event.query() for event in events):
                self._free.setdefault((piece.stream, piece.size), []).append(piece)
            else:
                self._waiting.append((piece, events))

    def _count(self, name: str, change: int) -> None:
        counts = self._counts[name]
        counts["current"] += change
        counts["peak"] = max(counts["peak"], counts["current"])
        counts["allocated" if change > 0 else "freed"] += abs(change)

    def empty_cache(self) -> None:
        """Give segments that no block is lent of back to the source."""
        with self._lock:
            self._collect()
            self._empty()

    def _empty(self) -> None:
        waiting = {piece.segment for piece, _ in self._waiting}
        idle = {s for s in self._segments if not s.lent} - waiting
        for key, pieces in list(self._free.items()):
            self._free[key] = [p for p in pieces if p.segment not in idle]
        self._open = {stream: s for stream, s in self._open.items() if s not in idle}
        self._segments -= idle
        for segment in idle:
            self.source.free(segment.address)
            self._count("segment", -1)
            self._count("reserved_bytes", -segment.size)

    def memory_stats(self) -> dict[str, int]:
        """Counts under the names of `torch.cuda.memory_stats`, of all blocks together."""
        with self._lock:
            self._collect()
            counts = self._counts.items()
            stats = {f"{name}.all.{kind}": n for name, kinds in counts for kind, n in kinds.items()}
            return stats | {"num_alloc_retries": self._retries, "num_ooms": self._failures}

    def memory_allocated(self) -> int:
        """Bytes of blocks on loan."""
        return self.memory_stats()["allocated_bytes.all.current"]

    def max_memory_allocated(self) -> int:
        """The most bytes that were on loan at once."""
        return self.memory_stats()["allocated_bytes.all.peak"]

    def memory_reserved(self) -> int:
        """Bytes taken from the source."""
        return self.memory_stats()["reserved_bytes.all.current"]

    def reset_peak_memory_stats(self) -> None:
        """Let every peak be what there is now."""
        with self._lock:
            self._collect()
            for counts in self._counts.values():
                counts["peak"] = counts["current"]


def size_class(size: int) -> int:
    """The size of blocks that `size` bytes are lent in: eight sizes to a power of two, 256 bytes at least."""
    step = max(1 << max(size - 1, 1).bit_length() >> 4, ALIGNMENT)
    return max(-(-size // step) * step, ALIGNMENT)
