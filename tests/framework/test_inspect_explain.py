"""What `explain` says, as data, as text, for terminals and notebooks: true, complete, and cheap."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn
from framework.inspect.text import as_rich, count, size, time
from kernels import roofline as roofs

needs_rich = pytest.mark.skipif(importlib.util.find_spec("rich") is None, reason="rich is not installed")


def trained() -> Any:
    """A compiled training step that was called."""
    fw.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 4))
    optimizer = fw.optim.AdamW(model.parameters(), lr=0.01)

    @fw.compile
    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        step(fw.randn(8, 6), fw.randint(0, 4, (8,)))
    return step


def test_a_program_in_numbers() -> None:
    e = trained().explain()
    program = e.program
    assert e.mode == "replay" and program is not None and e.programs[0][1] is program
    assert program.recorded > 100 and program.launches == len({k.level for k in program.kernels})
    assert [k.number for k in program.kernels] == list(range(len(program.kernels)))
    lines, first = inspect.getsourcelines(trained)
    named = {line for k in program.kernels for line in k.lines}
    for text in ("optimizer.step()", "loss.backward()", "F.cross_entropy"):
        (number,) = [first + i for i, line in enumerate(lines) if text in line]
        where = f"{Path(__file__).name}:{number}"
        assert where in named and e.lines.text(where).startswith(text.partition("F.")[0] or "loss")
    products = [k for k in program.kernels if k.kind == "matmul"]
    assert any(k.flops >= 2 * 8 * 6 * 9 for k in products) and all(k.bytes > 0 for k in program.kernels)
    for k in program.kernels:
        assert any(o.written for o in k.operands) and "def kernel(" in k.source
        assert [program.nodes[n].op for n in k.nodes] == list(k.ops)[: len(k.nodes)]
        assert all(k.number in program.nodes[n].kernels for n in k.nodes)
    for node in program.nodes:
        assert all(x < len(program.nodes) for x in node.inputs)
    assert [f.name for f in dataclasses.fields(program)] and program.distinct <= len(program.kernels)


def test_memory_and_phases() -> None:
    e = trained().explain()
    assert e.program is not None
    m = e.program.memory
    assert 0 < m.peak <= m.arena <= m.without_reuse + 64 * len(m.buffers)
    assert m.in_place == 19, "six parameters, two moments of each, and their count of steps"
    for one in m.buffers:
        for other in m.buffers:
            meet = one.first <= other.last and other.first <= one.last
            if one is not other and meet:
                assert one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
    assert all(p.seconds >= 0 for p in e.program.phases)
    (c,) = e.compilations
    assert c.calls == 2 and c.tensors > 20 and c.numbers > 0 and c.is_program
    assert sum(p.seconds for p in e.program.phases) <= c.seconds
    assert any("AdamW" in words for words in c.guards)


def test_why_neighbours_are_not_one_kernel() -> None:
    f = fw.compile(lambda x, w: (F.softmax(x, -1) @ w).tanh().sum(0))
    f(fw.randn(40, 30), fw.randn(30, 20))
    program = f.explain().program
    assert program is not None
    reasons = {(p.first, p.second): p.reason for p in program.unfused}
    assert reasons[0, 1] == "a product starts from whole operands, which must be in memory"
    g = fw.compile(lambda x: (x.sum(0) * x.sum(1)).sum() * x)
    g(fw.randn(30, 30))
    program = g.explain().program
    assert program is not None and program.unfused
    assert any("reductions" in p.reason or "again for each" in p.reason for p in program.unfused)
    assert all(p.first != p.second and p.value for p in program.unfused)


def test_the_text() -> None:
    step = trained()
    text = str(step.explain())
    for part in (
        "step: replay",
        "compilation 0: first call with these arguments",
        "guard: ",
        "kernel  launch  name",
        "not fused, ",
        "memory: an arena of",
        "made by: passes",
        "cache: ",
        "2 calls",
    ):
        assert part in text, part
    assert "\x1b" not in text and text == repr(step.explain()) == step.explain().text


def test_of_what_was_not_called_and_what_is_driven() -> None:
    f = fw.compile(lambda x: x * 2)
    assert f.explain().mode == "not called" and f.explain().program is None and f.explain().kernels == []
    assert "nothing is recorded" in str(f.explain())

    @fw.compile
    def driven(x: fw.Tensor) -> fw.Tensor:
        return x * 2 if (x * x).sum() > 1 else x * 3

    driven(fw.ones(5))
    e = driven.explain()
    assert e.mode == "driven" and e.program is None and [t for t, _ in e.programs][-1] == "up to the end"
    assert "driven, its Python runs at every call: " in str(e) and "program of up to the end" in str(e)


def test_gradients_for_later_are_a_program_of_their_own() -> None:
    f = fw.compile(lambda x: (x.sin() * x).sum())
    f(fw.randn(5).requires_grad_()).backward()
    assert [title for title, _ in f.explain().programs] == ["the call", "its gradients"]


@needs_rich
def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    step = trained()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = str(step.explain())
    assert "\x1b[1" in shown and "launch" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in str(step.explain())
    assert as_rich(step.explain(), 300).count("\n") >= len(step.kernels)


def test_a_notebook_gets_html() -> None:
    f = fw.compile(lambda x: x * 2 < 3)
    f(fw.ones(5))
    shown = f.explain()._repr_html_()
    assert shown.startswith("<div") and "<table>" in shown and "&lt;lambda&gt;: replay" in shown
    assert "<script" not in shown


def roof() -> roofs.Roofline:
    """A made-up machine: no test measures a real one."""
    levels = (roofs.Level("L1", 1 << 16, *(4e11,) * 4), roofs.Level("memory", 0, *(2e10,) * 4))
    peaks = {"float32": 2e11, "float64": 1e11}
    return roofs.Roofline("a machine", 2, levels, peaks, peaks, 1e-6, 1e-6, 0.0)


def test_measured_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.roofline.roofline", roof)
    monkeypatch.setattr("compiler.facts.EACH", 0.001)
    f = fw.compile(lambda x, w: (x @ w).tanh())
    f(fw.randn(40, 30), fw.randn(30, 20))
    e = f.explain(measure=True)
    (k,) = e.kernels
    assert k.measured is not None and 0 < k.measured.seconds < 1 and k.measured.bound_by in ("L1", "FLOPs")
    assert k.measured.share == k.measured.bound / k.measured.seconds
    assert "time" in str(e) and "% of" in str(e) and "kernels alone take" in str(e)
    assert f.explain().kernels[0].measured is None


def test_facts_as_json(tmp_path: Path) -> None:
    step = trained()
    content = json.loads(step.explain().save(tmp_path / "facts.json").read_text())
    assert content["form"] == "tracefuse report 1" and content["mode"] == "replay"
    kernels = content["programs"][0]["kernels"]
    assert len(kernels) == len(step.kernels)
    for kernel, view in zip(kernels, step.kernels, strict=True):
        assert content["sources"][kernel["source"]] == view.source
    assert "    loss.backward()" in "".join(content["files"][Path(__file__).name].values())


def test_quantities() -> None:
    assert [size(n) for n in (0, 999, 1000, 2.5e6, 3e12)] == ["0 B", "999 B", "1 kB", "2.5 MB", "3e+03 GB"]
    assert [count(n) for n in (12, 4500, 7.25e9)] == ["12 ", "4.5 k", "7.25 G"]
    assert [time(s) for s in (2.5e-6, 0.0123)] == ["2.5 µs", "12.3 ms"]
