"""Guards of a variant: what must still be so for its program to mean what the function means.

Cheap questions first: one counter stands for all modules, optimizers and tensors; names are compared by
identity.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from framework.capture.observe import GONE, Observer, slot_of
from framework.capture.snapshots import Contents, same, snapshot
from framework.nn.module import Module
from framework.optim.optimizer import Optimizer
from framework.tensor import Tensor

# Modules are compared only after something changed, so their size does not matter.
_ANY_SIZE = 1 << 60


@dataclass(frozen=True)
class Guard:
    """One condition: `holds()`, and what it says in words."""

    holds: Callable[[], bool]
    subject: str
    seen: Any = None

    @property
    def words(self) -> str:
        """The condition as a phrase."""
        return f"{self.subject} {_short(self.seen)}" if self.seen is not None else self.subject


def structure_of(thing: Module | Optimizer | Tensor) -> dict[str, Any]:
    """Everything about a module, optimizer or tensor that recorded code may have depended on, to be compared
    shallowly.

    Options of an optimizer are absent: a step reads them through runtime scalars and guards of its own.
    """
    if isinstance(thing, Optimizer):
        groups = {f"group {i}": id(g) for i, g in enumerate(thing.param_groups)}
        members = {f"params {i}": tuple(map(id, g["params"])) for i, g in enumerate(thing.param_groups)}
        state = {
            f"state {id(p)}": tuple((k, id(v) if isinstance(v, Tensor) else v) for k, v in values.items())
            for p, values in thing.state.items()
        }
        hooks = {"hooks": (*thing._pre_hooks.values(), *thing._post_hooks.values())}
        return {**groups, **members, **state, **hooks}
    if isinstance(thing, Tensor):
        return {"kind": (thing.dtype, tuple(thing.shape), thing.stride(), thing.requires_grad, thing.device)}
    names = vars(thing).keys() - thing.runtime_numbers
    return {name: snapshot(vars(thing)[name], [_ANY_SIZE]) for name in names} | _flags(thing)


def structure_guard(thing: Module | Optimizer | Tensor) -> Guard:
    """The structure of a module, an optimizer or a tensor is unchanged."""
    seen = structure_of(thing)

    def holds() -> bool:
        if isinstance(thing, Module):
            now: dict[str, Any] = vars(thing)
            now = {**now, **_flags(thing)}
            if now.keys() - thing.runtime_numbers != seen.keys():
                return False
            return all(same(now[name], value) for name, value in seen.items())
        return structure_of(thing) == seen

    what = (
        "dtype, layout and grad flag" if isinstance(thing, Tensor) else "attributes, mode, hooks and members"
    )
    return Guard(holds, f"{type(thing).__name__} has the {what} it had")


def _flags(module: Module) -> dict[str, Any]:
    """Which parameters collect gradients, under a name that is no attribute's."""
    flags = [p is not None and p.requires_grad for p in module._parameters.values()]
    return {"requires grad": str(flags)}


def name_guards(observer: Observer) -> list[Guard]:
    """Globals, closure cells, defaults and attributes that the recorded code names."""
    found: list[Guard] = []
    for scope, name, seen in observer.names.values():
        found.append(Guard(_same_item(scope, name, seen), f"global {name} is", seen))
    for cell, seen in observer.cells.values():
        found.append(Guard(_same_cell(cell, seen), "a closure variable is", seen))
    for owner, name, seen in observer.attributes.values():
        # A class's namespace is a proxy, always current.
        held = getattr(owner, "__dict__", {})
        subject = f"{getattr(owner, '__name__', type(owner).__name__)}.{name} is"
        found.append(Guard(_same_item(held, name, seen), subject, seen))
    for (_, name), (descriptor, owner, seen) in observer.slots.items():
        found.append(Guard(_same_slot(descriptor, owner, seen), f"{type(owner).__name__}.{name} is", seen))
    for function, code, seen in observer.functions.values():
        found.append(
            Guard(_same_function(function, code, seen), f"{function.__qualname__} has its code and defaults")
        )
    for optimizer, seen in observer.optimizers.values():
        found.append(
            Guard(
                _same_options(optimizer, seen),
                "the options of an optimizer that the code reads are as they were",
            )
        )
    return found


def reached(observer: Observer, touched: Iterable[Any]) -> set[int]:
    """Identities of the tensors that the recorded code can reach by other names than its arguments."""
    stack: list[Any] = [seen for _, _, seen in (*observer.names.values(), *observer.attributes.values())]
    stack += [seen for _, seen in observer.cells.values()]
    stack += [seen for _, _, seen in observer.functions.values()]
    for thing in touched:
        if not isinstance(thing, Tensor):
            stack += thing.param_groups if isinstance(thing, Optimizer) else vars(thing).values()
    found: set[int] = set()
    while stack:
        x = stack.pop()
        if isinstance(x, Tensor):
            found.add(id(x))
        elif isinstance(x, dict):
            stack += x.values()
        elif isinstance(x, Contents | list | tuple):
            stack += x.items if isinstance(x, Contents) else x
    return found


def _same_options(optimizer: Optimizer, seen: Any) -> Callable[[], bool]:
    def holds() -> bool:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        return same(groups, seen)

    return holds


def _same_item(scope: Any, name: str, seen: Any) -> Callable[[], bool]:
    def holds() -> bool:
        now = scope.get(name, GONE)
        return now is seen or same(now, seen)

    return holds


def _same_slot(descriptor: Any, owner: Any, seen: Any) -> Callable[[], bool]:
    return lambda: same(slot_of(descriptor, owner), seen)


def _same_cell(cell: types.CellType, seen: Any) -> Callable[[], bool]:
    def holds() -> bool:
        try:
            now = cell.cell_contents
        except ValueError:
            return False
        return now is seen or same(now, seen)

    return holds


def _same_function(function: Any, code: types.CodeType, seen: Any) -> Callable[[], bool]:
    defaults, keywords = function.__defaults__, function.__kwdefaults__
    # Only a container among the defaults can change without being replaced.
    fixed = not keywords and not any(isinstance(x, list | dict | set | tuple) for x in defaults or ())

    def holds() -> bool:
        if function.__code__ is not code or function.__defaults__ is not defaults:
            return False
        return (fixed and not function.__kwdefaults__) or same((defaults, function.__kwdefaults__), seen)

    return holds


def _short(seen: Any) -> str:
    if isinstance(seen, Module | Optimizer | Tensor):
        return f"this {type(seen).__name__}"
    text = getattr(seen, "__qualname__", None) or repr(getattr(seen, "items", seen))
    text = " ".join(text.split())
    return text if len(text) < 60 else f"{text[:57]}..."
