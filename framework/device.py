"""Device objects: where a tensor's memory lies. Only the CPU exists.

Knows names, not memory.
"""

from __future__ import annotations

from typing import Any

_KNOWN = ("cpu", "cuda", "mps", "xpu", "meta")


class device:  # noqa: N801 -- PyTorch's name
    """`device("cpu")`, `device("cpu:0")`, `device("cuda", 1)`. Compares and hashes by value."""

    __slots__ = ("index", "type")

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, device):
            type, index = type.type, type.index if index is None else index
        elif isinstance(type, int):
            type, index = "cuda", type
        name, colon, number = str(type).partition(":")
        if name not in _KNOWN or (colon and not number.isdigit()):
            raise RuntimeError(
                f"Invalid device string: '{type}'; use one of {', '.join(_KNOWN)}, e.g. 'cpu' or 'cuda:0'"
            )
        self.type: str = name
        self.index: int | None = int(number) if colon else index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (self.type, self.index)


CPU = device("cpu")


def require_cpu(where: Any) -> None:
    """Raise RuntimeError, saying what is missing, unless `where` (None, a name or a device) is the CPU."""
    if where is None or where is CPU or where == "cpu":
        return
    wanted = device(where)
    if wanted.type != "cpu":
        raise RuntimeError(
            f"device '{wanted}' is not available: this build stores tensors on the CPU only; use device='cpu'"
        )
