"""From source text to native code: what kernels may be written in, and what is kept on disk and in memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.errors import NumbaError

from kernels import cache
from kernels.cpu import engine
from kernels.cpu.engine import Request

FORMS = """
from kernels.cpu.atomics import read
from kernels.cpu.vocabulary import entry, load_one_float64, cast_float64_int64

LIMIT = 100


def square(x: int) -> int:
    return x * x


def sum_of_squares(start: int, stop: int, step: int) -> int:
    total = 0
    for i in range(start, stop, step):
        if i == 3 or not i != 5:
            continue
        if i > LIMIT:
            break
        total += square(i) if i >= 0 else -square(i)
    return total


def halvings(x: int, unused: int, other: int) -> int:
    count = 0
    while x & 1 == 0 and x < 1 << 62:
        x = x >> 1
        count += 1
    return count
"""


def called(source: str, function: str, *arguments: int) -> int:
    machine = engine.load(Request("forms", source, function))
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(machine.address)(*arguments)


def test_python_that_kernels_use() -> None:
    def expected(start: int, stop: int, step: int) -> int:
        chosen = [i for i in range(start, stop, step) if i not in (3, 5) and i <= 100]
        return sum(i * i if i >= 0 else -i * i for i in chosen)

    for bounds in ((0, 10, 1), (-7, 20, 3), (4, 4, 1), (9, 2, 1), (90, 300, 2)):
        assert called(FORMS, "sum_of_squares", *bounds) == expected(*bounds)
    assert [called(FORMS, "halvings", x, 0, 0) for x in (1, 2, 96)] == [0, 1, 5]


@pytest.mark.parametrize(
    "line, message",
    [
        ("return [table]", "No conversion"),
        ("return missing(table)", "missing"),
        ("return entry(table, 0.5)", "entry does not take"),
        ("return table ** start", "cannot use"),
    ],
)
def test_other_python_is_refused(line: str, message: str) -> None:
    head = "from kernels.cpu.vocabulary import entry\n\n\ndef kernel(table: int, start: int) -> int:\n"
    source = f"{head}    {line}\n"
    with pytest.raises(NumbaError, match=message):
        engine.load(Request("refused", source, "kernel"))
    assert not cache.read(f"{Request('refused', source, 'kernel').key}.o")


def test_many_are_linked_together_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))
    requests = [Request("twice", f"{FORMS}\nNUMBER = {i % 2}\n", "sum_of_squares") for i in range(4)]
    first = engine.load_many(requests)
    assert first[0] is first[2] and first[1] is first[3] and first[0].address != first[1].address
    assert not first[0].cached and Path(first[0].path).read_text() == first[0].source
    assert len(list(tmp_path.glob("*.o"))) == 2
    monkeypatch.setattr(engine, "_loaded", {})
    monkeypatch.setattr(engine, "_engine", engine.cache(engine._engine.__wrapped__))
    again = engine.load_many(requests)
    assert again[0].cached and again[0].symbol == first[0].symbol


def test_kernels_on_disk_are_loaded_without_numba() -> None:
    called(FORMS, "sum_of_squares", 0, 1, 1)
    program = (
        "import sys; from kernels.cpu.engine import Request, load;"
        f"machine = load(Request('forms', {FORMS!r}, 'sum_of_squares'));"
        "print(machine.cached, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.skipif(not shutil.which("nm"), reason="nm is not installed")
def test_object_code_needs_the_c_library_alone(tmp_path: Path) -> None:
    source = (
        "from kernels.cpu.vocabulary import fmod, load_one_float64, sin, store_one_float64\n\n\n"
        "def kernel(table, start, stop, part, scratch):\n"
        "    for i in range(start, stop):\n"
        "        x = load_one_float64(table, i)\n"
        "        store_one_float64(table, i, fmod(sin(x), x))\n"
    )
    request = Request("symbols", source, "kernel")
    engine.load(request)
    code = cache.read(f"{request.key}.o")
    assert code is not None
    object_file = tmp_path / "kernel.o"
    object_file.write_bytes(code.split(b"\n", 1)[1])
    listed = subprocess.run(
        ["nm", object_file], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    undefined = {line.split()[-1] for line in listed if " U " in line}
    assert undefined <= {"fmod", "sin", "_fmod", "_sin"}
    assert any(line.endswith(f" T {request.key}") for line in listed)
