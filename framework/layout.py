"""Where the elements of a view lie: a layout, the movements from it, and questions about what they lead to.

Pure functions of plain ints, so that an answer can be checked again for other sizes. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compiler.ops.op import Movement
from compiler.types import contiguous_strides

# Shape, strides and offset, in elements.
Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
Step = tuple[Movement, Mapping[str, Any]]


def itself(*where: Any) -> Any:
    """The layout as the answer."""
    return where


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> bool:
    """Whether elements lie in row-major order without gaps."""
    return all(n == 1 or s == c for n, s, c in zip(shape, strides, contiguous_strides(shape), strict=True))


def walked(way: tuple[Any, tuple[Step, ...]]) -> Geometry | None:
    """The layout at the end of a way; None when its last movement needs a copy."""
    where, steps = way
    if not where or not isinstance(where[0], tuple):
        where = where, contiguous_strides(where), 0
    for op, attrs in steps:
        if where is not None:
            where = op.view(*where, **attrs)
    return where


def answered(question: Callable[..., Any], way: Any, *others: Any) -> Any:
    """A question's answer at the end of a way, which needs no copy."""
    where = walked(way)
    assert where is not None, "a view was one when it was made"
    return question(*where, *others)


def is_way(start: Any, steps: tuple[Step, ...]) -> bool:
    """Whether movements lead from a layout to its end without a copy."""
    return walked((start, steps)) is not None
