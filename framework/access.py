"""Looking at a tensor's memory: by its array now, or by an array or address that someone keeps.

Knows tensors; what a capture does about it, the tracer decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.state import is_recording
from framework.tensor import Tensor, concrete, wrap
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


def known_values(t: Tensor) -> Array | None:
    """The array of `t`; None in a recording, where it does not exist yet."""
    return None if is_recording() else concrete(t)


def over(array: Array) -> Tensor:
    """A new tensor of an array's memory, whether or not a call is recorded."""
    t = object.__new__(Tensor)
    t._data = array
    return t


def keep_in_step(t: Tensor) -> Tensor:
    """`t`, noted as one whose memory others may hold: deferred writes must reach it at once."""
    root = t
    while (base := root._base) is not None:
        root = base
    root._storage.exposed = t._storage.exposed = True
    return t


def numpy(t: Tensor, *, force: bool = False) -> Array:
    """The memory as an ndarray, not copied. Raises RuntimeError when it is part of a graph, unless forced."""
    if t.requires_grad and not force:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if t.is_cuda:
        if not force:
            raise TypeError(
                f"can't convert {t.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                "to host memory first."
            )
        return host(t)
    return concrete(keep_in_step(t))


def host(t: Tensor) -> Array:
    """The elements on the host: the memory itself, or a copy of what is on a GPU."""
    return arrays.get(concrete(t))


def beside(t: Tensor, array: Array) -> Tensor:
    """A new tensor of a host array, on the device of `t`."""
    return wrap(array_beside(t, array))


def array_beside(t: Tensor, array: Array) -> Any:
    """A new host array, on the device of `t`; a recording's stays, for its device is the program's."""
    number = None if t._data is None or is_recording() else arrays.number_of(t._data)
    return array if number is None else arrays.put(array, number)


def data_ptr(t: Tensor) -> int:
    """Address of the first element."""
    return arrays.address(concrete(keep_in_step(t)))
