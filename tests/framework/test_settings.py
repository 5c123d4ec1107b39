"""The settings: the debug ladder, running everything eagerly, and how both are set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framework as fw
from compiler import debugging
from compiler.program import Executable
from framework.state import unusual

ROOT = Path(__file__).parents[2]
STEPS = {
    1: "recording 0 of ",
    2: "kernel 0, launch 0",
    3: "recorded graph",
    4: "def kernel(table",
}


def scaled(x: fw.Tensor) -> fw.Tensor:
    """Two kernels."""
    y = (x * 0.5).exp()
    return y / y.sum()


def run(code: str, **environment: str) -> str:
    """What a new process writes to stdout and stderr."""
    result = subprocess.run(
        [sys.executable, "-c", f"import framework as fw\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize("level", range(6))
def test_each_step_tells_what_those_below_tell(level: int, capsys: pytest.CaptureFixture[str]) -> None:
    with fw.config(debug=level):
        fw.compile(scaled)(fw.ones(3, 4))
    written = capsys.readouterr()
    assert written.out == ""
    for step, text in STEPS.items():
        assert (text in written.err) is (level >= step), f"step {step} at level {level}"
    assert fw.config.debug == 0


def test_what_is_driven_and_why_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(x: fw.Tensor) -> fw.Tensor:
        print("here")
        return x + 1

    with fw.config(debug=1):
        fw.compile(prints)(fw.ones(3))
    assert "driven, its Python runs at every call: test_settings.py" in capsys.readouterr().err


def test_the_highest_step_finds_a_program_that_computes_something_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = fw.compile(lambda x: x * 2 + 1)
    with fw.config(debug=5):
        function(fw.ones(8))
        assert "differs" not in capsys.readouterr().err
        (program,) = [v.executable for v in function.variants]
        right = program.native

        def wrong(address: int, workers: int) -> int:
            failed = right(address, workers)
            outputs[0][2] += 1
            return failed

        outputs: list[Any] = []
        run_it = Executable.run

        def noted(self: Any, given: Any, made: Any) -> int:
            outputs[:] = made
            return run_it(self, given, made)

        monkeypatch.setattr(Executable, "run", noted)
        monkeypatch.setattr(program, "native", wrong)
        function(fw.ones(8))
    assert "a program differs from its graph by 0.33 in float32[8], made at test_settings.py" in (
        capsys.readouterr().err
    )


def test_every_step_is_in_the_one_table() -> None:
    table = debugging.__doc__ or ""
    assert [f"| {level} |" in table for level in range(debugging.HIGHEST + 2)] == [True] * 6 + [False]


def test_disabled_functions_run_as_they_were_written() -> None:
    calls = []
    function = fw.compile(lambda x: (calls.append(1), x + 1)[1])
    quiet = fw.compile(scaled)
    before = unusual.threads
    with fw.config(disable=True):
        for _ in range(3):
            function(fw.ones(2))
            quiet(fw.ones(2))
        assert not function.history and not quiet.history
    assert len(calls) == 3
    assert unusual.threads == before
    quiet(fw.ones(2))
    assert quiet.explain().mode == "replay"
    with fw.config(disable=True):
        np.testing.assert_allclose(quiet(fw.ones(2)).numpy(), [0.5, 0.5])
    assert quiet.variants[0].calls == 1


def test_the_environment_sets_what_the_settings_set() -> None:
    code = "f = fw.compile(lambda x: x + 1); f(fw.ones(2)); print(fw.config, f.explain().mode)"
    assert "not called" in run(code, TRACEFUSE_DISABLE="1")
    assert "disable=False" in run(code, TRACEFUSE_DISABLE="0")
    assert "recording 0 of <lambda>" in run(code, TRACEFUSE_DEBUG="1")
    assert "a whole number from 0 to 5" in run(code, TRACEFUSE_DEBUG="lots")
    assert "check_finite='nan'" in run(code, TRACEFUSE_CHECK_FINITE="nan")
    assert "check_finite=True" in run(code, TRACEFUSE_CHECK_FINITE="1")
    found = run(
        "try: fw.zeros(1).log()\nexcept FloatingPointError as e: print(e)", TRACEFUSE_CHECK_FINITE="1"
    )
    assert "log gives -inf" in found


def test_settings_are_put_back_and_refused() -> None:
    with fw.config(debug=1), fw.config(debug=0, disable=True):
        assert (fw.config.debug, fw.config.disable) == (0, True)
    assert (fw.config.debug, fw.config.disable) == (0, False)
    for level in (6, -1, 1.5, True):
        with pytest.raises(ValueError, match="whole number from 0 to 5"):
            fw.config.debug = level  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="there is no setting 'fuse'"):
        fw.config(fuse=False)
    with pytest.raises(AttributeError, match="there is no setting 'fuse'"):
        fw.config.fuse = False  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="check_finite"), fw.config(disable=True, check_finite="both"):
        pass
    assert not fw.config.disable
    assert repr(fw.config) == "config(debug=0, disable=False, check_finite=False)"


def test_settings_decorate_a_function() -> None:
    @fw.config(disable=True)
    def inside() -> bool:
        return fw.config.disable

    assert inside() and not fw.config.disable
    assert inside.__name__ == "inside"


def test_a_function_that_sets_something_is_driven() -> None:
    def sets(x: fw.Tensor) -> fw.Tensor:
        fw.config.debug = 0
        return x + 1

    function = fw.compile(sets)
    function(fw.ones(2))
    assert function.explain().mode == "driven"
