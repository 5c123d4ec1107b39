"""Float arguments of compiled functions: one recording serves every value, and none is frozen silently."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import framework as fw
import framework.nn.functional as F
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from tests.framework.capture_check import Twins, World, grad_of, nothing

# One recording with constants, one with the numbers that vary.
BOTH = 2
VALUES = (0.5, 0.25, 0.75, 0.1, 0.9)
ODD = (0.5, 2.5, math.nan, -0.0, 0.0, math.inf, -math.inf, 1e300, 1e-320)
X = fw.arange(6, dtype=fw.float32).reshape(2, 3) - 2.5


def twins_of(function: Callable[..., Any], rtol: float = 0) -> Twins:
    return Twins(lambda: (function, nothing), rtol)


def bits(x: Any) -> Any:
    """What tells values apart that compare equal."""
    return [bits(item) for item in x] if isinstance(x, list | tuple) else repr(x)


def agree(function: Callable[..., Any], *values: Any, variants: int | None = BOTH, rtol: float = 0) -> Twins:
    """For each value of the number, twice, results are those of eager runs, to the last bit where no `rtol`
    is given.
    """
    twins = twins_of(function, rtol)
    for value in (*values, *values):
        twins.call(X, value)
    twins.expect("replay", variants)
    return twins


class Settings(NamedTuple):
    scale: float
    name: str


@dataclass
class Options:
    scale: float
    shift: float = 1.0


@dataclass(eq=False)
class Known:
    scale: float


def test_a_temperature() -> None:
    agree(lambda x, t: (x / t).softmax(-1), *VALUES, rtol=1e-6)


def test_two_hundred_values_take_two_recordings() -> None:
    def function(x: fw.Tensor, p: float) -> fw.Tensor:
        return (x * p + 1) * (1 - p)

    twins = twins_of(function)
    for number in range(200):
        twins.call(X, number / 7)
    twins.expect("replay", BOTH)


ARITHMETIC: dict[str, Callable[[fw.Tensor, float], Any]] = {
    "chain": lambda x, p: x * ((p * 3 - 1) / (abs(-p) + 2) // 0.25 % 7 + p**2),
    "reflected": lambda x, p: x * (3 - p) + 1 / (4 + p) + (2 // (p + 5)) + 7 % (p + 9) + 2**-p,
    "with itself": lambda x, p: x * (p * p + p / (p + 1)),
    "in place": lambda x, p: x.clone().mul_(p).add_(p),
    "alpha": lambda x, p: fw.add(x, x, alpha=p) - fw.sub(x, x, alpha=1 - p),
    "exponent": lambda x, p: x.abs() ** p,
    "base": lambda x, p: (p + 1) ** x,
    "limits": lambda x, p: x.clamp(-p, p),
    "where": lambda x, p: fw.where(x > p, x, p),
    "full": lambda x, p: fw.full((2, 3), p) + fw.full_like(x, p),
    "filled": lambda x, p: x.clone().fill_(p),
    "item": lambda x, p: _with_item(x, p),
    "masked": lambda x, p: x.masked_fill(x > 0, p),
    "tensor": lambda x, p: x + fw.tensor(p),
    "half": lambda x, p: x.half() * p + p,
    "bfloat": lambda x, p: x.bfloat16() * p + p,
    "double": lambda x, p: x.double() * p + p,
    "integers": lambda x, p: (x.long() * p, x.long() + p, x > p, x.to(fw.int8) < p),
    "lerp": lambda x, p: x.lerp(x * 2, p / 10),
    "smaller": lambda x, p: x * min(p, 100.0),
    "leaky": lambda x, p: F.leaky_relu(x, p),
    "smooth": lambda x, p: F.smooth_l1_loss(x, x * 2, beta=p),
    "sum": lambda x, p: x * sum([p, 1.0, p]),
}


def _with_item(x: fw.Tensor, p: float) -> fw.Tensor:
    y = x.clone()
    y.view(-1).select(0, 1).fill_(p)
    return y


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    agree(ARITHMETIC[name], *VALUES, rtol=1e-6 if name in ("exponent", "base") else 0)


@pytest.mark.parametrize("dtype", [fw.float16, fw.bfloat16, fw.float32, fw.float64])
def test_numbers_are_rounded_once(dtype: Any) -> None:
    twins = twins_of(lambda x, p: x * p)
    one = fw.ones(3, dtype=dtype)
    for step in range(40):
        twins.call(one, 1 + 2.0**-8 + step * 2.0**-29)
        twins.call(one, 1 + 2.0**-11 - step * 2.0**-40)
    twins.expect("replay", BOTH)


@pytest.mark.replays
@pytest.mark.parametrize("dtype", [fw.float16, fw.float32, fw.float64])
def test_zeros_infinities_and_nan(dtype: Any) -> None:
    function = CompiledFunction(lambda x, p: (x * p, x + p, p))
    x = X.to(dtype)
    for p in (*ODD, *ODD):
        got = [v.tolist() if isinstance(v, fw.Tensor) else v for v in function(x, p)]
        assert bits(got) == bits([(x * p).tolist(), (x + p).tolist(), p])
    assert len(function.variants) == BOTH


def test_a_loss_scale() -> None:
    def make() -> World:
        w = fw.tensor([0.5, -1.0, 2.0]).requires_grad_()

        def step(x: fw.Tensor, scale: float) -> fw.Tensor:
            w.grad = None
            loss = (w * x).square().mean()
            (loss * scale).backward()
            grad_of(w).div_(scale)
            with fw.no_grad():
                w.sub_(grad_of(w) * 0.1)
            return loss

        return step, lambda: w

    twins = Twins(make, rtol=1e-6)
    for scale in (1024.0, 2048.0, 512.0, 65536.0):
        twins.call(X, scale)
    twins.expect("replay", BOTH)


def test_a_learning_rate_and_a_largest_norm() -> None:
    def make() -> World:
        model = nn.Linear(3, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step(x: fw.Tensor, rate: float, most: float) -> fw.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            with fw.no_grad():
                for p in model.parameters():
                    p.add_(grad_of(p), alpha=-rate)
            return loss

        return step, lambda: list(model.parameters())

    twins = Twins(make)
    for number in range(8):
        twins.call(X, 0.1 / (number + 1), 0.5 + number)
    twins.expect("replay", BOTH)


def test_dropout() -> None:
    # The two ends need no random numbers, or no scale.
    twins = agree(lambda x, p: F.dropout(x, p), *VALUES)
    twins.call(X, 0.0)
    twins.call(X, 1.0)
    twins.expect("replay", BOTH + 2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        twins.compiled(X, 1.5)


def test_a_branch_has_a_program_for_each_side() -> None:
    def function(x: fw.Tensor, p: float) -> fw.Tensor:
        return x * p if p > 0.5 else x - p

    agree(function, 0.7, 0.8, 0.2, 0.9, 0.1, 0.6, 0.3, variants=3)


def test_truth_decides_as_a_branch_does() -> None:
    agree(lambda x, p: x * p if p else x, 0.7, 0.8, 0.0, 0.9, -0.0, variants=3)


SPECIAL: dict[str, Callable[[fw.Tensor, float], Any]] = {
    "text": lambda x, p: (x * p, f"{p:.3f} {p}"),
    "format": lambda x, p: (x * p, "%.2f %s" % (p, p)),  # noqa: UP031
    "root": lambda x, p: x * math.sqrt(p),
    "float": lambda x, p: x * float(p),
    "int": lambda x, p: x + int(p * 10),
    "round": lambda x, p: x + round(p, 1) + round(p * 10),
    "size": lambda x, p: x[: int(p * 4)] * p,
    "ratio": lambda x, p: x * p.as_integer_ratio()[0] + p.real,
    "floor": lambda x, p: x + math.floor(p * 3) + math.ceil(p * 3) + math.trunc(p),
    "divmod": lambda x, p: x + divmod(p, 0.2)[0] + divmod(2, p)[1],
    "type": lambda x, p: x * p if type(p) is float else x,
    "class": lambda x, p: x * p if p.__class__.__name__ == "float" else x,
    "instance": lambda x, p: x * p if isinstance(p, float) else x,
    "method": lambda x, p: x * 2 if float.is_integer(p) else x * p,
    "key": lambda x, p: x * {0.5: 2.0}.get(p, p),
    "set": lambda x, p: x * len({p, 0.5}),
    "array": lambda x, p: x * float(np.asarray([p, 1.0]).sum()),
    "numpy number": lambda x, p: x * float(np.float32(3) * p),
    "list of numbers": lambda x, p: x[0] * fw.tensor([p, 1.0, p]),
    "quantile": lambda x, p: fw.quantile(fw.ones(3), p) + x,
    "fraction": lambda x, p: x * float(Fraction(1, 3) + p),
    "complex": lambda x, p: x * ((p - 1) ** 0.5).real,  # type: ignore[union-attr]
    "pattern": lambda x, p: _matched(x, p),
    "handled": lambda x, p: _handled(x, p),
    "suppressed": lambda x, p: _suppressed(x, p),
    "cached": lambda x, p: x * _cached(p) + _cached(p),
    "identity": lambda x, p: x * 2 if p is HALF else x * p,
    "kind": lambda x, p: x * p if KIND(p) is float else x,
}
HALF = 0.5
KIND = type


def _matched(x: fw.Tensor, p: float) -> fw.Tensor:
    match p:
        case 0.5:
            return x + 1
        case float(y):
            return x * y
    return x


def _handled(x: fw.Tensor, p: float) -> fw.Tensor:
    try:
        return x * float.hex(p).count("p")
    except TypeError:
        return x * 100


def _suppressed(x: fw.Tensor, p: float) -> fw.Tensor:
    y = x * 100
    with contextlib.suppress(TypeError):
        y = x * float.__mul__(p, 2.0)
    return y


@lru_cache
def _cached(p: float) -> float:
    return p * 2


@pytest.mark.parametrize("name", SPECIAL)
def test_other_uses_are_never_frozen(name: str) -> None:
    twins = twins_of(SPECIAL[name])
    for value in (*VALUES, *VALUES):
        got = twins.call(X, value)
        assert "Runtime" not in repr(got)
    assert _cached(VALUES[0]) == 1.0
    assert type(_cached(VALUES[1])) is float


@pytest.mark.replays
def test_a_number_is_returned() -> None:
    function = CompiledFunction(lambda x, p: (x * p, p, [p * 2 + 1, {"third": p / 3}]))
    for p in (*ODD[:5], *ODD[:5]):
        _, first, (second, third) = function(X, p)
        assert type(first) is type(second) is float
        assert bits([first, second, third["third"]]) == bits([p, p * 2 + 1, p / 3])
    assert len(function.variants) == BOTH


def test_a_returned_function_keeps_no_stand_in() -> None:
    function = CompiledFunction(lambda x, p: (x * p, lambda: p))
    for p in VALUES:
        assert type(function(X, p)[1]()) is float
        assert function(X, p)[1]() == p


def test_division_by_zero_raises_as_eager() -> None:
    twins = twins_of(lambda x, p: x * (1 / p))
    for p in (0.5, 0.25):
        twins.call(X, p)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            twins.compiled(X, 0.0)
    twins.call(X, 0.75)
    twins.expect("replay", BOTH)


def test_overflow_and_complex_powers_are_pythons() -> None:
    function = CompiledFunction(lambda x, p: (x, p**0.5, p * 2))
    for p in (4.0, 9.0, -4.0, 16.0):
        assert function(X, p)[1] == p**0.5
    large = CompiledFunction(lambda x, p: x * p**3)
    for p in (2.0, 3.0):
        large(X, p)
    with pytest.raises(OverflowError):
        large(X, 1e200)


def test_a_protected_division_is_asked_about_first() -> None:
    agree(lambda x, p: x * (1 / p) if p != 0 else x, 0.5, 0.25, 0.0, 0.75, 0.0, variants=3)


@pytest.mark.replays
def test_numbers_in_containers() -> None:
    def function(x: fw.Tensor, given: Any) -> Any:
        return x * given[0]["scale"] + given[1][1].scale * given[1][1].shift + given[2].scale

    compiled = CompiledFunction(function)
    for p in VALUES:
        given = [{"scale": p}, (1.0, Options(p * 2)), Settings(p + 1, "name")]
        assert compiled(X, given).tolist() == function(X, given).tolist()
    assert len(compiled.variants) == BOTH


@pytest.mark.replays
def test_only_numbers_that_vary_are_lifted() -> None:
    twins = twins_of(lambda x, p, eps: x * p / (x.abs() + eps))
    for p in VALUES:
        twins.call(X, p, 1e-5)
    assert len(twins.compiled.variants[-1].scalars) == 1
    twins.call(X, 0.3, 1e-3)
    twins.call(X, 0.4, 1e-2)
    twins.expect("replay", BOTH + 1)


def test_an_object_compared_by_identity_stays_itself() -> None:
    seen = {}

    def function(x: fw.Tensor, given: Any) -> fw.Tensor:
        return x * given.scale + seen[given]

    compiled = CompiledFunction(function)
    for p in VALUES:
        given = Known(p)
        seen[given] = p
        assert compiled(X, given).tolist() == (X * p + p).tolist()


def test_keywords_and_several_numbers() -> None:
    twins = twins_of(lambda x, *, p, q=2.0: (x * p + q, q - p))
    for p in VALUES:
        twins.call(X, p=p)
    for p in VALUES:
        twins.call(X, p=p, q=p + 1)
    twins.expect("replay", 2 * BOTH)


def test_gradients_depend_on_a_number() -> None:
    def function(x: fw.Tensor, p: float) -> fw.Tensor:
        w = x.detach().requires_grad_()
        ((w * p).tanh() ** 2 * (1 - p)).sum().backward()
        return grad_of(w) * 1

    agree(function, *VALUES, rtol=1e-6)


def test_a_nested_compiled_function() -> None:
    inner = CompiledFunction(lambda x, p: x * p + 1)
    agree(lambda x, p: inner(x, p * 2) - p, *VALUES)


@pytest.mark.replays
def test_a_number_that_decides_is_named() -> None:
    function = CompiledFunction(lambda x, p: x * 2 if p > 0.5 else x)
    for p in (0.2, 0.3, 0.7):
        function(X, p)
    assert "a number argument decides otherwise" in str(function.explain())


def test_ints_and_bools_stay_what_they_are() -> None:
    twins = twins_of(lambda x, n: (x * n, n))
    for n in (1, 1.0, True, 2, 2.5):
        assert type(twins.call(X, n)[1]) is type(n)
