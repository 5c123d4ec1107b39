"""One op run on tensors: its value, the view that it is, and the history that it leaves.

Every op comes through here, of eager code, of code that a capture records, and of gradients that record
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from compiler.ops.creation import create
from compiler.ops.movement import reshape
from compiler.ops.op import Movement, Op
from compiler.sizes import any_symbolic, resolve_sharing
from framework.graph import (
    VALUE,
    Edge,
    OpNode,
    Saved,
    TypeOnly,
    next_sequence,
    saved_entry,
    saved_levels,
    shape_of,
)
from framework.layout import Step, is_way
from framework.state import ambient, no_grad, unusual
from framework.storage import Storage
from framework.tensor import DETACHED, MADE_WITHOUT_GRAD, Tensor, edge_of, payload, way_to
from framework.watch import unwatched
from kernels import dtypes
from kernels.dtypes import OF_NUMPY
from kernels.gpu import arrays

_new = object.__new__
_FIRST = (0,)
_FLOATING = {d.numpy for d in dtypes.DTYPES.values() if d.category == dtypes.FLOATING}


def apply_op(op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any], *, alone: bool = False) -> Tensor:
    """Run `op` on tensors, arrays and Python numbers; a view keeps its base, and the gradient is recorded.

    `alone`: nobody else has the inputs, and the result is no view of them.
    """
    tracer = ambient.detour if unusual.threads else None
    if tracer is not None:
        if not tracer.drives:
            return unwatched(_recorded, tracer, op, inputs, attrs, alone)
        out = tracer.apply(op, inputs, attrs)
        in_memory = False
    else:
        out = _new(Tensor)
        in_memory = _computed(op, inputs, attrs, out)
    if isinstance(op, Movement) and not alone:
        _link_view(out, inputs[0], op, attrs)
    if op.grads:
        if not in_memory or op.variadic or len(inputs) > 2:
            if in_memory and op.condition and out._data.dtype in _FLOATING:  # type: ignore[union-attr]
                record_real(op, inputs[1], inputs[2], attrs, out, inputs[0])
            else:
                record(op, inputs, attrs, out)
        elif inputs and out._data.dtype in _FLOATING:  # type: ignore[union-attr]
            record_real(op, inputs[0], inputs[1] if len(inputs) == 2 else None, attrs, out)
    return out


def _computed(op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any], out: Tensor) -> bool:
    """Give `out` the value of `op`; whether all inputs were in memory."""
    try:
        if len(inputs) == 1:  # spared is the making of a list, 0.2 µs of 2
            (x,) = inputs
            made = op.value((x._data if isinstance(x, Tensor) else x,), attrs)
        elif len(inputs) == 2:
            x, y = inputs
            x, y = x._data if isinstance(x, Tensor) else x, y._data if isinstance(y, Tensor) else y
            made = op.value((x, y), attrs)
        else:
            made = op.value(tuple([x._data if isinstance(x, Tensor) else x for x in inputs]), attrs)
    except AttributeError:
        if all(x._data is not None for x in inputs if isinstance(x, Tensor)):
            raise
        out._data = op.value(tuple([payload(x) if isinstance(x, Tensor) else x for x in inputs]), attrs)
        return False
    out._data = made
    if type(made) is not np.ndarray:
        require_one_device(inputs)
    return True


def require_one_device(inputs: Iterable[Any]) -> None:
    """Raise RuntimeError for tensors on different devices; one of the host without axes goes with any."""
    found: list[str] = []
    for x in inputs:
        if isinstance(x, Tensor) and (x.is_cuda or x.ndim) and str(x.device) not in found:
            found.append(str(x.device))
    if len(found) > 1:
        raise RuntimeError(arrays.different(*sorted(found, reverse=True)[:2]))


def _recorded(tracer: Any, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any], alone: bool) -> Tensor:
    """`apply_op` in a recording, or watched."""
    out = tracer.apply(op, inputs, attrs)
    if isinstance(op, Movement) and not alone:
        _link_view(out, inputs[0], op, attrs)
    if op.grads:
        record(op, inputs, attrs, out)
        tracer.recorded(out)
    return out


def apply_reshaped(op: Op, x: Tensor, attrs: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor:
    """`op` of `x` in another shape, as one step: the gradient of `op` must take either."""
    tracer = ambient.detour if unusual.threads else None
    if x._data is not None and tracer is None:
        out = _new(Tensor)
        made = out._data = op.value((x._data,), attrs).reshape(shape)
        if made.dtype in _FLOATING:
            record_real(op, x, None, attrs, out)
        return out
    with no_grad():
        out = apply_op(reshape, (apply_op(op, (x,), attrs),), {"shape": shape}, alone=True)
    record(op, (x,), attrs, out)
    if tracer is not None and not tracer.drives:
        tracer.recorded(out)
    return out


def apply_movements(x: Tensor, steps: tuple[Step, ...], name: str) -> Tensor:
    """`x` moved by one step after the other, which leave their gradients; that of the last prints as `name`.

    What views memory is made at once: a tensor for each step would take as long as the rest.
    """
    data = x._data
    if type(data) is np.ndarray and not (unusual.threads and ambient.detour is not None):
        made, shapes = data, []
        for op, attrs in steps:
            shapes.append(made.shape)
            made = op.value((made,), attrs)
        return moved_to_array(x, made, steps, shapes, name)
    out = x
    for op, attrs in steps:
        out = apply_op(op, (out,), attrs)
    if out._node is not None:
        out._node.label = name
    return out


def moved_to_array(
    x: Tensor, made: Any, steps: tuple[Step, ...], shapes: Sequence[tuple[int, ...]], name: str
) -> Tensor:
    """`apply_movements` where `made` is what they gave in memory, and `shapes` what each was given."""
    out = _new(Tensor)
    out._data = made
    base, data = made.base, x._data
    if base is data or (base is not None and base is data.base) or _is_of(made, data):  # type: ignore[union-attr]
        _link(out, x, steps)
    if x._node is None and not x._requires_grad and x._base is None:
        return out
    if made.dtype not in _FLOATING or (unusual.threads and not ambient.grad_enabled):
        return out
    edge = edge_of(x)
    if edge is None:
        return out
    dtype = OF_NUMPY[made.dtype]
    for (op, attrs), shape in zip(steps, shapes, strict=True):
        node = out._node = OpNode()  # type: ignore[call-arg]
        node.hooks = node.retained = None
        node.label = name if op is steps[-1][0] else None
        node.sequence = next_sequence()
        node.op, node.attrs, node.positions = op, attrs, _FIRST
        node.edges, node.shapes = (edge,), (shape,)
        entry = _new(TypeOnly)
        entry.shape, entry.dtype = shape, dtype
        node.saved = [None, entry]  # no rule of a movement reads more
        edge = node, 0
    return out


def _link_view(out: Tensor, source: Tensor, op: Movement, attrs: Mapping[str, Any]) -> None:
    """Note that `out` shares the memory of `source`, if it does."""
    made, given = out._data, source._data
    if made is not None and given is not None:
        if not _is_of(made, given):
            return
    elif op is reshape and not _differ_in_ones(shape_of(source), attrs["shape"]):
        start, steps = way_to(source)
        # Any other movement is a view, and so is a reshape of what lies in order.
        if steps or (start and isinstance(start[0], tuple)):
            shares, condition = resolve_sharing("reshape is a view", is_way, start, (*steps, (op, attrs)))
            if condition is not None:
                condition.about = source, out
            if not shares:
                return
    _link(out, source, ((op, attrs),))


def _differ_in_ones(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether shapes of plain sizes differ in dimensions of size 1 at most, so that a reshape is a view."""
    if any_symbolic(shape) or any_symbolic(other):
        return False
    return [n for n in shape if n != 1] == [n for n in other if n != 1]


def _is_of(made: Any, given: Any) -> bool:
    """Whether what a movement made of `given` shares its memory."""
    base = made.base
    # Without elements there is no memory to share, but PyTorch counts versions together.
    known = base is given or (base is not None and base is given.base) or not made.size
    return known or arrays.share(made, given)


def _link(out: Tensor, source: Tensor, steps: tuple[Step, ...]) -> None:
    """Make `out`, which shares the memory of `source`, the view that `steps` lead to."""
    # To a recording a view that existed is memory of its own: what it views is another's in another call.
    viewed = source._base is not None and source._view_kind != DETACHED
    memory = out._memory = source._memory or source._storage
    if viewed and (out._data is not None or source._data is None):
        out._base, out._view = source._base, (*source._view, *steps)
    else:
        out._base, out._view = source, steps
    if out._data is None:
        out._deferred = None  # a view is computed from its base
    if not unusual.threads:
        out._view_version = memory.writes + memory.clock.time
    else:
        out._view_version = out._version
        if not ambient.grad_enabled:
            out._view_kind = MADE_WITHOUT_GRAD
    if viewed and source._view_kind == MADE_WITHOUT_GRAD:
        out._view_kind = MADE_WITHOUT_GRAD


def record_real(op: Op, x: Any, y: Any, attrs: Mapping[str, Any], out: Tensor, condition: Any = None) -> None:
    """`record` of a floating result in memory, of operands in memory: one, with `y` None, or two, maybe the
    branches of a condition."""
    if unusual.threads and not ambient.grad_enabled:
        return
    first = second = None
    if isinstance(x, Tensor):
        if x._base is not None:
            first = edge_of(x)
        elif (node := x._node) is not None:
            first = node, x._output
        elif x._requires_grad:
            first = x, 0
    if isinstance(y, Tensor):
        if y._base is not None:
            second = edge_of(y)
        elif (node := y._node) is not None:
            second = node, y._output
        elif y._requires_grad:
            second = y, 0
    if second is None:
        if first is None:
            return
        wanted, edges, shapes = 1, (first,), (x._data.shape,)  # type: ignore[union-attr]
    elif first is None:
        wanted, edges, shapes = 2, (second,), (y._data.shape,)  # type: ignore[union-attr]
    else:
        wanted, edges, shapes = 3, (first, second), (x._data.shape, y._data.shape)  # type: ignore[union-attr]
    given = (out, x) if y is None else (out, x, y) if condition is None else (out, condition, x, y)
    plan = op.plans.get(wanted)
    if plan is None:
        bits = wanted if condition is None else wanted << 1
        plan = op.plans[wanted] = saved_levels(op, len(given) - 1, bits)
    positions, reads = plan
    if len(positions) != len(edges):
        return record(op, given[1:], attrs, out)
    node = out._node = OpNode()  # type: ignore[call-arg]  # a fifth quicker than object.__new__
    node.label = node.hooks = node.retained = None
    node.sequence = next_sequence()
    node.op, node.attrs, node.positions = op, attrs, positions
    node.edges, node.shapes = edges, shapes
    saved: list[Any] = [None] * len(given)
    node.saved = saved
    for slot, level in reads:
        t = given[slot]
        if not isinstance(t, Tensor):
            # A rule may meet a number without the tensor that gave it its dtype.
            saved[slot] = t if type(t) is np.ndarray else op.typed(given[1:])[slot - 1]
        elif level == VALUE:
            memory = t._memory
            if memory is None and slot:
                memory = t._storage
            elif memory is None:  # nobody else has the output yet
                memory = t._memory = Storage()
            entry = saved[slot] = Saved()
            entry.data, entry.storage = t._data, memory
            entry.version = memory.writes + memory.clock.time
            entry.tensor = t if slot else None
            entry.edge = None
        else:
            entry = saved[slot] = _new(TypeOnly)
            entry.shape, entry.dtype = t._data.shape, OF_NUMPY[t._data.dtype]  # type: ignore[union-attr]


def record(op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any], out: Tensor) -> None:
    """Give the result of `op` its place in the gradient graph, where a gradient flows to an input."""
    if unusual.threads and not ambient.grad_enabled:
        return
    found: dict[int, Edge] = {}
    wanted, bit = 0, 1
    for x in inputs:
        if isinstance(x, Tensor) and (x._node is not None or x._requires_grad or x._base is not None):
            edge = edge_of(x)
            if edge is not None:
                wanted |= bit
                found[bit] = edge
        bit += bit
    if not wanted or out.dtype.category != dtypes.FLOATING:
        return
    positions, reads = saved_levels(op, len(inputs), wanted)
    if not positions:
        return
    saved: list[Any] = [None] * (len(inputs) + 1)
    for slot, level in reads:
        if slot == 0:
            saved[0] = saved_entry(out, level, is_output=True)
        elif isinstance(x := inputs[slot - 1], Tensor):
            saved[slot] = saved_entry(x, level)
        else:
            # A rule may meet a number without the tensor that gave it its dtype.
            saved[slot] = x if type(x) is np.ndarray else op.typed(inputs)[slot - 1]
    edges, shapes = [], []
    for i in positions:
        edges.append(found[1 << i])
        shapes.append(shape_of(inputs[i]))
    out._node = OpNode.made(op, attrs, tuple(edges), positions, saved, tuple(shapes))


def create_op(like: Tensor, op: Op, attrs: Mapping[str, Any]) -> Tensor:
    """The result of `op`, which has no inputs, on the device of `like`."""
    number = None if like._data is None or ambient.tracer is not None else arrays.number_of(like._data)
    if number is None:
        return apply_op(op, (), attrs)
    out = _new(Tensor)
    out._data = create(op, attrs, number)
    return out


Tensor.__create_op__ = create_op  # type: ignore[attr-defined]
Tensor.__apply_op__ = staticmethod(apply_op)  # type: ignore[attr-defined]
