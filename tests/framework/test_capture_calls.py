"""Library functions in driven calls: from the second call on their Python is not run, and nobody can tell."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
from framework.capture import driver, known
from framework.nn import functional as F
from tests.framework.capture_check import Twins, World, grad_of, nothing

pytestmark = pytest.mark.replays

X, Y = fw.randn(5, 4).requires_grad_(), fw.tensor([0, 2, 1, 0, 2])
W, B = fw.randn(4, 4).requires_grad_(), fw.randn(4).requires_grad_()


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each result that comes without Python."""
    met: list[int] = []
    result = known.KnownCall.result

    def counted(*arguments: Any) -> fw.Tensor:
        met.append(1)
        return result(*arguments)

    monkeypatch.setattr(known.KnownCall, "result", counted)
    return met


def driven(
    function: Callable[..., Any], *rounds: tuple[Any, ...], leaves: tuple[fw.Tensor, ...] = ()
) -> Twins:
    """Run each call four times, eagerly and driven, which an append to a list makes sure of.

    `leaves` come first, the same ones in every call and without a gradient.
    """

    def make() -> World:
        log: list[int] = []
        kept = [t.detach().clone().requires_grad_() for t in leaves]

        def logged(*arguments: Any) -> Any:
            log.append(1)
            for t in kept:
                t.grad = None
            return function(*kept, *arguments)

        return logged, nothing

    twins = Twins(make)
    for _ in range(4):
        for arguments in rounds:
            twins.call(*arguments)
    twins.expect("driven")
    return twins


def history(t: fw.Tensor) -> Any:
    """Names of the nodes behind a tensor, as a tree."""

    def tree(node: Any) -> Any:
        return node and (node.name(), [(tree(below), number) for below, number in node.next_functions])

    return tree(t.grad_fn)


def raised(action: Callable[[], Any]) -> str:
    """The words of the RuntimeError or IndexError that `action` raises, or "nothing"."""
    try:
        action()
    except (RuntimeError, IndexError) as error:
        return str(error)
    return "nothing"


def attention(mixed: fw.Tensor) -> fw.Tensor:
    """Two heads of one projection."""
    query, key, value = mixed.view(5, 3, 2, 2).permute(1, 2, 0, 3)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


FUNCTIONS: dict[str, Callable[..., fw.Tensor]] = {
    "relu6": lambda x, w, b, y: F.relu6(x),
    "leaky_relu": lambda x, w, b, y: F.leaky_relu(x, 0.2),
    "prelu": lambda x, w, b, y: F.prelu(x, b),
    "elu": lambda x, w, b, y: F.elu(x),
    "selu": lambda x, w, b, y: F.selu(x),
    "celu": lambda x, w, b, y: F.celu(x, 0.5),
    "gelu": lambda x, w, b, y: F.gelu(x),
    "gelu_tanh": lambda x, w, b, y: F.gelu(x, approximate="tanh"),
    "silu": lambda x, w, b, y: F.silu(x),
    "logsigmoid": lambda x, w, b, y: F.logsigmoid(x),
    "softplus": lambda x, w, b, y: F.softplus(x, 2.0),
    "mish": lambda x, w, b, y: F.mish(x),
    "hardswish": lambda x, w, b, y: F.hardswish(x),
    "glu": lambda x, w, b, y: F.glu(x),
    "softmax": lambda x, w, b, y: F.softmax(x, -1),
    "log_softmax": lambda x, w, b, y: F.log_softmax(x, 0),
    "linear": lambda x, w, b, y: F.linear(x, w, b),
    "linear_of_views": lambda x, w, b, y: F.linear(x[1:], w, b[:4]),
    "linear_by_a_view": lambda x, w, b, y: F.linear(x, w.t(), b),
    "linear_of_deferred_views": lambda x, w, b, y: F.linear((x * 2).t()[:, :4], (w * 2).t()),
    "linear_of_itself": lambda x, w, b, y: F.linear(w, w, b),
    "bilinear": lambda x, w, b, y: F.bilinear(x, x, w.reshape(1, 4, 4)),
    "embedding": lambda x, w, b, y: F.embedding(y, w, 1),
    "attention": lambda x, w, b, y: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention_of_views": lambda x, w, b, y: attention(x @ w.repeat(3, 1).t()),
    "normalize": lambda x, w, b, y: F.normalize(x),
    "cosine_similarity": lambda x, w, b, y: F.cosine_similarity(w, x[1:]),
    "layer_norm": lambda x, w, b, y: F.layer_norm(x, (4,), b, b),
    "rms_norm": lambda x, w, b, y: F.rms_norm(x, x.shape[-1:], b),
    "group_norm": lambda x, w, b, y: F.group_norm(x, 2, b),
    "batch_norm": lambda x, w, b, y: F.batch_norm(x, None, None, b, b, training=True),
    "cross_entropy": lambda x, w, b, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "weighted_cross_entropy": lambda x, w, b, y: F.cross_entropy(x, y, b.exp(), reduction="sum"),
    "nll_loss": lambda x, w, b, y: F.nll_loss(x, y, ignore_index=2),
    "mse_loss": lambda x, w, b, y: F.mse_loss(w, w.exp()),
    "huber_loss": lambda x, w, b, y: F.huber_loss(x, x * 3, reduction="none"),
    "kl_div": lambda x, w, b, y: F.kl_div(x, x.sigmoid()),
    "with_logits": lambda x, w, b, y: F.binary_cross_entropy_with_logits(x, (x > 1).float()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_histories_and_gradients(name: str, again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor, b: fw.Tensor, y: fw.Tensor) -> Any:
        out = FUNCTIONS[name](x, w, b, y)
        names = history(out)
        (out**3).sum().backward()
        leaves = [t for t in (x, w, b) if t.grad is not None]
        first = [grad_of(t) for t in leaves]
        out = FUNCTIONS[name](x, w, b, y)
        total = (out**3).sum()
        total.backward(retain_graph=True)
        total.backward()
        out = FUNCTIONS[name](x, w, b, y)
        grads = fw.autograd.grad((out**3).sum(), leaves, create_graph=True)
        second = fw.autograd.grad(
            [g.square().sum() for g in grads if g is not None], leaves, allow_unused=True
        )
        return out.detach(), names, first, list(second), raised(total.backward), history(out)

    driven(function, (X, W, B, Y), (X * 0.5, W, B, Y))
    assert len(again) >= 12


def test_other_values_another_need_of_gradients_and_no_grad(again: list[int]) -> None:
    def function(x: fw.Tensor, recorded: bool) -> Any:
        with fw.set_grad_enabled(recorded):
            out = F.gelu(F.layer_norm(x, (4,)))
        if out.requires_grad:
            out.sum().backward()
        return out.detach(), out.requires_grad, history(out)

    driven(function, (X, True), (X.detach(), True), (X, False), (X * 2, True))
    assert len(again) >= 20


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("written", ["x", "w", "b", "hidden", "out", "loss"])
def test_a_write_between_forward_and_backward(written: str, early: bool, again: list[int]) -> None:
    def function(w: fw.Tensor, b: fw.Tensor, x: fw.Tensor, factor: float) -> Any:
        tensors = {"x": x, "w": w, "b": b}
        tensors["hidden"] = F.linear(x * 2, w, b)
        tensors["out"] = F.softmax(F.silu(tensors["hidden"]), -1)
        tensors["loss"] = F.mse_loss(tensors["out"], x)
        if early:
            tensors["loss"].item()
        if factor != 1:
            with fw.no_grad():
                tensors[written].mul_(factor)
        words = raised(tensors["loss"].backward)
        return words, [None if t.grad is None else t.grad.clone() for t in (w, b)], tensors["loss"].detach()

    driven(function, (X.detach(), 1), (X.detach(), 2), (X.detach(), 1), (X.detach(), 0.5), leaves=(W, B))
    assert len(again) >= 8


def test_in_place_on_a_result_and_by_a_function(again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor) -> Any:
        out = F.linear(x, w)
        out += 1
        F.hardtanh(out, -2.0, 2.0, inplace=True)
        F.silu(out, inplace=True)
        soft = F.softmax(out, -1)
        soft.mul_(2)
        out.sum().backward()
        return out.detach(), [grad_of(x), grad_of(w)], history(out), raised(soft.sum().backward)

    driven(function, (X, W))
    assert again


def test_a_value_read_before_the_backward(again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor, b: fw.Tensor, y: fw.Tensor) -> Any:
        loss = F.cross_entropy(F.gelu(F.linear(x, w, b)), y)
        value = loss.item()
        loss.backward()
        return value, [grad_of(t) for t in (x, w, b)]

    twins = driven(function, (X, W, B, Y), (X * 2, W, B, Y))
    # One for the check of the targets, one up to the read, one for the rest.
    assert len(twins.compiled.explain().stretches) == 3
    assert len(again) >= 20


def test_hooks_and_retained_gradients_of_results(again: list[int]) -> None:
    def function(w: fw.Tensor, b: fw.Tensor, x: fw.Tensor, watched: tuple[str, ...]) -> Any:
        order: list[str] = []
        hidden = F.linear(x, w, b)
        out = F.gelu(hidden)
        handles = [
            t.register_hook(lambda g, name=name: order.append(name))
            for name, t in (("b", b), ("w", w), ("hidden", hidden))
            if name in watched
        ]
        if "out" in watched:
            out.register_hook(lambda g: g * 2)
        if "kept" in watched:
            hidden.retain_grad()
        out.sum().backward()
        for handle in handles:
            handle.remove()
        return hidden.grad if "kept" in watched else None, grad_of(w).clone(), grad_of(b).clone(), order

    rounds = ((), (), ("b", "w"), (), ("out",), (), ("kept",), (), ("hidden",))
    driven(function, *[(X.detach(), watched) for watched in rounds], leaves=(W, B))
    assert again


def test_leaves_hear_of_their_gradients_in_the_order_of_an_eager_call(again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor, b: fw.Tensor) -> Any:
        order: list[str] = []
        for name, t in (("b", b), ("w", w), ("x", x)):
            t.register_post_accumulate_grad_hook(lambda t, name=name: order.append(name))
        F.linear(F.linear(x, w, b), w, b).sum().backward()
        F.linear(w, w, b).sum().backward()
        return order, grad_of(w)

    driven(function, (X, W, B))
    assert again


def test_equal_tensors_are_not_the_same_one(again: list[int]) -> None:
    def function(x: fw.Tensor, same: bool) -> Any:
        one, other = x * 2, x * 2
        loss = F.kl_div(one, one if same else other)
        return fw.autograd.grad(loss, [one, other, x], allow_unused=True)

    driven(function, (X, True), (X, False))
    assert again


@pytest.mark.parametrize("bad", [-1, 4])
def test_bad_indices_raise_at_their_own_call(bad: int, again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor, y: fw.Tensor) -> Any:
        kept = F.gelu(x)
        words = [raised(lambda: F.embedding(y, w)), raised(lambda: F.cross_entropy(x, y, ignore_index=-7))]
        rows = F.embedding(y % 4, w)
        (kept.sum() + F.cross_entropy(rows, y % 4)).backward()
        return words, kept.detach(), grad_of(x), grad_of(w)

    wrong = fw.tensor([0, 2, 1, bad, 2])
    twins = driven(function, (X, W, Y), (X, W, wrong), (X, W, Y))
    assert "nothing" not in twins.call(X, W, wrong)[0]
    assert len(again) >= 20


def test_plain_values_are_told_apart(again: list[int]) -> None:
    def function(x: fw.Tensor, slope: Any) -> Any:
        out = F.leaky_relu(x, slope)
        return out, (1 / F.leaky_relu(fw.zeros(2) * x[0, :2].abs(), slope)).detach()

    slopes = (0.0, -0.0, 0, 1, 1.0, True, False, 2)
    driven(function, *[(X.detach(), slope) for slope in slopes])
    assert len(again) >= 10


def test_a_number_that_keeps_changing_makes_no_new_programs() -> None:
    log: list[float] = []

    @fw.compile
    def function(x: fw.Tensor, beta: float) -> None:
        log.append(F.softplus(x, beta).sum().item())

    x = X.detach()
    for number in range(30):
        function(x, 1 + number / 3)
        assert log[-1] == pytest.approx(F.softplus(x, 1 + number / 3).sum().item(), rel=1e-5)
    assert len(function.explain().stretches) <= 4
    assert len(function.book.calls) <= 2


def test_random_draws_and_written_statistics_happen_at_every_call() -> None:
    def function(x: fw.Tensor, mean: fw.Tensor, variance: fw.Tensor) -> Any:
        out = F.batch_norm(F.dropout(x, 0.5), mean, variance, training=True)
        return F.scaled_dot_product_attention(out, out, out, dropout_p=0.5).detach()

    driven(function, (X, fw.zeros(4), fw.ones(4)))


def test_a_warning_is_given_at_every_call() -> None:
    @fw.compile
    def function(x: fw.Tensor, log: list[float]) -> None:
        log.append(F.mse_loss(x, x[:1]).item())

    log: list[float] = []
    for _ in range(4):
        with pytest.warns(UserWarning, match="different to the input size"):
            function(X, log)
    assert len(set(log)) == 1 and function.explain().mode == "driven"


def test_memory_is_let_go_with_the_backward(again: list[int]) -> None:
    losses: list[fw.Tensor] = []
    seen: list[weakref.ref[fw.Tensor]] = []

    @fw.compile
    def function(x: fw.Tensor, w: fw.Tensor) -> None:
        hidden = F.gelu(F.linear(x, w))
        seen.append(weakref.ref(hidden))
        losses.append(F.mse_loss(hidden, x))
        losses[-1].backward()

    for _ in range(5):
        function(X.detach(), W)
    gc.collect()
    assert again and not any(reference() is not None for reference in seen)
    assert history(losses[-1]) == history(losses[0])
    assert raised(losses[-1].backward) == raised(losses[0].backward) != "nothing"


def test_a_long_stretch_is_cut_by_what_is_inside_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_DEFERRED", 200)

    def function(x: fw.Tensor) -> Any:
        for _ in range(100):
            x = F.gelu(x + 1)
        return x

    twins = driven(function, (X.detach(),))
    assert max(stretch.ops for stretch in twins.compiled.explain().stretches) < 300


@pytest.mark.parametrize("reads", [False, True])
def test_another_thread_looks_inside(reads: bool, again: list[int]) -> None:
    def function(x: fw.Tensor, w: fw.Tensor) -> Any:
        out = F.gelu(F.linear(x, w))
        found: list[Any] = []

        def look() -> None:
            out.sum().backward()
            found.append((history(out), grad_of(x).tolist() if reads else None))

        other = threading.Thread(target=look)
        other.start()
        other.join()
        return found, grad_of(x), grad_of(w)

    driven(function, (X, W))
    assert again
