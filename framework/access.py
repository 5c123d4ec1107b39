"""Looking at a tensor's memory: by its array now, or by an array or address that someone keeps.

Knows tensors; what a capture does about it, the tracer decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.state import is_recording
from framework.storage import Storage
from framework.tensor import Tensor, concrete

Array = np.ndarray[Any, Any]


def known_values(t: Tensor) -> Array | None:
    """The array of `t`; None in a recording, where it does not exist yet."""
    return None if is_recording() else concrete(t)


def over(array: Array) -> Tensor:
    """A new tensor of an array's memory, whether or not a call is recorded."""
    t = object.__new__(Tensor)
    t._data, t._storage = array, Storage()
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
    return concrete(keep_in_step(t))


def data_ptr(t: Tensor) -> int:
    """Address of the first element."""
    return concrete(keep_in_step(t)).ctypes.data
