"""Questions about sizes and shapes that may be symbolic, asked so that no more is fixed than must be.

What a size is, and how an answer becomes a condition, is in dims.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from compiler.dims import ATOMS, Condition, Dim, Real, Scope, Values, key_of, symbols_of


def any_symbolic(shape: tuple[int, ...]) -> bool:
    """Whether a shape has a size that varies."""
    return Dim in map(type, shape)


def known_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the symbols are. Asks nothing: False also where it depends."""
    if a is b:
        return True
    if type(a) is not Dim and type(b) is not Dim:
        return a == b
    difference = a - b
    if type(difference) is int:
        return difference == 0
    return type(difference) is Dim and key_of(difference) in difference.scope.zero


def same_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes are equal whatever the symbols are. Asks nothing."""
    if a is b:
        return True
    if len(a) != len(b):
        return False
    for one, two in zip(a, b, strict=True):  # noqa: SIM110 -- a third of the time of all()
        if one is not two and not known_equal(one, two):
            return False
    return True


def largest(a: Any, b: Any) -> Any:
    """The larger of two sizes, as an expression: asks nothing."""
    return _extremum("max", a, b)


def smallest(a: Any, b: Any) -> Any:
    """The smaller of two sizes, as an expression: asks nothing."""
    return _extremum("min", a, b)


def _extremum(kind: str, a: Any, b: Any) -> Any:
    if type(a) is not Dim and type(b) is not Dim:
        return ATOMS[kind](a, b)
    difference = a - b
    low, high = (difference, difference) if type(difference) is int else difference.bounds()
    if low is not None and low >= 0:
        return a if kind == "max" else b
    if high is not None and high <= 0:
        return b if kind == "max" else a
    return (a if type(a) is Dim else b).scope.atom(kind, a, b)


def broadcast(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """The shape that shapes with symbolic sizes broadcast to; None when they do not."""
    rank = max(map(len, shapes))
    result: list[Any] = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape, rank - len(shape)):
            have = result[axis]
            if known_equal(have, n) or (type(n) is int and n == 1):
                continue
            if type(have) is int and have == 1:
                result[axis] = n
            elif have == n:
                result[axis] = n if type(n) is int else have
            elif have == 1:
                result[axis] = n
            elif n != 1:
                return None
    return tuple(result)


def resolve(words: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` with sizes as plain ints; that it gives the same becomes a condition.

    For questions that only concrete numbers answer; `words` say what was asked.
    """
    scope = _scope_of(arguments)
    if scope is None:
        return function(*arguments)
    answer = function(*_HINTS.of(arguments))
    scope.require(
        object(),
        arguments,
        lambda values: function(*values.of(arguments)) == answer,
        f"{words}: {answer}",
    )
    return answer


def resolve_sharing(
    words: str, function: Callable[..., bool], *arguments: Any
) -> tuple[bool, Condition | None]:
    """As `resolve`, for a question that is mostly of no consequence: whether something shares memory.

    The answer is that of sizes with nothing special about them, where 1 might differ; whoever knows more may
    drop the condition.
    """
    scope = _scope_of(arguments)
    if scope is None:
        return function(*arguments), None
    answer = function(*_HINTS.of(arguments))
    if not symbols_of(arguments) <= scope.pinned:
        symbols = [a for a in scope.atoms.values() if not a.operands]
        usual = {a.text: a.hint if a.hint > 1 else 101 + 2 * i for i, a in enumerate(symbols)}
        with contextlib.suppress(ArithmeticError, AssertionError, IndexError, RuntimeError, ValueError):
            answer = function(*Values(usual).of(arguments))
    condition = scope.require(
        object(),
        arguments,
        lambda values: function(*values.of(arguments)) == answer,
        f"{words}: {answer}",
    )
    return answer, condition


class _Hints(Values):
    def __init__(self) -> None:
        super().__init__({})

    def of(self, x: Any) -> Any:
        return x.hint if type(x) is Dim or type(x) is Real else super().of(x)


_HINTS = _Hints()


def _scope_of(x: Any) -> Scope | None:
    if type(x) is Dim or type(x) is Real:
        return x.scope
    if isinstance(x, (tuple, list)):
        for item in x:
            if type(item) is not int and (scope := _scope_of(item)) is not None:
                return scope
        return None
    if isinstance(x, dict):
        return _scope_of(list(x.values()))
    return None
