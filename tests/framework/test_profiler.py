"""The profiler: which spans there are, how they lie in each other, and the trace they are written as."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn
from framework.profiler import Span
from framework.state import ambient, unusual


def normalised(x: fw.Tensor) -> fw.Tensor:
    """Two kernels."""
    y = (x * 0.5).exp()
    return y / y.sum()


def kinds(p: fw.profile, kind: str) -> list[Span]:
    """The spans of one kind."""
    return [span for span in p.spans if span.kind == kind]


def test_eager_ops_and_gradients_have_spans_with_bytes_lines_and_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU())
    x = fw.randn(16, 4)
    with fw.profile() as p:
        model(x).sum().backward()
    matmul = next(span for span in p.spans if span.name == "matmul")
    assert matmul.kind == "op" and matmul.duration > 0
    assert matmul.bytes == 4 * (16 * 4 + 4 * 8 + 16 * 8)
    assert matmul.where.startswith("test_profiler.py:")
    assert matmul.detail == "Sequential > Linear > linear"
    gradients = {span.name for span in kinds(p, "gradient")}
    assert {"SumBackward0", "ErfBackward0", "MmBackward0"} <= gradients
    assert all(span.detail.startswith("gradient of ") for span in kinds(p, "gradient"))


def test_a_compiled_function_has_its_program_and_kernels_inside() -> None:
    function = fw.compile(normalised)
    x = fw.ones(64, 32)
    wanted = function(x)
    with fw.profile() as p:
        got = function(x)
    np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    (call,), (program,) = kinds(p, "compiled"), kinds(p, "program")
    kernels = kinds(p, "kernel")
    assert call.name == "normalised" and program.inside is call
    assert [k.name for k in kernels] == [k.kernel.spec.name for k in function.kernels]
    assert all(k.inside is program and k.bytes > 0 and k.where for k in kernels)
    assert sum(k.duration for k in kernels) <= program.duration <= call.duration
    assert program.own == program.duration - sum(k.duration for k in kernels)


def test_recordings_are_told_and_programs_of_driven_functions_are_seen() -> None:
    def prints(x: fw.Tensor) -> fw.Tensor:
        print("here")
        return normalised(x)

    driven, replayed = fw.compile(prints), fw.compile(normalised)
    with fw.profile() as p:
        driven(fw.ones(4))
        replayed(fw.ones(4))
        driven(fw.ones(4))
    calls = kinds(p, "compiled")
    assert ["recorded in" in call.detail for call in calls] == [True, True, False]
    assert len(kinds(p, "program")) == 3


def test_a_whole_step_gives_the_same_with_and_without() -> None:
    def made() -> Any:
        fw.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4))
        optimizer = fw.optim.AdamW(model.parameters())

        @fw.compile
        def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        x, y = fw.randn(32, 8), fw.randint(0, 4, (32,))
        return lambda: step(x, y).item()

    step = made()
    plain = [step() for _ in range(4)]
    step = made()
    with fw.profile() as p:
        profiled = [step() for _ in range(4)]
    assert profiled == plain
    assert len(kinds(p, "program")) == 4


def test_bad_input_stops_a_program_as_it_does_without() -> None:
    function = fw.compile(lambda x, i: x[i] * 2)
    function(fw.ones(3), fw.tensor([0, 1]))
    with fw.profile() as p, pytest.raises(IndexError):
        function(fw.ones(3), fw.tensor([0, 7]))
    assert function(fw.ones(3), fw.tensor([0, 1])).tolist() == [2, 2]
    assert kinds(p, "compiled")


def test_user_spans_nest_and_decorate() -> None:
    @fw.profiler.record_function("inner")
    def inner(x: fw.Tensor) -> fw.Tensor:
        return x + 1

    x = fw.ones(3)
    with fw.profile() as p, fw.profiler.record_function("outer"):
        inner(x)
        inner(x)
    assert [span.name for span in p.spans] == ["add", "inner", "add", "inner", "outer"]
    outer = p.spans[-1]
    assert [span.inside for span in kinds(p, "user")] == [outer, outer, None]
    assert outer.own == outer.duration - sum(span.duration for span in kinds(p, "user")[:2])
    with fw.profiler.record_function("nobody looks"):
        inner(fw.ones(3))
    assert len(p.spans) == 5


def test_a_named_span_does_not_stop_a_function_from_being_replayed() -> None:
    @fw.compile
    def step(x: fw.Tensor) -> fw.Tensor:
        with fw.profiler.record_function("part"):
            return x * 2

    step(fw.ones(3))
    assert step.explain().mode == "replay"


def test_what_raises_leaves_no_span_open() -> None:
    x, y = fw.ones(3), fw.ones(4)
    with fw.profile() as p:
        with pytest.raises(RuntimeError):
            x @ y
        x + 1
    assert [(span.name, span.inside) for span in p.spans] == [("add", None)]


def test_the_trace_is_chromes(tmp_path: Path) -> None:
    function = fw.compile(normalised)
    with fw.profile() as p:
        function(fw.ones(8))
    trace = json.loads(p.save(tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(p.spans)
    for event in events:
        assert event.keys() >= {"name", "cat", "ts", "dur", "pid", "tid", "args"}
    # Viewers nest by time: what starts within a span ends within it.
    ends: list[float] = []
    for event in events:
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 1e-3
        ends.append(end)
    assert events[-1]["args"]["bytes"] > 0


def test_the_table_adds_up_and_is_sorted(tmp_path: Path) -> None:
    x = fw.ones(100)
    with fw.profile() as p:
        for _ in range(5):
            x.exp()
        x.sum()
    exp = next(row for row in p.rows() if row.name == "exp")
    assert (exp.count, exp.bytes) == (5, 5 * 800)
    assert "GB/s" in p.table().splitlines()[0]
    assert p.table("count").splitlines()[2].startswith("exp")
    assert p.key_averages().table(sort_by="cpu_time_total", row_limit=1).count("\n") == 4
    assert "and 2 more rows" in p.table(row_limit=1)
    with pytest.raises(ValueError, match="sorted by total"):
        p.table("speed")
    p.export_chrome_trace(str(tmp_path / "t.json"))
    assert repr(p) == p.table()


def test_pytorchs_form_works(tmp_path: Path) -> None:
    written = tmp_path / "trace.json"
    x = fw.ones(3)
    with fw.profiler.profile(
        activities=[fw.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(written),
    ) as p:
        x + 1
    assert written.exists() and len(p.events()) == 1


def test_other_threads_and_the_time_after_are_not_seen() -> None:
    before = unusual.threads
    with fw.profile() as p:
        thread = threading.Thread(target=lambda: fw.ones(3) + 1)
        thread.start()
        thread.join()
    fw.ones(3) + 1
    assert p.spans == []
    assert unusual.threads == before and ambient.watch is None
