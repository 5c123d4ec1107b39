"""Compiled functions on tensors of a GPU: programs in Triton's interpreter, beside the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

import framework as fw
import framework.nn.functional as F
from benchmarks.steppers.tracefuse import make
from benchmarks.works import Work
from benchmarks.works.training import Cnn, Gpt, Lstm
from framework import nn
from kernels.gpu import interpret
from kernels.gpu.emulator import Emulator
from tests import cupy_standin
from tests.kernels.gpu import standing as standing_module
from tests.kernels.gpu.standing import Standing


@pytest.fixture(autouse=True, scope="module")
def devices() -> Iterator[None]:
    with cupy_standin.installed():
        yield


def close(there: Any, here: Any, rtol: float = 2e-6) -> None:
    """A tensor on a GPU has the type of one on the CPU, and its values but for rounding."""
    assert there.is_cuda and not here.is_cuda
    assert there.dtype is here.dtype and tuple(there.shape) == tuple(here.shape)
    a, b = there.cpu().detach().numpy(), here.detach().numpy()
    np.testing.assert_allclose(a, b, rtol, rtol * float(np.abs(b).max(initial=0)))


class Step:
    """A network with its optimizer and its step, compiled or not."""

    def __init__(self, place: str, compiled: bool, dropout: float = 0.3) -> None:
        fw.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Dropout(dropout), nn.Linear(9, 4)).to(place)
        self.optimizer = fw.optim.AdamW(self.net.parameters(), lr=0.05, eps=1e-3)
        self.place = place
        self.call: Any = fw.compile(self.step) if compiled else self.step

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, count: int) -> list[Any]:
        """The losses of some steps, each on another batch."""
        fw.manual_seed(2)
        batches = [(fw.randn(8, 6), fw.randint(0, 4, (8,))) for _ in range(count)]
        return [self.call(x.to(self.place), y.to(self.place)) for x, y in batches]


def test_a_training_step_is_compiled_on_a_gpu() -> None:
    here, there, eager = Step("cpu", True), Step("cuda", True), Step("cuda", False)
    losses = [step.run(4) for step in (here, there, eager)]
    for a, b, c in zip(*losses, strict=True):
        close(b, a)
        close(c, a)
    assert there.call.explain().mode == "replay" and len(there.call.variants) == 1
    assert len(there.call.kernels) == len(here.call.kernels)
    assert "@triton" not in there.call.kernels[0].source and "tl." in there.call.kernels[0].source
    assert str(there.call.explain())
    for p, q in zip(there.net.parameters(), here.net.parameters(), strict=True):
        close(p, q, 1e-5)
        close(p.grad, q.grad, 1e-5)
    state = there.optimizer.state.values()
    assert {str(t.device) for values in state for t in values.values()} == {"cuda:0"}


@pytest.mark.parametrize(
    "work",
    [
        Cnn(image=9, channels=(1, 3, 5), widths=(6, 10), batch=3),
        Gpt(layers=1, width=12, heads=3, vocabulary=11, context=5, batch=2),
        Lstm(width=9, times=3, batch=3),
    ],
    ids=lambda work: type(work).__name__,
)
def test_whole_steps_replay_on_a_gpu(work: Work) -> None:
    losses = []
    for place in ("cpu", "cuda"):
        step, batches, _ = make(work, place)
        losses.append([step(*batch) for batch in batches[:2]])
        assert step.explain().mode == "replay"
    for b, a in zip(losses[1], losses[0], strict=True):
        close(b, a, 1e-5)


def test_dropout_masks_are_the_cpus() -> None:
    @fw.compile
    def dropped(x: Any) -> Any:
        return F.dropout(x, 0.4) + fw.rand_like(x) + fw.randint(0, 9, (3, 5), device=x.device)

    x = fw.ones(3, 5)
    for _ in range(2):
        fw.manual_seed(9)
        here = dropped(x)
        fw.manual_seed(9)
        there = dropped(x.cuda())
        assert there.cpu().tolist() == here.tolist()
    assert len(dropped.variants) == 2


def test_results_carry_gradients() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    made = {}
    for place in ("cpu", "cuda"):
        net.to(place).zero_grad()
        forward = fw.compile(lambda x: net(x).square().sum(1))
        x = fw.linspace(-1, 1, 6).reshape(2, 3).to(place).requires_grad_()
        out = forward(x)
        (g,) = fw.autograd.grad(out.sum(), x, create_graph=True)
        g.square().sum().backward()
        made[place] = [out, g, x.grad, *(p.grad for p in net.parameters())]
        (out_again,) = [forward(x)]
        out_again.backward(fw.ones(2, device=place))
    for b, a in zip(made["cuda"], made["cpu"], strict=True):
        close(b, a, 1e-5)


def test_arguments_are_written_where_they_are() -> None:
    @fw.compile
    def update(x: Any, y: Any) -> Any:
        x.mul_(2).add_(y)
        return x[1:], x.sum()

    x, y = fw.arange(4.0, device="cuda"), fw.ones(4, device="cuda")
    for _ in range(3):
        version = x._version
        part, total = update(x, y)
        assert x._version > version
    assert x.tolist() == [7, 15, 23, 31] and float(total) == 76
    assert part.data_ptr() == x[1:].data_ptr()


def test_arguments_that_share_memory_are_noticed() -> None:
    @fw.compile
    def both(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    base = fw.zeros(4, device="cuda")
    for count in (1, 2, 3):
        assert both(fw.from_dlpack(base), fw.from_dlpack(base)).tolist() == [2 * count] * 4
    x = fw.zeros(6, device="cuda")
    strided = x.as_strided((2, 2), (1, 1), 2)
    for count in (1, 2, 3):
        assert both(x[:4], strided).tolist() == [[2 * count, 2 * count], [2 * count, 0]]
    assert both(fw.zeros(4, device="cuda"), base).tolist() == [6] * 4


def test_bad_input_changes_nothing() -> None:
    @fw.compile
    def pick(table: Any, rows: Any, out: Any) -> Any:
        out.add_(1)
        return F.embedding(rows, table)

    table, out = fw.randn(4, 3, device="cuda"), fw.zeros(2, device="cuda")
    good, bad = fw.tensor([1, 3], device="cuda"), fw.tensor([1, 4], device="cuda")
    close(pick(table, good, out), table.cpu()[good.cpu()], 0)
    assert pick(table, good, out).is_cuda and out.tolist() == [2, 2]
    with pytest.raises(IndexError):
        pick(table, bad, out)
    assert out.tolist() == [3, 3]  # the function itself ran, as on the CPU
    pick(table, good, out)
    assert out.tolist() == [4, 4] and pick.explain().mode == "replay"


def test_sizes_vary() -> None:
    @fw.compile
    def mean(x: Any) -> Any:
        return (x * 2 + 1).mean(0)

    for n in (5, 7, 3, 11):
        x = fw.arange(2.0 * n).reshape(n, 2)
        close(mean(x.cuda()), (x * 2 + 1).mean(0))
    assert len(mean.variants) <= 2


def test_sizes_that_vary_are_served_by_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, codes, counts = Emulator.prepare, set[Any](), list[int]()

    def counting(machine: Emulator, arguments: Any) -> Any:
        codes.update(unit.launch.code for unit in arguments.units)
        return prepare(machine, arguments)

    monkeypatch.setattr(Emulator, "prepare", counting)
    scores = fw.compile(lambda x: F.softmax(x * 2, 1))
    w = fw.randn(6, 9, device="cuda").requires_grad_()
    for n in (20, 33, 7, 50, 41, 63, 12, 64, 48, 36, 35):
        x = fw.randn(n, 6).cuda()
        results = [call(x @ w) for call in (scores, scores.function)]
        gradients = [fw.autograd.grad(out.square().sum(), w)[0] for out in results]
        counts.append(len(codes))
        close(results[0].detach(), results[1].detach().cpu(), 1e-5)
        close(gradients[0], gradients[1].cpu(), 1e-4)
    # The first is made for its size, the second for all; later ones for rows that four, or 16, divide.
    assert counts[0] > 1 and counts[1] == counts[5] and counts[7] == counts[-1], counts


def test_the_device_is_part_of_what_a_program_is_for() -> None:
    weight = nn.Parameter(fw.ones(3))

    @fw.compile
    def scaled(x: Any) -> Any:
        return x * weight if x.is_cuda else x + weight

    assert scaled(fw.ones(3)).tolist() == [2, 2, 2]
    weight.data = weight.data.cuda("cuda:1")
    assert scaled(fw.full((3,), 5.0, device="cuda:1")).tolist() == [5, 5, 5]
    weight.data = weight.data.cuda("cuda:0")
    there = scaled(fw.full((3,), 4.0, device="cuda:0"))
    assert there.tolist() == [4, 4, 4] and there.device.index == 0
    assert scaled.explain().mode == "replay"


MIXED: dict[str, Callable[..., Any]] = {
    "read": lambda x, w: x * 2 if float(x.sum()) > 0 else x,
    "moved": lambda x, w: (x.cpu() + 1).cuda() * w,
    "number": lambda x, w: x * fw.tensor(3.0),
    "made": lambda x, w: (x + 1).cpu() + fw.ones(3),
    "printed": lambda x, w: [x.tolist(), (w @ w).item()],
    "backward": lambda x, w: _trained(x, w),
}


def _trained(x: Any, w: Any) -> Any:
    w.grad = None
    loss = (x.cpu() * w.cpu()).sum()
    print(float(loss))
    loss.backward()
    return w.grad


@pytest.mark.parametrize("name", MIXED)
def test_what_uses_two_devices_runs_op_by_op(name: str) -> None:
    function = MIXED[name]
    compiled = fw.compile(function)
    x, w = fw.arange(1.0, 4, device="cuda"), fw.ones(3, device="cuda", requires_grad=name == "backward")
    for _ in range(3):
        a, b = compiled(x, w), function(x, w)
        if isinstance(b, list):
            assert a == b
        else:
            assert a.device == b.device and a.tolist() == b.tolist()


def test_a_tensor_on_a_gpu_is_met_in_the_midst_of_a_driven_call() -> None:
    log: list[float] = []
    weight = fw.full((3,), 2.0, device="cuda", requires_grad=True)
    optimizer = fw.optim.SGD([weight], 0.5)

    @fw.compile
    def step(x: Any) -> Any:
        y = x * 2
        log.append(float(y.sum()))
        z = y + 1
        loss = (z.cuda() * weight).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return z, loss

    for n in range(3):
        before = weight.tolist()
        z, loss = step(fw.full((3,), float(n)))
        assert z.tolist() == [2 * n + 1] * 3 and not z.is_cuda
        assert float(loss) == sum((2 * n + 1) * w for w in before)
        assert weight.tolist() == [w - 0.5 * (2 * n + 1) for w in before]
    assert log == [0, 6, 12]


def test_two_devices_are_refused_in_the_words_of_eager_code() -> None:
    add = fw.compile(lambda x, y: x + y)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
            add(fw.ones(3, device="cuda"), fw.ones(3))
    with pytest.raises(fw.CompileError, match="a program runs on one device"):
        fw.compile(lambda x: x.cpu(), strict=True)(fw.ones(2, device="cuda"))


def test_a_training_step_is_launched() -> None:
    standing = Standing()
    with cupy_standin.installed(standing.machine, standing_module.__file__, interpret.__file__):
        here, there = Step("cpu", True), Step("cuda", True)
        losses = [step.run(3) for step in (here, there)]
        fw.cuda.synchronize()
        for a, b in zip(*losses, strict=True):
            close(b, a)
        assert there.call.explain().mode == "replay" and standing.library.failure is None
        assert standing.library.launches and fw.cuda.memory_allocated() > 0
        for p, q in zip(there.net.parameters(), here.net.parameters(), strict=True):
            close(p, q, 1e-5)


def test_products_with_short_factors_are_asked_for() -> None:
    product = fw.compile(lambda x, y: x @ y)
    x = fw.ones(16, 16, device="cuda")
    try:
        for precision, word in (("highest", "ieee"), ("high", "tf32"), ("highest", "ieee")):
            fw.set_float32_matmul_precision(precision)
            assert fw.get_float32_matmul_precision() == precision
            assert product(x, x).tolist() == [[16] * 16] * 16
            if len(product.variants) == (precision == "high") + 1:
                assert word in product.kernels[0].source
        with pytest.raises(ValueError, match="must be 'highest'"):
            fw.set_float32_matmul_precision("low")
    finally:
        fw.set_float32_matmul_precision("highest")
    assert len(product.variants) == 2 and product.explain().mode == "replay"
    assert "stand-in (9, 0)" in fw.show_config()


def test_programs_follow_the_stream_of_eager_work() -> None:
    double = fw.compile(lambda x: x * 2)
    x = fw.ones(3, device="cuda")
    double(x)
    stream = fw.cuda.Stream()
    with fw.cuda.stream(stream):
        before = stream._stream.synchronized
        assert double(x).tolist() == [2, 2, 2]
        assert stream._stream.synchronized > before
