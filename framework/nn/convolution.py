"""Convolution layers: Conv1d, Conv2d, Conv3d and their transposes."""

from __future__ import annotations

import math
from typing import Any

from framework.creation import empty
from framework.nn import functional as F
from framework.nn import init
from framework.nn.functional.convolution import same_padding
from framework.nn.functional.shape import Sizes, per_axis
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.tensor import Tensor
from kernels.dtypes import DType

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """What the six layers share: sizes, parameters and how they start."""

    rank = 0
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes,
        padding: str | Sizes,
        dilation: Sizes,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: DType | None,
        output_padding: Sizes = 0,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {_PADDING_MODES}, but got padding_mode={padding_mode!r}"
            )
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
        rank = self.rank
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(rank, kernel_size, "kernel_size")
        self.stride = per_axis(rank, stride, "stride")
        self.padding = padding if isinstance(padding, str) else per_axis(rank, padding, "padding")
        if padding == "same" and any(n != 1 for n in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        self.dilation = per_axis(rank, dilation, "dilation")
        self.output_padding = per_axis(rank, output_padding, "output_padding")
        self.padding_mode = padding_mode
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (first, second // groups, *self.kernel_size)
        self.weight = Parameter(empty(*shape, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, uniform in ±1/sqrt(terms of one output)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan_in) if fan_in else 0
            init.uniform_(self.bias, -bound, bound)

    def _sides(self) -> list[int]:
        """Padding as `F.pad` takes it."""
        if isinstance(self.padding, str):
            none = [(0, 0)] * self.rank
            pairs = same_padding(self.kernel_size, self.dilation) if self.padding == "same" else none
        else:
            pairs = [(n, n) for n in self.padding]
        return [n for pair in reversed(pairs) for n in pair]

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """The input, and what padding with zeros is left to do."""
        if self.padding_mode == "zeros":
            return input, self.padding
        return F.pad(input, self._sides(), mode=self.padding_mode), 0

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """What must be added behind each axis for `output_size`."""
        if output_size is None:
            return self.output_padding
        assert not isinstance(self.padding, str), "transposed layers take numbers"
        wanted, found = tuple(output_size)[-self.rank :], []
        for axis, size in enumerate(input.shape[-self.rank :]):
            least = (size - 1) * self.stride[axis] - 2 * self.padding[axis]
            least += self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            most = least + self.stride[axis] - 1
            if not least <= wanted[axis] <= most:
                raise ValueError(
                    f"requested an output size of {list(wanted)}, but valid sizes range from {least} to "
                    f"{most} in dimension {axis} (for an input of {list(input.shape)})"
                )
            found.append(wanted[axis] - least)
        return tuple(found)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        nothing = (0,) * self.rank
        if self.padding != nothing:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.rank:
            text += f", dilation={self.dilation}"
        if self.output_padding != nothing:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: str | Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation
        super().__init__(*sizes, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """(batch, in_channels, size..) to (batch, out_channels, places..); the batch may be left out."""
        x, padding = self._padded(input)
        function = (F.conv1d, F.conv2d, F.conv3d)[self.rank - 1]
        return function(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _ConvTranspose(_Convolution):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation
        super().__init__(*sizes, groups, bias, padding_mode, device, dtype, output_padding)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """(batch, in_channels, places..) to (batch, out_channels, size..), `output_size` where that leaves a
        choice.
        """
        extra = self._output_padding(input, output_size)
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.rank - 1]
        settings = self.stride, self.padding, extra, self.groups, self.dilation
        return function(input, self.weight, self.bias, *settings)  # type: ignore[arg-type]


class Conv1d(_Conv):
    """Convolution along one axis; weight (out_channels, in_channels / groups, kernel)."""

    rank = 1


class Conv2d(_Conv):
    """Convolution over two axes; weight (out_channels, in_channels / groups, rows, columns)."""

    rank = 2


class Conv3d(_Conv):
    """Convolution over three axes; weight (out_channels, in_channels / groups, kernel..)."""

    rank = 3


class ConvTranspose1d(_ConvTranspose):
    """The transpose of Conv1d; weight (in_channels, out_channels / groups, kernel)."""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of Conv2d; weight (in_channels, out_channels / groups, rows, columns)."""

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of Conv3d; weight (in_channels, out_channels / groups, kernel..)."""

    rank = 3
