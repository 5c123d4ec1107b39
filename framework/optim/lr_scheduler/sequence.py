"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from framework.optim.lr_scheduler.base import LRScheduler, set_option
from framework.optim.lr_scheduler.plateau import ReduceLROnPlateau
from framework.optim.optimizer import Optimizer
from framework.state import python_effect


class _Composite(LRScheduler):
    """What both share: the members and their state."""

    _schedulers: list[LRScheduler]

    def _take(self, schedulers: list[LRScheduler], optimizer: Optimizer) -> None:
        name = type(self).__name__
        for i, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support ReduceLROnPlateau, whose step() needs a value; got one at "
                    f"index {i}"
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer; the one at index {i} "
                    "does not"
                )
        self.optimizer, self._schedulers = optimizer, list(schedulers)

    def get_lr(self) -> list[Any]:
        """The present learning rates: the members compute the next ones."""
        return self._current()

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer, with the members' state dicts."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class SequentialLR(_Composite):
    """Follow `schedulers` one after the other, changing at each of `milestones` (one fewer), where the next
    starts at 0.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR expects one scheduler more than milestones, got {len(schedulers)} schedulers "
                f"and {len(milestones)} milestones"
            )
        self._take(schedulers, optimizer)
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        # Making the members took a step of each; only the first one's counts.
        for group in optimizer.param_groups:
            set_option(group, "lr", group["initial_lr"])
        _undo_step(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    @python_effect
    def step(self, epoch: int | None = None) -> None:
        """Move on by one step."""
        self.last_epoch += 1
        position = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[position]
        if position > 0 and self._milestones[position - 1] == self.last_epoch:
            scheduler._move(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Composite):
    """Step all `schedulers` of one optimizer together, so that their factors multiply."""

    def __init__(self, schedulers: list[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler, but got none")
        self._take(schedulers, optimizer or schedulers[0].optimizer)
        self._last_lr = self._current()

    @python_effect
    def step(self, epoch: int | None = None) -> None:
        """Move all on by one step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._current()


def _undo_step(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, _Composite):
        for member in scheduler._schedulers:
            _undo_step(member)
    else:
        scheduler.last_epoch -= 1
