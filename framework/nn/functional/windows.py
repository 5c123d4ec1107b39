"""Windows that slide along one axis: their elements, sums and maxima, with gradients that are elementwise.

The gradient of a strided slice is mostly zeros, one array of them per element of a window; here the
gradients of all elements are put together where they belong in one go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.dims import is_symbolic
from compiler.ops import movement
from compiler.ops.compare import where
from compiler.sizes import largest
from framework.autograd import Function
from framework.creation import arange, zeros_like
from framework.elementwise import isnan
from framework.tensor import Tensor
from framework.views import sliced, stack
from kernels import dtypes


@dataclass(frozen=True)
class Windows:
    """Windows along an axis of `size` elements: `stride` apart, of `kernel` elements `dilation` apart."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil: bool

    @property
    def count(self) -> int:
        """How many windows there are; with `ceil` also one that reaches past the end, if it starts inside."""
        room = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        if not self.ceil:
            return room // self.stride + 1
        count = (room + self.stride - 1) // self.stride + 1
        return count - 1 if (count - 1) * self.stride >= self.size + self.padding else count

    def padded(self, x: Tensor, axis: int, value: float) -> Tensor:
        """`x` with `value` wherever a window reaches outside."""
        high = self.padding
        if self.ceil:
            span = self.dilation * (self.kernel - 1) + 1
            high = largest((self.count - 1) * self.stride + span - self.size - self.padding, high)
        return x if not self.padding and not self.ceil else _padded(x, axis, self.padding, high, value)

    def element(self, padded: Tensor, axis: int, number: int) -> Tensor:
        """Element `number` of every window."""
        start, count = number * self.dilation, self.count
        return sliced(padded, axis, start, start + (count - 1) * self.stride + 1, self.stride)

    def starts(self, like: Tensor, axis: int) -> Tensor:
        """Where every window begins, negative in the padding, shaped to broadcast along `axis` of `like`."""
        first = arange(self.count, device=like.device) * self.stride - self.padding
        return along(first, like.dim(), axis)


def along(vector: Tensor, dimensions: int, axis: int) -> Tensor:
    """`vector` shaped to broadcast along `axis`."""
    return vector.reshape(*(-1 if i == axis else 1 for i in range(dimensions)))


def _padded(x: Tensor, axis: int, low: int, high: int, value: float) -> Tensor:
    amounts = [tuple(n if i == axis else 0 for i in range(x.dim())) for n in (low, high)]
    return movement.pad(x, low=amounts[0], high=amounts[1], value=value)


def collected(x: Tensor, winner: Tensor | None, axis: int, windows: Windows) -> Tensor:
    """The element of each window that `winner` numbers, or the sum of all."""
    padded = windows.padded(x, axis, 0)
    result = windows.element(padded, axis, 0)
    for number in range(1, windows.kernel):
        element = windows.element(padded, axis, number)
        result = result + element if winner is None else where(winner == number, element, result)
    return result


def _spread(g: Tensor, winner: Tensor | None, axis: int, windows: Windows) -> Tensor:
    """The transpose of `collected`: each window's number at the element `winner` numbers, or at all."""
    if windows.dilation == 1 and windows.kernel <= windows.stride:
        placed = _placed_apart(g, winner, axis, windows)
    else:
        placed = _placed_over(g, winner, axis, windows)
    return sliced(placed, axis, windows.padding, windows.padding + windows.size)


def _placed_apart(g: Tensor, winner: Tensor | None, axis: int, windows: Windows) -> Tensor:
    """The transpose for windows that share no element: every number, repeated over its window."""
    number = along(arange(windows.stride, device=g.device), g.dim() + 1, axis + 1)
    spread = g.unsqueeze(axis + 1)
    if winner is not None:
        spread = where(winner.unsqueeze(axis + 1) == number.to(winner.dtype), spread, 0.0)
    else:
        spread = where(number < windows.kernel, spread, 0.0)
    shape = tuple(g.shape)
    reached = shape[axis] * windows.stride
    placed = spread.reshape(*shape[:axis], reached, *shape[axis + 1 :])
    # Elements behind the last window are in none.
    behind = largest(windows.padding + windows.size - reached, 0)
    return _padded(placed, axis, 0, behind, 0) if is_symbolic(behind) or behind else placed


def _placed_over(g: Tensor, winner: Tensor | None, axis: int, windows: Windows) -> Tensor:
    """The transpose for windows that may overlap: positions of equal remainder by the stride at a time."""
    stride, count = windows.stride, windows.count
    shifts = [divmod(number * windows.dilation, stride) for number in range(windows.kernel)]
    furthest = shifts[-1][0]
    length = -(-(windows.padding + windows.size) // stride)
    high = largest(length - count, 0)
    # Zeros around the numbers themselves: whatever the winner is out there, nothing comes of it.
    g = _padded(g, axis, furthest, high, 0)
    winner = None if winner is None else _padded(winner, axis, furthest, high, 0)
    rows: list[Tensor | None] = [None] * stride
    for number, (shift, remainder) in enumerate(shifts):
        start = furthest - shift
        part = sliced(g, axis, start, start + length)
        if winner is not None:
            part = where(sliced(winner, axis, start, start + length) == number, part, 0.0)
        before = rows[remainder]
        rows[remainder] = part if before is None else before + part
    if stride == 1:
        assert rows[0] is not None  # element 0 has remainder 0
        return rows[0]
    nothing = zeros_like(sliced(g, axis, 0, length))
    shape = tuple(nothing.shape)
    parts = stack([nothing if row is None else row for row in rows], axis + 1)
    return parts.reshape(*shape[:axis], length * stride, *shape[axis + 1 :])


class _Spread(Function):
    """`_spread` as one step of a gradient, whose own gradient collects."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, winner: Tensor | None, axis: int, windows: Windows) -> Tensor:
        ctx.save_for_backward(winner)
        ctx.axis, ctx.windows = axis, windows
        return _spread(g, winner, axis, windows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (winner,) = ctx.saved_tensors
        return collected(g, winner, ctx.axis, ctx.windows), None, None, None


class _Sum(Function):
    """The sum of each window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, windows: Windows) -> Tensor:
        ctx.axis, ctx.windows = axis, windows
        return collected(x, None, axis, windows)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return _Spread.apply(g, None, ctx.axis, ctx.windows), None, None


class _Maximum(Function):
    """The maximum of each window, and the number of the element it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, windows: Windows, lowest: float) -> tuple[Tensor, Tensor]:
        values, winner = _maximum(x, axis, windows, lowest)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(winner)
        ctx.axis, ctx.windows = axis, windows
        return values, winner

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: Any) -> Any:
        (winner,) = ctx.saved_tensors
        return None if g is None else _Spread.apply(g, winner, ctx.axis, ctx.windows), None, None, None


def _maximum(x: Tensor, axis: int, windows: Windows, lowest: float) -> tuple[Tensor, Tensor]:
    padded = windows.padded(x, axis, lowest)
    starts = windows.starts(x, axis)
    best = windows.element(padded, axis, 0)
    winner = zeros_like(best, dtype=dtypes.uint8 if windows.kernel < 256 else dtypes.int64)
    for number in range(1, windows.kernel):
        element = windows.element(padded, axis, number)
        better = larger(element, best)
        before = starts + (number - 1) * windows.dilation
        if (number - 1) * windows.dilation < windows.padding:
            # The first element inside: without this, -inf of the padding would win over an -inf of the input.
            better = better | ((before < 0) & (before >= -windows.dilation))
        best, winner = where(better, element, best), where(better, number, winner)
    return best, winner


def larger(element: Tensor, best: Tensor) -> Tensor:
    """Where `element` takes the place of an earlier `best`: ties stay with the earlier, the last nan wins."""
    better = element > best
    return better | isnan(element) if element.is_floating_point() else better


def window_sum(x: Tensor, axis: int, windows: Windows) -> Tensor:
    """The sum of each window along `axis`."""
    return _Sum.apply(x, axis, windows)


def window_maximum(x: Tensor, axis: int, windows: Windows, lowest: float) -> tuple[Tensor, Tensor]:
    """The maximum of each window along `axis`, and the number within the window of the element it is.

    `lowest` is what no element is below.
    """
    return _Maximum.apply(x, axis, windows, lowest)
