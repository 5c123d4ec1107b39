"""Tensor: memory shared between views, its version, and its place in the gradient graph.

Holds, with apply.py, the only code that asks whether a capture is active: `payload`, `wrap`, `write`, `.grad`
and `_version`. Methods that are functions of tensors are attached by methods.py.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from compiler.errors import TraceError
from compiler.sizes import resolve
from compiler.types import TensorType
from framework.attached import Attached
from framework.deferred import Deferred, known
from framework.device import CPU, device, place_of
from framework.graph import Edge, Node, OpNode, TypeOnly
from framework.handle import RemovableHandle
from framework.layout import Geometry, Step, answered, is_row_major, itself
from framework.size import Size, axis_index
from framework.state import ambient, is_recording, structure, structure_changed, unusual
from framework.storage import Storage, placement
from kernels.dtypes import OF_NUMPY, DType
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]

# Held where one of two threads that ask for the same must be the first.
_first = threading.RLock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock."""
    global _first
    _first = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)

# How a view relates to the history of its base.
TRACKED, DETACHED, MADE_WITHOUT_GRAD = 0, 1, 2


class Tensor(Attached):
    """An n-dimensional array that records how it was computed, with the names and semantics of PyTorch's."""

    # Instances set only what differs, which keeps making one cheap.
    _data: Array | None = None
    _memory: Storage | None = None
    _base: Tensor | None = None
    _view: tuple[Step, ...] = ()
    _view_kind: int = TRACKED
    _view_version: int = 0
    _requires_grad: bool = False
    _node: Node | None = None
    _output: int = 0
    _grad: Tensor | None = None
    _accumulator: weakref.ref[Any] | None = None
    _hooks: dict[int, Callable[..., Any]] | None = None
    _post_accumulate_hooks: dict[int, Callable[..., Any]] | None = None
    _retains_grad: bool = False
    # What a tensor without memory, made in a capture, was to be; and its value, where that is computed later.
    _traced: TensorType | None = None
    _deferred: Deferred | None = None

    __array_priority__ = 1000
    # Filled in by interop.py and operations; declared for readers and type checkers.
    __hash__ = object.__hash__

    # Type and layout.

    @property
    def shape(self) -> Size:
        """Sizes of the dimensions."""
        data = self._data
        return Size(type_of(self).shape if data is None else data.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        data = self._data
        return type_of(self).dtype if data is None else OF_NUMPY[data.dtype]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        data = self._data
        return len(type_of(self).shape) if data is None else data.ndim

    @property
    def device(self) -> device:
        """Where the memory is."""
        return CPU if type(self._data) is np.ndarray else _device_of(self)

    def get_device(self) -> int:
        """The number of the GPU that the memory is on, -1 for the CPU."""
        index = self.device.index
        return -1 if index is None else index

    @property
    def layout(self) -> str:
        """Always "strided"."""
        return "strided"

    @property
    def is_cuda(self) -> bool:
        """Whether the memory is on a GPU."""
        return self.device is not CPU

    @property
    def is_sparse(self) -> bool:
        """Whether the layout is sparse: never here."""
        return False

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """All sizes, or the size of one dimension."""
        return self.shape if dim is None else self.shape[axis_index(dim, self.ndim)]

    def numel(self) -> int:
        """Number of elements."""
        data = self._data
        return self.shape.numel() if data is None else data.size

    def stride(self, dim: int | None = None) -> Any:
        """Distance in elements between neighbours along each dimension, or along one."""
        strides = geometry(self)[1]
        return strides if dim is None else strides[axis_index(dim, self.ndim)]

    def storage_offset(self) -> int:
        """Elements from the start of the memory to the first element."""
        return geometry(self)[2]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether elements lie in row-major order without gaps."""
        data = self._data
        if data is not None:
            return data.flags.c_contiguous
        return ask_geometry("it is contiguous", is_row_major, self)

    def is_floating_point(self) -> bool:
        """Whether the dtype is floating."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is complex: there are no complex dtypes."""
        return False

    def is_signed(self) -> bool:
        """Whether the dtype has negative values."""
        return self.dtype.is_signed

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a 0-d tensor")
        return shape[0]

    # Gradients.

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to or through this tensor. Only a leaf's can be set."""
        return self._requires_grad or edge_of(self) is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether this leaf collects a gradient; returns the tensor. Raises RuntimeError when it
        cannot."""
        if requires_grad and not self.dtype.is_floating_point:
            raise RuntimeError(
                f"only Tensors of floating point dtype can require gradients, this one is {self.dtype}; "
                "convert it first"
            )
        if not requires_grad and not self.is_leaf:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed "
                "variable in a "
                "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if requires_grad != self._requires_grad and self.is_leaf:
            self._requires_grad = bool(requires_grad)
            if self._data is not None:
                structure_changed()
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that computes this tensor's gradient; None for a leaf."""
        if self._base is not None:
            edge_of(self)
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this is."""
        return self._output

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, None before the first backward."""
        tracer = ambient.tracer if unusual.threads else None
        return self._grad if tracer is None else tracer.grad(self)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            self._require_fitting_grad(value)
        set_grad(self, value)

    @grad.deleter
    def grad(self) -> None:
        set_grad(self, None)

    def _require_fitting_grad(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"assigned grad expected to be a Tensor or None but got {type(value).__name__}")
        if value is self:
            raise RuntimeError("can't assign Variable as its own grad")
        if value.device != self.device:
            raise RuntimeError(
                f"assigned grad has data located on a different device: {value.device} for a tensor on "
                f"{self.device}"
            )
        if value.shape != self.shape or value.dtype is not self.dtype:
            raise RuntimeError(
                f"assigned grad has data of a different size or type: {value.dtype} {list(value.shape)} for "
                "a tensor of "
                f"{self.dtype} {list(self.shape)}"
            )

    @property
    def retains_grad(self) -> bool:
        """Whether this non-leaf keeps its gradient."""
        return self._retains_grad and not self.is_leaf

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf in `.grad` during backward."""
        edge = edge_of(self)
        if edge is None:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        if self._node is not None:
            self._retains_grad = True
            node, number = edge
            node.retained = {**(node.retained or {}), number: weakref.ref(self)}

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call `hook(gradient)` in backward; a tensor it returns replaces the gradient."""
        edge = edge_of(self)
        if edge is None:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if self._node is None:
            self._hooks = {} if self._hooks is None else self._hooks
            return RemovableHandle(self._hooks, hook)
        node, number = edge
        node.hooks = node.hooks or {}
        registered = node.hooks.setdefault(number, {})
        assert isinstance(registered, dict), "hooks of a node are a dict per output"
        return RemovableHandle(registered, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call `hook(tensor)` after a gradient was added to this leaf's `.grad`."""
        if not self._requires_grad or self._node is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if self._post_accumulate_hooks is None:
            self._post_accumulate_hooks = {}
        return RemovableHandle(self._post_accumulate_hooks, hook)

    @property
    def _storage(self) -> Storage:
        # Made when first asked for: nobody writes to, views or saves most results.
        if self._memory is None:
            made = Storage()
            with _first:
                if self._memory is None:
                    self._memory = made
        return self._memory

    @_storage.setter
    def _storage(self, memory: Storage) -> None:
        self._memory = memory

    @property
    def _version(self) -> int:
        tracer = ambient.tracer if unusual.threads else None
        return self._storage.version if tracer is None else tracer.version(self)

    def _is_view(self) -> bool:
        return self._base is not None

    # Sharing.

    def detach(self) -> Tensor:
        """A tensor of the same memory and version, outside the gradient graph."""
        alias = wrap(payload(self)) if ambient.tracer is None else ambient.tracer.share(self)
        alias._storage = self._storage
        alias._base, alias._view_kind = self, DETACHED
        return alias

    def detach_(self) -> Tensor:
        """Make this tensor a leaf, cut off from its history."""
        if self._base is not None and self._view_kind == TRACKED:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        self._node, self._output, self._requires_grad = None, 0, False
        return self

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph, with a version of its own: writes to it are not checked."""
        alias = self.detach()
        alias._storage = Storage()
        return alias

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
        if is_recording():
            ambient.tracer.set_data(self, value)
        concrete(self)
        self._data, self._storage = concrete(value), value._storage
        self._base, self._view = None, ()
        structure_changed()

    @staticmethod
    def _make_subclass(kind: type[Tensor], data: Tensor, requires_grad: bool = False) -> Any:
        """An instance of subclass `kind` over the memory of `data`, a leaf."""
        made = object.__new__(kind)
        if is_recording():
            ambient.tracer.alias(made, data)
        made._data, made._storage = concrete(data), data._storage
        if requires_grad:
            made.requires_grad_(True)
        return made

    # Values as Python sees them.

    def item(self) -> bool | int | float:
        """The value of a one-element tensor as a Python number."""
        if is_recording():
            return ambient.tracer.item(self)
        data = concrete(self)
        if data.size != 1:
            raise RuntimeError(f"a Tensor with {data.size} elements cannot be converted to Scalar")
        return data.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return concrete(self).tolist()

    def __bool__(self) -> bool:
        data = concrete(self)
        if data.size == 1:
            return bool(data.item())
        what = "no values" if data.size == 0 else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {what} is ambiguous; reduce it with any() or all()")

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point or self.numel() != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())


def _device_of(t: Tensor) -> device:
    """The device of a tensor whose memory is no plain array."""
    if t._data is None:
        return ambient.tracer.where or CPU if is_recording() else CPU  # what is deferred is on the host
    return place_of(arrays.number_of(t._data))


_new = object.__new__


def payload(t: Tensor) -> Any:
    """What ops compute on: the ndarray, or under capture the IR value or deferred value of `t`."""
    tracer = ambient.tracer if unusual.threads else None
    if tracer is not None:
        return tracer.read(t)
    return _elsewhere(t) if t._data is None else t._data


def type_of(t: Tensor) -> TensorType:
    """Shape and dtype of a tensor without memory."""
    return payload(t).type if t._traced is None else t._traced


def _elsewhere(t: Tensor) -> Array:
    """The present value of a tensor without memory of another thread's driven call. Raises TraceError when
    there is none.
    """
    root, steps = t, ()
    while root._base is not None:
        root, steps = root._base, (*root._view, *steps)
    value = root._deferred
    array: Any = root._data if value is None else known(value)
    if array is None:
        refuse_dead(t)
    for op, attrs in steps:
        array = op.compute(array, **attrs)
    return array


def refuse_dead(t: Tensor) -> NoReturn:
    """Raise the TraceError of a tensor whose capture is over: it never had a value."""
    raise TraceError(
        f"a {t._traced} made inside @compile is used after the call, where it has no value: "
        "return it from the compiled function"
    )


def wrap(data: Any) -> Tensor:
    """A new Tensor of an op's result."""
    tracer = ambient.tracer if unusual.threads else None
    if tracer is not None:
        return tracer.wrap(data)
    t = _new(Tensor)
    t._data = data
    return t


def concrete(t: Tensor) -> Array:
    """The array of `t`. Raises TraceError under capture, where it does not exist yet."""
    tracer = ambient.tracer if unusual.threads else None
    return payload(t) if tracer is None else tracer.concrete(t)


def write(t: Tensor, data: Any) -> None:
    """Overwrite the elements of `t`; every tensor of its memory sees it."""
    tracer = ambient.tracer if unusual.threads else None
    if tracer is not None:
        tracer.write(t, data)
        return
    target = t._data
    assert target is not None, "a tensor outside a capture has memory"
    if type(target) is type(data) is np.ndarray:
        np.copyto(target, data, casting="unsafe")
    else:
        arrays.overwrite(target, data)
    t._storage.writes += 1


def set_grad(t: Tensor, gradient: Tensor | None) -> None:
    """Make `gradient` the `.grad` of `t`."""
    tracer = ambient.tracer if unusual.threads else None
    if tracer is not None:
        tracer.set_grad(t, gradient)
        return
    if gradient is not t._grad:
        t._grad = gradient
        structure.gradients += 1


def geometry(t: Tensor) -> Geometry:
    """Shape, strides and offset in elements; of a traced tensor those it will have."""
    return ask_geometry("its layout", itself, t)


def ask_geometry(words: str, question: Callable[..., Any], t: Tensor, *others: Any) -> Any:
    """`question(shape, strides, offset, *others)` of a tensor; a condition where sizes are symbolic."""
    return resolve(words, answered, question, way_to(t), *others)


def way_to(t: Tensor) -> tuple[Geometry | tuple[int, ...], tuple[Step, ...]]:
    """Where memory lies (its shape alone when it is row-major), and the movements from there to `t`."""
    data = t._data
    if data is not None:
        return (data.shape, *placement(data)), ()
    if t._base is None:
        return tuple(payload(t).shape), ()
    start, steps = way_to(t._base)
    return start, (*steps, *t._view)


def edge_of(t: Tensor) -> Edge | None:
    """Where the gradient of `t` goes: its node, itself where it is a leaf, or None.

    A view whose base was written since gets its history anew, from the base's.
    """
    if t._base is not None and t._view_kind == TRACKED:
        memory = t._memory
        known = memory is not None and not unusual.threads
        version = memory.writes + memory.clock.time if known else t._version  # type: ignore[union-attr]
        if t._view_version != version:
            _renew_history(t)
    if t._node is not None:
        return t._node, t._output
    return (t, 0) if t._requires_grad else None


def _renew_history(t: Tensor) -> None:
    base = t._base
    assert base is not None, "only views are renewed"
    if is_recording():
        ambient.tracer.renewing(t)
    t._view_version = t._version
    edge = edge_of(base)
    if edge is None:
        t._node, t._output = None, 0
        return
    kind = TensorType(tuple(base.shape), base.dtype)
    for op, attrs in t._view:
        moved = op.infer(kind, **attrs)
        saved = [TypeOnly(moved.shape, kind.dtype), TypeOnly(kind.shape, kind.dtype)]
        edge = OpNode.made(op, attrs, (edge,), (0,), saved, (kind.shape,)), 0
        kind = moved
    retained = t._retains_grad
    t._node, t._output = edge
    if retained:
        t.retain_grad()
