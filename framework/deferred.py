"""A value that a driven call has recorded and not yet computed.

Ops and gradient rules are given it in place of an array; the driver that made it computes it when Python
asks.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.ir import Value
from compiler.ops.op import Op
from framework.state import ambient
from kernels.dtypes import DType
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]


class Deferred:
    """The value of `node` in `stretch`, the stretch of work that computes it; `array` once it has."""

    __slots__ = ("__weakref__", "array", "node", "stretch")

    def __init__(self, node: Value, stretch: Any, array: Array | None = None) -> None:
        self.node = node
        self.stretch = stretch
        self.array = array

    @staticmethod
    def __apply_op__(op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        tracer = ambient.tracer
        if tracer is None:
            return op(*[known(x) for x in inputs], **attrs)
        return tracer.defer(op, inputs, attrs)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, as an ndarray's."""
        return self.node.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.node.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.node.type.shape)

    def kept(self) -> Deferred | Array:
        """This value in memory of its own, whatever is written later."""
        return self.stretch.driver.own(self) if self.stretch.open else known(self).copy()

    def __array__(self, *arguments: Any, **keywords: Any) -> Array:
        return np.asarray(known(self), *arguments, **keywords)


def known(x: Any) -> Any:
    """`x`, with a deferred value replaced by its array; computes it first if need be."""
    if type(x) is not Deferred:
        return x
    if x.array is None:
        driver = x.stretch.driver
        if driver.thread != threading.get_ident():
            return driver.computed_apart(x)
        driver.flush()
    assert x.array is not None, "a flush computes every value that is still referred to"
    return x.array


def is_pending(x: Any) -> bool:
    """Whether `x` is no array yet: an IR value, or a deferred value that has not been computed."""
    return not arrays.is_array(x) and (type(x) is not Deferred or x.array is None)
