"""The GPU script without a GPU: it says so; its sections on what stands for one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.works.training import Mlp
from kernels.gpu.code import Code
from kernels.gpu.launch import Launch
from tests import cupy_standin

SMALL = {"mlp": Mlp((5, 7, 3), 4)}


class Timer:
    """A machine on which every kernel takes a millisecond."""

    device = SimpleNamespace(architecture="sm_90")

    def __init__(self) -> None:
        self.rooms: list[Sequence[tuple[int, int]]] = []

    def seconds(self, launch: Launch, code: Code, rooms: Sequence[tuple[int, int]]) -> float:
        assert code.architecture == "sm_90" and len(launch.pointers) == len(rooms)
        self.rooms.append(rooms)
        return 1e-3


def test_without_a_gpu_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: "no driver: install one")
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "no GPU to run on: no driver: install one\n"


def test_kernels_are_compared_with_a_copy() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    machine = Timer()
    rows = {row["name"]: row for row in gpu.kernels(machine, (4096,), (16, 256))}
    assert list(rows) == ["copy", *gpu.BOUND_BY_MEMORY]
    # A copy reads and writes 4 bytes of each element; AdamW reads 16 and writes 12.
    assert rows["copy"]["GB/s"] == pytest.approx(4096 * 8 / 1e-3 / 1e9)
    assert rows["adamw"]["share"] == pytest.approx(28 / 8)
    assert machine.rooms[0] == [(0, 4 * 4096)] * 2


def test_products_of_each_precision() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    rows = list(gpu.products(Timer(), (64,)))
    assert [row["name"] for row in rows] == ["float32 64", "tf32 64", "float16 64", "bfloat16 64"]
    assert all(row["TFLOP/s"] == pytest.approx(2 * 64**3 / 1e-3 / 1e12) for row in rows)


def test_attention_of_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(gpu, "PRECISIONS", gpu.PRECISIONS[1:2])
    machine = Timer()
    rows = [row for row in gpu.attention(machine, (16,), (2, 64, 32)) if "torch" not in row["name"]]
    assert [row["name"] for row in rows] == [f"tf32 16 {x}" for x in ("forward", "of_rows", "of_columns")]
    assert machine.rooms[0][0] == (0, 4 * 2 * 64 * 16)
    assert rows[0]["TFLOP/s"] == pytest.approx(4 * 2 * 64 * 32 * 16 / 1e-3 / 1e12)


def test_steps_are_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(gpu.checks(SMALL, "cpu")) == [{"name": "mlp", "off": 0.0, "same": True}]
    monkeypatch.setattr(gpu, "SAME_RESULT", -1.0)
    assert not next(gpu.checks(SMALL, "cpu"))["same"]


def test_functions_of_order_are_compared_with_the_cpu() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    with cupy_standin.installed():
        rows = list(gpu.eager("cuda", 20, 60))
    assert [row["name"] for row in rows] == list(gpu.EXACT)
    assert all(row["same"] for row in rows), rows


def test_what_goes_wrong_is_told_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> Any:
        yield {"name": "first", "seconds": 1e-3}
        raise RuntimeError("the device is gone")

    sections = {"a": breaks, "b": lambda: iter([{"name": "second", "share": 0.5}])}
    found, left = gpu.run(sections, 60)
    assert found == {"a": [{"name": "first", "seconds": 1e-3}], "b": [{"name": "second", "share": 0.5}]}
    assert left == ["a after first: the device is gone"]
    assert "share 0.5" in capsys.readouterr().out
    _, left = gpu.run({"b": sections["b"]}, 0)
    assert left == ["b after second: 0 s are over"]


def test_everything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = SimpleNamespace(
        name="GPU", capability=(9, 0), total_memory=1, driver=SimpleNamespace(version=12)
    )
    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(gpu, "cuda", lambda number: SimpleNamespace(device=device))
    for name in ("kernels", "products", "attention"):
        monkeypatch.setattr(gpu, name, lambda machine: iter([{"name": "x"}]))
    monkeypatch.setattr(gpu, "checks", lambda device: iter([{"name": "x", "same": device == "cuda:0"}]))
    monkeypatch.setattr(gpu, "eager", lambda device: iter([{"name": "x", "same": True}]))
    monkeypatch.setattr(gpu, "steps", lambda device: iter([{"name": "x"}]))
    assert gpu.main(["--json", str(tmp_path / "gpu.json")]) == 0
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["facts"]["capability"] == "9.0" and written["left out"] == []
    assert gpu.main(["--device", "1"]) == 1
