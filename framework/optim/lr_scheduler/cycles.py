"""Schedules that go up and down: one cycle, and cosine with restarts."""

from __future__ import annotations

import math
from typing import Any

from framework.optim.lr_scheduler.base import LRScheduler, per_group, require_optimizer
from framework.optim.optimizer import Optimizer
from framework.state import python_effect

# The last step of a phase, and which options of the group its learning rate and momentum start and end at.
Phase = tuple[float, str, str, str, str]


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to `max_lr` and down to that / final_div_factor, momentum the other way
    round.

    Smith & Topin, 2018. The length is `total_steps`, or `epochs` * `steps_per_epoch`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        require_optimizer(optimizer)
        self.total_steps = _length(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1 or not isinstance(pct_start, float):
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if cycle_momentum and not {"momentum", "betas"} & optimizer.defaults.keys():
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self._anneal_strategy, self.cycle_momentum = anneal_strategy, cycle_momentum
        self.use_beta1 = "betas" in optimizer.defaults
        self._phases = _phases(self.total_steps, pct_start, three_phase)
        if last_epoch == -1:
            for group, top in zip(
                optimizer.param_groups, per_group("max_lr", optimizer, max_lr), strict=True
            ):
                start = top / div_factor
                group.update(initial_lr=start, max_lr=top, min_lr=start / final_div_factor)
            if cycle_momentum:
                high = per_group("max_momentum", optimizer, max_momentum)
                low = per_group("base_momentum", optimizer, base_momentum)
                for group, most, least in zip(optimizer.param_groups, high, low, strict=True):
                    group.update(max_momentum=most, base_momentum=least)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group; also sets its momentum or first beta. ValueError past the last
        step.
        """
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is "
                f"{self.total_steps}"
            )
        (_, lr_from, lr_to, momentum_from, momentum_to), share = self._position()
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                self._set_momentum(group, self._between(group[momentum_from], group[momentum_to], share))
        return [self._between(group[lr_from], group[lr_to], share) for group in groups]

    def _position(self) -> tuple[Phase, float]:
        start = 0.0
        for phase in self._phases[:-1]:
            if self.last_epoch <= phase[0]:
                return phase, (self.last_epoch - start) / (phase[0] - start)
            start = phase[0]
        last = self._phases[-1]
        return last, (self.last_epoch - start) / (last[0] - start)

    def _between(self, start: Any, end: Any, share: float) -> Any:
        if self._anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def _set_momentum(self, group: dict[str, Any], value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


def _length(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is None and (epochs is None or steps_per_epoch is None):
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    wanted = (
        {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        if total_steps is None
        else {"total_steps": total_steps}
    )
    for name, value in wanted.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return math.prod(wanted.values())  # type: ignore[arg-type]


def _phases(total: int, pct_start: float, three_phase: bool) -> list[Phase]:
    rise: Phase = (float(pct_start * total) - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")
    if not three_phase:
        return [rise, (total - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")]
    fall: Phase = (float(2 * pct_start * total) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum")
    return [rise, fall, (total - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine from base_lr to `eta_min` over T_0 steps, then again over T_0 * T_mult, and so on.

    Loshchilov & Hutter, ICLR 2017.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group."""
        wave = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * wave / 2 for base in self.base_lrs]

    @python_effect
    def step(self, epoch: float | None = None) -> None:
        """Move on by one step, or to `epoch`, which may lie between two steps."""
        self._step_count += 1
        self._move(0 if epoch is None and self.last_epoch < 0 else epoch)  # type: ignore[arg-type]

    def _move(self, epoch: float | None = None) -> None:  # type: ignore[override]
        if epoch is None:
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
            self.last_epoch += 1
        else:
            self._jump(epoch)
        self._set(self.get_lr())

    def _jump(self, epoch: float) -> None:
        if epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        start, length = 0, self.T_0
        if self.T_mult == 1:
            start = epoch // length * length
        else:
            while epoch >= start + length:
                start, length = start + length, length * self.T_mult
        self.T_cur, self.T_i, self.last_epoch = epoch - start, length, math.floor(epoch)
