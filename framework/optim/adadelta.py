"""Adadelta."""

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
    running_square,
    store,
)
from framework.tensor import Tensor


class Adadelta(Optimizer):
    """p -= lr * d, d = g * sqrt(u + eps) / sqrt(v + eps), with running means v of g² and u of d². Zeiler,
    2012.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        for name, value in (
            ("learning rate", lr),
            ("epsilon value", eps),
            ("weight_decay value", weight_decay),
        ):
            check_option(name, value)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}; it must be in [0, 1]")
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        means = ("square_avg", "acc_delta")
        self.state[parameter] = {
            "step": new_step(parameter),
            **{name: zeros_like(parameter) for name in means},
        }

    def _update_group(self, group: Group) -> None:
        lr, eps, gradient = option_of(group, "lr"), option_of(group, "eps"), gradient_of(group)
        square_of = running_square(lambda: float(group["rho"]))
        for _, parameters in self._advance(group):
            for p in parameters:
                state, g = self.state[p], gradient(p)
                square = square_of(state["square_avg"], g)
                change = (state["acc_delta"] + eps(p)).sqrt() / (square + eps(p)).sqrt() * g
                store(state["square_avg"], square)
                store(state["acc_delta"], square_of(state["acc_delta"], change))
                store(p, p - change * lr(p))
