"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.creation import ones_like, zeros_like
from framework.optim.optimizer import (
    Group,
    Optimizer,
    check_option,
    fitted,
    gradient_of,
    new_step,
    option_of,
    scalar_of,
    store,
)
from framework.state import guarded
from framework.tensor import Tensor


class SGD(Optimizer):
    """p -= lr * v, with v = momentum * v + (1 - dampening) * g; Nesterov steps along g + momentum * v.

    The first v is the first g, whatever the dampening. Sutskever et al., ICML 2013.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        for name, value in (
            ("learning rate", lr),
            ("momentum value", momentum),
            ("weight_decay value", weight_decay),
        ):
            check_option(name, value)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"Nesterov momentum requires a momentum and zero dampening, got momentum={momentum} and "
                f"dampening={dampening}"
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        # From zero, momentum * 0 + g is the first gradient exactly; only dampening must know which step is
        # the first.
        self.state[parameter] = {"momentum_buffer": zeros_like(parameter)}
        if group["dampening"] != 0:
            self.state[parameter]["step"] = new_step(parameter)

    def _update_group(self, group: Group) -> None:
        lr, gradient = option_of(group, "lr"), gradient_of(group)
        if not guarded(lambda: group["momentum"] != 0):
            for p in group["params"]:
                if p.grad is not None:
                    store(p, p - gradient(p) * lr(p))
            return
        momentum, nesterov = option_of(group, "momentum"), guarded(lambda: bool(group["nesterov"]))
        for share, parameters in self._shares(group):
            for p in parameters:
                g, buffer = gradient(p), self.state[p]["momentum_buffer"]
                velocity = buffer * momentum(p) + (g if share is None else g * share(p))
                store(buffer, velocity)
                store(p, p - (g + velocity * momentum(p) if nesterov else velocity) * lr(p))

    def _shares(self, group: Group) -> list[tuple[Any, list[Tensor]]]:
        """Parameters with the share of the gradient that enters their velocity: 1 - dampening, 1 at first;
        None is 1.
        """
        if not guarded(lambda: group["dampening"] != 0):
            return [(None, self._active(group))]
        self._count_loaded(group)
        dampening = scalar_of(group, "dampening")
        return [
            (fitted(1 - dampening * _after_first(step)), parameters)
            for step, parameters in self._advance(group)
        ]

    def _count_loaded(self, group: Group) -> None:
        # A state made without dampening, or by PyTorch, has no count; its first step is past.
        for p in group["params"]:
            state = self.state.get(p)
            if state and "step" not in state:
                state["step"] = ones_like(new_step(p))


def _after_first(step: Any) -> Any:
    """1 from the second step on, 0 before."""
    return (step > 1).double() if isinstance(step, Tensor) else float(step > 1)
