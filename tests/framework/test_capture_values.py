"""What a compiled function returns: any nest of results, equal to eager's, and the caller's to keep."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import Twins, check, nothing, same


def vector(n: int = 5, requires_grad: bool = False) -> fw.Tensor:
    return fw.arange(1.0, n + 1).requires_grad_(requires_grad)


@dataclass
class Pair:
    """A result type of the user's."""

    total: fw.Tensor
    parts: list[fw.Tensor]
    name: str


Point = collections.namedtuple("Point", ["x", "y"])

# Containers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: (x + 1,),
        lambda x: (x + 1, x * 2),
        lambda x: [x + 1, (x * 2, {"a": x - 1, "b": [x.sum()]})],
        lambda x: {"loss": x.sum(), "n": 3, "none": None, "text": "yes"},
        lambda x: None,
        lambda x: (None, x.sum(), None),
        lambda x: x,
        lambda x: (x, x + 1),
        lambda x: (x * 2).detach(),
        lambda x: Pair(x.sum(), [x + 1, x + 2], "pair"),
        lambda x: Point(x + 1, 2.5),
        lambda x: collections.OrderedDict(b=x + 1, a=x + 2),
        lambda x: [],
        lambda x: 7,
        lambda x: tuple(x * float(i) for i in range(200)),
        lambda x: fw.zeros(3),
        lambda x: (fw.arange(4), fw.full((2, 2), 1.5), fw.tensor([1, 2]), fw.ones(2, dtype=fw.float64)),
        lambda x: x.shape,
        lambda x: (x.dtype, x.ndim, x.numel(), len(x)),
    ],
)
def test_results_of_every_shape(function: Any) -> None:
    check(function, (vector(),), variants=1)


def test_an_argument_returned_is_that_argument() -> None:
    compiled = CompiledFunction(lambda x, y: (y, x + 1, x))
    for _ in range(3):
        x, y = vector(), vector()
        second, _, first = compiled(x, y)
        assert first is x and second is y


def test_one_tensor_returned_twice_is_one_tensor() -> None:
    def function(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        y = x + 1
        return y, y

    compiled = CompiledFunction(function)
    for _ in range(3):
        a, b = compiled(vector())
        assert a is b


def test_a_view_and_its_base_share_memory() -> None:
    def function(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        y = x + 1
        return y, y[1:3]

    compiled = CompiledFunction(function)
    for _ in range(3):
        base, view = compiled(vector())
        base.fill_(7)
        assert view.tolist() == [7, 7]


def test_a_view_of_an_argument_shares_its_memory() -> None:
    compiled = CompiledFunction(lambda x: x[1:3])
    for _ in range(3):
        x = vector()
        view = compiled(x)
        x.fill_(7)
        assert view.tolist() == [7, 7]


def test_a_result_and_its_detached_self_share_memory() -> None:
    def function(x: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        y = x * 2
        return y, y.detach()

    compiled = CompiledFunction(function)
    for _ in range(3):
        a, b = compiled(vector())
        b.zero_()
        assert a.tolist() == [0] * 5


def test_results_are_kept_while_later_calls_run() -> None:
    compiled = CompiledFunction(lambda x: (x * 2, x.sum()))
    kept = [compiled(fw.full((50,), float(i))) for i in range(20)]
    for i, (double, total) in enumerate(kept):
        assert (double == 2.0 * i).all() and total.item() == 50 * i


@pytest.mark.replays
def test_a_result_is_fed_to_the_next_call() -> None:
    def function(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        return x * 0.5 + y

    compiled = CompiledFunction(function)
    state = wanted = vector()
    for i in range(10):
        y = fw.full((5,), float(i))
        state, wanted = compiled(state, y), function(wanted, y)
        same(state, wanted)
    assert len(compiled.variants) == 1


def test_a_result_written_in_place_by_the_caller_does_not_come_back() -> None:
    compiled = CompiledFunction(lambda x: (x * 2, fw.ones(3)))
    for _ in range(3):
        a, b = compiled(vector())
        a.zero_()
        b.zero_()
        assert compiled(vector())[0].tolist() == [2, 4, 6, 8, 10]
        assert compiled(vector())[1].tolist() == [1, 1, 1]


# Arguments
# --------------------------------------------------------------------------------------------------


def test_nested_arguments_keywords_and_defaults() -> None:
    def function(
        pair: Any, options: dict[str, Any], scale: float = 2.0, *rest: fw.Tensor, bias: Any = None
    ) -> fw.Tensor:
        out = pair[0] * scale + options["x"]
        for x in rest:
            out = out + x
        return out if bias is None else out + bias

    twins = Twins(lambda: (function, nothing))
    x = vector()
    for _ in range(2):
        twins.call((x, 1), {"x": x})
        twins.call((x, 1), {"x": x}, 3.0, x, x)
        twins.call((x, 1), {"x": x}, bias=x)
        twins.call((x, 1), {"x": x}, scale=-1.0, bias=x)
    twins.expect("replay", 4)


def test_a_python_number_is_part_of_what_the_call_means() -> None:
    twins = check(
        lambda x, n: x * n, (vector(), 2), (vector(), 3), (vector(), 2.0), (vector(), -0.0), (vector(), 0.0)
    )
    x = twins.compiled(vector(), -0.0)
    assert np.signbit(x.numpy()).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3, 4)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    check(
        lambda x: ((x + 1).exp(), x.sum(), x.reshape(-1), x * fw.ones(x.shape)), (fw.rand(shape),), variants=1
    )


@pytest.mark.parametrize(
    "dtype", [fw.bool, fw.uint8, fw.int32, fw.int64, fw.float16, fw.bfloat16, fw.float32, fw.float64]
)
def test_every_dtype(dtype: Any) -> None:
    check(lambda x: (x + x, x == 1, x.float() * 0.5), (fw.tensor([0, 1, 1]).to(dtype),), variants=1)


@pytest.mark.replays
def test_layouts_are_followed() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        return x * 2 + x.sum(0)

    compiled = CompiledFunction(function)
    base = fw.rand(6, 6)
    views = [
        base,
        base.t(),
        base[::2, ::3],
        base.flip(0),
        base[1:, 2:],
        base[:, 0],
        base.expand(2, 6, 6),
        base[:0],
    ]
    for _ in range(2):
        for x in views:
            same(compiled(x), function(x))
    assert compiled.explain().mode == "replay"


@pytest.mark.replays
def test_shapes_seen_before_never_compile_again() -> None:
    compiled = CompiledFunction(lambda x: (x * 2).sum())
    sizes = [1, 2, 3, 7, 8, 9]
    for _ in range(3):
        for n in sizes:
            assert compiled(fw.ones(n)).item() == 2 * n
    assert len(compiled.history) == 2


@pytest.mark.replays
def test_past_the_limit_older_variants_still_serve() -> None:
    # Every size is another recording, for the code counts with it.
    compiled = CompiledFunction(lambda x: (x * 2).sum() + sum(range(len(x))) * 0)
    for n in range(1, 60):
        assert compiled(fw.ones(n)).item() == 2 * n
    count = len(compiled.history)
    for n in range(1, 60):
        assert compiled(fw.ones(n)).item() == 2 * n
    assert len(compiled.history) == count
    assert 1 < len(compiled.variants) < 59


def test_views_of_views_of_arguments_are_followed() -> None:
    check(
        lambda x: (x.t().detach().flip(0).reshape(-1), x[1:].t().reshape(-1) * 2),
        (fw.rand(4, 4),),
        variants=1,
    )


def test_grad_mode_dtype_and_requires_grad_are_part_of_the_call() -> None:
    def function(x: fw.Tensor) -> Any:
        y = (x * 2).sum()
        return y.requires_grad, y.detach(), fw.is_grad_enabled()

    compiled = CompiledFunction(function)
    for _ in range(2):
        for grad in (True, False):
            assert compiled(vector(requires_grad=grad))[0] is grad
            with fw.no_grad():
                assert compiled(vector(requires_grad=grad))[::2] == (False, False)
    try:
        fw.set_default_dtype(fw.float64)
        assert CompiledFunction(lambda: fw.ones(2))().dtype is fw.float64
    finally:
        fw.set_default_dtype(fw.float32)


# Length
# --------------------------------------------------------------------------------------------------


def test_a_chain_of_five_hundred_ops() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        for i in range(250):
            x = x * 0.99 + (0.01 if i % 2 else -0.01)
        return x

    check(function, (vector(),), variants=1)


def test_two_hundred_results_that_depend_on_each_other() -> None:
    def function(x: fw.Tensor) -> list[fw.Tensor]:
        found = [x]
        for i in range(200):
            found.append((found[-1] + found[i // 2]) * 0.5)
        return found[1:]

    check(function, (vector(),), variants=1)


# Values that Python asks for
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1 if x.sum() > 0 else x - 1,
        lambda x: x * x.sum().item(),
        lambda x: float(x[0]),
        lambda x: [v * 2 for v in x.tolist()],
        lambda x: str(x),
        lambda x: fw.from_numpy(x.numpy() + 1),
        lambda x: x[x > 2],
        lambda x: x[int(x[0].item())],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
    ],
)
def test_what_needs_a_value_runs_eagerly_and_right(function: Any) -> None:
    check(function, (vector(),), (-vector(),), mode="driven")


def test_a_branch_on_what_is_known_is_compiled() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        if x.shape[0] > 3 and x.dtype is fw.float32 and x.ndim == 1:
            return x * 2
        return x * 3

    check(function, (vector(5),), (vector(2),), (vector(5).double(),), variants=3)


# History
# --------------------------------------------------------------------------------------------------


def test_gradients_through_a_result_are_eagers() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        return (x * x).sum() + x.exp()[0]

    compiled = CompiledFunction(function)
    for _ in range(3):
        x, y = vector(requires_grad=True), vector(requires_grad=True)
        compiled(x).backward()
        function(y).backward()
        same(x.grad, y.grad)


def test_grad_modes_inside() -> None:
    def function(x: fw.Tensor) -> Any:
        with fw.no_grad():
            a = x * 2
            with fw.enable_grad():
                b = x * 3
        c = (x * 4).detach()
        d = fw.ones(3).requires_grad_()
        return a, b.detach(), b.requires_grad, c, d, a.requires_grad

    check(function, (vector(requires_grad=True),))


def test_autograd_grad_and_second_derivatives_inside() -> None:
    def function(x: fw.Tensor) -> Any:
        (g,) = fw.autograd.grad((x**4).sum(), x, create_graph=True)
        (h,) = fw.autograd.grad(g.sum(), x)
        return g.detach(), h

    twins = check(function, (fw.tensor([0.5, 1.5, 2.5, 3.5], dtype=fw.float64).requires_grad_(),), variants=1)
    x = fw.tensor([0.5, 1.5, 2.5, 3.5], dtype=fw.float64).requires_grad_()
    assert twins.compiled(x)[1].tolist() == [3, 27, 75, 147]


def test_a_compiled_function_inside_another() -> None:
    inner = CompiledFunction(lambda x: x * 2)
    twins = check(lambda x: inner(x) + 1, (vector(),), variants=1)
    assert not inner.variants or twins.compiled.variants


@pytest.mark.parametrize("shape", [(4, 4), (3, 33), (2, 3, 64, 64)])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: fw.nn.functional.dropout(x.softmax(-1), 0.3),
        lambda x: fw.rand_like(x) + x.amax(-1, keepdim=True),
        lambda x: x.sum(-1, keepdim=True) * (x * 0.5).erf(),
    ],
)
def test_what_is_costly_and_first_needed_after_a_reduction(function: Any, shape: tuple[int, ...]) -> None:
    check(function, (fw.linspace(-2, 2, int(np.prod(shape))).reshape(shape),), variants=1)


def test_any_number_but_zero_fills_a_bool_tensor_with_true() -> None:
    twins = check(
        lambda: (fw.full((2,), 0.5, dtype=fw.bool), fw.full((2,), 0.0, dtype=fw.bool)), (), variants=1
    )
    assert twins.compiled()[0].tolist() == [True, True]
