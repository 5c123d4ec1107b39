"""Shapes as users see them: a tuple that prints its type and counts elements.

Knows no tensors.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from compiler.dims import is_symbolic


class Size(tuple[int, ...]):
    """The shape of a tensor; a tuple in every respect."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements of a tensor of this shape."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"framework.Size({list(self)})"

    def __add__(self, other: Any) -> Size:
        return Size(tuple.__add__(self, tuple(other)))

    def __getitem__(self, index: Any) -> Any:
        item = tuple.__getitem__(self, index)
        return Size(item) if isinstance(index, slice) else item

    def __mul__(self, count: Any) -> Size:
        return Size(tuple.__mul__(self, count))

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (tuple(self),)


def shape_argument(args: tuple[Any, ...]) -> tuple[int, ...]:
    """`f(2, 3)`, `f((2, 3))`, `f([2, 3])` and `f(Size)` all mean the shape (2, 3). Raises TypeError
    otherwise."""
    sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
    for n in sizes:
        if type(n) is not int:
            break
    else:
        return tuple(sizes)
    try:
        return tuple([n if is_symbolic(n) else n.__index__() for n in sizes])
    except AttributeError:
        wrong = next(type(n).__name__ for n in sizes if not hasattr(n, "__index__"))
        raise TypeError(
            f"a shape is made of ints, got a {wrong} in {sizes!r}; convert it with int()"
        ) from None


def axis_index(dim: int, rank: int) -> int:
    """`dim` counted from the front. Raises IndexError outside [-rank, rank), TypeError for what is no int."""
    bound = rank or 1
    try:
        dim = operator.index(dim)
    except TypeError:
        raise TypeError(f"a dimension must be an int, not {type(dim).__name__}: {dim!r}") from None
    if not -bound <= dim < bound:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})"
        )
    return dim % bound


def axis_indices(dim: Any, rank: int) -> tuple[int, ...]:
    """Sorted axes of a `dim` argument: None or an empty tuple is every axis. Raises RuntimeError on a
    repeated one."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(rank))
    if not isinstance(dim, tuple | list):
        return (axis_index(dim, rank),) if rank else _of_scalar(dim)
    axes = tuple(sorted(axis_index(d, rank) for d in dim))
    if len(set(axes)) != len(axes):
        raise RuntimeError(f"dim {list(dim)} names one dimension twice; give each once")
    return axes if rank else ()


def _of_scalar(dim: int) -> tuple[int, ...]:
    axis_index(dim, 0)
    return ()
