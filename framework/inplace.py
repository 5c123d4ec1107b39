"""Writing into tensors: `add_` and its kind, `copy_`, and the history a write leaves.

A write through a view becomes part of its base's history; other views renew theirs from it (tensor.py,
`edge_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ops import movement
from compiler.ops.creation import full_like
from compiler.ops.movement import to_write_through
from compiler.ops.op import Elementwise
from compiler.ops.quiet import quiet
from framework.apply import apply_op
from framework.graph import Edge, Node, OpNode, Saved, next_sequence, shape_of
from framework.promotion import as_operand, can_cast, convert, scalar
from framework.size import Size
from framework.small import weak
from framework.state import ambient, unusual
from framework.tensor import (
    DETACHED,
    MADE_WITHOUT_GRAD,
    TRACKED,
    Tensor,
    ask_geometry,
    edge_of,
    geometry,
    payload,
    write,
)
from framework.transfer import moved_to
from kernels.gpu import arrays


class Overwrite(Node):
    """The gradient of writing `source` over a tensor: all of it goes to the source, zeros to what was
    there."""

    __slots__ = ()

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        return [full_like(grads[0], 0.0), grads[0]]


class WriteThroughView(Node):
    """The gradient of writing through a view of a base: the viewed part goes to what was written, the rest to
    the base."""

    __slots__ = ("steps",)

    def __init__(self, edges: tuple[Edge | None, ...], steps: tuple[Any, ...]) -> None:
        super().__init__(edges, "CopySlices")
        self.steps = steps

    def gradients(self, grads: list[Any], unpack: Callable[[Any], Any]) -> list[Any]:
        g = grads[0]
        stages, steps = [g], to_write_through(self.steps, tuple(g.shape))
        for op, attrs in steps:
            stages.append(op(stages[-1], **attrs))
        seen = stages[-1]
        rest = full_like(seen, 0.0)
        for (op, attrs), stage in zip(reversed(steps), reversed(stages[:-1]), strict=True):
            rest = op.unview(stage, rest, **attrs)
        return [rest, seen]


def assign(t: Tensor, new: Any, name: str) -> Tensor:
    """Write `new` (a tensor of a shape that broadcasts to `t`, or a number) over `t`, history included;
    returns `t`."""
    data = t._data
    if type(data) is np.ndarray and not (unusual.threads and ambient.detour is not None):
        number, recorded = weak(new, data.dtype), not unusual.threads or ambient.grad_enabled
        if number is not None and not (recorded and edge_of(t) is not None):
            require_writable(t)
            data[...] = number
            t._storage.writes += 1
            if recorded:
                _rebase(t, None)
            return t
    new = as_operand(new)
    if not isinstance(new, Tensor):
        new = scalar(new, t.dtype)
    require_writable(t)
    new = moved_to(convert(_fitted(t, new, name), t.dtype), t)
    _write(t, new, cuts=True)
    return t


def update(
    t: Tensor,
    compute: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    name: str,
    op: Elementwise | None = None,
) -> Tensor:
    """`t` replaced by `compute(t, *args, **kwargs)`, as `t.name_(*args)`; returns `t`. `op` is what `compute`
    does on two operands of one dtype."""
    require_writable(t)
    for x in args:
        if isinstance(x, Tensor) and x is not t and x._memory is t._memory is not None:
            _refuse_partial_overlap(t, x)
    recorded = not unusual.threads or ambient.grad_enabled
    if op is not None and len(args) == 1 and not kwargs and _done_in_memory(op, t, args[0], recorded):
        return t
    started = next_sequence() if recorded else 0
    new = compute(t, *args, **kwargs)
    if shape_of(new) != shape_of(t):
        raise RuntimeError(
            f"output with shape {list(t.shape)} doesn't match the broadcast shape {list(new.shape)}: {name} "
            "cannot grow its "
            "tensor; use the out-of-place operation"
        )
    if new.dtype is not t.dtype and not can_cast(new.dtype, t.dtype):
        raise RuntimeError(
            f"result type {new.dtype.name.capitalize()} can't be cast to the desired output type "
            f"{t.dtype.name}: {name} "
            "keeps its tensor's dtype; convert the tensor first, or use the out-of-place operation"
        )
    new = convert(new, t.dtype)
    if new is t:
        return t
    if new._node is not None:
        _freeze_operand(new._node, t, started)
    _write(t, new, cuts=False)
    return t


def _done_in_memory(op: Elementwise, t: Tensor, other: Any, recorded: bool) -> bool:
    """Compute `op` of `t` and `other` right into the memory of `t`, if it leaves no history and is one
    function of NumPy's on one dtype; whether that was so."""
    x = t._data
    if type(x) is not np.ndarray or (unusual.threads and ambient.detour is not None):
        return False
    y = other._data if isinstance(other, Tensor) else weak(other, x.dtype)
    function = op.direct.get(x.dtype)
    if type(y) is not np.ndarray or y.dtype is not x.dtype or not isinstance(function, np.ufunc):
        return False
    if recorded and (edge_of(t) is not None or (isinstance(other, Tensor) and edge_of(other) is not None)):
        return False
    try:
        quiet(function, x, y, x)
    except (ValueError, RuntimeError):
        return False  # before anything is written: it is said in our words, or done in another context
    t._storage.writes += 1
    if recorded:
        _rebase(t, None)
    return True


def require_writable(t: Tensor) -> None:
    """Raise RuntimeError when a write to `t` would break a leaf's gradient or hit one address twice."""
    data = t._data
    overlaps = (
        _overlaps_itself(data.shape, data.strides, 0)
        if data is not None
        else ask_geometry("elements share an address", _overlaps_itself, t)
    )
    if overlaps:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. "
            "Please clone() the tensor before performing the operation."
        )
    if unusual.threads and not ambient.grad_enabled:
        return
    if t._requires_grad and t._node is None:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    base = t._base
    if base is None or t._view_kind == DETACHED:
        return
    while base._base is not None and base._view_kind != DETACHED:  # one that a recording met
        base = base._base
    if base._requires_grad and base._node is None and t._view_kind == TRACKED:
        raise RuntimeError(
            "a view of a leaf Variable that requires grad is being used in an in-place operation."
        )
    if t._view_kind == MADE_WITHOUT_GRAD and edge_of(base) is not None:
        raise RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode enabled. Given "
            "that this use "
            "case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both "
            "the view and the "
            "inplace either both inside the no_grad block (if you don't want the inplace to be tracked) or "
            "both outside "
            "(if you want the inplace to be tracked)."
        )


def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> bool:
    return (
        0 in strides and 0 not in shape and any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True))
    )


def _refuse_partial_overlap(t: Tensor, x: Tensor) -> None:
    if not (t.is_contiguous() and x.is_contiguous()):
        return
    (shape, _, start), (_, _, other) = geometry(t), geometry(x)
    size = Size(shape).numel()
    end, other_end = start + size, other + x.numel()
    if start < other_end and other < end and (start, end) != (other, other_end):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
            "single memory "
            "location. Please clone() the tensor before performing the operation."
        )


def _fitted(t: Tensor, new: Tensor, name: str) -> Tensor:
    shape = tuple(t.shape)
    have = tuple(new.shape)
    if have == shape:
        return new
    # Leading ones may go, as NumPy and PyTorch allow for assignment.
    extra = max(len(have) - len(shape), 0)
    if extra and all(n == 1 for n in have[:extra]):
        new = apply_op(movement.reshape, (new,), {"shape": have[extra:]})
        have = have[extra:]
    if len(have) > len(shape) or any(
        n not in (1, m) for n, m in zip(reversed(have), reversed(shape), strict=False)
    ):
        raise RuntimeError(
            f"{name}: a value of shape {list(new.shape)} does not broadcast to the written tensor's shape "
            f"{list(shape)}"
        )
    return apply_op(movement.expand, (new,), {"shape": shape})


def _freeze_operand(node: Node | None, t: Tensor, started: int) -> None:
    """Nodes made since `started` saved `t` before the write: let them keep that value, as PyTorch's in-place
    rules do."""
    stack, seen = [node], set()
    while stack:
        current = stack.pop()
        if current is None or current.sequence < started or current in seen:
            continue
        seen.add(current)
        if isinstance(current, OpNode):
            for entry in current.saved or ():
                if type(entry) is Saved and entry.storage is t._storage:
                    entry.freeze(None if entry.tensor is None else edge_of(entry.tensor))
        stack.extend(current.below)


def _write(t: Tensor, new: Tensor, cuts: bool) -> None:
    """Store `new` in `t`; `cuts` when its value does not come from `t`, so that the old history gets
    zeros."""
    recorded = not unusual.threads or ambient.grad_enabled
    old_edge = edge_of(t) if recorded else None
    new_edge = edge_of(new) if recorded else None
    data = payload(new)
    if new._memory is t._memory is not None and arrays.is_array(data):
        data = data.copy()
    write(t, data)
    if not recorded:
        return
    through_view = t._base is not None and t._view_kind == TRACKED
    if old_edge is not None and (cuts or new_edge is None) and not through_view:
        new_edge = Overwrite((old_edge, new_edge), "CopyBackwards"), 0
    _rebase(t, new_edge)


def _rebase(t: Tensor, edge: Edge | None) -> None:
    """Give `t` the history `edge`; through a view, give it to the base's part."""
    base = t._base
    if base is None or t._view_kind == DETACHED:
        _set_history(t, edge)
        return
    base_edge = edge_of(base)
    if edge is None and base_edge is None:
        t._view_version = t._version
        return
    _set_history(base, (WriteThroughView((base_edge, edge), t._view), 0))
    t._view_version = -1
    edge_of(t)


def _set_history(t: Tensor, edge: Edge | None) -> None:
    retained = t._retains_grad and t._node is not None
    if retained and t._node is not None and t._node.retained:
        t._node.retained = {n: r for n, r in t._node.retained.items() if r() is not t}
    if edge is None:
        t._node, t._output = None, 0
        return
    t._node, t._output, t._requires_grad = edge[0], edge[1], False
    if retained:
        t.retain_grad()


def copy_(t: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write `src`, broadcast and converted, over `t`."""
    src = as_operand(src)
    if isinstance(src, Tensor):
        if src is t:
            return t
        if src._storage is t._storage:
            require_writable(t)
            _refuse_partial_overlap(t, src)
    return assign(t, src, "copy_")


def zero_(t: Tensor) -> Tensor:
    """Write zeros."""
    return assign(t, 0, "zero_")


def fill_(t: Tensor, value: Any) -> Tensor:
    """Write one number."""
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions."
        )
    return assign(t, value, "fill_")
