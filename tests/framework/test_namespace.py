"""`import framework as fw`: what it loads at once, and names that load on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import framework as fw

ROOT = Path(__file__).parents[2]


def run(code: str) -> set[str]:
    """Modules loaded in a new process after `code`."""
    code = f"{code}\nimport sys\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines()[-1].split())


def test_import_loads_only_tensors() -> None:
    loaded = run("import framework")
    packages = ("framework.nn", "framework.optim", "framework.utils", "framework.capture", "kernels.cpu")
    assert [name for name in sorted(loaded) if name.startswith(packages)] == []
    # Each costs milliseconds that the budget of 50 ms over NumPy does not have.
    assert loaded & {"zipfile", "json", "hashlib", "kernels.spec", "framework.serialization"} == set()


@pytest.mark.parametrize(
    "code",
    [
        "import framework as fw; fw.nn.functional.relu(fw.ones(1)); fw.optim.SGD; fw.utils.data.DataLoader",
        "import framework.nn as nn; import framework.nn.functional as F; nn.Linear(1, 1); F.relu",
        "from framework import nn, optim, utils, serialization, compile, load, save; nn.init, utils.data",
        "from framework.nn import Linear; from framework.optim.lr_scheduler import StepLR",
    ],
)
def test_lazy_names_load_in_every_spelling(code: str) -> None:
    run(code)


def test_lazy_names_are_listed_and_stay() -> None:
    assert {"nn", "optim", "compile", "load", "set_num_threads", "ones"} <= set(dir(fw))
    assert fw.compile is fw.compile and callable(fw.compile)
    assert fw.get_num_threads() >= 1
    with pytest.raises(AttributeError, match="module 'framework' has no attribute 'nothing'"):
        fw.nothing  # noqa: B018  # type: ignore[attr-defined]


def test_show_config_names_what_decides_speed() -> None:
    text = fw.show_config()
    for fact in ("Python", "numpy", "numba", "CPU features", "vector lanes", "threads", "kernel cache"):
        assert fact in text
