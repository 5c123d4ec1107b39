"""Containers: Sequential, ModuleList, ModuleDict, ParameterList. They hold layers and compute nothing of
their own.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from framework.nn.module import Module, indented
from framework.nn.parameter import Parameter
from framework.state import structure_changed
from framework.tensor import Tensor


class _Indexed(Module):
    """What Sequential and ModuleList share: sub-modules under the names "0", "1", …"""

    def _index(self, index: Any) -> str:
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(
                f"index {position} is out of range: {type(self).__name__} has {len(self)} modules"
            )
        return list(self._modules)[position]

    def _renumber(self, modules: Iterable[Module]) -> None:
        modules = list(modules)
        self._modules.clear()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)
        structure_changed()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._index(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)[index] if isinstance(index, slice) else [self._index(index)]
        self._renumber(m for name, m in self._modules.items() if name not in names)

    def append(self, module: Module) -> Self:
        """Add `module` at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add each of `modules` at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put `module` before position `index`."""
        modules = list(self)
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take the module at `index` out and return it."""
        module = self._modules[self._index(index)]
        del self[index]
        return module

    def __add__(self, other: Iterable[Module]) -> Self:
        return self[:].extend(other)  # type: ignore[index]


class Sequential(_Indexed):
    """Call modules in order, each on the result of the one before: `Sequential(a, b)` or `Sequential({"a":
    a})`.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named = len(modules) == 1 and isinstance(modules[0], Mapping)
        pairs = modules[0].items() if named else ((str(i), m) for i, m in enumerate(modules))
        for name, module in pairs:
            self.add_module(name, module)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return self._modules[self._index(index)]

    def forward(self, input: Any) -> Any:
        """The last module's result."""
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Indexed):
    """A list of modules whose parameters belong to the owner."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._modules[self._index(index)]

    def __repr__(self) -> str:
        """As other modules, with a run of equal ones shown once."""
        lines, at = [], 0
        for text, run in itertools.groupby(map(repr, self)):
            count = len(list(run))
            name, times = (f"{at}", "") if count == 1 else (f"{at}-{at + count - 1}", f"{count} x ")
            lines.append(f"({name}): {times}{indented(text)}")
            at += count
        return "\n  ".join([f"{self._get_name()}(", *lines]) + "\n)" if lines else f"{self._get_name()}()"


class ModuleDict(Module):
    """A dict of modules whose parameters belong to the owner."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]
        structure_changed()

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and modules."""
        return self._modules.items()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules from a mapping or from (name, module) pairs."""
        for key, module in dict(modules).items():
            self[key] = module

    def pop(self, key: str) -> Any:
        """Take a module out and return it."""
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()
        structure_changed()


class ParameterList(Module):
    """A list of parameters; a plain tensor becomes a Parameter when it is put in."""

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._parameters[self._name(index)]

    def __setitem__(self, index: int, value: Tensor) -> None:
        setattr(self, self._name(index), _parameter(value))

    def _name(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: the list has {len(self)} parameters")
        return str(index % len(self))

    def append(self, value: Tensor) -> Self:
        """Add `value` at the end."""
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add each of `values` at the end."""
        for value in list(values):
            self.append(value)
        return self

    def __repr__(self) -> str:
        lines = [
            f"  ({i}): Parameter containing: [{p.dtype} of size {'x'.join(str(n) for n in p.shape)}]"
            for i, p in enumerate(self)
        ]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])


def _parameter(value: Tensor) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)
