"""The benchmark from Python and from the command line: what it reports, writes, refuses and compares."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels import dtypes, files
from kernels.bench import __main__ as command
from kernels.bench import baseline, child, compare, measure, prepare, report
from kernels.bench.code import code, vector_bits
from kernels.bench.result import Measurement, from_json
from kernels.bench.sweeps import sweep
from kernels.cpu import pool
from kernels.errors import KernelError
from kernels.library import LIBRARY
from kernels.roofline import Level, Roofline
from kernels.roofline import from_json as roofline_from_json

LEVELS = (Level("L1", 1000, 4e9, 5e9, 6e9, 7e9), Level("memory", 0, 1e9, 1.5e9, 2e9, 2.5e9))
PEAK = {"float32": 1e11, "float64": 5e10}
ROOF = Roofline("a machine", 1, LEVELS, PEAK, PEAK, 1e-7, 5e-7, 0.0)
QUIET = Measurement(
    "exp", (8,), "float32", 1, "ours", 2e-3, 1e-3, 0.01, 20, 0.0, 1000, 100, 5e-4, "memory", 2e-3
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = pool.get_num_threads()
    yield
    pool.set_num_threads(before)


@pytest.fixture
def fixed_roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test measures this machine's peaks."""
    monkeypatch.setattr(command, "roofline", lambda threads, fresh: replace(ROOF, threads=threads))


def reported(monkeypatch: pytest.MonkeyPatch, found: list[Measurement]) -> list[child.Request]:
    """Let the measuring process find this; what was asked of it."""
    asked: list[child.Request] = []

    def answer(request: child.Request) -> list[Measurement]:
        asked.append(request)
        return found

    monkeypatch.setattr(command, "measurements", answer)
    return asked


def test_roofline_bounds() -> None:
    assert ROOF.level(1000).name == "L1" and ROOF.level(1001).name == "memory"
    memory = ROOF.memory
    assert [memory.bandwidth(w, False) for w in (0.0, 1 / 3, 0.5)] == [2e9, 1.5e9, 1e9]
    assert memory.bandwidth(0.5, True) == 2.5e9
    assert roofline_from_json(json.loads(json.dumps(ROOF.as_json()))) == ROOF


def test_measure() -> None:
    found = measure("softmax", (16, 64), "float64", threads=1, seconds=0.01, roof=ROOF)
    assert (found.kernel, found.shape, found.dtype, found.threads) == ("softmax", "16x64", "float64", 1)
    assert found.bytes == 2 * 16 * 64 * 8 and found.excess == 2.5
    assert found.bound == pytest.approx(found.bytes / 1e9) and found.bound_by == "memory"
    assert found.code_bytes and found.vector_bits and found.compile_seconds
    assert found.roof_share == pytest.approx(found.bound / found.best)
    assert from_json(json.loads(json.dumps(found.as_json()))) == found


def test_compare_says_what_is_left_out() -> None:
    said: list[str] = []
    against = ("reference", "numpy", "numba")
    found = compare("matmul", (4, 5, 6), threads=1, seconds=0.01, against=against, roof=ROOF, say=said.append)
    assert [m.library for m in found] == ["ours", "reference", "numpy"]
    assert said == ["numba left out of matmul: not written in it"]
    assert found[1].vector_bits is None and found[1].bytes == found[0].bytes


def test_any_work_and_file(tmp_path: Path) -> None:
    placed = LIBRARY["gelu"].make(dtypes.float32, (100,))
    files.save(placed, tmp_path / "gelu.json")
    for kernel in (placed, placed.work, tmp_path / "gelu.json"):
        found = measure(kernel, threads=1, seconds=0.01, roof=ROOF)
        assert (found.kernel, found.sizes, found.dtype) == ("gelu", (100,), "float32")
    assert prepare("gelu", (10, 10)).arrays[0].shape == (100,)


@pytest.mark.parametrize("case", [("nothing", None), ("softmax", (8,)), ("matmul", (8, 8))])
def test_wrong_kernels_and_sizes(case: tuple[str, Any]) -> None:
    with pytest.raises(KernelError):
        prepare(*case)


def test_code() -> None:
    made = code(LIBRARY["add"].make(dtypes.float32, (8,)).work.spec)
    assert made.size > 0 and made.bits in (128, 256, 512) and made.seconds > 0
    assert vector_bits("vaddps %zmm1, %ymm2") == 512
    assert vector_bits("fadd v0.4s, v1.4s, v2.4s") == 128
    assert vector_bits("addq %rax, %rbx") == 0


def test_every_sweep_fits_its_kernel() -> None:
    for named in LIBRARY.values():
        assert all(len(sizes) == len(named.default) for sizes in sweep(named))


def test_the_measuring_process() -> None:
    request = child.Request((("exp", (100,), "float32"),), 1, 0.01, ("numpy", "numexpr"), ROOF)
    found = [m for m in child.measurements(request) if isinstance(m, Measurement)]
    assert found[0].library == "ours" and found[0].kernel == "exp"
    assert found[1].library == "numpy"


def test_a_failing_process_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="exit code 1"):
        list(child.measurements(child.Request((("none", None, "float32"),), 1, 0.01, (), ROOF)))


def test_lists_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(LIBRARY)


@pytest.mark.usefixtures("fixed_roof")
def test_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = reported(monkeypatch, [QUIET, replace(QUIET, library="numpy")])
    json_file, csv_file = tmp_path / "a.json", tmp_path / "a.csv"
    arguments = ["exp", "--shapes", "2x4", "--threads", "1", "--against", "numpy"]
    assert command.main([*arguments, "--json", str(json_file), "--csv", str(csv_file)]) == 0
    assert asked[0].cases == (("exp", (8,), "float32"),) and asked[0].against == ("numpy",)
    printed = capsys.readouterr().out
    assert "a machine; 1 thread" in printed and "50 % memory" in printed and "numpy" in printed
    assert report.read_json(json_file)[1] == [QUIET, replace(QUIET, library="numpy")]
    with csv_file.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["kernel"] == "exp" and float(rows[0]["median"]) == 2e-3


@pytest.mark.usefixtures("fixed_roof")
def test_a_busy_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported(monkeypatch, [replace(QUIET, waited=0.5)])
    path = tmp_path / "a.json"
    assert command.main(["exp", "--json", str(path)]) == command.BUSY
    written = capsys.readouterr()
    assert "too busy" in written.err and "exp" not in written.out and not path.exists()
    assert command.main(["exp", "--json", str(path), "--noisy"]) == 0
    assert "busy" in capsys.readouterr().out and path.exists()


@pytest.mark.usefixtures("fixed_roof")
def test_one_doubtful_measurement_of_many_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reported(monkeypatch, [*[QUIET] * 10, replace(QUIET, spread=0.5)])
    assert command.main(["exp"]) == 0
    assert capsys.readouterr().out.count("busy") == 1


def test_peaks_of_a_busy_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "roofline", lambda threads, fresh: replace(ROOF, waited=0.9))
    assert command.main(["exp"]) == command.BUSY


@pytest.mark.usefixtures("fixed_roof")
@pytest.mark.parametrize("ratio", [0.5, 1.2, 1.3])
def test_baseline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float) -> None:
    path = tmp_path / "before.json"
    report.write_json(path, [QUIET], [ROOF])
    reported(monkeypatch, [replace(QUIET, best=QUIET.best * ratio), replace(QUIET, kernel="log")])
    assert command.main(["exp", "--baseline", str(path)]) == (command.SLOWER if ratio > 1.25 else 0)
    assert command.main(["exp", "--baseline", str(path), "--tolerance", "0.1"]) == (ratio > 1.1)


def test_only_our_own_kernels_regress() -> None:
    slow = replace(QUIET, library="numpy", best=1.0)
    assert baseline.changes([QUIET, replace(slow, best=0.1)], [QUIET, slow]) == [
        baseline.Change(QUIET, QUIET)
    ]


@pytest.mark.usefixtures("fixed_roof")
@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["softmax", "--shapes", "8"],
        ["exp", "--shapes", "many"],
        ["exp", "--baseline", "/nowhere"],
    ],
)
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == command.WRONG


def test_table_without_rich() -> None:
    lines = report.table([QUIET, replace(QUIET, kernel="log")]).splitlines()
    assert lines[0].split()[:3] == ["kernel", "sizes", "dtype"] and "library" not in lines[0]
    assert [report.seconds(x) for x in (2.0, 0.0123, 4.5e-6, 3e-9)] == ["2 s", "12.3 ms", "4.5 µs", "3 ns"]
    assert lines[3] == "" and lines[4].startswith("log")


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from kernels.bench import plots

    found = [
        replace(QUIET, kernel=kernel, sizes=sizes, library=library, flops=1000 * sizes[-1])
        for kernel, every in (
            ("exp", [(10,), (100,)]),
            ("softmax", [(4, 8), (2, 16)]),
            ("matmul", [(1, 2, 3), (4, 5, 6)]),
            ("gelu", [(10,)]),
        )
        for sizes in every
        for library in ("ours", "numpy")
    ]
    names = {path.stem for path in plots.draw(tmp_path, found, [ROOF], "svg")}
    families = ("elementwise", "rows", "matmul")
    wanted = {"roofline", *(f"sweep_{f}" for f in families), "exp", "softmax", "matmul", "gelu"}
    assert names == {f"{name}_float32_1threads" for name in wanted}
    assert all((tmp_path / f"{name}.svg").stat().st_size > 1000 for name in names)
