"""Looking into compiled functions that run on a GPU: their comparison with eager code, a fault made small,
profiles, the debug ladder, NaN. Kernels run in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

import framework as fw
import framework.nn.functional as F
from framework import nn
from kernels.gpu import vocabulary
from kernels.gpu.device import Event
from tests import cupy_standin
from tests.kernels.gpu.standing import Standing


@pytest.fixture(autouse=True, scope="module")
def devices() -> Iterator[None]:
    with cupy_standin.installed():
        yield


@pytest.fixture
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels compute another tanh than eager code."""
    call = vocabulary.call

    def wrong(function: str, inputs: Any, operands: Any, result: Any) -> str:
        text = call(function, inputs, operands, result)
        return f"{text} * 1.125" if function == "tanh" else text

    monkeypatch.setattr(vocabulary, "call", wrong)


def training_step(place: str) -> tuple[Any, Any, Any]:
    """A compiled step with its parameters and a batch."""
    fw.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3)).to(place)
    optimizer = fw.optim.AdamW(net.parameters(), lr=0.01, eps=1e-3)

    @fw.compile
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, net, (fw.randn(4, 5, device=place), fw.randint(0, 3, (4,), device=place))


def test_a_step_agrees_and_changes_nothing() -> None:
    step, net, batch = training_step("cuda:1")
    step(*batch)
    before = [p.detach().cpu().tolist() for p in net.parameters()]
    found = step.compare(*batch)
    assert found.agrees and found.kernels == len(step.kernels) and found.nodes
    assert [p.detach().cpu().tolist() for p in net.parameters()] == before


def test_results_with_gradients_agree() -> None:
    @fw.compile
    def scaled(x: Any, w: Any) -> Any:
        return (x @ w).exp().sum(1)

    x, w = fw.randn(3, 4, device="cuda"), fw.randn(4, 2, device="cuda").requires_grad_()
    scaled(x, w)
    found = scaled.compare(x, w)
    assert found.agrees
    assert found.kernels > len(scaled.kernels)


@pytest.mark.usefixtures("wrong_tanh")
def test_a_wrong_kernel_is_named_and_made_small() -> None:
    @fw.compile
    def wrong(x: Any, y: Any) -> Any:
        z = (x @ y).sum(0)
        return (z.tanh() + x[0]) * 2

    operands = fw.randn(4, 4, device="cuda"), fw.randn(4, 4, device="cuda")
    found = wrong.compare(*operands)
    assert not found.agrees and found.difference is not None
    assert found.difference.op == "tanh" and "test_inspect_devices.py" in found.difference.where
    assert found.difference.looked_at.startswith("kernel ")
    small = wrong.minify(*operands)
    assert small.reproduced and "tanh" in small.code and ".to('cuda:0')" in small.code
    assert len(small.lines) <= 5
    # On the CPU there is no fault.
    assert wrong.compare(*(x.cpu() for x in operands)).agrees


def test_what_runs_op_by_op_has_nothing_to_compare() -> None:
    @fw.compile
    def read(x: Any) -> Any:
        return x * float(x.sum())

    x = fw.ones(3, device="cuda")
    read(x)
    with pytest.raises(RuntimeError, match="op by op on a GPU: there is no program"):
        read.compare(x)


def test_a_profile_names_kernels() -> None:
    step, _, batch = training_step("cuda")
    step(*batch)
    with fw.profile() as p:
        loss = step(*batch)
    kernels = [span for span in p.spans if span.kind == "kernel"]
    assert sorted(k.name for k in kernels) == sorted(k.spec.name for k in step.kernels)
    assert all(k.duration > 0 and k.bytes > 0 and k.inside.kind == "program" for k in kernels)
    assert any("test_inspect_devices.py" in k.where for k in kernels)
    (program,) = [span for span in p.spans if span.kind == "program"]
    assert program.bytes > 0 and program.name == f"program of {len(kernels)} kernels"
    assert loss.cpu().isfinite().item()
    count = len(p.spans)
    step(*batch)
    assert len(p.spans) == count


@pytest.mark.parametrize("graphs", [False, True])
def test_a_profile_asks_the_device_for_times(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    standing = Standing(graphs=graphs)
    monkeypatch.setattr(Event, "elapsed_time", lambda begin, end: 0.25)
    with cupy_standin.installed(standing.machine):
        function = fw.compile(lambda x: (x.exp() / x.exp().sum(1, keepdim=True), x.sum(0)))
        x = fw.randn(3, 40, device="cuda")
        plain = function(x)
        with fw.profile() as p:
            profiled = function(x)
        kernels = [span for span in p.spans if span.kind == "kernel"]
        # Milliseconds of each launch.
        assert [span.duration for span in kernels] == [250_000] * len(function.kernels)
        for a, b in zip(plain, profiled, strict=True):
            assert a.cpu().tolist() == b.cpu().tolist()


def test_the_ladder_tells_of_programs_and_checks_them(
    capsys: pytest.CaptureFixture[str], wrong_tanh: None
) -> None:
    with fw.config(debug=5):
        function = fw.compile(lambda x: (x * 2).tanh() + 1)
        function(fw.randn(3, 4, device="cuda"))
    said = capsys.readouterr().err
    assert "1 kernels in 1 launches" in said and "source of kernel 0" in said and "libdevice.tanh" in said
    assert "a program differs from its graph by" in said and "test_inspect_devices.py" in said


@pytest.mark.parametrize("dtype", [fw.float32, fw.bfloat16], ids=str)
def test_a_nan_is_found_where_it_is_made(dtype: Any) -> None:
    def loss(x: Any, y: Any) -> Any:
        return -(y * x.log()).sum()

    x, y = (fw.tensor(v, dtype=dtype).cuda(1) for v in ([0.5, 0.0], [1.0, 0.0]))
    for function in (loss, fw.compile(loss)):
        with fw.config(check_finite=True):
            with pytest.raises(fw.NonFiniteError, match="log gives -inf: 1 of 2 elements") as found:
                function(x, y)
            assert function(x[:1], y[:1]).isfinite().item()
        assert "test_inspect_devices.py" in found.value.where
        assert not function(x, y).isfinite().item()


def test_the_gradient_that_is_no_number_is_named() -> None:
    @fw.compile
    def step(x: Any) -> Any:
        total = (x.sqrt() * 3).sum()
        total.backward()
        return total

    for function in (step, step.function):
        x = fw.tensor([4.0, 0.0], device="cuda:1").requires_grad_()
        with fw.config(check_finite=True), pytest.raises(fw.NonFiniteError, match="gradient"):
            function(x)


def test_an_explanation_says_what_is_known() -> None:
    function = fw.compile(lambda x: (x * 2).softmax(1))
    function(fw.randn(5, 6, device="cuda"))
    explanation = function.explain()
    (program,) = [p for _, p in explanation.programs]
    assert program.from_disk is None and all(k.measured is None for k in program.kernels)
    assert "kernels alone take" not in str(explanation) and "machine code on disk" not in str(explanation)
    assert "exp" in function.graph.mermaid
