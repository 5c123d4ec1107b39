"""One kernel as its author sees it: its texts, the same bits in plain Python, and sources that are edited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framework as fw
from benchmarks.steppers.models import build
from benchmarks.works.training import Gpt
from kernels.cpu import edits
from kernels.errors import KernelError


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Edited files in a folder of the test's; none is left in force."""
    monkeypatch.setattr(edits, "folder", lambda: tmp_path)
    yield
    edits._edits.clear()


def chain() -> Any:
    """A compiled function of one kernel, which only these tests have."""
    return fw.compile(lambda x, y: (x * 0.3125 + y).tanh().sum(-1))


def rewrite(path: Path, old: str, new: str) -> None:
    """Change a file, visibly also within the clock's grain."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1_000_000))


def test_every_kernel_of_a_gpt_step_gives_the_same_bits_in_plain_python() -> None:
    fw.manual_seed(0)
    model = build(fw, Gpt(layers=1, width=16, heads=2, vocabulary=11, context=8, batch=2))
    optimizer = fw.optim.AdamW(model.parameters(), lr=1e-3)

    @fw.compile
    def step(tokens: fw.Tensor, following: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = fw.nn.functional.cross_entropy(model(tokens), following)
        loss.backward()
        optimizer.step()
        return loss

    step(fw.randint(0, 11, (2, 8)), fw.randint(0, 11, (16,)))
    assert len(step.kernels) > 20
    for kernel in step.kernels:
        arrays = kernel.arrays()
        for native, plain in zip(kernel.run(*arrays), kernel.run_python(*arrays), strict=True):
            assert native.tobytes() == plain.tobytes(), kernel


def test_the_levels_of_a_kernel() -> None:
    f = chain()
    f(fw.ones(3, 5), fw.ones(3, 5))
    (kernel,) = f.kernels
    assert "def kernel(" in kernel.source and "tanh" in str(kernel.spec)
    assert "define void @" in kernel.llvm.replace("dso_local ", "") and ".cfi_endproc" in kernel.asm
    assert repr(kernel) == f"<kernel {kernel.spec.name} [3, 5]>"


def test_memory_of_ones_own_goes_in_and_comes_out() -> None:
    f = chain()
    f(fw.ones(3, 5), fw.ones(3, 5))
    (kernel,) = f.kernels
    x, y = np.linspace(-1, 1, 15, dtype=np.float32), np.ones(15, np.float32)
    *_, out = kernel.run_python(x, y, np.zeros(3, np.float32))
    assert np.allclose(out, np.tanh(x * 0.3125 + y).reshape(3, 5).sum(-1), rtol=1e-6)
    with pytest.raises(ValueError, match=r"3 arrays, float32\[15\], .*got float32\[3\]"):
        kernel.run(np.zeros(3, np.float32))


def test_an_edited_kernel_runs_until_its_file_is_gone() -> None:
    f, x, y = chain(), fw.randn(3, 5), fw.randn(3, 5)
    before = f(x, y).numpy()
    path = f.kernels[0].edit()
    assert np.array_equal(f(x, y).numpy(), before)
    rewrite(path, "tanh(", "sin(")
    wanted = np.sin(x.numpy() * np.float32(0.3125) + y.numpy()).sum(-1)
    assert np.allclose(f(x, y).numpy(), wanted, atol=1e-6)
    assert "sin(" in f.kernels[0].source and f.kernels[0].edited == path
    assert "(edited)" in str(f.explain()) and f.explain().kernels[0].edited == str(path)
    # A program made now has the same kernel.
    assert np.allclose(chain()(x, y).numpy(), wanted, atol=1e-6)
    path.unlink()
    assert np.array_equal(f(x, y).numpy(), before)
    assert f.kernels[0].edited is None and not edits.active()
    assert f.variants[0].executable.native.__class__.__name__ == "CFunctionType", "nothing is asked any more"


def test_restore_undoes_an_edit_and_a_path_may_be_given(tmp_path: Path) -> None:
    f, x = chain(), fw.randn(3, 5)
    before = f(x, x).numpy()
    place = tmp_path / "mine" / "kernel.py"
    assert f.kernels[0].edit(place) == place
    rewrite(place, "tanh(", "neg(")
    assert not np.array_equal(f(x, x).numpy(), before)
    f.kernels[0].restore()
    assert not place.exists() and np.array_equal(f(x, x).numpy(), before)


def test_what_does_not_compile_is_warned_of_and_runs_in_plain_python(capsys: Any) -> None:
    f, x = chain(), fw.randn(3, 5)
    before = f(x, x).numpy()
    kernel = f.kernels[0]
    path = kernel.edit()
    rewrite(path, "    store_one_float32(", "    print('row', i0)\n        store_one_float32(")
    with pytest.warns(UserWarning, match="does not compile, and the generated kernel runs: .*print"):
        after = f(x, x).numpy()
    assert np.array_equal(after, before)
    arrays = kernel.arrays()
    plain = kernel.run_python(*arrays)
    assert capsys.readouterr().out.split("\n")[:3] == ["row 0", "row 1", "row 2"]
    rewrite(path, "j, active)", "j + 99, active)")
    with pytest.raises(KernelError, match="are touched"):
        kernel.run_python(*arrays)
    kernel.restore()
    assert plain[-1].tobytes() == kernel.run(*arrays)[-1].tobytes()
