"""Pooling over one or two trailing dimensions: maximum and average, of fixed windows and of adaptive ones.

Every axis is pooled by itself, the last first, from strided slices: elementwise, so it fuses, and so does its
gradient. Knows no modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ops.arithmetic import maximum, minimum
from compiler.ops.compare import where
from compiler.ops.indexing import take
from framework.creation import tensor, zeros_like
from framework.nn.functional.activation import widened
from framework.nn.functional.shape import Sizes, per_axis
from framework.nn.functional.windows import Windows, along, collected, larger, window_maximum, window_sum
from framework.tensor import Tensor
from framework.views import cat, sliced
from kernels import dtypes


def _windows(
    input: Tensor, axes: int, name: str, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Windows, ...]:
    """The windows of each pooled axis. Raises RuntimeError for what PyTorch rejects."""
    _require_dimensions(input, axes, name)
    kernels = per_axis(axes, kernel, f"{name}: kernel_size")
    strides = kernels if stride is None or stride in ((), []) else per_axis(axes, stride, f"{name}: stride")
    paddings = per_axis(axes, padding, f"{name}: padding")
    dilations = per_axis(axes, dilation, f"{name}: dilation")
    shape = tuple(input.shape)
    for what, numbers in (("kernel_size", kernels), ("stride", strides), ("dilation", dilations)):
        if any(n <= 0 for n in numbers):
            raise RuntimeError(f"{name}: {what} must be greater than zero, but got {numbers}")
    made = tuple(
        Windows(*numbers, ceil)
        for numbers in zip(shape[-axes:], kernels, strides, paddings, dilations, strict=True)
    )
    for w in made:
        if not 0 <= w.padding <= w.kernel // 2:
            raise RuntimeError(
                "pad should be non-negative and at most half of kernel size, but got "
                f"pad={w.padding} and kernel_size={w.kernel}"
            )
    outcome = [w.count for w in made]
    if any(n < 1 for n in outcome):
        raise RuntimeError(
            f"Given input size: {tuple(shape)}. Calculated output size: {(*shape[:-axes], *outcome)}. Output "
            "size is too small"
        )
    return made


def _require_dimensions(input: Tensor, axes: int, name: str) -> None:
    dims = input.dim()
    if dims not in (axes + 1, axes + 2):
        raise RuntimeError(
            f"{name}: Expected {axes + 1}D or {axes + 2}D (batch mode) tensor, but got: {list(input.shape)}"
        )
    if any(n == 0 for n in tuple(input.shape)[dims - axes - 1 :]):
        raise RuntimeError(
            f"{name}: Expected input to have non-zero size for non-batch dimensions, but input has sizes "
            f"{list(input.shape)}"
        )


def _lowest(input: Tensor, name: str) -> float:
    if input.dtype is dtypes.bool_:
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}')
    return -math.inf if input.is_floating_point() else int(np.iinfo(input.dtype.numpy).min)


@dataclass
class _Best:
    """The largest elements met so far and, where asked for, their positions in the pooled dimensions."""

    values: Tensor
    positions: Tensor | None

    def meet(self, values: Tensor, positions: Tensor | None) -> None:
        """Take what is larger, or nan: ties stay with the earlier element."""
        better = larger(values, self.values)
        self.values = where(better, values, self.values)
        if positions is not None and self.positions is not None:
            self.positions = where(better, positions, self.positions)


def _started(input: Tensor, with_positions: bool) -> _Best:
    """The elements themselves, whose positions the pooled axes add to."""
    return _Best(input, zeros_like(input, dtype=dtypes.int64) if with_positions else None)


def _max_along(best: _Best, axis: int, windows: Windows, pitch: int, lowest: float) -> _Best:
    """The maximum of each window along `axis`, whose neighbours are `pitch` positions apart."""
    values, winner = window_maximum(best.values, axis, windows, lowest)
    if best.positions is None:
        return _Best(values, None)
    ahead = windows.starts(values, axis) + winner.long() * windows.dilation
    return _Best(values, collected(best.positions, winner, axis, windows) + ahead * pitch)


def _max_pool(
    input: Tensor,
    axes: int,
    name: str,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    lowest = _lowest(input, name)
    windows = _windows(input, axes, name, kernel_size, stride, padding, dilation, ceil_mode)
    best = _started(input, return_indices)
    pitch = 1
    for axis, w in reversed(list(zip(range(input.dim() - axes, input.dim()), windows, strict=True))):
        best = _max_along(best, axis, w, pitch, lowest)
        pitch = pitch * w.size
    return (best.values, best.positions) if return_indices else best.values


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window along L of (N, C, L) or (C, L); on request also where in L it was.

    nan wins; of equal elements the first takes the gradient.
    """
    name = "max_pool1d"
    return _max_pool(input, 1, name, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, H, W) or (C, H, W); on request also its position h * W + w.

    nan wins; of equal elements the first, row by row, takes the gradient.
    """
    name = "max_pool2d"
    return _max_pool(input, 2, name, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _elements(windows: Windows, like: Tensor, axis: int, include_pad: bool) -> Any:
    """How many elements each window counts along `axis`: a number where all count the same."""
    if not windows.ceil and (include_pad or not windows.padding):
        return windows.kernel
    starts = windows.starts(like, axis)
    ends = minimum(starts + windows.kernel, windows.size + windows.padding)
    if include_pad:
        return ends - starts
    return minimum(ends, windows.size) - maximum(starts, 0)


def _avg_pool(
    input: Tensor,
    axes: int,
    name: str,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")
    if not input.is_floating_point() and input.dtype is not dtypes.int64:
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}')
    windows = _windows(input, axes, name, kernel_size, stride, padding, 1, ceil_mode)
    total, divisor = widened(input), 1
    for axis, w in reversed(list(zip(range(input.dim() - axes, input.dim()), windows, strict=True))):
        total = window_sum(total, axis, w)
        divisor = divisor * _elements(w, input, axis, count_include_pad)
    divisor = divisor if divisor_override is None else divisor_override
    if not input.is_floating_point():
        return total.div(divisor, rounding_mode="trunc")
    # A float64 divisor would widen the result.
    divisor = divisor.to(total.dtype) if isinstance(divisor, Tensor) else divisor
    return (total / divisor).to(input.dtype)


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window along L of (N, C, L) or (C, L); zeros of the padding count unless told."""
    return _avg_pool(input, 1, "avg_pool1d", kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of (N, C, H, W) or (C, H, W); the sum over `divisor_override` where given."""
    name = "avg_pool2d"
    return _avg_pool(
        input, 2, name, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _adaptive_sizes(input: Tensor, output_size: Any, axes: int, name: str) -> tuple[int, ...]:
    _require_dimensions(input, axes, name)
    if not input.is_floating_point():
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}')
    listed = (output_size,) * axes if output_size is None or isinstance(output_size, int) else output_size
    if len(listed) != axes:
        raise RuntimeError(f"{name}: output_size must be {axes}, got {len(listed)} numbers")
    shape = tuple(input.shape)[-axes:]
    sizes = tuple(have if n is None else n for n, have in zip(listed, shape, strict=True))
    if any(n < 0 for n in sizes):
        raise RuntimeError(
            f"{name}: elements of output_size must be greater than or equal to 0 but received {sizes}"
        )
    return sizes


def _bounds(size: int, count: int) -> tuple[list[int], list[int]]:
    """First element and end of each of `count` windows that cover `size` elements, overlapping by at most
    one.
    """
    starts = [i * size // count for i in range(count)]
    return starts, [-((i + 1) * size // -count) for i in range(count)]


def _picked(starts: list[int], ends: list[int]) -> list[Any]:
    """For each number within a window, the elements of that number; windows that are shorter repeat their
    last.
    """
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    return [
        [min(start + number, end - 1) for start, end in zip(starts, ends, strict=True)]
        for number in range(longest)
    ]


def _adaptive_max_along(best: _Best, axis: int, size: int, count: int, pitch: int, lowest: float) -> _Best:
    if count == 0:
        none = None if best.positions is None else sliced(best.positions, axis, 0, 0)
        return _Best(sliced(best.values, axis, 0, 0), none)
    if size % count == 0:
        each = size // count
        windows = Windows(size, each, each, 0, 1, False)
        return _max_along(best, axis, windows, pitch, lowest)
    found: _Best | None = None
    for elements in _picked(*_bounds(size, count)):
        index = tensor(elements, device=best.values.device)
        values, place = take(best.values, index, axis=axis), None
        if best.positions is not None:
            ahead = along(index, best.values.dim(), axis) * pitch
            place = take(best.positions, index, axis=axis) + ahead
        if found is None:
            found = _Best(values, place)
        else:
            found.meet(values, place)
    assert found is not None  # a window has at least one element
    return found


def _adaptive_max_pool(input: Tensor, axes: int, name: str, output_size: Any, return_indices: bool) -> Any:
    sizes = _adaptive_sizes(input, output_size, axes, name)
    best = _started(input, return_indices)
    pitch = 1
    for axis, count in reversed(list(zip(range(input.dim() - axes, input.dim()), sizes, strict=True))):
        size = input.shape[axis]
        best = _adaptive_max_along(best, axis, size, count, pitch, -math.inf)
        pitch = pitch * size
    return (best.values, best.positions) if return_indices else best.values


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of `output_size` windows that cover L of (N, C, L) or (C, L)."""
    return _adaptive_max_pool(input, 1, "adaptive_max_pool1d", output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maximum of each of `output_size` (rows, columns; None keeps a size) windows that cover (H, W)."""
    return _adaptive_max_pool(input, 2, "adaptive_max_pool2d", output_size, return_indices)


def _adaptive_mean_along(x: Tensor, axis: int, count: int) -> Tensor:
    size, shape = x.shape[axis], tuple(x.shape)
    if count == 0:
        return sliced(x, axis, 0, 0)
    if size % count == 0:
        return x.reshape(*shape[:axis], count, size // count, *shape[axis + 1 :]).mean(axis + 1)
    starts, ends = _bounds(size, count)
    return cat(
        [sliced(x, axis, a, b).mean(axis, keepdim=True) for a, b in zip(starts, ends, strict=True)], axis
    )


def _adaptive_avg_pool(input: Tensor, axes: int, name: str, output_size: Any) -> Tensor:
    sizes = _adaptive_sizes(input, output_size, axes, name)
    x = widened(input)
    for axis, count in reversed(list(zip(range(input.dim() - axes, input.dim()), sizes, strict=True))):
        x = _adaptive_mean_along(x, axis, count)
    return x.to(input.dtype)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` windows that cover L of (N, C, L) or (C, L)."""
    return _adaptive_avg_pool(input, 1, "adaptive_avg_pool1d", output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of `output_size` (rows, columns; None keeps a size) windows that cover (H, W)."""
    return _adaptive_avg_pool(input, 2, "adaptive_avg_pool2d", output_size)
