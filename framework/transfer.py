"""Tensors from one device to another, and on which device new ones are made.

Knows tensors and arrays; what an op does on a device, compiler/ops knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from compiler.ops.creation import create
from compiler.ops.op import Op
from framework.access import over
from framework.apply import apply_op
from framework.device import CPU, number_of, place_of
from framework.graph import Node
from framework.state import ambient, is_recording, unusual
from framework.tensor import Tensor, concrete, edge_of, wrap
from kernels.gpu import arrays


class Transfer(Node):
    """The gradient of a copy to another device: it goes back to GPU `number`, or to the host."""

    __slots__ = ("number",)

    def __init__(self, edge: Any, number: int | None) -> None:
        super().__init__((edge,), "ToCopyBackward0")
        self.number = number

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        g = grads[0]
        return [moved(g, self.number) if isinstance(g, Tensor) else _there(g, self.number)]


def _there(x: Any, number: int | None) -> Any:
    return arrays.get(x) if number is None else arrays.put(x, number)


def moved(t: Tensor, number: int | None) -> Tensor:
    """`t` on GPU `number`, or on the host; itself where it is there. Gradients flow back."""
    if is_recording():
        ambient.tracer.place(place_of(number))
        return t
    if t._data is None and number is None:
        return t  # what is deferred is on the host
    data = concrete(t)
    before = arrays.number_of(data)
    if before == number:
        return t
    made = over(_there(data, number))
    edge = edge_of(t) if ambient.grad_enabled and t.dtype.is_floating_point else None
    if edge is not None:
        made._node = Transfer(edge, before)
    return made


def moved_to(t: Tensor, other: Tensor) -> Tensor:
    """`t` on the device of `other`."""
    if type(t._data) is np.ndarray and type(other._data) is np.ndarray:
        return t
    if t._data is None or other._data is None:  # in a capture, whose tensors are on one device
        return t
    return moved(t, arrays.number_of(other._data))


def creating(where: Any) -> int | None:
    """The GPU that a new tensor goes to, by a name or device; None for the host. A recording notes the device
    and makes values without one."""
    number = None if where is None or where is CPU else number_of(where)
    tracer = ambient.tracer if unusual.threads else None
    if tracer is not None and not tracer.drives:
        tracer.place(place_of(number))
        return None
    return number


def created(op: Op, attrs: Mapping[str, Any], number: int | None) -> Tensor:
    """The result of an op without inputs, on GPU `number` or on the host."""
    return apply_op(op, (), attrs) if number is None else wrap(create(op, attrs, number))


def placed(array: Any, number: int | None) -> Any:
    """A new host array, on GPU `number` if there is one."""
    return array if number is None else arrays.put(array, number)
