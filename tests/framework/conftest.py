"""Every capture test runs twice: as it is, and with each compiled function driven, its Python run at every
call."""

from __future__ import annotations

from typing import Any

import pytest

from framework.capture.compile import CompiledFunction
from tests.framework import capture_check
from tests.framework.capture_check import Twins


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give capture tests the two modes; one marked `replays` is about recordings and runs once."""
    if metafunc.module is None or ".test_capture_" not in metafunc.module.__name__:
        return
    replays = metafunc.definition.get_closest_marker("replays") is not None
    metafunc.parametrize("capture_mode", ["recorded"] if replays else ["recorded", "driven"], indirect=True)


# Of its own accord: pytest drops a fixture that only a parametrisation names.
@pytest.fixture(autouse=True)
def capture_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing for "recorded"; for "driven" no function can be recorded."""
    if getattr(request, "param", "recorded") == "driven":
        monkeypatch.setattr(CompiledFunction, "_capture", _refuse)
        monkeypatch.setattr(Twins, "expect", _expect_nothing)
        monkeypatch.setattr(capture_check, "expect_mode", _expect_nothing)


def _refuse(*arguments: Any) -> tuple[None, str, bool]:
    return None, "a test drives every function", False


def _expect_nothing(*arguments: Any, **options: Any) -> None:
    """A test's expectation of replays does not hold where everything is driven."""
