"""Which numbers of a call are lifted out of its recording, and whether the recorded code allows it.

A whole number is a constant at first and is lifted once it was seen to vary; others are lifted at once. Code
that could tell a stand-in from a float gets floats. Knows containers of arguments and code objects; knows
nothing of programs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import isfinite
from typing import Any

from framework.capture.numbers import Numbers
from framework.capture.observe import Observer, is_standard
from framework.capture.tree import flatten

# Names whose use can tell a stand-in from a float, one object from its copy, or keeps a stand-in unseen.
_REVEALING = {
    *("type", "id", "is_", "is_not", "suppress", "ExitStack", "__dict__"),
    *("__setattr__", "__setitem__", "__setstate__"),
}
_REVEALING_OBJECTS = (type, id, contextlib.suppress, contextlib.ExitStack)
if sys.version_info >= (3, 12):
    # Adds floats more exactly than anything else.
    _REVEALING.add("sum")
# Modules whose C functions treat what acts like a float as one.
_FAITHFUL = {
    "builtins",
    "math",
    "cmath",
    "itertools",
    "operator",
    "_operator",
    "functools",
    "_functools",
    "collections",
    "_collections",
    "_abc",
}
_SINGLETONS = (None, True, False, ...)


class Lifting:
    """What is known of the numbers of one kind of call."""

    def __init__(self) -> None:
        self.first: list[Any] | None = None
        self.varying: set[int] = set()
        self.refused = False

    def choose(self, leaves: Sequence[Any]) -> frozenset[int]:
        """Positions of the numbers to lift from the next recording: those that were not always the same, and
        at once those that are no use as constants.
        """
        texts = [repr(x) if type(x) is float else None for x in leaves]
        if self.first is None:
            self.first = texts
            # Whole numbers and halves may be exponents, identities or switches; 1024.3 is none of these.
            self.varying.update(
                i
                for i, x in enumerate(leaves)
                if type(x) is float and isfinite(x) and not (2 * x).is_integer()
            )
        self.varying.update(i for i, (a, b) in enumerate(zip(texts, self.first, strict=True)) if a != b)
        return frozenset() if self.refused else frozenset(self.varying)


class Substitution:
    """Arguments with stand-ins: `replace(x)` is `x`, containers copied where a number inside is lifted."""

    def __init__(self, positions: frozenset[int]) -> None:
        self.positions = positions
        self.numbers: Numbers | None = None
        self.at = 0

    def liftable(self, arguments: Any) -> frozenset[int]:
        """Those of the positions that can be replaced without changing an object that is more than its
        items.
        """
        self.at = 0
        return frozenset(self._reachable(arguments))

    def replaced(self, arguments: Any, numbers: Numbers) -> Any:
        """Arguments of which the lifted numbers are stand-ins."""
        self.numbers, self.at = numbers, 0
        self.slots = {position: slot for slot, position in numbers.given}
        return self._replace(arguments)

    def _reachable(self, x: Any) -> Iterator[int]:
        items = _items(x)
        if items is None:
            count = _count(x)
            if count == 1 and self.at in self.positions and type(x) is float:
                yield self.at
            self.at += count
        else:
            for item in items:
                yield from self._reachable(item)

    def _replace(self, x: Any) -> Any:
        items = _items(x)
        if items is None:
            slot = self.slots.get(self.at) if type(x) is float else None
            self.at += _count(x)
            return x if slot is None or self.numbers is None else self.numbers.number(slot)
        new = [self._replace(item) for item in items]
        if all(a is b for a, b in zip(new, items, strict=True)):
            return x
        return _rebuilt(x, new)


def _count(x: Any) -> int:
    leaves: list[Any] = []
    flatten(x, leaves)
    return len(leaves)


def _items(x: Any) -> list[Any] | None:
    """What a container holds, in the order of its leaves; None for anything that is more than its items."""
    kind = type(x)
    if kind is list or kind is tuple:
        return list(x)
    if isinstance(x, tuple) and hasattr(x, "_fields") and not hasattr(x, "__dict__"):
        return list(x)
    if kind is dict:
        return list(x.values())
    # A dataclass compared by identity is not its fields.
    if dataclasses.is_dataclass(x) and not isinstance(x, type) and kind.__hash__ is not object.__hash__:
        names = [f.name for f in dataclasses.fields(x)]
        if list(getattr(x, "__dict__", {})) == names:
            return list(vars(x).values())
    return None


def _rebuilt(x: Any, items: list[Any]) -> Any:
    if type(x) is dict:
        return dict(zip(x, items, strict=True))
    if type(x) is list:
        return items
    if isinstance(x, tuple):
        return tuple.__new__(type(x), items)
    new = object.__new__(type(x))
    vars(new).update(zip(vars(x), items, strict=True))
    return new


def require_blind(numbers: Numbers, observer: Observer, result: Any, leaves: Sequence[Any]) -> None:
    """Refuse lifting when code that ran could have told a stand-in from a float, or keeps one.

    Raises RefusedError.
    """
    if numbers.refusal:
        numbers.refuse(numbers.refusal)
    foreign = observer.modules - _FAITHFUL
    if foreign:
        numbers.refuse(f"functions of {min(foreign)} are called")
    for code in observer.codes:
        reason = _reveals(code)
        if reason:
            numbers.refuse(f"{code.co_qualname}: {reason}")
    met = [seen for _, _, seen in (*observer.names.values(), *observer.attributes.values())]
    met += [seen for _, seen in observer.cells.values()]
    for function, _, _ in observer.functions.values():
        met += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if any(x is revealing for x in (*met, *leaves) for revealing in _REVEALING_OBJECTS):
        numbers.refuse("`type`, or what is like it, is used under another name")
    returned: list[Any] = []
    flatten(result, returned)
    if any(isinstance(x, types.FunctionType) for x in returned):
        numbers.refuse("a function is returned, which may hold a number")


@cache
def _reveals(code: types.CodeType) -> str:
    """What a code object does that may tell a stand-in from a float; "" for nothing."""
    if is_standard(code):
        return "a function of the standard library is called"
    if code.co_name in ("__exit__", "__aexit__"):
        return "a context manager may handle an error"
    revealing = _REVEALING.intersection((*code.co_names, *code.co_freevars))
    if revealing:
        return f"{min(revealing)} is used"
    if _matches_errors(code):
        return "an error is handled"
    last: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if last is not None:
            if instruction.opname == "IS_OP" and not _loads_singleton(last):
                return "objects are compared by identity"
            if last.argval == "float" and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                return "a method of the class float is used"
        last = instruction
    return ""


def _loads_singleton(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and any(instruction.argval is x for x in _SINGLETONS)


def handles_errors(codes: Iterable[types.CodeType]) -> bool:
    """Whether code that ran may handle an error: one of a stand-in's own would lead it astray."""
    return any(_handles_errors(code) for code in codes)


@cache
def _handles_errors(code: types.CodeType) -> bool:
    if {"suppress", "__exit__"}.intersection((code.co_name, *code.co_names, *code.co_freevars)):
        return True
    return _matches_errors(code)


def _matches_errors(code: types.CodeType) -> bool:
    return any(i.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH") for i in dis.get_instructions(code))
