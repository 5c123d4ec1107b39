"""Parameter: the tensor a Module owns and an optimizer updates."""

from __future__ import annotations

from typing import Any

from framework.creation import empty
from framework.tensor import Tensor


class Parameter(Tensor):
    """A leaf over the memory of `data`; set on a Module it becomes one of its `parameters()`."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        """`data` None is an empty tensor. Raises TypeError for anything else that is no Tensor."""
        data = empty(0) if data is None else data
        if not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter needs a Tensor, got {type(data).__name__}: make one with framework.tensor(...)"
            )
        return Tensor._make_subclass(cls, data.detach(), requires_grad)

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        """`__new__` has done the work."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            # Without `.grad`, unlike other tensors: PyTorch's copies of a layer start without gradients.
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.detach(), self.requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def _rebuilt(cls: type[Parameter], data: Tensor, requires_grad: bool) -> Parameter:
    return cls(data, requires_grad)
