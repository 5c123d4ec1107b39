"""Symbolic sizes: the canonical form decides what holds for every value, the rest becomes conditions."""

from __future__ import annotations

import copy
import math
import operator
import random
from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.dims import Dim, Real, Scope, Values, is_symbolic
from compiler.errors import TraceError
from compiler.ir import Input, Measure
from compiler.ops.op import broadcast_shapes
from compiler.sizes import known_equal, largest, resolve, resolve_sharing, same_shape, smallest
from compiler.types import TensorType
from kernels import dtypes


def scope_of(**hints: int) -> tuple[Scope, Any]:
    """A scope and its symbols, by name."""
    scope = Scope()
    return scope, [scope.symbol(name, hint) for name, hint in hints.items()]


def words(scope: Scope) -> list[str]:
    return [c.words for c in scope.conditions.values()]


def holds(scope: Scope, **values: int) -> bool:
    return all(c.holds(Values(values)) for c in scope.conditions.values())


def test_a_size_is_an_int_but_of_another_type() -> None:
    scope, (n,) = scope_of(n=5)
    assert isinstance(n, int) and isinstance(n / 2, float) and is_symbolic(n)
    assert type(n) is Dim and type(n / 2) is Real
    assert not words(scope)


def test_equal_expressions_are_equal_without_asking() -> None:
    scope, (n, m) = scope_of(n=5, m=7)
    assert (n + m) * 2 - m == 2 * n + m
    assert n * m - m * n == 0 and n * (m + 1) == n * m + n
    assert (n + 1) ** 2 == n * n + 2 * n + 1
    assert (n * m * 6) // (m * 2) == 3 * n
    assert n * 8 // 4 == 2 * n and n * 8 % 4 == 0
    assert -(n * -1) == n and sum([n, m, 1]) == m + n + 1 and math.prod((n, m, 2)) == 2 * m * n
    assert type(n - n) is int
    assert words(scope) == ["2*m != 0"]


def test_bounds_decide_comparisons() -> None:
    scope, (n, m) = scope_of(n=5, m=7)
    assert n >= 0 and n > -1 and n != -1 and not n < 0 and n + 1 > 0 and n + m >= 0
    assert n + 2 != 1 and n % 3 < 3 and n // 2 >= 0
    assert max(n, n) == n
    assert not words(scope)


def test_every_other_answer_is_a_condition() -> None:
    scope, (n, m) = scope_of(n=5, m=7)
    assert n != 1 and n > 4 and not n > 8 and m > n and bool(n)
    assert words(scope) == ["n != 1", "n > 4", "n <= 8", "m > n", "n != 0"]
    assert holds(scope, n=8, m=9) and not holds(scope, n=8, m=8) and not holds(scope, n=9, m=12)


@pytest.mark.parametrize(
    "use",
    [
        int, float, hash, str, repr, range, math.sqrt, operator.index, "{:>4}".format, lambda n: f"{n}",
        lambda n: [1] * n, lambda n: np.zeros(n), lambda n: {n: 1}, lambda n: n.bit_length(), lambda n: n & 1,
        lambda n: 2**n, lambda n: (0,) * 9 and list(range(9))[n], lambda n: "x" * n, math.floor, round,
        lambda n: n // 2.0, lambda n: n**-1 and int(n), copy.copy, copy.deepcopy, lambda n: divmod(n, 2.5),
    ],
)  # fmt: skip
def test_use_as_a_plain_int_pins_the_size(use: Any) -> None:
    scope, (n,) = scope_of(n=5)
    result = use(n)
    assert "n == 5" in words(scope)
    assert not isinstance(result, int) or type(result) in (int, bool)
    count = len(words(scope))
    assert n > 3 and n != 7 and n % 2 == 1
    assert len(words(scope)) == count
    assert holds(scope, n=5) and not holds(scope, n=6)


def test_fractions_compute_exactly_what_python_does() -> None:
    scope, (n,) = scope_of(n=5)
    made = {
        "inverse": 1 / n, "share": n / (n - 1), "root": n**-0.5, "mixed": (n * 0.5 - 1) / 3 + n,
    }  # fmt: skip
    assert all(type(x) is Real for x in made.values())
    values = Values({"n": 12})
    wanted = {"inverse": 1 / 12, "share": 12 / 11, "root": 12**-0.5, "mixed": (12 * 0.5 - 1) / 3 + 12}
    assert {key: values.of(made[key]) for key in wanted} == wanted
    assert words(scope) == ["n != 0", "n - 1 != 0"]
    assert made["inverse"] < 0.5 and words(scope)[-1] == "(1 / n) < 0.5"
    with pytest.raises(ZeroDivisionError):
        scope_of(z=0)[1][0].__rtruediv__(1)


def test_random_expressions_evaluate_as_python_does() -> None:
    rng = random.Random(0)
    operators = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, largest, smallest]
    for _ in range(300):
        hints = {"a": rng.randrange(1, 9), "b": rng.randrange(1, 9)}
        scope, symbols = scope_of(**hints)
        steps = [(rng.choice(operators), rng.randrange(20), rng.randrange(20)) for _ in range(6)]

        def run(a: Any, b: Any, steps: Any = steps) -> list[Any]:
            found = [a, b, 2, 3]
            for operation, i, j in steps:
                x, y = found[i % len(found)], found[j % len(found)]
                if operation in (operator.floordiv, operator.mod):
                    y = 3 if j % 2 else largest(y, 1)
                found.append(operation(x, y))
            return found

        expressions = run(*symbols)
        assert Values(hints).of(expressions) == [x.hint if is_symbolic(x) else x for x in expressions]
        for _ in range(8):
            other = {"a": rng.randrange(12), "b": rng.randrange(12)}
            if holds(scope, **other):
                assert Values(other).of(expressions) == run(other["a"], other["b"])
        for x in expressions:
            low, high = x.bounds() if type(x) is Dim else (x, x)
            for a in range(6):
                for b in range(1, 6):
                    if holds(scope, a=a, b=b):
                        value = Values({"a": a, "b": b}).of(x)
                        assert (low is None or low <= value) and (high is None or value <= high)


def test_shapes_broadcast_with_the_constant_asked_first() -> None:
    scope, (n, m) = scope_of(n=5, m=5)
    assert broadcast_shapes((n, 4), (1, 1), (4,)) == (n, 4)
    assert broadcast_shapes((n, m), (n, m)) == (n, m)
    assert not words(scope)
    assert broadcast_shapes((n,), (m,)) == (n,)
    assert words(scope) == ["n == m"]
    assert known_equal(n, m) and same_shape((n, 2), (m, 2)) and not known_equal(n, 5)
    assert len(words(scope)) == 1
    with pytest.raises(RuntimeError, match="cannot be broadcast"):
        broadcast_shapes((n,), (3,))


def test_extrema_ask_nothing() -> None:
    scope, (n,) = scope_of(n=5)
    assert largest(n, 0) is n and smallest(n, n) is n and largest(3, 4) == 4
    x = largest(n - 2, 0) + smallest(n, 8)
    assert [Values({"n": value}).of(x) for value in (0, 1, 5, 20)] == [0, 1, 8, 26]
    assert not words(scope)


def test_questions_of_concrete_numbers() -> None:
    scope, (n,) = scope_of(n=5)
    assert resolve("fits", lambda shape, limit: shape[0] < limit, (n, 3), 10)
    assert resolve("fits", lambda shape, limit: shape[0] < limit, (4, 3), 10)
    assert words(scope) == ["fits: True"]
    assert holds(scope, n=9) and not holds(scope, n=10)


def test_sharing_is_answered_for_sizes_that_are_not_special() -> None:
    scope, (n,) = scope_of(n=1)
    shares, condition = resolve_sharing("is a view", lambda size: size == 1, n)
    assert not shares and condition is not None and not holds(scope, n=1)
    int(n)
    assert resolve_sharing("is a view", lambda size: size == 1, n) == (True, None)


def test_a_recording_that_is_over_answers_nothing() -> None:
    scope, (n,) = scope_of(n=5)
    scope.close()
    assert (n + 1).hint == 6
    for use in (int, hash, lambda x: x > 2):
        with pytest.raises(TraceError, match="recorded earlier"):
            use(n)
    _, (other,) = scope_of(n=5)
    with pytest.raises(TraceError, match="recorded earlier"):
        n + other


def test_ops_take_symbolic_shapes() -> None:
    scope, (n,) = scope_of(n=5)
    x = Input(TensorType((n, 4), dtypes.float32))
    assert ops.add.trace(x, ops.sum.trace(x, axes=(0,))).shape == (n, 4)
    assert ops.reshape.trace(x, shape=(n * 4,)).shape == (4 * n,)
    assert ops.concatenate.trace(x, x, axis=0).shape == (2 * n, 4)
    assert ops.matmul.trace(ops.permute.trace(x, axes=(1, 0)), x).shape == (4, 4)
    assert ops.pad.trace(x, low=(1, 0), high=(2, 0), value=0).shape == (n + 3, 4)
    assert ops.slice.trace(x, starts=(0, 1), stops=(n, 3), steps=(1, 1)).shape == (n, 2)
    assert ops.expand.trace(ops.sum.trace(x, axes=(0,)), shape=(n, 4)).shape == (n, 4)
    assert not words(scope)
    divided = ops.div.trace(x, n)
    assert isinstance(divided.inputs[1], Measure) and divided.inputs[1].dtype is dtypes.float32
