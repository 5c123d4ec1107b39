"""ReduceLROnPlateau: lower the learning rate when a measured quantity stops improving."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

from framework.optim.lr_scheduler.base import LRScheduler, per_group, require_optimizer, set_option
from framework.optim.optimizer import Optimizer
from framework.state import python_effect


class ReduceLROnPlateau(LRScheduler):
    """Times `factor`, down to `min_lr`, after `patience` steps without improvement; then `cooldown` steps of
    rest.

    Improvement is by `threshold`, relative ("rel") or absolute ("abs"), towards `mode` "min" or "max".
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError(f"Factor should be < 1.0, got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! Use 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! Use 'rel' or 'abs'")
        require_optimizer(optimizer)
        self.optimizer = optimizer
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.last_epoch = 0
        self._last_lr = self._current()
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @python_effect
    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take the newest value of the measured quantity."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._current()

    @property
    def in_cooldown(self) -> bool:
        """Whether the last reduction still rests."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        # best starts infinite, and infinity times 1 ± threshold stays so.
        bound = (
            self.best * (1.0 - sign * self.threshold)
            if self.threshold_mode == "rel"
            else self.best - sign * self.threshold
        )
        return value < bound if self.mode == "min" else value > bound

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            raise RuntimeError(
                f"the optimizer has {len(groups)} param groups, but min_lrs has {len(self.min_lrs)} entries "
                "from when the scheduler was made: extend scheduler.min_lrs"
            )
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                set_option(group, "lr", new)

    def get_lr(self) -> list[Any]:
        """The present learning rates: the next ones depend on the measured values."""
        return self._current()
