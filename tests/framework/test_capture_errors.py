"""Bad input and failures, eager and compiled: PyTorch's error type, the values and the way out, and nothing
changed."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import grad_of, same

Function = Callable[..., Any]


@pytest.fixture(params=["eager", "compiled", "compiled before"])
def run(request: pytest.FixtureRequest) -> Callable[[Function], Function]:
    """How a function is called: as it is, compiled, or compiled with a good call first (of `good`)."""

    def wrap(function: Function, good: tuple[Any, ...] = ()) -> Function:
        if request.param == "eager":
            return function
        compiled = CompiledFunction(function)
        if request.param == "compiled before" and good:
            compiled(*good)
            compiled(*good)
        return compiled

    return wrap


@dataclass
class Bad:
    """A call that must raise `error` with a text that matches."""

    function: Function
    arguments: tuple[Any, ...]
    error: type[Exception]
    message: str
    good: tuple[Any, ...] = ()


x23 = fw.arange(6.0).reshape(2, 3)
i2 = fw.tensor([0, 1])

BAD = {
    "broadcast": Bad(
        lambda x, y: x + y, (x23, fw.ones(4)), RuntimeError, r"\[2, 3\].*\[4\]", (x23, fw.ones(3))
    ),
    "matmul": Bad(
        lambda x, y: x @ y, (x23, fw.ones(4, 2)), RuntimeError, "2x3 and 4x2", (x23, fw.ones(3, 2))
    ),
    "matmul dtypes": Bad(
        lambda x, y: x @ y, (x23, fw.ones(3, 2).double()), RuntimeError, "float32 != float64"
    ),
    "view": Bad(lambda x, n: x.view(n), (x23, 7), RuntimeError, "invalid for input of size 6", (x23, 6)),
    "dimension": Bad(lambda x, d: x.sum(d), (x23, 2), IndexError, "Dimension out of range", (x23, 1)),
    "linear": Bad(
        lambda x, w: F.linear(x, w),
        (x23, fw.ones(4, 5)),
        RuntimeError,
        r"\[2, 3\] and \[4, 5\]",
        (x23, fw.ones(4, 3)),
    ),
    "cat": Bad(
        lambda x, y: fw.cat([x, y]), (x23, fw.ones(2, 4)), RuntimeError, "except in dimension 0", (x23, x23)
    ),
    "where": Bad(lambda c, x: fw.where(c, x, 0.0), (x23, x23), RuntimeError, "bool", (x23 > 1, x23)),
    "bool sub": Bad(lambda x: x - x, (x23 > 1,), RuntimeError, "bool"),
    "integer power": Bad(
        lambda x, y: x**y,
        (fw.tensor([2]), fw.tensor([-1])),
        RuntimeError,
        "negative integer powers",
        (i2, i2),
    ),
    "division by zero": Bad(
        lambda x, y: x // y,
        (i2, fw.tensor([1, 0])),
        RuntimeError,
        "ZeroDivisionError",
        (i2, fw.tensor([1, 2])),
    ),
    "mean of integers": Bad(lambda x: x.mean(), (i2,), RuntimeError, "floating point"),
    "empty max": Bad(lambda x: x.max(), (fw.ones(0),), RuntimeError, "numel|reduction dim"),
    "embedding": Bad(
        lambda w, i: F.embedding(i, w),
        (x23, fw.tensor([0, 2])),
        IndexError,
        r"2 is out of (range|bounds)",
        (x23, i2),
    ),
    "embedding below": Bad(
        lambda w, i: F.embedding(i, w), (x23, fw.tensor([0, -1])), IndexError, "-1 is out of", (x23, i2)
    ),
    "embedding far": Bad(
        lambda w, i: F.embedding(i, w), (x23, fw.tensor([0, 10**15])), IndexError, "out of", (x23, i2)
    ),
    "gather": Bad(
        lambda x, i: x.gather(0, i),
        (x23, fw.tensor([[0, 1, 5]])),
        IndexError,
        "out of range",
        (x23, fw.tensor([[0, 1, 1]])),
    ),
    "index_select": Bad(
        lambda x, i: x.index_select(1, i), (x23, fw.tensor([3, 0])), IndexError, "out of range", (x23, i2)
    ),
    "index": Bad(
        lambda x, i: x[i], (x23, fw.tensor([0, -3])), IndexError, "out of", (x23, fw.tensor([0, -2]))
    ),
    "index_add": Bad(
        lambda x, i: x.index_add_(0, i, fw.ones(2, 3)),
        (x23, fw.tensor([0, 2])),
        IndexError,
        "out of range",
        (x23.clone(), i2),
    ),
    "cross entropy": Bad(
        lambda x, t: F.cross_entropy(x, t),
        (x23, fw.tensor([0, 3])),
        IndexError,
        r"[Tt]arget 3|3 is out of",
        (x23, i2),
    ),
    "cross entropy shape": Bad(
        lambda x, t: F.cross_entropy(x, t), (x23, fw.tensor([0])), ValueError, r"[Bb]atch|batch_size|2.*1"
    ),
    "bce": Bad(
        lambda x, t: F.binary_cross_entropy(x, t),
        (fw.full((2,), 0.5), fw.tensor([0.0, 1.5])),
        RuntimeError,
        "between 0 and 1",
        (fw.full((2,), 0.5), fw.tensor([0.0, 1.0])),
    ),
    "not a tensor": Bad(lambda x, y: x + y, (x23, "a"), TypeError, "unsupported operand", (x23, 1.0)),
    "device": Bad(
        lambda x, d: x.to(d), (x23, "nowhere"), RuntimeError, "Invalid device string", (x23, "cpu")
    ),
    "inplace broadcast": Bad(
        lambda x, y: x.add_(y), (fw.ones(3), x23), RuntimeError, r"shape|size", (fw.ones(3), fw.ones(3))
    ),
    "inplace cast": Bad(
        lambda x, y: x.add_(y),
        (fw.tensor([1]), fw.ones(1)),
        RuntimeError,
        "can't be cast",
        (fw.tensor([1]), fw.tensor([1])),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, run: Any) -> None:
    bad = BAD[name]
    function = run(bad.function, bad.good)
    arguments = [x.clone() if isinstance(x, fw.Tensor) else x for x in bad.arguments]
    versions = [x._version for x in arguments if isinstance(x, fw.Tensor)]
    generator = fw.get_rng_state().numpy().copy()
    for _ in range(2):
        with pytest.raises(bad.error, match=bad.message):
            function(*arguments)
        for given, kept in zip(arguments, bad.arguments, strict=True):
            same(given, kept)
        assert versions == [x._version for x in arguments if isinstance(x, fw.Tensor)]
        np.testing.assert_array_equal(fw.get_rng_state().numpy(), generator)
    if bad.good:
        # A failed call leaves a function that works.
        same(function(*bad.good), bad.function(*bad.good))


def leaf() -> fw.Tensor:
    return fw.ones(3).requires_grad_()


def test_backward_of_what_is_no_scalar(run: Any) -> None:
    x = leaf()
    with pytest.raises(RuntimeError, match="scalar"):
        run(lambda x: (x * 2).backward())(x)
    assert x.grad is None


def test_backward_of_what_has_no_gradient(run: Any) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(lambda x: x.sum().backward())(fw.ones(3))


def test_backward_twice(run: Any) -> None:
    def function(x: fw.Tensor) -> None:
        loss = (x * x).sum()
        loss.backward()
        loss.backward()

    x = leaf()
    with pytest.raises(RuntimeError, match="second time"):
        run(function)(x)


def test_in_place_on_a_leaf(run: Any) -> None:
    for write in (lambda x: x.add_(1), lambda x: x[1:].zero_(), lambda x: x.exp_()):
        x = leaf()
        with pytest.raises(RuntimeError, match="leaf"):
            run(write)(x)
        assert x.tolist() == [1, 1, 1] and x._version == 0


def test_a_gradient_of_the_wrong_shape(run: Any) -> None:
    with pytest.raises(RuntimeError, match=r"shape|size"):
        run(lambda x: (x * 2).backward(fw.ones(4)))(leaf())


# A failure in the middle of a step
# -----------------------------------------------------------------------------------


class Step:
    """A training step over a table, whose indices may be bad and whose loss may raise."""

    def __init__(self) -> None:
        fw.manual_seed(0)
        self.table = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.parameters = [*self.table.parameters(), *self.norm.parameters()]
        self.optimizer = optim.AdamW(self.parameters, lr=0.1)

    def __call__(self, tokens: fw.Tensor, targets: fw.Tensor, fail: bool = False) -> fw.Tensor:
        self.optimizer.zero_grad()
        hidden = F.dropout(self.norm(self.table(tokens)), 0.5)
        if fail:
            raise KeyError("mine")
        loss = F.cross_entropy(hidden, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def look(self) -> Any:
        """Everything a step changes."""
        state = [dict(self.optimizer.state[p]) for p in self.parameters if p in self.optimizer.state]
        buffers = dict(self.norm.named_buffers())
        return [(p.detach().clone(), p._version) for p in self.parameters], state, buffers, fw.get_rng_state()


GOOD = (fw.tensor([0, 1, 4]), fw.tensor([0, 1, 2]))


@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize(
    "bad",
    [(fw.tensor([0, 1, 5]), GOOD[1]), (GOOD[0], fw.tensor([0, 1, 3])), (fw.tensor([0, -1, 2]), GOOD[1])],
)
def test_a_bad_index_in_a_step_leaves_what_eager_leaves(warm: int, bad: tuple[fw.Tensor, fw.Tensor]) -> None:
    step, eager = Step(), Step()
    compiled = CompiledFunction(step)
    seen = []
    for function, owner in ((compiled, step), (eager, eager)):
        fw.manual_seed(3)
        for _ in range(warm):
            function(*GOOD)
        before = copy_of(owner.parameters)
        with pytest.raises(IndexError, match=r"out of|[Tt]arget"):
            function(*bad)
        same(copy_of(owner.parameters), before)
        seen.append((copy_of(owner.look()), [p.grad for p in owner.parameters]))
        function(*GOOD)
        seen[-1] += (copy_of(owner.look()),)
    same(seen[0], seen[1], rtol=1e-4)


def copy_of(x: Any) -> Any:
    """Containers of cloned tensors."""
    if isinstance(x, fw.Tensor):
        return x.detach().clone()
    if isinstance(x, list | tuple):
        return type(x)(copy_of(item) for item in x)
    if isinstance(x, dict):
        return {key: copy_of(item) for key, item in x.items()}
    return x


def test_a_failed_capture_leaves_everything_as_it_was() -> None:
    step, twin = Step(), Step()
    compiled = CompiledFunction(step)
    for function in (compiled, twin):
        fw.manual_seed(1)
        for _ in range(2):
            with pytest.raises(KeyError, match="mine"):
                function(*GOOD, fail=True)
        if function is compiled:
            mine = copy_of(step.look())
    same(mine, copy_of(twin.look()))


def test_errors_of_user_code_pass_unchanged() -> None:
    class MineError(Exception):
        pass

    def function(x: fw.Tensor, fail: bool) -> fw.Tensor:
        if fail:
            raise MineError("told you", x.shape)
        return x * 2

    compiled = CompiledFunction(function)
    for _ in range(2):
        with pytest.raises(MineError) as caught:
            compiled(fw.ones(3), True)
        assert caught.value.args == ("told you", fw.ones(3).shape)
        assert compiled(fw.ones(3), False).tolist() == [2] * 3


def test_an_error_caught_inside_is_caught() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        try:
            return x + fw.ones(7)
        except RuntimeError:
            return x * 3

    compiled = CompiledFunction(function)
    for _ in range(3):
        assert compiled(fw.ones(3)).tolist() == [3] * 3


def test_an_error_that_depends_on_a_value_is_caught_inside() -> None:
    def function(table: fw.Tensor, index: fw.Tensor) -> fw.Tensor:
        try:
            return table[index] * 1
        except IndexError:
            return table * 0

    compiled = CompiledFunction(function)
    table = fw.arange(3.0)
    for _ in range(2):
        assert compiled(table, fw.tensor([0, 2])).tolist() == [0, 2]
        assert compiled(table, fw.tensor([0, 9])).tolist() == [0, 0, 0]


def test_an_interrupt_during_capture_leaves_a_function_that_works() -> None:
    interrupts = [True]

    def function(x: fw.Tensor) -> fw.Tensor:
        if interrupts[0]:
            raise KeyboardInterrupt
        return x * 2

    compiled = CompiledFunction(function)
    with pytest.raises(KeyboardInterrupt):
        compiled(fw.ones(3))
    interrupts[0] = False
    assert compiled(fw.ones(3)).tolist() == [2] * 3
    assert fw.ones(3).add(1).tolist() == [2] * 3


def test_tensors_kept_from_a_capture_say_what_they_are() -> None:
    kept: list[fw.Tensor] = []

    class Keeper:
        pass

    keeper = Keeper()

    def function(x: fw.Tensor) -> fw.Tensor:
        y = x * 2
        kept.append(y)
        keeper.y = y  # type: ignore[attr-defined]
        return y

    compiled = CompiledFunction(function)
    for _ in range(2):
        compiled(fw.ones(3))
    # Every tensor that got out is real.
    assert [t.tolist() for t in kept] == [[2] * 3] * 2
    assert keeper.y.tolist() == [2] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("reads", [False, True])
def test_an_interrupt_while_native_code_runs(reads: bool) -> None:
    """Ctrl-C is noticed when the program has run: its effects are whole, and the call raises."""
    weight = fw.ones(3).requires_grad_()
    optimizer = fw.optim.SGD([weight], lr=0.5)

    def step(x: fw.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (weight * x * fw.rand(3).ceil()).sum()
        loss.backward()
        optimizer.step()
        return loss.item() if reads else loss

    compiled = CompiledFunction(step)
    compiled(fw.ones(3))
    state = fw.get_rng_state()
    programs = [v.executable for v in compiled.variants]
    programs += [p.executable for p, _ in compiled.book.programs.values() if p.executable is not None]
    for program in programs:
        program.native = interrupted_after(program.native)
    with pytest.raises(KeyboardInterrupt):
        compiled(fw.ones(3) * 2)
    assert weight.tolist() == [-0.5] * 3 and grad_of(weight).tolist() == [2.0] * 3
    assert fw.get_rng_state().tolist() != state.tolist()
    assert compiled(fw.ones(3)) is not None and weight.tolist() == [-1.0] * 3


def interrupted_after(native: Callable[..., int]) -> Callable[..., int]:
    """The native call, with a Ctrl-C the first time that Python sees when it returns."""
    calls: list[int] = []

    def call(*arguments: int) -> int:
        result = native(*arguments)
        calls.append(result)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return result

    return call


def test_a_refusal_that_the_function_catches_is_none_of_its_errors() -> None:
    def read(x: fw.Tensor) -> fw.Tensor:
        try:
            scale = x.sum().item()
        except Exception:  # noqa: BLE001 -- as users do
            scale = 0.0
        return x + scale

    def branch(x: fw.Tensor) -> fw.Tensor:
        with contextlib.suppress(TypeError):
            if x.sum() > 0:
                return x * 2
        return x + 5

    for function in (read, branch):
        compiled = CompiledFunction(function)
        for x in (fw.ones(2), fw.ones(2) * 3, -fw.ones(2)):
            assert compiled(x).tolist() == function(x).tolist()
        assert compiled.explain().mode == "driven"


def test_an_op_whose_result_nobody_uses_raises_all_the_same() -> None:
    def function(x: fw.Tensor, index: fw.Tensor) -> fw.Tensor:
        F.embedding(index, x)
        try:
            index // (index - 1)
        except RuntimeError:
            return x - 1
        return x + 1

    compiled = CompiledFunction(function)
    for n in (3, 3, 4, 5):
        x = fw.ones(n, 2)
        for index in (fw.tensor([0, 2]), fw.tensor([0, 1])):
            assert compiled(x, index).tolist() == function(x, index).tolist()
        with pytest.raises(IndexError):
            compiled(x, fw.tensor([0, n]))


def test_a_refused_capture_keeps_nothing() -> None:
    """Of the gradient graph of a leaf least of all, whose memory would live as long."""
    weight = fw.ones(3).requires_grad_()

    def function(x: fw.Tensor) -> fw.Tensor:
        (weight * x).sum().backward()
        return x * 2 if x.sum().item() > 0 else x

    def edges() -> list[Any]:
        found = [x for x in gc.get_referrers(weight) if type(x) is tuple and len(x) == 2]
        return [x for x in found if type(x[1]) is int]

    gc.disable()
    try:
        graph = weight * 2
        assert edges()
        del graph
        fw.compile(function)(fw.ones(3))
        assert not edges()
    finally:
        gc.enable()


def test_half_a_backward_pass(run: Callable[[Function], Function]) -> None:
    weight = fw.ones(3).requires_grad_()

    def function(x: fw.Tensor) -> None:
        weight.square().sum().backward()
        y = x.detach().requires_grad_().tanh()
        if x.sum() > 0:
            for _ in range(2):  # the second finds the graph of y used up, after it has reached the weight
                (y * weight).sum().backward()

    called = run(function)
    for number in range(1, 4):
        with pytest.raises(RuntimeError, match="second time"):
            called(fw.ones(3))
        same(grad_of(weight), fw.full((3,), number * (2 + 2 * math.tanh(1))))
