"""Views that leave a call: their memory, and the history that writes to them have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
from tests.framework.capture_check import Twins, check

Views = Callable[[fw.Tensor], Any]


def numbers(*shape: int) -> fw.Tensor:
    return fw.arange(1.0, 1.0 + fw.Size(shape).numel()).reshape(shape)


# What a write to a returned view does


def hidden(w: fw.Tensor) -> Any:
    return (w * 2).t()


def beside_its_base(w: fw.Tensor) -> Any:
    base = w * 2
    return base[1], base


def two_views(w: fw.Tensor) -> Any:
    base = w * 2
    return base[0], base.t()


def of_a_view(w: fw.Tensor) -> Any:
    return (w * 2).t()[1:].reshape(-1)[:2]


def without_gradients(w: fw.Tensor) -> Any:
    base = w * 2
    with fw.no_grad():
        view = base[0]
    return view, base


def hidden_without_gradients(w: fw.Tensor) -> Any:
    base = w * 2
    with fw.no_grad():
        return base[0]


def detached(w: fw.Tensor) -> Any:
    base = w * 2
    return base.detach()[0], base


def a_leaf(w: fw.Tensor) -> Any:
    return (w * 2).detach()[0].requires_grad_()


def of_a_custom_function(w: fw.Tensor) -> Any:
    class Rows(fw.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
            ctx.rows = x.shape[0]
            return x[0]

        @staticmethod
        def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
            return fw.cat([5 * g[None], g.expand(ctx.rows - 1, 2)])

    return Rows.apply(w * 2)


SHAPES = [
    hidden,
    beside_its_base,
    two_views,
    of_a_view,
    without_gradients,
    hidden_without_gradients,
    detached,
    a_leaf,
    of_a_custom_function,
]
WRITES: list[Callable[[fw.Tensor, fw.Tensor], Any]] = [
    lambda view, v: view.mul_(3),
    lambda view, v: view.mul_(v),
    lambda view, v: view.copy_(v.expand(view.shape)),
    lambda view, v: view.mul_(3).add_(v),
]


@pytest.mark.parametrize("write", range(len(WRITES)))
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("views", SHAPES, ids=lambda f: f.__name__)
def test_a_write_to_what_was_returned(views: Views, requires_grad: bool, write: int) -> None:
    def outcome(function: Views, rows: int) -> list[Any]:
        w, v = numbers(rows, 2).requires_grad_(requires_grad), fw.tensor(5.0, requires_grad=True)
        made = function(w)
        made = made if isinstance(made, tuple) else (made,)
        try:
            WRITES[write](made[0], v)
        except RuntimeError as error:
            return [str(error)]
        seen = [(t.tolist(), t.requires_grad, t._version) for t in made]
        for t in made:
            if t.requires_grad:
                t.sum().backward(retain_graph=True)
        return [*seen, *(x.grad.tolist() if x.grad is not None else None for x in (w, v))]

    compiled: Any = fw.compile(views)
    for rows in (2, 2, 3, 4):  # of any size from the third call on
        assert outcome(compiled, rows) == outcome(views, rows)


# Positions that tensors hold: views in eager mode

READS: list[tuple[Callable[..., Any], str]] = [
    (lambda x, i: x[i[0]] * 2, "replay"),
    (lambda x, i: (x * 2)[i[0]], "replay"),
    (lambda x, i: (x * 2)[i[0], i[1]], "replay"),
    (lambda x, i: (x * 2)[:, i[0]].sum(), "replay"),
    (lambda x, i: x[i[0], i[1:]], "replay"),  # a copy in eager mode too
    (lambda x, i: x[i[0]], "driven"),
    (lambda x, i: (lambda y: (y, y[i[0]]))(x * 2), "driven"),
    (lambda x, i: (lambda y: (y[i[0]], y[i[1]]))(x * 2), "driven"),
    (lambda x, i: (x * 2)[i[0]].mul_(3), "driven"),
    (lambda x, i: (lambda y: (y[i[0]].mul_(3), y)[1])(x * 2), "driven"),
    (lambda x, i: (lambda y: (y[i[0]][1:].zero_(), y)[1])(x * 2), "driven"),
    (lambda x, i: (lambda y, r: (y.mul_(3), r + 1)[1])(*(lambda y: (y, y[i[0]]))(x * 2)), "driven"),
    (lambda x, i: (lambda y, r: (y.mul_(3), r)[1])(*(lambda y: (y, y[i[0]]))(x * 2)), "driven"),
    (lambda x, i: (lambda y, r: (r.sum(), y.mul_(3))[0])(*(lambda y: (y, y[i[0]]))(x * 2)), "replay"),
]


@pytest.mark.parametrize("number", range(len(READS)))
def test_what_is_picked_at_the_position_a_tensor_holds(number: int) -> None:
    function, mode = READS[number]
    calls = [(numbers(3, 3), fw.tensor(i)) for i in ([0, 2], [2, 1])]
    check(function, *calls, mode=mode)


def test_what_is_picked_of_an_argument_is_its_memory() -> None:
    compiled: Any = fw.compile(lambda x, i: x[i])
    x = numbers(2, 2)
    for position in (0, 1):
        compiled(x, fw.tensor(position)).zero_()
        assert not x[position].any()


def test_training_a_row_of_a_table() -> None:
    def make() -> Any:
        table = fw.nn.Embedding(4, 3)
        optimizer = fw.optim.SGD(table.parameters(), lr=0.1)

        def step(i: fw.Tensor) -> fw.Tensor:
            optimizer.zero_grad()
            loss = (table.weight[i] ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        return step, lambda: [table.weight.detach()]

    twins = Twins(make)
    for i in (0, 1, 3, 1):
        twins.call(fw.tensor(i))
    twins.expect("replay")


def test_a_version_saved_before_a_write_is_missed_as_eagerly() -> None:
    def function(x: fw.Tensor, i: fw.Tensor) -> fw.Tensor:
        y = x * 2
        loss = (y[i] ** 2).sum()
        y.mul_(3)
        loss.backward()
        return loss

    def outcome(f: Any) -> str:
        with pytest.raises(RuntimeError) as error:
            f(numbers(2, 2).requires_grad_(), fw.tensor(1))
        return str(error.value)

    assert outcome(fw.compile(function)) == outcome(function)


# Parts of an expanded tensor in which no element is twice


EXPANDED: list[Callable[[fw.Tensor], fw.Tensor]] = [
    lambda v: v[None].expand(3, 2, 3)[1],
    lambda v: v[None].expand(3, 2, 3)[1][1:],
    lambda v: v[None].expand(3, 2, 3)[0:1, :, 1],
    lambda v: v[None].expand(3, 2, 3).permute(0, 2, 1)[2],
    lambda v: v[:, None].expand(2, 4, 3)[:, 3, ::2],
    lambda v: v[None, 0:1].expand(3, 5, 3)[2, 4],
    lambda v: v.expand(4, 2, 3)[3].t(),
]


@pytest.mark.parametrize("part", EXPANDED)
def test_a_part_of_an_expansion_is_written(part: Callable[[fw.Tensor], fw.Tensor]) -> None:
    def step(x: fw.Tensor) -> Any:
        v = x * 1
        part(v).mul_(3)
        (v * v).sum().backward()
        return v.detach(), x.grad

    def wanted(x: fw.Tensor) -> Any:
        factor = numbers(2, 3).fill_(1).numpy()
        places = numbers(2, 3).numpy()
        factor[(places[..., None] == part(numbers(2, 3)).numpy().reshape(-1)).any(-1)] = 3
        v = x.detach().numpy() * factor
        return fw.from_numpy(v), fw.from_numpy(2 * v * factor)

    for f in (step, fw.compile(step)):
        x = numbers(2, 3).requires_grad_()
        for got, value in zip(f(x), wanted(x), strict=True):
            assert got.tolist() == value.tolist()
    check(step, (numbers(2, 3).requires_grad_(),))


def test_an_expansion_itself_is_not_written() -> None:
    for f in (lambda v: v.expand(2, 2, 3).mul_(3), lambda v: v[None].expand(4, 2, 3)[1:3].mul_(3)):
        for function in (f, fw.compile(f)):
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                function(numbers(2, 3))


# Views of a tensor met inside, which is written after they were made


@pytest.mark.parametrize(
    "view",
    [
        lambda w: w[None].expand(3, 2, 3),
        lambda w: w[:1].expand(3, 3),
        lambda w: w[:, 1][:, None].expand(2, 4).t(),
        lambda w: w.expand(2, 2, 3)[1],
        lambda w: w.t(),
        lambda w: w[:, ::2],
        lambda w: w.as_strided((2, 2), (1, 2)),
        lambda w: w[None].expand(3, 2, 3).as_strided((2, 2), (3, 1)),
        lambda w: w.view(fw.int32),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_a_view_shows_what_is_written_later(view: Callable[[fw.Tensor], fw.Tensor], computed: bool) -> None:
    weights = [numbers(2, 3), numbers(2, 3)]

    def step(w: fw.Tensor, print_it: bool) -> Any:
        seen = view(w)
        before = seen.sum()
        if print_it:
            before = before + float(before)  # what is there so far is computed
        w.mul_(2)
        return before, seen * 3

    results = []
    for w, wrap in zip(weights, (lambda f: f, fw.compile), strict=True):
        f = wrap(lambda w=w: step(w, computed))
        results.append([[t.tolist() for t in f()] for _ in range(3)])
    assert results[0] == results[1]
    assert weights[0].tolist() == weights[1].tolist()


@pytest.mark.replays
def test_an_index_of_what_exists_is_no_code_of_the_caller() -> None:
    # What is made of the index has movements in it, which also have something called `view`.
    weight = numbers(3, 4)

    @fw.compile(strict=True)
    def call(x: fw.Tensor) -> fw.Tensor:
        return (x + weight[:2]).view(-1)

    for factor in (1.0, 2.0):
        x = numbers(2, 4) * factor
        assert call(x).tolist() == (x + weight[:2]).view(-1).tolist()
