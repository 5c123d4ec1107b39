"""Normalising layers: LayerNorm, RMSNorm, GroupNorm, and BatchNorm and InstanceNorm by dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.creation import ones, tensor, zeros
from framework.nn import functional as F
from framework.nn import init
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.state import guarded, runtime_scalar
from framework.tensor import Tensor
from kernels import dtypes
from kernels.dtypes import DType


class _Scaled(Module):
    """A layer with an optional `weight` that starts at ones and an optional `bias` that starts at zeros."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_scale(
        self, shape: tuple[int, ...], weight: bool, bias: bool, device: Any, dtype: DType | None
    ) -> None:
        scale = Parameter(ones(*shape, device=device, dtype=dtype)) if weight else None
        shift = Parameter(zeros(*shape, device=device, dtype=dtype)) if bias else None
        self.register_parameter("weight", scale)
        self.register_parameter("bias", shift)

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class LayerNorm(_Scaled):
    """Normalise over the trailing `normalized_shape` to mean 0 and variance 1, then scale and shift element
    by element.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._register_scale(
            self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype
        )

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype as `input`."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Shape and settings."""
        settings = f"eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{self.normalized_shape}, {settings}, bias={self.bias is not None}"


class RMSNorm(_Scaled):
    """Divide by the root mean square over the trailing `normalized_shape`, then scale. Zhang & Sennrich,
    NeurIPS 2019.

    `eps=None` takes the machine epsilon of the input's dtype.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._register_scale(self.normalized_shape, elementwise_affine, False, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype as `input`."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Shape and settings."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Scaled):
    """Normalise each of `num_groups` groups of channels of (N, C, ...), then scale and shift by channel."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._register_scale((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype as `input`."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes and settings."""
        settings = f"eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, {settings}"


class _Tracking(_Scaled):
    """A layer that normalises by channel and may keep running statistics."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    # How many dimensions an input may have.
    dimensions: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: DType | None,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._register_scale((num_features,), affine, affine and bias, device, dtype)
        tracked = track_running_stats
        self.register_buffer(
            "running_mean", zeros(num_features, device=device, dtype=dtype) if tracked else None
        )
        self.register_buffer(
            "running_var", ones(num_features, device=device, dtype=dtype) if tracked else None
        )
        self.register_buffer(
            "num_batches_tracked", tensor(0, dtype=dtypes.int64, device=device) if tracked else None
        )

    def reset_running_stats(self) -> None:
        """Set the running mean to 0, the variance to 1 and the count to 0."""
        for name, start in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
            if getattr(self, name) is not None:
                getattr(self, name).fill_(start)

    def reset_parameters(self) -> None:
        """Reset statistics, weight and bias."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_dimensions(self, input: Tensor) -> None:
        if input.dim() not in self.dimensions:
            wanted = " or ".join(f"{n}D" for n in self.dimensions)
            raise ValueError(f"expected {wanted} input (got {input.dim()}D input)")

    def _momentum(self) -> Any:
        """The momentum, read anew at each replay; None where it is None."""
        if guarded(lambda: self.momentum is None):
            return None
        return runtime_scalar(lambda: self.momentum)  # type: ignore[arg-type, return-value]

    def extra_repr(self) -> str:
        """Sizes and settings."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Tracking):
    """Normalise each channel over the batch, then scale and shift. Ioffe & Szegedy, ICML 2015.

    Training uses the batch's statistics and moves the running ones by `momentum` (None: their cumulative
    average); evaluation uses the running ones, or the batch's when they are not tracked.
    """

    runtime_numbers = frozenset(("momentum",))

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype as `input`. Raises ValueError for another number of dimensions."""
        self._check_dimensions(input)
        tracked = self.training and self.track_running_stats
        running = not self.training or self.track_running_stats
        mean, variance = (self.running_mean, self.running_var) if running else (None, None)
        by_batch = self.training or (mean is None and variance is None)
        momentum = self._share_of_batch() if tracked else 0.0
        result = F.batch_norm(input, mean, variance, self.weight, self.bias, by_batch, momentum, self.eps)
        if tracked and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return result

    def _share_of_batch(self) -> Any:
        """How far this batch moves the running statistics: momentum, or 1 / the count with this batch."""
        momentum = self._momentum()
        if momentum is not None:
            return momentum
        return 1.0 / (self.num_batches_tracked.double() + 1.0)  # type: ignore[union-attr]


class BatchNorm1d(_BatchNorm):
    """BatchNorm over (N, C) or (N, C, L): each channel to mean 0 and variance 1, then scaled and shifted."""

    dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    """BatchNorm over (N, C, H, W): each channel to mean 0 and variance 1, then scaled and shifted."""

    dimensions = (4,)


class BatchNorm3d(_BatchNorm):
    """BatchNorm over (N, C, D, H, W): each channel to mean 0 and variance 1, then scaled and shifted."""

    dimensions = (5,)


class _InstanceNorm(_Tracking):
    """Normalise each channel of each sample by itself; the smaller number of dimensions is one sample.

    Statistics are tracked only on request; evaluation then uses the running ones.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape and dtype as `input`. Raises ValueError for another number of dimensions or channels."""
        self._check_dimensions(input)
        unbatched = input.dim() == self.dimensions[0]
        axis = 0 if unbatched else 1
        if self.affine and input.shape[axis] != self.num_features:
            raise ValueError(
                f"expected input's size at dim={axis} to match num_features ({self.num_features}), but got: "
                f"{input.shape[axis]}."
            )
        by_input = self.training or not self.track_running_stats
        momentum = self._momentum() if by_input and self.track_running_stats else None
        result = F.instance_norm(
            input.unsqueeze(0) if unbatched else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_input,
            0.0 if momentum is None else momentum,
            self.eps,
        )
        return result.squeeze(0) if unbatched else result


class InstanceNorm1d(_InstanceNorm):
    """InstanceNorm over (N, C, L) or (C, L): each channel of each sample to mean 0 and variance 1."""

    dimensions = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """InstanceNorm over (N, C, H, W) or (C, H, W): each channel of each sample to mean 0 and variance 1."""

    dimensions = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """InstanceNorm over (N, C, D, H, W) or (C, D, H, W): each channel of each to mean 0, variance 1."""

    dimensions = (4, 5)


def _shape(size: int | Sequence[int]) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)
