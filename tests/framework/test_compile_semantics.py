"""Every case of semantics_cases.py compiled: alone, fused with neighbours, and gradients taken inside the
call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import framework as fw
from framework.capture.compile import CompiledFunction
from tests.framework.semantics_cases import CASES, Case
from tests.framework.test_semantics import run_case

# Cases whose function has no compiled form and so runs eagerly, each with the reason.
EAGER = {
    "sort nan": "sorting is NumPy's",
    "stable sort": "sorting is NumPy's",
    "mask": "the result's shape depends on values",
    "x[[0, 0]] += 1": "an item is assigned, of what is not known before it happens",
}


def compiled_twice(functions: list[CompiledFunction]) -> Callable[..., Any]:
    """A way of calling a case's function: compiled, and then from its program, which must agree."""

    def call(function: Callable[..., Any], *tensors: fw.Tensor) -> Any:
        compiled = CompiledFunction(function)
        functions.append(compiled)
        compiled(*tensors)
        return compiled(*tensors)

    return call


def neighbour(x: Any) -> Any:
    """An op that changes no value, not even nan or the sign of zero, and that no rule removes."""
    if isinstance(x, tuple):
        return tuple(neighbour(item) for item in x)
    return x | x if x.dtype is fw.bool else fw.maximum(x, x)


def between_neighbours(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an op before and after it."""
    return lambda *tensors: neighbour(function(*(neighbour(x) for x in tensors)))


def gradient_inside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of the sum of a function's result, by its floating arguments."""

    def gradients(*tensors: fw.Tensor) -> tuple[fw.Tensor, ...]:
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in tensors]
        wanted = [x for x in leaves if x.requires_grad]
        return fw.autograd.grad(function(*leaves).sum(), wanted)

    return gradients


def check_mode(case: Case, functions: list[CompiledFunction]) -> None:
    """What raises, and what is listed, runs eagerly; everything else from a program."""
    if case.raises is None and functions:
        wanted = "driven" if case.name in EAGER else "replay"
        assert functions[0].explain().mode == wanted, str(functions[0].explain())


@pytest.mark.parametrize("case", [c for c in CASES if not c.gradient], ids=lambda case: case.name)
def test_compiled(case: Case) -> None:
    functions: list[CompiledFunction] = []
    run_case(case, compiled_twice(functions))
    check_mode(case, functions)


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c.gradient and c.name not in EAGER], ids=lambda case: case.name
)
def test_fused(case: Case) -> None:
    run_case(replace(case, fn=between_neighbours(case.fn)), compiled_twice([]))


@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=lambda case: case.name)
def test_gradients_taken_inside(case: Case) -> None:
    functions: list[CompiledFunction] = []
    inside = replace(case, fn=gradient_inside(case.fn), gradient=False)
    run_case(inside, compiled_twice(functions))
    check_mode(inside, functions)


@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=lambda case: case.name)
def test_gradients_taken_outside(case: Case) -> None:
    run_case(case, compiled_twice([]))
