"""What is asked of machine code, and the report on kernels in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import dtypes, files
from kernels.files import Placed
from kernels.gpu.compile import ARCHITECTURES, triton_version
from kernels.gpu.inspection import Access, Inspection
from kernels.gpu.quality import bulk_operands, failures
from kernels.gpu.render import launch_of
from kernels.gpu.report import main, moved, of_library, report
from kernels.library import LIBRARY
from kernels.work import Work

F, H = dtypes.float32, dtypes.float16
GOOD = Inspection("sm_90", 64, 0, 1024, 128, (Access("load", 0, 128, False, 4),), {}, 0)


def kernel(name: str = "softmax", dtype: dtypes.DType = F, *sizes: int) -> Placed:
    return LIBRARY[name].make(dtype, sizes or (256, 256))


def wrong(placed: Placed, found: Inspection, tf32: bool = False) -> list[str]:
    return failures(placed.work, launch_of(placed.work, tf32=tf32), found)


def test_good_code_has_no_failures() -> None:
    assert wrong(kernel(), GOOD) == []


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"spilled": 8}, "8 bytes spilled"),
        ({"memory": 300000}, "300000 bytes of shared memory"),
        ({"architecture": "gfx942", "memory": 70000}, "70000 bytes of shared memory"),
        ({"wide": 2}, "2 float64 instructions"),
        ({"accesses": (Access("load", 0, 32, False, 4),)}, "4 loads of 32 bits of p0"),
        ({"architecture": "gfx942", "accesses": (Access("load", -1, 64, False, 1),)}, "load 64 bits"),
    ],
)
def test_each_failure_is_told(changed: dict[str, object], words: str) -> None:
    (told,) = wrong(kernel(), replace(GOOD, **changed))
    assert words in told


def test_what_is_the_same_for_all_threads_may_be_narrow() -> None:
    assert wrong(kernel(), replace(GOOD, accesses=(Access("load", 0, 32, True, 4),))) == []


def test_float64_is_right_where_the_kernel_has_it() -> None:
    assert wrong(kernel("softmax", dtypes.float64), replace(GOOD, wide=9)) == []


def test_half_and_tf32_products_need_tensor_cores() -> None:
    sizes = 256, 256, 256
    assert wrong(kernel("matmul", H, *sizes), GOOD) == ["no tensor cores"]
    assert wrong(kernel("matmul", F, *sizes), GOOD, tf32=True) == ["no tensor cores"]
    assert wrong(kernel("matmul", F, *sizes), GOOD) == []
    assert wrong(kernel("matmul", H, *sizes), replace(GOOD, tensor={"mma.sync": 4})) == []


def test_only_long_aligned_rows_are_bulk() -> None:
    def bulk(placed: Placed, alignment: int = 16) -> list[int]:
        work = placed.work
        return bulk_operands(work, launch_of(work, [alignment] * len(work.spec.operands)))

    assert bulk(kernel()) == [0, 1]
    assert bulk(kernel(), alignment=8) == []
    assert bulk(kernel("softmax", F, 256, 255)) == []
    assert bulk(kernel("softmax", F, 16, 256)) == []
    assert bulk(kernel("softmax", H, 256, 252)) == []
    # Weight and bias of a norm are one row each.
    assert bulk(kernel("layer_norm")) == [0, 3]


def test_bytes_moved() -> None:
    softmax = kernel()
    assert moved(softmax.work, launch_of(softmax.work)) == 2 * 4 * 256 * 256
    product = kernel("matmul", F, 256, 256, 256)
    launch = launch_of(product.work)
    across = 256 // dict(launch.constants)["COLUMNS"], 256 // dict(launch.constants)["ROWS"]
    assert moved(product.work, launch) == (sum(across) + 1) * 4 * 256 * 256


def test_every_kernel_of_the_library_is_reported_on() -> None:
    assert {name.split()[0] for name, _ in of_library()} == {*LIBRARY, "blocks"}


def test_what_cannot_be_rendered_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: Work, *args: object, **options: object) -> None:
        raise files.SpecError("no such thing")

    monkeypatch.setattr("kernels.gpu.report.launch_of", refuse)
    (row,) = report([("bad", kernel())], ["sm_90"])
    assert row.failed == ("no such thing",) and row.found is None and "no such thing" in row.cells()


@pytest.mark.skipif(triton_version() is None, reason="Triton is not installed")
def test_a_report_on_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(kernel(), tmp_path / "rows.json")
    files.save(kernel("matmul", F, 128, 128, 128), tmp_path / "product.json")
    out = tmp_path / "out"
    assert main([str(tmp_path), "--tf32", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [(r["kernel"], r["architecture"]) for r in found] == [
        (name, a) for name in ("product", "rows") for a in ARCHITECTURES
    ]
    assert all(r["spilled"] == 0 and r["failed"] == [] and r["registers"] > 0 for r in found)
    assert all(r["tensor"] for r in found[:4]) and found[4]["moved"] == found[4]["least"]
    printed = capsys.readouterr().out
    assert "rows 256x256" in printed and "8 kernels compiled, 0 of them not as they should be" in printed
