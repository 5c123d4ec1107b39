"""What can be seen after a call, as plain values, and the comparison of two worlds' observations.

Holds no tensor: a program may use again memory that nobody holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import framework as fw
from compiler.errors import TraceError
from framework import nn
from framework.optim.optimizer import Optimizer

Array = np.ndarray[Any, Any]
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass
class Seen:
    """One tensor: what it is, its values, and which elements' memory it is, counted over the observation."""

    facts: dict[str, Any]
    values: Array
    places: tuple[int, ...]


@dataclass
class Observation:
    """Everything seen after one call, by the path that leads to it."""

    things: dict[str, Any]
    outcome: Any
    printed: str
    generator: Array


@dataclass
class Difference:
    """Where two observations differ, and by how much where that is a number."""

    path: str
    words: str
    amount: float = np.inf


def observe(
    roots: dict[str, Any], outcome: Any, printed: str, versions: dict[str, int] | None = None
) -> Observation:
    """Look at everything that `roots` lead to; `versions` are those that arguments came with."""
    known: dict[int, int] = {}
    places: dict[int, int] = {}
    alive: list[Any] = []
    things: dict[str, Any] = {}
    for root, value in roots.items():
        for path, thing in walk(root, value):
            if isinstance(thing, fw.Tensor):
                alive.append(thing)  # an identity or address must not be used again while looking
                try:
                    things[path] = _seen(
                        thing, known.setdefault(id(thing), len(known)), places, path, versions or {}
                    )
                except TraceError as error:
                    things[path] = f"has no value: {error}"
            else:
                things[path] = thing
    return Observation(things, outcome, printed, fw.get_rng_state().numpy().copy())


def _seen(t: fw.Tensor, number: int, places: dict[int, int], path: str, versions: dict[str, int]) -> Seen:
    data = t.detach().numpy()
    offsets: Array = np.zeros(data.shape, np.int64) + data.ctypes.data
    for axis, (size, stride) in enumerate(zip(data.shape, data.strides, strict=True)):
        offsets += (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
    addresses = tuple(places.setdefault(int(at), len(places)) for at in offsets.reshape(-1))
    facts = {
        "tensor": number,
        "type": type(t).__name__,
        "dtype": t.dtype.name,
        "shape": tuple(t.shape),
        "requires_grad": t.requires_grad,
        "is_leaf": t.is_leaf,
    }
    if path.startswith(("argument", "state")) and ".grad" not in path:
        facts["was written"] = t._version > versions.get(path, 0)
    return Seen(facts, data.copy(), addresses)


def walk(path: str, x: Any) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values with the paths that lead to them."""
    if isinstance(x, fw.Tensor):
        yield path, x
        if x.is_leaf and x.requires_grad:
            yield from walk(f"{path}.grad", x.grad)
    elif isinstance(x, list | tuple):
        yield f"{path}: length", (type(x).__name__, len(x))
        for number, item in enumerate(x):
            yield from walk(f"{path}[{number}]", item)
    elif isinstance(x, dict):
        yield f"{path}: keys", [type(x).__name__, *map(str, x)]
        for key, item in x.items():
            yield from walk(f"{path}[{key!r}]", item)
    elif isinstance(x, nn.Module):
        yield f"{path}: mode", [m.training for m in x.modules()]
        for name, t in [*x.named_parameters(), *x.named_buffers()]:
            yield from walk(f"{path}.{name}", t)
    elif isinstance(x, Optimizer):
        for number, group in enumerate(x.param_groups):
            yield f"{path}.group{number}", {k: v for k, v in group.items() if k != "params"}
            for place, p in enumerate(group["params"]):
                yield from walk(f"{path}.state{place}", dict(x.state.get(p, {})))
    elif type(x).__name__ == "State":
        for name, item in vars(x).items():
            yield from walk(f"{path}.{name}", item)
    elif isinstance(x, int | float | str | bool | type(None)):
        yield path, x
    else:
        yield path, _ADDRESS.sub("address", repr(x))


def differences(got: Observation, wanted: Observation, rtol: float) -> Iterator[Difference]:
    """Every difference a caller could tell."""
    if got.outcome != wanted.outcome:
        yield from _text("outcome", repr(got.outcome), repr(wanted.outcome), rtol)
    yield from _text("printed", got.printed, wanted.printed, rtol)
    if not np.array_equal(got.generator, wanted.generator):
        yield Difference("generator", f"{got.generator} for {wanted.generator}")
    if list(got.things) != list(wanted.things):
        more = [path for path in got.things if path not in wanted.things]
        less = [path for path in wanted.things if path not in got.things]
        yield Difference("paths", f"only compiled: {more}, only eager: {less}")
    for path, thing in wanted.things.items():
        if path in got.things:
            yield from _thing(path, got.things[path], thing, rtol)


def _thing(path: str, got: Any, wanted: Any, rtol: float) -> Iterator[Difference]:
    if type(got) is not type(wanted):
        yield Difference(path, f"{got!r} for {wanted!r}")
    elif isinstance(wanted, Seen):
        if got.facts != wanted.facts:
            told = {k: (got.facts.get(k), v) for k, v in wanted.facts.items() if got.facts.get(k) != v}
            yield Difference(path, f"(compiled, eager) are {told}")
        elif got.places != wanted.places:
            yield Difference(path, f"memory is shared otherwise: {got.places} for {wanted.places}")
        else:
            yield from _values(path, got.values, wanted.values, rtol)
    elif isinstance(wanted, float):
        yield from _values(path, np.array(got), np.array(wanted), rtol)
    elif isinstance(wanted, str):
        yield from _text(path, got, wanted, rtol)
    elif got != wanted:
        yield Difference(path, f"{got!r} for {wanted!r}")


def _values(path: str, got: Array, wanted: Array, rtol: float) -> Iterator[Difference]:
    if got.tobytes() == wanted.tobytes():
        return
    if wanted.dtype.kind in "biu":
        if not np.array_equal(got, wanted):
            yield Difference(path, f"{got.tolist()} for {wanted.tolist()}")
        return
    if not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
        yield Difference(path, f"{got.tolist()} for {wanted.tolist()}")
        return
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        yield Difference(path, f"{got.tolist()} for {wanted.tolist()}")
    amount = float(np.abs(got[finite].astype(float) - wanted[finite]).max(initial=0))
    largest = float(np.abs(wanted[finite]).max(initial=1e-3))
    if amount > rtol * largest:
        yield Difference(path, f"{got.tolist()} for {wanted.tolist()}", amount)


def _text(path: str, got: str, wanted: str, rtol: float) -> Iterator[Difference]:
    """Texts equal but for the last digits of the numbers in them."""
    if got == wanted:
        return
    if _NUMBER.sub("#", got) != _NUMBER.sub("#", wanted):
        yield Difference(path, f"{got!r} for {wanted!r}")
        return
    pairs = zip(_NUMBER.findall(got), _NUMBER.findall(wanted), strict=True)
    for a, b in pairs:
        if abs(float(a) - float(b)) > 2e-3 + rtol * abs(float(b)):
            yield Difference(path, f"{got!r} for {wanted!r}", abs(float(a) - float(b)))
            return
