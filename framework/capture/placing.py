"""Where tensors of a driven call have their memory: what a view views, and what a computed value fills.

Knows tensors and deferred values; what is computed when, driver.py decides.
"""

from __future__ import annotations

from typing import Any

from framework.storage import root_of
from framework.tensor import Tensor


def located(t: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    """The tensor whose memory `t` views, and the movements from it to `t`; `t` where those are not known."""
    root, chain = t, ()
    while root._base is not None:
        if not root._view and root._data is not None and root._data is not root._base._data:
            break  # a reinterpretation of the memory, or another `.data`
        chain = (*root._view, *chain)
        root = root._base
    data = t._data
    if data is not None and root is not t:
        # Another `.data`, or a reinterpretation of the memory.
        base = root._data
        if base is None or (data is not base and (not chain or root_of(data) is not root_of(base))):
            return t, ()
    return root, chain


def fill(t: Tensor) -> None:
    """Give a tensor of a stretch that has been computed its memory."""
    base = t._base
    if base is None:
        assert t._deferred is not None, "a tensor without memory is deferred"
        t._data = t._deferred.array
    else:
        if base._data is None:
            fill(base)
        data: Any = base._data
        for op, attrs in t._view:
            data = op.compute(data, **attrs)
        t._data = data
    t._deferred = t._traced = None
