"""Schedules that follow one formula of the step count."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from framework.optim.lr_scheduler.base import LRScheduler
from framework.optim.optimizer import Optimizer

Rule = Callable[[int], float]


class _Ruled(LRScheduler):
    """A schedule by a function of the step count for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Rule | list[Rule], last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        rules = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * groups
        if len(rules) != groups:
            raise ValueError(f"Expected {groups} lr_lambdas, but got {len(rules)}")
        self.lr_lambdas = rules
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer; of a callable object its attributes, of a function None."""
        saved = [None if hasattr(rule, "__code__") else dict(rule.__dict__) for rule in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; functions stay the present ones."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})
        for rule, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                rule.__dict__.update(saved)


class LambdaLR(_Ruled):
    """base_lr * lr_lambda(step)."""

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        return [
            base * rule(self.last_epoch) for rule, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_Ruled):
    """The learning rate times lr_lambda(step) at every step but the first."""

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self._is_initial:
            return self._current()
        groups = self.optimizer.param_groups
        return [
            group["lr"] * rule(self.last_epoch) for rule, group in zip(self.lr_lambdas, groups, strict=True)
        ]


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return self._current()
        return self._scaled(self.gamma)

    def _closed_form(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """Times `gamma` at each of `milestones`; one given twice counts twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self.last_epoch not in self.milestones:
            return self._current()
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def _closed_form(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError(f"Constant multiplicative factor expected to be between 0 and 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._current() if self.last_epoch != self.total_iters else self._scaled(1.0 / self.factor)

    def _closed_form(self) -> list[Any]:
        factor = self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """Times a factor that goes straight from `start_factor` to `end_factor` over `total_iters` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and at most 1, got "
                f"{start_factor}"
            )
        if not 0 <= end_factor <= 1.0:
            raise ValueError(f"Ending multiplicative factor expected to be between 0 and 1, got {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        change = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * change
        return self._scaled(1.0 + change / before)

    def _closed_form(self) -> list[Any]:
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        factor = self.start_factor + (self.end_factor - self.start_factor) * done
        return [base * factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Times `gamma` every step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        return self._current() if self._is_initial else self._scaled(self.gamma)

    def _closed_form(self) -> list[Any]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """base_lr * (1 - step / total_iters) ** power."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._current()
        left = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return self._scaled((left / before) ** self.power)

    def _closed_form(self) -> list[Any]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * left**self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """From base_lr to `eta_min` along half a cosine over `T_max` steps. Loshchilov & Hutter, ICLR 2017."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        if self._is_initial:
            return self._current()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._closed_form()
        groups, low, t = self.optimizer.param_groups, self.eta_min, self.last_epoch
        if (t - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The step before sat at the minimum, where a ratio would divide by zero.
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [g["lr"] + (base - low) * rise for base, g in zip(self.base_lrs, groups, strict=True)]
        ratio = (1 + math.cos(math.pi * t / self.T_max)) / (1 + math.cos(math.pi * (t - 1) / self.T_max))
        return [ratio * (g["lr"] - low) + low for g in groups]

    def _closed_form(self) -> list[Any]:
        wave = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * wave for base in self.base_lrs]
