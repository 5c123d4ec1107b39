"""The tuner: what it compares, what it leaves out, and that it asks once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels import dtypes
from kernels.gpu import matmul, tune
from kernels.gpu.code import Code
from kernels.gpu.compile import digest, triton_version
from kernels.gpu.launch import Launch
from kernels.gpu.product_tiles import Tile
from kernels.gpu.render import launch_of
from kernels.library import LIBRARY
from kernels.work import Work

F, H = dtypes.float32, dtypes.float16


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))


def softmax(rows: int = 64) -> Work:
    return LIBRARY["softmax"].make(F, (rows, 2048)).work


def test_variants_differ_and_the_first_is_the_usual_one() -> None:
    for work in (softmax(), LIBRARY["matmul"].make(F, (512, 512, 512)).work):
        launches = tune.variants(work)
        assert launches[0] == launch_of(work)
        assert 2 <= len({x.code for x in launches}) == len(launches) <= tune.MOST


def code(launch: Launch, shared: int = 0) -> Code:
    return Code("gfx942", "kernel", b"", ".vgpr_spill_count: 0", launch.warps, 32, shared, (), 0, 1, "3")


def test_the_fastest_is_kept_for_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(launch: Launch, made: Code) -> float:
        asked.append(launch.warps)
        return abs(launch.warps - 2)

    monkeypatch.setattr(tune, "attempts", lambda requests: [code(launch) for launch, _ in requests])
    usual = launch_of(softmax()).warps
    assert usual == 4
    assert tune.tuned(softmax(), "gfx942", measure).warps == 2
    assert sorted(asked) == [2, 4, 8]
    assert tune.tuned(softmax(), "gfx942", measure).warps == 2
    assert len(asked) == 3
    tune.tuned(softmax(80), "gfx942", measure)
    assert len(asked) == 6


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {4: 70000, 8: 1024, 2: 80000}
    monkeypatch.setattr(
        tune, "attempts", lambda requests: [code(launch, made[launch.warps]) for launch, _ in requests]
    )
    assert tune.tuned(softmax(), "gfx942", lambda launch, _: launch.warps).warps == 8


@pytest.mark.skipif(triton_version() is None, reason="Triton is not installed")
def test_what_spills_is_left_out() -> None:
    work = LIBRARY["matmul"].make(H, (256, 256, 256)).work
    good, bad = (matmul.render(work, cut=Tile(*cut)) for cut in ((64, 64, 32, 4, 3), (128, 64, 16, 1, 1)))
    wrong = replace(good, source="def kernel(p0):\n    nothing(p0)\n")
    found = tune.sound([bad, wrong, good], "sm_80")
    assert [digest(x, "sm_80") for x, _ in found] == [digest(good, "sm_80")]
    assert [x for x, _ in tune.sound([bad, wrong], "sm_80")] == [bad]
