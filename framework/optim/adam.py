"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from framework.creation import zeros_like
from framework.elementwise import maximum
from framework.optim.optimizer import (
    Group,
    Optimizer,
    check_option,
    fitted,
    gradient_of,
    new_step,
    option_of,
    running_mean,
    running_square,
    scalar_of,
    store,
)
from framework.state import guarded, runtime_scalar
from framework.tensor import Tensor


class Adam(Optimizer):
    """p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps), with running means m of g and v of g², and ci = 1 -
    betai ** step.

    Kingma & Ba, ICLR 2015; `amsgrad` divides by the largest v so far (Reddi et al., ICLR 2018).
    """

    _decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        for name, value in (
            ("learning rate", lr),
            ("epsilon value", eps),
            ("weight_decay value", weight_decay),
        ):
            check_option(name, value)
        for i in (0, 1):
            check_option(f"beta parameter at index {i}", betas[i], high=1.0)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def _initialise(self, parameter: Tensor, group: Group) -> None:
        means = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
        self.state[parameter] = {
            "step": new_step(parameter),
            **{name: zeros_like(parameter) for name in means},
        }

    def _update_group(self, group: Group) -> None:
        beta1 = runtime_scalar(lambda: float(group["betas"][0]))
        beta2 = runtime_scalar(lambda: float(group["betas"][1]))
        lr, eps, kept = scalar_of(group, "lr"), option_of(group, "eps"), self._kept_share(group)
        gradient = gradient_of(group, decay=not self._decoupled)
        mean_of = running_mean(lambda: 1 - float(group["betas"][0]))
        square_of = running_square(lambda: float(group["betas"][1]))
        amsgrad = guarded(lambda: bool(group["amsgrad"]))
        for step, parameters in self._advance(group):
            step_size = fitted(lr / (1 - beta1**step))
            # Its inverse, once a group: a division by it per element would be a third of the update's time.
            scale = fitted((1 - beta2**step) ** -0.5)
            for p in parameters:
                state, g = self.state[p], gradient(p)
                mean = mean_of(state["exp_avg"], g)
                square = square_of(state["exp_avg_sq"], g)
                store(state["exp_avg"], mean)
                store(state["exp_avg_sq"], square)
                if amsgrad:
                    square = maximum(state["max_exp_avg_sq"], square)
                    store(state["max_exp_avg_sq"], square)
                old = p if kept is None else p * kept(p)
                store(p, old - mean * step_size(p) / (square.sqrt() * scale(p) + eps(p)))

    def _kept_share(self, group: Group) -> Any:
        """What decoupled weight decay multiplies parameters by; None for 1."""
        if not self._decoupled or not guarded(lambda: group["weight_decay"] != 0):
            return None
        return fitted(runtime_scalar(lambda: 1 - float(group["lr"]) * float(group["weight_decay"])))


class AdamW(Adam):
    """Adam whose weight decay shrinks parameters by lr * weight_decay instead of entering the gradient.

    Loshchilov & Hutter, ICLR 2019.
    """

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)
