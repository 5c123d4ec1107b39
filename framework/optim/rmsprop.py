"""RMSprop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.creation import zeros_like
from framework.optim.optimizer import (
    Group,
    Optimizer,
    check_option,
    gradient_of,
    new_step,
    option_of,
    running_mean,
    running_square,
    store,
)
from framework.state import guarded
from framework.tensor import Tensor


class RMSprop(Optimizer):
    """p -= lr * g / (sqrt(v) + eps), with v the running mean of g²; `centered` subtracts the squared mean of
    g.

    Tieleman & Hinton, 2012; centered as Graves, 2013.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        options = (("learning rate", lr), ("epsilon value", eps), ("momentum value", momentum))
        for name, value in (*options, ("weight_decay value", weight_decay), ("alpha value", alpha)):
            check_option(name, value)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        names = ["square_avg"]
        names += ["momentum_buffer"] if group["momentum"] > 0 else []
        names += ["grad_avg"] if group["centered"] else []
        self.state[parameter] = {
            "step": new_step(parameter),
            **{name: zeros_like(parameter) for name in names},
        }

    def _update_group(self, group: Group) -> None:
        lr, eps, gradient = option_of(group, "lr"), option_of(group, "eps"), gradient_of(group)
        square_of = running_square(lambda: float(group["alpha"]))
        mean_of = running_mean(lambda: 1 - float(group["alpha"]))
        centered = guarded(lambda: bool(group["centered"]))
        momentum = option_of(group, "momentum") if guarded(lambda: group["momentum"] > 0) else None
        for _, parameters in self._advance(group):
            for p in parameters:
                state, g = self.state[p], gradient(p)
                square = square_of(state["square_avg"], g)
                store(state["square_avg"], square)
                if centered:
                    mean = mean_of(state["grad_avg"], g)
                    store(state["grad_avg"], mean)
                    square = square - mean * mean
                scale = square.sqrt() + eps(p)
                if momentum is None:
                    store(p, p - g * lr(p) / scale)
                else:
                    velocity = state["momentum_buffer"] * momentum(p) + g / scale
                    store(state["momentum_buffer"], velocity)
                    store(p, p - velocity * lr(p))
