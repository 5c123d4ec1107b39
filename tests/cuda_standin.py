"""A stand-in for cupy.cuda: devices, streams and events of the host, on which nothing is ever under way."""

from __future__ import annotations

import threading
from typing import Any

COUNT = 2


class _Current(threading.local):
    device: int = 0
    stream: Any = None


current = _Current()


class Device:
    """As cupy.cuda.Device."""

    def __init__(self, number: int | None = None) -> None:
        self.id = current.device if number is None else number
        if not 0 <= self.id < COUNT:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self.before: list[int] = []

    def __enter__(self) -> Device:
        self.before.append(current.device)
        current.device = self.id
        return self

    def __exit__(self, *exception: object) -> None:
        current.device = self.before.pop()

    def use(self) -> Device:
        current.device = self.id
        return self

    def synchronize(self) -> None:
        """Nothing is ever under way."""


class Event:
    """As cupy.cuda.Event, at a time that counts events."""

    clock = iter(range(1 << 62))

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.time, self.timed = -1, not disable_timing

    def record(self, stream: Any = None) -> None:
        self.time = next(Event.clock)

    def query(self) -> bool:
        return True

    done = property(query)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


class Stream:
    """As cupy.cuda.Stream."""

    ids = iter(range(0x1000, 1 << 40, 16))

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None
    ) -> None:
        self.ptr = 0 if null else next(Stream.ids)
        self.before: list[Any] = []
        self.synchronized = 0

    def __enter__(self) -> Stream:
        self.before.append(current.stream)
        current.stream = self
        return self

    def __exit__(self, *exception: object) -> None:
        current.stream = self.before.pop()

    def use(self) -> Stream:
        current.stream = self
        return self

    def record(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Nothing is ever under way."""

    def synchronize(self) -> None:
        self.synchronized += 1

    @property
    def done(self) -> bool:
        return True


_NULL = Stream(null=True)


def current_stream() -> Stream:
    return current.stream or _NULL


def elapsed(start: Event, end: Event) -> float:
    if start.time < 0 or end.time < 0:
        raise ValueError("cudaErrorInvalidResourceHandle: an event was not recorded")
    return float(end.time - start.time)
