"""`fw.config`: what a user may set, at once or for a `with` block, and what each setting does.

Knows names and values; what acts on them is elsewhere.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from compiler import debugging, telling
from framework import lookout, state
from framework.finite import Finite, wanted_of
from framework.state import python_effect

_NAMES = ("debug", "disable", "check_finite")


class Config:
    """Settings of this process. Assign them, or call it for a block or a function: `with config(debug=2):
    ...`.

    `debug`: 0 to 5, how much the compiler tells on stderr (compiler/debugging.py has the table); all threads.
    `disable`: compiled functions run as they were written; all threads.
    `check_finite`: True, "nan" or "inf" raise NonFiniteError at the first op that makes one; this thread.

    Example::

        >>> with fw.config(check_finite=True):
        ...     fw.tensor([1.0, 4.0]).log().exp()
        tensor([1., 4.])
    """

    @property
    def debug(self) -> int:
        """How much is told: 0 (nothing) to 5."""
        return debugging.ladder.level

    @debug.setter
    def debug(self, level: int) -> None:
        telling.set_level(level)

    @property
    def disable(self) -> bool:
        """Whether compiled functions run as they were written."""
        return state.switches.disabled

    @disable.setter
    def disable(self, value: bool) -> None:
        state.set_disabled(bool(value))

    @property
    def check_finite(self) -> bool | str:
        """What is looked for in this thread: False, True (both), "nan" or "inf"."""
        found = _finite()
        return False if found is None else _word(found)

    @check_finite.setter
    def check_finite(self, value: bool | str) -> None:
        wanted = wanted_of(value) if value else None
        before = _finite()
        if before is not None:
            lookout.remove(before)
        if wanted is not None:
            lookout.add(Finite(wanted))

    @python_effect
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _NAMES:
            raise AttributeError(f"there is no setting {name!r}: {', '.join(_NAMES)} can be set")
        object.__setattr__(self, name, value)

    def __call__(self, **settings: Any) -> Settings:
        """Settings for a `with` block, or as decorator for the calls of a function."""
        for name in settings:
            if name not in _NAMES:
                raise AttributeError(f"there is no setting {name!r}: {', '.join(_NAMES)} can be set")
        return Settings(self, settings)

    def __repr__(self) -> str:
        return f"config({', '.join(f'{name}={getattr(self, name)!r}' for name in _NAMES)})"


class Settings:
    """Settings that hold inside a `with` block."""

    def __init__(self, config: Config, chosen: dict[str, Any]) -> None:
        self.config, self.chosen = config, chosen
        self.before: list[dict[str, Any]] = []

    def __enter__(self) -> Config:
        before = {name: getattr(self.config, name) for name in self.chosen}
        try:
            self._set(self.chosen)
        except ValueError:
            self._set(before)
            raise
        self.before.append(before)
        return self.config

    def __exit__(self, *exception: object) -> None:
        self._set(self.before.pop())

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self.config, name, value)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with the settings in force while it runs."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with Settings(self.config, self.chosen):
                return function(*args, **kwargs)

        return called


def _finite() -> Finite | None:
    return next((x for x in lookout.lookouts() if isinstance(x, Finite) and x.forward), None)


def _word(found: Finite) -> bool | str:
    wanted = found.wanted
    return True if wanted.nan and wanted.inf else "nan" if wanted.nan else "inf"


def _from_environment() -> None:
    given = os.environ.get("TRACEFUSE_CHECK_FINITE", "0")
    if given not in ("", "0"):
        config.check_finite = True if given == "1" else given


config = Config()
_from_environment()
