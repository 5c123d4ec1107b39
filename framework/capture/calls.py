"""Calls of library functions whose Python a driven call need not run again: `linear`, `cross_entropy`.

What such a function computes depends on the nodes its tensors have, which of them need a gradient, and plain
values; met again, the result comes at once, with one gradient node. Knows drivers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compiler.ir import Value
from compiler.ops.op import Op
from framework.capture.known import KnownCall
from framework.capture.reading import Reader, UnfitError, value_of
from framework.capture.stretch import meets_a_gpu
from framework.deferred import Deferred
from framework.graph import next_sequence
from framework.nn.parameter import Parameter
from framework.size import Size
from framework.state import ambient
from framework.tensor import Tensor, edge_of, way_to
from kernels.dtypes import DType

if TYPE_CHECKING:
    from framework.capture.driver import Driver

_UNMET = object()


class Recording:
    """What one run of a library function asked for beside its result; `valid` while that is all known."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.numbers = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        self.valid = True
        # The node of a bool that must be false, or an op's check and the arguments it is asked of.
        self.checks: list[Value | tuple[Op, tuple[int, ...], Mapping[str, Any]]] = []

    def check(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> None:
        """Note a check of values that are known."""
        numbers = [self.numbers.get(id(x)) for x in inputs]
        self.checks.append((op, tuple([n for n in numbers if n is not None]), attrs))
        self.valid = self.valid and None not in numbers


def library_call(
    driver: Driver, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`function(*args, **kwargs)`, by what it gave for such arguments before if that is known."""
    if driver.outcome is not None or driver.recording is not None:
        return function(*args, **kwargs)
    if meets_a_gpu(driver, (*args, *kwargs.values())):
        return function(*args, **kwargs)
    driver.cut()
    tensors: list[Tensor] = []
    values: list[Deferred] = []
    key = _key(driver, function, args, kwargs, tensors, values)
    if key is None:
        return function(*args, **kwargs)
    known = driver.book.calls.get(key, _UNMET)
    if known is _UNMET:
        loose = tuple([x for x in key if type(x) is not int and type(x) is not str])
        if loose in driver.book.varying:
            return function(*args, **kwargs)
        return _recorded(driver, function, args, kwargs, key, loose, tensors, values)
    if known is None or (known.checks and not known.passes(driver, tensors)):
        return function(*args, **kwargs)
    return known.result(driver, tensors, values)


def _key(
    driver: Driver,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[Tensor],
    values: list[Deferred],
) -> tuple[Any, ...] | None:
    """What the outcome depends on; None where that is not known. Fills `tensors` and their `values`."""
    stretch, recorded = driver.stretch, ambient.grad_enabled
    key: list[Any] = [function, recorded, ambient.default_dtype]
    if kwargs:
        key += kwargs
        args = (*args, *kwargs.values())
    for x in args:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            data, base = x._data, x._base
            if data is None and base is None and x._deferred is None:
                return None
            value = driver.read(x)
            if value.stretch is not stretch:
                return None
            node = value.node
            if node in key:
                key.append(next((i for i, t in enumerate(tensors) if t is x), -1))
            tensors.append(x)
            values.append(value)
            key.append(node)
            if base is not None:
                key += (recorded and edge_of(x) is not None, _place_of(x))
            else:
                key.append(recorded and (x._requires_grad or x._node is not None))
                if data is not None and not data.flags.c_contiguous:
                    key.append(data.strides)
        elif kind is float:
            key += (kind, x.hex())
        elif x is None or kind is int or kind is bool or kind is str or kind is DType:
            key += (kind, x)
        elif (kind is tuple or kind is Size) and all(type(n) is int for n in x):
            key += (kind, tuple(x))
        else:
            return None
    return tuple(key)


def _place_of(view: Tensor) -> Any:
    """How a view lies in memory, as part of a key."""
    if view._data is not None:
        return view._view_kind, view._data.strides
    start, steps = way_to(view)
    return view._view_kind, start, tuple([(op, tuple(attrs.items())) for op, attrs in steps])


def _recorded(
    driver: Driver,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: Any,
    loose: Any,
    tensors: list[Tensor],
    values: list[Deferred],
) -> Any:
    """Run the function, and keep what it did."""
    stretch, book, started = driver.stretch, driver.book, next_sequence()
    inputs, first, ops = len(stretch.inputs), len(stretch.tensors), len(stretch.values)
    driver.recording = recording = Recording(tensors)
    try:
        result = function(*args, **kwargs)
    finally:
        driver.recording = None
    if driver.stretch is not stretch:
        return result
    if len(stretch.inputs) > inputs:  # a number that varies, and is an input now
        book.varying.add(loose)
        return result
    made = {id(t) for r in stretch.tensors[first:] if (t := r()) is not None}
    book.calls[key] = None
    if recording.valid and id(result) in made and id(result) not in recording.numbers:
        reader = Reader(stretch, tensors, values, made, started)
        with contextlib.suppress(UnfitError):
            known = KnownCall(value_of(result, stretch).node, len(stretch.values) - ops, recording.checks)
            book.calls[key] = reader.read(result, known)
    return result
