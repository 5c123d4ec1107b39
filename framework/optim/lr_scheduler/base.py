"""LRScheduler: the frame in which a schedule writes learning rates into an optimizer's groups.

Knows no schedule.
"""

from __future__ import annotations

import warnings
from typing import Any

from framework.optim.optimizer import Optimizer
from framework.state import no_grad, python_effect
from framework.tensor import Tensor


class LRScheduler:
    """Base of schedules, as `torch.optim.lr_scheduler.LRScheduler`: subclasses define `get_lr`.

    `last_epoch` counts steps; construction takes the step to 0. A `last_epoch` other than -1 resumes, and
    needs "initial_lr" in every group (KeyError).
    """

    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        require_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    "last_epoch >= 0: load the optimizer's state dict first"
                )
        self.base_lrs = [_copied(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            del self._is_initial

    def get_lr(self) -> list[Any]:
        """The learning rate of each group at `last_epoch`, from the one before or from `base_lrs`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def _closed_form(self) -> list[Any]:
        """The learning rates at `last_epoch` without the ones before; used when the count jumps."""
        return self.get_lr()

    def get_last_lr(self) -> list[Any]:
        """The learning rates set last."""
        return self._last_lr

    @python_effect
    def step(self, epoch: int | None = None) -> None:
        """Move on by one step, or to `epoch`, and set the learning rates."""
        if self._step_count == 1 and _never_stepped(self.optimizer):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first learning rate "
                "of the schedule is skipped. Call them in the opposite order.",
                stacklevel=2,
            )
        self._step_count += 1
        self._move(epoch)

    def _move(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set(self.get_lr() if epoch is None else self._closed_form())

    def _set(self, values: list[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            set_option(group, "lr", value)
        self._last_lr = self._current()

    def _current(self) -> list[Any]:
        return [_copied(group["lr"]) for group in self.optimizer.param_groups]

    def _scaled(self, factor: float) -> list[Any]:
        """Every group's learning rate times `factor`."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.__dict__.update(state_dict)


def require_optimizer(optimizer: Any) -> None:
    """Raise TypeError unless `optimizer` is one."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def set_option(group: dict[str, Any], name: str, value: Any) -> None:
    """Write an option of a group; a tensor there keeps its identity."""
    present = group[name]
    if isinstance(present, Tensor):
        with no_grad():
            present.copy_(value) if isinstance(value, Tensor) else present.fill_(value)
    else:
        group[name] = value


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """`value` for each group: a list of that length, or one number for all. Raises ValueError on another
    length.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} must have one value for each of the {count} param_groups, got {len(value)}")
    return list(value)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _never_stepped(optimizer: Optimizer) -> bool:
    # An optimizer with a step() of its own does not tell.
    return type(optimizer).step is Optimizer.step and not optimizer._stepped
