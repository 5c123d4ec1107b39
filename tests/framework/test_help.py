"""What a user sees in a REPL: help with an example on every public name, completion, HTML."""

from __future__ import annotations

import doctest
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.utils import data

# Modules whose names are public: those listed, or those that do not start with an underscore and are ours.
MODULES = {
    "fw": fw,
    "fw.autograd": fw.autograd,
    "fw.cache": fw.cache,
    "fw.profiler": fw.profiler,
    "nn": nn,
    "nn.functional": F,
    "nn.init": nn.init,
    "nn.utils": nn.utils,
    "nn.utils.rnn": nn.utils.rnn,
    "optim": optim,
    "optim.lr_scheduler": optim.lr_scheduler,
    "utils.data": data,
}
# Dtypes, numbers and words, which have no help of their own.
VALUES = (fw.dtype, float, str, type(None))
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public() -> Iterator[tuple[str, Any]]:
    """Every public name with what it stands for."""
    for prefix, module in MODULES.items():
        listed = getattr(module, "__all__", None)
        for name in listed or dir(module):
            thing = getattr(module, name)
            ours = listed or getattr(thing, "__module__", module.__name__) == module.__name__ or module is fw
            if name.startswith("_") or isinstance(thing, (types.ModuleType, *VALUES)) or not ours:
                continue
            yield f"{prefix}.{name}", thing
    for name in dir(fw.Tensor):
        thing = inspect.getattr_static(fw.Tensor, name)
        # `x.exp_()` says in its help that it is `exp` in place.
        if not name.startswith("_") and not (name.endswith("_") and hasattr(fw, name[:-1])):
            yield f"Tensor.{name}", thing


PUBLIC = dict(public())


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Examples may change what the next ones see."""
    yield
    fw.set_default_dtype(fw.float32)
    fw.set_printoptions(profile="default")


def test_every_public_name_is_walked() -> None:
    wanted = {
        "fw.exp",
        "fw.compile",
        "fw.profile",
        "nn.Linear",
        "nn.functional.gelu",
        "Tensor.T",
        "Tensor.sum",
    }
    assert (
        wanted | {"optim.AdamW", "utils.data.DataLoader", "fw.cache.clear", "nn.init.zeros_"} <= PUBLIC.keys()
    )
    assert len(PUBLIC) > 600


def test_every_public_name_has_help_with_an_example() -> None:
    without = [name for name, thing in PUBLIC.items() if ">>>" not in (thing.__doc__ or "")]
    assert without == []


def test_in_place_methods_name_their_function() -> None:
    assert "`exp`" in (fw.Tensor.exp_.__doc__ or "")


def examples() -> dict[str, str]:
    """The docstring of every public thing, once, under its first name."""
    found: dict[int, tuple[str, str]] = {}
    for name, thing in PUBLIC.items():
        found.setdefault(id(thing), (name, thing.__doc__ or ""))
    return dict(found.values())


def test_every_example_does_what_it_shows() -> None:
    names = {"fw": fw, "nn": nn, "F": F, "optim": optim, "data": data, "np": np}
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    parser, failed, output = doctest.DocTestParser(), [], []
    for name, doc in examples().items():
        test = parser.get_doctest(doc, dict(names), name, None, 0)
        if runner.run(test, out=output.append).failed:
            failed.append(name)
    assert failed == [], "".join(output)


def test_a_wrong_example_is_noticed() -> None:
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    test = doctest.DocTestParser().get_doctest(">>> fw.ones(2)\ntensor([1., 2.])\n", {"fw": fw}, "", None, 0)
    assert runner.run(test, out=lambda text: None).failed == 1


def test_help_shows_shapes() -> None:
    assert "Shapes: [..., m, k] times [..., k, n] is [..., m, n]." in (fw.matmul.__doc__ or "")
    assert "Shapes: [..., in_features] to [..., out_features]." in (nn.Linear.__doc__ or "")
    assert fw.Tensor.matmul.__doc__ == fw.matmul.__doc__


def test_completion_shows_no_internals() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    compiled = fw.compile(lambda x: x)
    for thing in (fw, fw.ones(2), model[0], compiled):
        names = dir(thing)
        assert [n for n in names if n.startswith("_") and not n.startswith("__")] == []
    assert {"weight", "bias", "forward", "in_features"} <= set(dir(model[0]))
    assert {"explain", "kernels", "graph"} <= set(dir(compiled))
    assert {"exp", "shape", "backward"} <= set(dir(fw.ones(2)))
    modules = {n for n in dir(fw) if isinstance(getattr(fw, n), types.ModuleType)}
    wanted = "autograd cache cuda nn optim profiler random serialization utils"
    assert modules == set(wanted.split())


def test_tensors_are_html_in_notebooks() -> None:
    x = fw.arange(200, dtype=fw.float32).reshape(20, 10).requires_grad_()
    root = ElementTree.fromstring(x._repr_html_())
    assert "float32 · [20, 10] · 800 bytes · requires grad" in "".join(root.itertext())
    rows = root.findall(".//tr")
    assert len(rows) == 11 and len(rows[0].findall("td")) == 10
    assert [cell.text for cell in rows[0].findall("td")][:3] == ["0", "1", "2"]
    assert "MulBackward0" in (x * 2)._repr_html_()
    for t in (
        fw.tensor(3.0),
        fw.zeros(0, 3),
        fw.ones(2, 3, 4),
        fw.tensor([True, False]),
        fw.ones(2).bfloat16(),
    ):
        ElementTree.fromstring(t._repr_html_())


def test_modules_are_html_in_notebooks() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    root = ElementTree.fromstring(model._repr_html_().replace("<details open", "<details"))
    text = "".join(root.itertext())
    assert "23 parameters" in text
    assert "Linear(in_features=4, out_features=3, bias=True) weight [3, 4], bias [3]" in text
    assert len(root.findall(".//details")) == 2


def test_the_cache_can_be_looked_at_and_emptied(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))
    kept = tmp_path / "notes.txt"
    kept.write_text("a user's")
    assert fw.cache.folder() == tmp_path and fw.cache.size() == 0
    disk = importlib.import_module("kernels.cache")
    disk.write(f"kernel_{'0' * 24}.py", b"12345")
    disk.write(f"plan_{'0' * 32}.plan", b"123")
    assert fw.cache.size() == 8
    assert f"{tmp_path}, 0.0 MB" in fw.show_config()
    assert fw.cache.clear() == 2
    assert fw.cache.size() == 0 and kept.exists()
