"""Work on all parameters at once: clearing and clipping gradients, flattening to one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from framework.creation import zeros
from framework.nn.parameter import Parameter
from framework.state import no_grad
from framework.tensor import Tensor
from framework.views import cat, stack


@no_grad()
def clear_gradients(parameters: Iterable[Tensor], set_to_none: bool) -> None:
    """Drop every gradient, or cut it off from its history and fill it with zeros."""
    for p in parameters:
        if set_to_none:
            # Without a look at what is there: a capture requires of replays what it has read.
            p.grad = None
            continue
        grad = p.grad
        if grad is None:
            continue
        if grad.grad_fn is None:
            grad.requires_grad_(False)
        else:
            grad.detach_()
        grad.zero_()


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [g for g in (p.grad for p in listed) if g is not None]


@no_grad()
def get_total_norm(
    tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """The norm of all `tensors` as one vector, 0-d; `norm_type` may be inf. RuntimeError when asked and not
    finite.
    """
    norms = [t.detach().norm(float(norm_type)) for t in tensors]
    if not norms:
        return zeros(())
    total = stack(norms).amax() if math.isinf(norm_type) else stack(norms).norm(float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
            "set `error_if_nonfinite=False`"
        )
    return total


@no_grad()
def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: Any, total_norm: Tensor) -> None:
    """Scale the gradients in place by min(1, max_norm / (total_norm + 1e-6))."""
    # Multiplied even when the factor is 1: a branch would read the norm.
    factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for g in _gradients(parameters):
        g.mul_(factor)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their total norm is at most `max_norm`; return the norm before, 0-d."""
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


@no_grad()
def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every gradient element to [-clip_value, clip_value] in place."""
    for g in _gradients(parameters):
        g.clamp_(-clip_value, clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, flattened and joined in order."""
    return cat([p.reshape(-1) for p in parameters])


@no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Parameter]) -> None:
    """Write the parts of `vec` into the parameters in order. RuntimeError, before any write, when sizes
    differ.
    """
    parameters = list(parameters)
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected a Tensor, but got: {type(vec).__name__}")
    needed = sum(p.numel() for p in parameters)
    if vec.numel() != needed:
        raise RuntimeError(f"the vector has {vec.numel()} elements, the parameters {needed}")
    start = 0
    for p in parameters:
        p.copy_(vec[start : start + p.numel()].reshape(tuple(p.shape)))
        start += p.numel()
