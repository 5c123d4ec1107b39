"""Adagrad."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.creation import full_like
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
from framework.state import no_grad
from framework.tensor import Tensor


class Adagrad(Optimizer):
    """p -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sum of g²) + eps). Duchi et al., JMLR 2011."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        for name, value in (
            ("learning rate", lr),
            ("lr_decay value", lr_decay),
            ("weight_decay value", weight_decay),
        ):
            check_option(name, value)
        check_option("initial_accumulator_value value", initial_accumulator_value)
        check_option("epsilon value", eps)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Group) -> None:
        """As `Optimizer.add_param_group`; the state is made at once, since the first sum is an option."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["params"]:
            self._create(group["params"], group)

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        with no_grad():
            total = full_like(parameter, group["initial_accumulator_value"])
        self.state[parameter] = {"step": new_step(parameter), "sum": total}

    def _update_group(self, group: Group) -> None:
        lr, lr_decay = scalar_of(group, "lr"), scalar_of(group, "lr_decay")
        eps, gradient = option_of(group, "eps"), gradient_of(group)
        for step, parameters in self._advance(group):
            step_size = fitted(lr / (1 + (step - 1) * lr_decay))
            for p in parameters:
                g, state = gradient(p), self.state[p]
                total = state["sum"] + g * g
                store(state["sum"], total)
                store(p, p - g * step_size(p) / (total.sqrt() + eps(p)))
