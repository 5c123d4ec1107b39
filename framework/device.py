"""Device objects: where a tensor's memory lies, and which devices there are.

Knows names, not memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kernels.gpu import arrays

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


@cache
def gpu(number: int) -> device:
    """The device object of a GPU."""
    return device("cuda", number)


def number_of(where: Any) -> int | None:
    """The number of the GPU that a name or device means; None for the CPU. Raises RuntimeError, saying what
    is missing, where there is no such device.
    """
    if where is None or where is CPU or where == "cpu":
        return None
    wanted = device(where)
    if wanted.type == "cpu":
        return None
    if wanted.type != "cuda":
        raise RuntimeError(
            f"device '{wanted}' is not available: tensors are on the CPU or on NVIDIA GPUs; use "
            "device='cpu' or 'cuda'"
        )
    engine = arrays.engine()
    number = engine.current if wanted.index is None else wanted.index
    if number >= engine.count:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: there is no device '{wanted}', of {engine.count} from "
            "'cuda:0' on"
        )
    return number


def place_of(number: int | None) -> device:
    """The device that a number of `number_of` is."""
    return CPU if number is None else gpu(number)
