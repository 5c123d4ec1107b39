"""What a maker of steps returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.works.work import Array


class Timed(NamedTuple):
    """`step(*batch)` does the work once, to its end; `look` turns what it returned into what is compared."""

    step: Callable[..., Any]
    batches: list[tuple[Any, ...]]
    look: Callable[[Any], list[Array]]
