"""Sizes that vary between calls: at most two recordings, and at every size the results of eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import Twins, World, nothing, same

pytestmark = pytest.mark.replays


def at_sizes(
    function: Callable[..., Any],
    make: Callable[..., Sequence[Any]],
    sizes: Sequence[Any],
    recordings: int = 2,
    rtol: float = 1e-5,
) -> Twins:
    """`function` compiled gives at every size, met twice, what it gives eagerly."""
    twins = Twins(lambda: (function, nothing), rtol)
    for size in (*sizes, *reversed(sizes)):
        twins.call(*(make(*size) if isinstance(size, tuple) else make(size)))
    explanation = twins.compiled.explain()
    assert explanation.mode == "replay", str(explanation)
    assert len(explanation.history) == recordings, str(explanation)
    return twins


def rows(n: int) -> tuple[fw.Tensor]:
    return (fw.randn(n, 6),)


ANY = (5, 7, 1, 0, 64, 2, 3)

# What must not ask how large its argument is, at any size.
OPS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (x + 1) * x - x / 3,
    "broadcasting": lambda x: x * x.sum(1, keepdim=True) + x.sum(0) + x[:, :1],
    "sum": lambda x: x.sum(),
    "sum over the rows": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "mean over the rows": lambda x: x.mean(0),
    "var": lambda x: x.var(0),
    "biased std": lambda x: x.std(0, unbiased=False),
    "var_mean": lambda x: fw.var_mean(x, 0),
    "divided by a size": lambda x: x.sum() / x.shape[0],
    "times a size": lambda x: x * x.size(0) + x.numel() - len(x.shape),
    "times the inverse of a size": lambda x: x.sum(0) * (1.0 / (x.shape[0] + 1)),
    "a size to a power": lambda x: x * (x.shape[0] + 1) ** -0.5 + x.shape[0] ** 2,
    "sizes returned": lambda x: (x.shape, x.shape[0] * 2 + 1, {"n": x.size(0)}, [x.numel() // 2]),
    "softmax": lambda x: F.softmax(x, -1),
    "softmax over the rows": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "logsumexp": lambda x: x.logsumexp(0),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "matmul": lambda x: (x @ x.t()) @ x,
    "linear": lambda x: x @ fw.ones(6, 3),
    "batched matmul": lambda x: x.unsqueeze(1) @ x.unsqueeze(2),
    "einsum": lambda x: fw.einsum("ij,kj->ik", x, x),
    "transposed": lambda x: x.t() * 2,
    "flattened": lambda x: x.reshape(-1) * 2,
    "merged axes": lambda x: x.reshape(-1, 3).sum(1),
    "split axis": lambda x: x.view(x.shape[0], 2, 3).transpose(1, 2).contiguous().view(x.shape[0], 6),
    "unsqueezed": lambda x: x.unsqueeze(0).unsqueeze(-1).squeeze(0) + 1,
    "expanded": lambda x: x[:, :1].expand(x.shape[0], 4) + fw.zeros(x.shape[0], 4),
    "created": lambda x: fw.zeros(x.shape[0], 2) + fw.ones_like(x)[:, :2] + x.new_full((x.shape[0], 1), 3.0),
    "arange": lambda x: fw.arange(x.shape[0]).unsqueeze(1) + x,
    "causal mask": lambda x: (x @ x.t()).masked_fill(fw.ones(x.shape[0], x.shape[0]).tril() == 0, -math.inf),
    "slices": lambda x: (x[1:] - x[:-1], x[::2] * 2, x[: x.shape[0] // 2] + 1, x[:, 2:4] + 1),
    "joined": lambda x: fw.cat([x, x * 2, fw.ones(1, 6)], 0),
    "stacked": lambda x: fw.stack([x, x + 1], 1),
    "padded": lambda x: F.pad(x, (1, 0, 0, 2)),
    "where": lambda x: fw.where(x > 0, x, 0.0) * 2,
    "embedding": lambda x: F.embedding((x > 0).long(), fw.ones(2, 3)),
    "gathered": lambda x: x.gather(1, (x > 0).long()[:, :1]),
    "rows picked": lambda x: fw.arange(12.0).reshape(4, 3)[(x > 0).long()[:, 0]],
    "dropout": lambda x: F.dropout(x, 0.5),
    "random": lambda x: fw.rand(x.shape[0], 3) + fw.randn_like(x)[:, :3],
    "triangle": lambda x: (x @ x.t()).tril().sum(1),
    "norm": lambda x: x / (x.norm(dim=0) + 1),
    "flipped": lambda x: x.flip(0),
    "narrowed": lambda x: x.narrow(0, 0, x.shape[0]) * 2,
    "cast": lambda x: (x * 10).long().float().sum(0),
    "maximum of two": lambda x: fw.maximum(x, x.mean(1, keepdim=True)),
}


@pytest.mark.parametrize("name", OPS)
def test_any_number_of_rows(name: str) -> None:
    at_sizes(OPS[name], rows, ANY)


@pytest.mark.parametrize("first", [(1, 5), (5, 1), (0, 5), (5, 0)])
@pytest.mark.parametrize("name", ["matmul", "mean", "softmax", "split axis", "transposed", "broadcasting"])
def test_recorded_at_a_special_size(name: str, first: tuple[int, int]) -> None:
    at_sizes(OPS[name], rows, (*first, 9, 1, 0))


def world_of_a_classifier(make_optimizer: Callable[..., Any] = optim.AdamW) -> Callable[[], World]:
    def make() -> World:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
        optimizer = make_optimizer(model.parameters(), lr=0.01)

        def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, lambda: [(p, p.grad) for p in model.parameters()]

    return make


def batch(n: int) -> tuple[fw.Tensor, fw.Tensor]:
    return fw.randn(n, 8), fw.randint(0, 4, (n,))


@pytest.mark.parametrize("optimizer", [optim.AdamW, lambda p, lr: optim.SGD(p, lr=lr, momentum=0.9)])
def test_epochs_with_a_last_smaller_batch(optimizer: Any) -> None:
    twins = Twins(world_of_a_classifier(optimizer), 1e-4)
    for n in (32, 32, 32, 13, 32, 32, 32, 13, 32, 5, 1):
        twins.call(*batch(n))
    twins.expect("replay", 2)
    assert [r.reason for r in twins.compiled.history][1] == "dimension 0 of argument 0 varies"


def test_batches_that_are_views_of_a_data_set() -> None:
    twins = Twins(world_of_a_classifier(), 1e-4)
    xs, ys = batch(50)
    for _ in range(2):
        for at in range(0, 50, 16):
            twins.compiled(xs[at : at + 16], ys[at : at + 16])
            twins.eager(xs[at : at + 16], ys[at : at + 16])
    twins.expect("replay", 2)


def test_batch_norm_with_a_last_smaller_batch() -> None:
    def make() -> World:
        model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4))

        def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return step, lambda: [*model.state_dict().values(), *(p.grad for p in model.parameters())]

    twins = Twins(make, 1e-4)
    for n in (32, 32, 13, 32, 4, 2, 13):
        twins.call(*batch(n))
    twins.expect("replay", 3)  # the first without and with gradients, and one for every size
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        twins.compiled(*batch(1))


class Attention(nn.Module):
    """A small decoder: embedding, causal attention of two heads, layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(64, 8)
        self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8)
        self.three, self.out, self.head = (
            nn.Linear(8, 24, bias=False),
            nn.Linear(8, 8),
            nn.Linear(8, 11, bias=False),
        )
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", fw.ones(64, 64).tril().view(1, 1, 64, 64))

    def forward(self, tokens: fw.Tensor) -> fw.Tensor:
        b, t = tokens.shape
        x = self.tokens(tokens) + self.places(fw.arange(t))
        q, k, v = (part.view(b, t, 2, 4).transpose(1, 2) for part in self.three(self.norm(x)).split(8, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, -math.inf)
        mixed = self.drop(F.softmax(scores, dim=-1)) @ v
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(b, t, 8))
        return self.head(self.last(x))


def world_of_a_decoder() -> World:
    model = Attention()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(tokens: fw.Tensor, targets: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: [(p, p.grad) for p in model.parameters()]


@pytest.mark.parametrize("lengths", [range(1, 65, 3), (16, 1, 2, 64, 5)])
def test_a_decoder_at_every_length(lengths: Sequence[int]) -> None:
    twins = Twins(world_of_a_decoder, 1e-3)
    for t in lengths:
        twins.call(fw.randint(0, 11, (3, t)), fw.randint(0, 11, (3, t)))
    twins.expect("replay", 2)


def test_two_dimensions_vary() -> None:
    at_sizes(
        lambda x: F.softmax(x @ x.transpose(1, 2), -1) @ x + x.mean((0, 1)),
        lambda b, t: (fw.randn(b, t, 4),),
        [(2, 3), (5, 7), (1, 4), (4, 1), (1, 1), (0, 3), (3, 0), (6, 2)],
    )


def test_one_dimension_after_the_other() -> None:
    # A length that varies later than the batch is one more recording.
    at_sizes(
        lambda x: x.sum(1) / x.shape[0], lambda b, t: (fw.randn(b, t),), [(2, 3), (4, 3), (4, 5), (7, 9)], 3
    )


def test_dimensions_that_were_always_equal_may_part() -> None:
    twins = at_sizes(lambda x, y: x.sum() - y.sum(), lambda n: (fw.ones(n), fw.ones(n, 2)), (2, 5, 7))
    twins.call(fw.ones(3), fw.ones(4, 2))
    twins.call(fw.ones(5), fw.ones(6, 2))
    twins.expect("replay", 3)


def test_broadcasting_of_two_sizes_asks_if_they_are_equal() -> None:
    twins = at_sizes(lambda x, y: x + y, lambda n: (fw.ones(n), fw.ones(n)), (2, 5, 7))
    for a, b in ((4, 1), (6, 1), (1, 3), (1, 9), (8, 8)):
        twins.call(fw.ones(a), fw.ones(b))
    with pytest.raises(RuntimeError, match="broadcast"):
        twins.compiled(fw.ones(4), fw.ones(3))
    assert twins.compiled.explain().mode != "eager"


def test_branches_on_a_shape() -> None:
    twins = at_sizes(lambda x: x * 2 if x.shape[0] > 8 else x + 1, rows, (2, 5, 8, 9, 20, 1), recordings=3)
    twins.expect("replay", 3)
    words = str(twins.compiled.explain())
    assert "condition: n0 <= 8" in words and "condition: n0 > 8" in words
    assert "n0 is dimension 0 of argument 0" in words


def test_what_needs_a_plain_int_is_recorded_at_every_size() -> None:
    def function(x: fw.Tensor) -> Any:
        total = x.sum(0)
        for i in range(x.shape[0]):
            total = total + x[i] * i
        return total, f"{x.shape[0]} rows", f"{x.shape}", int(x.shape[0])

    at_sizes(function, rows, (2, 3, 4), recordings=3)


def test_a_size_as_a_key_an_item_and_a_count() -> None:
    table = {2: 0.5, 3: 1.5, 4: 2.5}
    at_sizes(lambda x: x * table[x.shape[0]], rows, (2, 3, 4), recordings=3)
    at_sizes(lambda x: x * (1.0, 2.0, 3.0, 4.0, 5.0)[x.shape[0]], rows, (2, 3, 4), recordings=3)
    at_sizes(lambda x: {x.shape[0]: x + 1}, rows, (2, 3, 4), recordings=3)
    at_sizes(lambda x: fw.cat([x] * x.shape[0]), rows, (2, 3, 4), recordings=3)
    at_sizes(lambda x: x * np.float32(math.sqrt(x.shape[0])).item(), rows, (2, 3, 4), recordings=3)


def test_shape_arithmetic() -> None:
    def halves(x: fw.Tensor) -> fw.Tensor:
        b, t = x.shape
        return x.reshape(b, t // 2, 2).sum(2).reshape(b, -1)

    twins = at_sizes(halves, lambda b, t: (fw.randn(b, t),), [(2, 4), (3, 6), (1, 2), (5, 10)])
    with pytest.raises(RuntimeError, match="invalid"):
        twins.compiled(fw.randn(2, 5))
    odd = at_sizes(lambda x: x * (x.shape[0] % 2), rows, (2, 5, 8, 9, 1, 0))
    assert "n0" in str(odd.compiled.explain())


def test_ints_that_vary() -> None:
    x = fw.randn(10, 3)
    at_sizes(lambda x, n: x[:n] * n + n / 2, lambda n: (x, n), (2, 5, 10, 0, 1))
    at_sizes(lambda n: fw.zeros(n, 2) + fw.arange(n).unsqueeze(1), lambda n: (n,), (2, 5, 9, 0, 1))
    at_sizes(lambda x, n: x * n, lambda n: (x, n), (2, -5, 10, 0))
    at_sizes(lambda x, n: x * n, lambda n: (x, n), (2, 5, -10, 0), recordings=3)
    at_sizes(lambda x, k: x if k == 3 else x * k, lambda k: (x, k), (2, 5, 3, 4), recordings=3)
    at_sizes(lambda x, i: x[i], lambda i: (x, i), (2, 5, 9, 0))
    at_sizes(lambda x, flag: x * 2 if flag else x, lambda flag: (x, flag), (True, False))


def test_results_are_views() -> None:
    at_sizes(lambda x: (x * 2, (x + 1).t(), (x + 2)[:, 1:3], (x * 3).reshape(-1)), rows, ANY)
    at_sizes(lambda x: (x, x.t(), x[1:], x.reshape(-1), x.detach()), rows, (5, 7, 1, 64))


def test_a_copy_that_is_none_for_one_row() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        return x.t().contiguous()

    compiled = CompiledFunction(function)
    for n in (4, 5, 1, 6, 1):
        x = fw.ones(n, 3)
        y, expected = compiled(x), function(x)
        x.add_(1)
        same(y, expected)


def test_arguments_are_written_to() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        x.mul_(2)
        x[:, 1:3].add_(x.shape[0])
        return x.sum()

    at_sizes(function, rows, ANY)


def test_gradients_of_arguments() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        loss = (x * x).mean() + F.softmax(x, 0).std()
        loss.backward()
        return loss

    at_sizes(function, lambda n: (fw.randn(n, 6).requires_grad_(),), (5, 7, 2, 64), rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["mean", "softmax", "matmul", "layer_norm", "broadcasting", "slices", "joined"]
)
def test_backward_outside(name: str) -> None:
    weight = fw.randn(6).requires_grad_()
    function = OPS[name]
    compiled = CompiledFunction(lambda x, w: function(x * w))
    for n in (5, 7, 1, 64, 2, 7, 5):
        x = fw.randn(n, 6).requires_grad_()
        grads = []
        for run in (lambda x, w: function(x * w), compiled):
            out = run(x, weight)
            first = out[0] if isinstance(out, tuple) else out
            shape = (first + 0).shape
            direction = fw.arange(math.prod(shape)).reshape(shape).float().sin()
            grads.append(fw.autograd.grad((first * first * direction).sum(), (x, weight)))
        same(grads[1], grads[0], 1e-4)
    assert len(compiled.history) == 2, compiled.explain()


def test_arguments_with_history() -> None:
    weight = fw.randn(6).requires_grad_()
    compiled = CompiledFunction(lambda x: F.log_softmax(x, 1).mean())
    for n in (5, 7, 1, 9):
        x = fw.randn(n, 6)
        wanted = fw.autograd.grad(F.log_softmax(x * weight, 1).mean(), weight)
        got = fw.autograd.grad(compiled(x * weight), weight)
        same(got, wanted)
    assert len(compiled.history) == 2


def test_an_argument_twice_and_an_argument_of_the_closure() -> None:
    at_sizes(lambda x, y: x + y, lambda n: (fw.ones(n),) * 2, (2, 5, 7))
    kept = fw.ones(5)
    compiled = CompiledFunction(lambda x: x + kept.sum())
    for x in (fw.ones(3), kept, fw.ones(4), fw.ones(5) * 2):
        same(compiled(x), x + kept.sum())


def test_modes_and_guards_hold_for_every_size() -> None:
    def make() -> World:
        model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        scale = [2.0]
        function: Any = lambda x: model(x) * scale[0]  # noqa: E731
        function.model, function.scale = model, scale
        return function, nothing

    twins = Twins(make)
    for training in (True, False, True):
        for f in (twins.eager, twins.compiled.function):
            f.model.train(training)  # type: ignore[attr-defined]
        for n in (4, 5, 6, 1):
            twins.call(*rows(n))
    twins.expect("replay", 3)
    for f in (twins.eager, twins.compiled.function):
        f.scale[0] = 3.0  # type: ignore[attr-defined]
    for n in (4, 5, 6, 7):
        twins.call(*rows(n))


def test_code_that_takes_no_symbols_is_recorded_as_it_is() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        return x + float(np.zeros(3, dtype=np.float32).sum()) if type(x.shape[0]) is int else x.item()

    at_sizes(function, rows, (2, 3, 4), recordings=3)


def test_errors_of_one_size_are_eagers() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        return F.cross_entropy(x, y)

    compiled = CompiledFunction(function)
    for n in (4, 5, 6):
        x, y = fw.randn(n, 3), fw.randint(0, 3, (n,))
        same(compiled(x, y), function(x, y))
    with pytest.raises(ValueError, match="batch_size"):
        compiled(fw.randn(7, 3), fw.randint(0, 3, (6,)))
    with pytest.raises(IndexError):
        compiled(fw.randn(8, 3), fw.full((8,), 3))
    x, y = fw.randn(8, 3), fw.randint(0, 3, (8,))
    same(compiled(x, y), function(x, y))


def test_results_of_one_size_survive_calls_of_others() -> None:
    compiled = CompiledFunction(lambda x: x * 2)
    kept = [(n, compiled(fw.ones(n))) for n in (3, 4, 900, 5, 7)]
    assert all(x.tolist() == [2.0] * n for n, x in kept)


def test_programs_of_many_sizes_share_their_scratch_memory() -> None:
    compiled = CompiledFunction(lambda x: F.softmax(F.softmax(x, 0) @ x.t(), 0) @ x)
    inputs = [fw.randn(n, 40) for n in (10, 20, 150, 30, 90, 151)]
    for x in (*inputs, *inputs):
        same(compiled(x), F.softmax(F.softmax(x, 0) @ x.t(), 0) @ x, 1e-4)
    instances = [v for e in compiled.entries.values() for v in e.variants if v.recording is not None]
    assert len(instances) == 5
    assert len({id(v.executable.arena) for v in instances}) == 1
    assert instances[0].executable.arena.size == max(v.executable.plan.arena_bytes for v in instances)


def test_sizes_beyond_those_kept_are_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.capture.dynamic.MOST_INSTANCES", 4)
    compiled = CompiledFunction(lambda x: (x * 2).sum())
    for _ in range(2):
        for n in range(1, 20):
            assert compiled(fw.ones(n)).item() == 2 * n
    assert len(compiled.history) == 2
    assert len(compiled.entries) == 5


def test_calls_that_are_not_recorded_leave_nothing_behind() -> None:
    def function(x: fw.Tensor, thing: object) -> float:
        return float(x.sum() + (thing is None))

    compiled = CompiledFunction(function)
    for n in range(1, 40):
        compiled(fw.ones(n), object())
    assert not compiled.shapes.families and not compiled.shapes.instances


def test_an_error_of_a_symbolic_size_is_not_handled_by_the_function() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        try:
            scale = math.comb(x.shape[0], 2) + int.__add__(x.shape[0], 1)
        except TypeError:
            scale = -1
        return x * scale

    compiled = CompiledFunction(function)
    for n in (3, 4, 5, 4, 1):
        assert compiled(fw.ones(n)).tolist() == function(fw.ones(n)).tolist()
