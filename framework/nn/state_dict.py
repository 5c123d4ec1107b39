"""Reading a module tree into a flat dict of tensors and writing one back. Knows names, shapes and errors, not
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from framework.nn.parameter import Parameter
from framework.state import no_grad, structure_changed
from framework.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(strict=False)` could not place."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"

    __str__ = __repr__


class _Slot(NamedTuple):
    """Where one entry lives: table `_parameters` or `_buffers` of a module, under `name`."""

    table: dict[str, Any]
    name: str
    tensor: Tensor


def save(module: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Fill `destination` with every parameter and persistent buffer of the tree."""
    for key, slot in _slots(module, prefix):
        destination[key] = slot.tensor if keep_vars else slot.tensor.detach()
    return destination


def load(module: Any, state: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Write `state` into the tree, or raise one error about everything that does not fit and write
    nothing.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state)}.")
    slots = dict(_slots(module, ""))
    missing = [key for key in slots if key not in state]
    unexpected = [key for key in state if key not in slots]
    problems = _key_problems(missing, unexpected) if strict else []
    for key, slot in slots.items():
        if key in state:
            problems += _fit_problems(key, slot.tensor, state[key])
    if problems:
        listed = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{listed}")
    with no_grad():
        for key, slot in slots.items():
            if key in state:
                _write(slot, state[key], assign)
    return IncompatibleKeys(missing, unexpected)


def _slots(module: Any, prefix: str) -> Iterator[tuple[str, _Slot]]:
    for name, p in module._parameters.items():
        if p is not None:
            yield prefix + name, _Slot(module._parameters, name, p)
    for name, b in module._buffers.items():
        if b is not None and name not in module._transient_buffers:
            yield prefix + name, _Slot(module._buffers, name, b)
    for name, child in module._modules.items():
        if child is not None:
            yield from _slots(child, f"{prefix}{name}.")


def _key_problems(missing: list[str], unexpected: list[str]) -> list[str]:
    return [
        f"{kind} key(s) in state_dict: {', '.join(_quoted(k) for k in keys)}. "
        for kind, keys in (("Missing", missing), ("Unexpected", unexpected))
        if keys
    ]


def _quoted(key: str) -> str:
    """A key in double quotes, as the error lists show it."""
    return f'"{key}"'


def _fit_problems(key: str, present: Tensor, given: Any) -> list[str]:
    if not isinstance(given, Tensor):
        return [
            f'While copying the parameter named "{key}", expected Tensor from checkpoint but received '
            f"{type(given)}"
        ]
    if tuple(given.shape) != tuple(present.shape):
        return [
            f"size mismatch for {key}: copying a param with shape {_size(given)} from checkpoint, the shape "
            f"in current model is {_size(present)}."
        ]
    return []


def _size(x: Tensor) -> str:
    return f"{list(x.shape)}"


def _write(slot: _Slot, given: Tensor, assign: bool) -> None:
    if not assign:
        slot.tensor.copy_(given)
        return
    if isinstance(slot.tensor, Parameter) and not isinstance(given, Parameter):
        given = Parameter(given, requires_grad=slot.tensor.requires_grad)
    slot.table[slot.name] = given
    structure_changed()
