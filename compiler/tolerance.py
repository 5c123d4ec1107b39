"""Whether a compiled value is the eager one but for rounding: how far apart the two may be.

The room is taken from the computation itself, done once more in float64: what eager loses against that, the
compiled value may lose as well. Knows no kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir import Apply, Value
from compiler.ops.quiet import run_quietly
from kernels import dtypes
from kernels.dtypes import DType

Array = np.ndarray[Any, Any]
# Relative differences that are no fault, by dtype; none of integers and bool is.
RELATIVE: dict[DType, float] = {
    dtypes.float64: 1e-10,
    dtypes.float32: 2e-5,
    dtypes.float16: 5e-3,
    dtypes.bfloat16: 4e-2,
}
# Times eager's own error that a compiled value may be off: both are errors of some roundings.
SLACK = 16.0


@dataclass(frozen=True)
class Apart:
    """Where two values differ most beyond the room: its index, both elements, and how many elements do."""

    index: tuple[int, ...]
    eager: Any
    compiled: Any
    count: int


def precisely(node: Apply, inputs: list[Array]) -> Array:
    """A node's value with every float in float64."""
    attrs = {name: _widest(x) for name, x in node.attrs.items()}
    wide = [x.astype(np.float64) if dtypes.of_numpy(x.dtype).is_floating_point else x for x in inputs]
    return np.asarray(run_quietly(node.op.eager, *wide, **attrs))


def _widest(x: Any) -> Any:
    return dtypes.float64 if isinstance(x, DType) and x.is_floating_point else x


def precise_values(nodes: Iterable[Value], known: Mapping[Value, Array]) -> dict[Value, Array]:
    """Values in float64 of nodes, in order, of what else is `known`; an op that has none keeps `known`'s."""
    found: dict[Value, Array] = {}
    for node in nodes:
        if not isinstance(node, Apply):
            found[node] = known[node]
            continue
        try:
            found[node] = precisely(node, [found[x] if x in found else known[x] for x in node.inputs])
        except (TypeError, ValueError, IndexError):
            found[node] = known[node]
    return found


def apart(
    eager: Array, compiled: Array, precise: Array, relative: float | None = None, absolute: float = 0.0
) -> Apart | None:
    """Where `compiled` is not `eager` but for rounding; None where it is.

    `precise` is the value in float64; `relative` overrides the relative difference that is no fault,
    `absolute` is one that never is.
    """
    if eager.shape != compiled.shape:
        return Apart((), eager.shape, compiled.shape, max(eager.size, 1))
    if not eager.size:
        return None
    dtype = dtypes.of_numpy(eager.dtype)
    with np.errstate(all="ignore"):
        if not dtype.is_floating_point:
            # What eager's own rounding decides is nobody's fault.
            off = (eager != compiled) & (eager == precise)
            gap = off.astype(np.float64)
        else:
            one, two, exact = (x.astype(np.float64) for x in (eager, compiled, precise))
            own = np.abs(one - exact)
            sure = np.isfinite(one) & np.isfinite(two) & np.isfinite(exact)
            worst = float(np.max(own, where=sure, initial=0.0))
            room = (RELATIVE[dtype] if relative is None else relative) * np.abs(one) + SLACK * worst
            room += absolute + float(np.finfo(np.float32 if dtype is not dtypes.float64 else np.float64).tiny)
            gap = np.where(sure, np.abs(one - two) - room, 0.0)
            unlike = ~sure & ~((one == two) | (np.isnan(one) & np.isnan(two)))
            # Where eager overflowed and float64 did not, either may have.
            unlike &= np.isfinite(one) == np.isfinite(exact)
            gap = np.where(unlike, np.inf, gap)
            off = gap > 0
    count = int(np.count_nonzero(off))
    if not count:
        return None
    index = np.unravel_index(int(np.argmax(np.where(off, gap, -np.inf))), eager.shape)
    place = tuple(int(i) for i in index)
    return Apart(place, eager[place].item(), compiled[place].item(), count)
