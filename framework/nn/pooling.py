"""Pooling layers: maximum and average over windows, fixed or adaptive, of one or two dimensions."""

from __future__ import annotations

from typing import Any

from framework.nn import functional as F
from framework.nn.functional.pooling import Sizes
from framework.nn.module import Module
from framework.tensor import Tensor


class _MaxPool(Module):
    """The maximum of each window; `return_indices` also gives where it was."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def _settings(self) -> tuple[Any, ...]:
        windows = (self.kernel_size, self.stride, self.padding, self.dilation)
        return (*windows, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        """The windows."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The maximum of each window along L of (N, C, L) or (C, L); see `functional.max_pool1d`."""

    def forward(self, input: Tensor) -> Any:
        """(..., number of windows), with `return_indices` twice."""
        return F.max_pool1d(input, *self._settings())


class MaxPool2d(_MaxPool):
    """The maximum of each window of (N, C, H, W) or (C, H, W); see `functional.max_pool2d`."""

    def forward(self, input: Tensor) -> Any:
        """(..., rows, columns of windows), with `return_indices` twice."""
        return F.max_pool2d(input, *self._settings())


class AvgPool1d(Module):
    """The mean of each window along L of (N, C, L) or (C, L)."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = self.kernel_size if stride is None else _single(stride)
        self.padding = _single(padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """(..., number of windows)."""
        windows = (self.kernel_size, self.stride, self.padding)
        return F.avg_pool1d(input, *windows, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        """The windows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of (N, C, H, W) or (C, H, W)."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """(..., rows, columns of windows)."""
        windows = (self.kernel_size, self.stride, self.padding)
        return F.avg_pool2d(input, *windows, self.ceil_mode, self.count_include_pad, self.divisor_override)

    def extra_repr(self) -> str:
        """The windows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _Adaptive(Module):
    """Windows that cover the input, as many as `output_size` says; None keeps a size."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        """How many windows."""
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """The mean of each of `output_size` windows that cover L of (N, C, L) or (C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., output_size)."""
        return F.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """The mean of each of `output_size` windows that cover (H, W) of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., rows, columns)."""
        return F.adaptive_avg_pool2d(input, self.output_size)


class _AdaptiveMax(_Adaptive):
    """The maximum of adaptive windows; `return_indices` also gives where it was."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices


class AdaptiveMaxPool1d(_AdaptiveMax):
    """The maximum of each of `output_size` windows that cover L of (N, C, L) or (C, L)."""

    def forward(self, input: Tensor) -> Any:
        """(..., output_size), with `return_indices` twice."""
        return F.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """The maximum of each of `output_size` windows that cover (H, W) of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Any:
        """(..., rows, columns), with `return_indices` twice."""
        return F.adaptive_max_pool2d(input, self.output_size, self.return_indices)


def _single(size: Sizes) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)
