"""The report on whole steps, for a small one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_report
from benchmarks.works import WORKS
from kernels.gpu.compile import triton_version


def test_what_repeats_is_shorter_than_what_is_timed() -> None:
    assert {type(work) for work in gpu_report.SHORTER.values()} == {
        type(WORKS[x]) for x in gpu_report.SHORTER
    }


@pytest.mark.skipif(triton_version() is None, reason="Triton is not installed")
def test_a_training_step_is_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert gpu_report.main(["mlp_small", "--architectures", "sm_90", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    # Each kind of kernel once: products, a softmax with its loss, sums of gradients, the optimizer.
    assert len({row["kernel"] for row in found}) == len(found) >= 10
    assert all(row["spilled"] == 0 and row["failed"] == [] for row in found)
    assert "mlp_small" in capsys.readouterr().out
