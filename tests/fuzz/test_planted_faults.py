"""The fuzzer finds faults: planted where only compiled programs go, each shows within 500 programs."""

from __future__ import annotations

from typing import Any

import pytest

from compiler.ir import Apply, Const, Value
from compiler.ops import arithmetic, movement
from compiler.ops.op import Elementwise
from compiler.passes import simplify
from framework.state import ambient
from tests.fuzz.check import MismatchError, check
from tests.fuzz.program import Program
from tests.fuzz.run import run_chunk

MOST_PROGRAMS, CHUNK = 500, 25


def forget_a_factor(patch: pytest.MonkeyPatch) -> None:
    """x * 0.25 is taken for x * 0.5."""

    def rule(node: Apply) -> Value | None:
        if isinstance(node.op, Elementwise) and node.op is arithmetic.mul:
            x, y = node.inputs
            if isinstance(y, Const) and y.ndim == 0 and y.data == 0.25:
                return arithmetic.mul.trace(x, 0.5)
        return None

    rules = simplify.__globals__  # the package names the function as its module
    patch.setitem(rules, "RULES", (*rules["RULES"], rule))


def write_beside(patch: pytest.MonkeyPatch) -> None:
    """A write through a slice that does not start at the start lands one element before."""
    unview = movement.slice.unview

    def wrong(base: Any, new: Any, **region: Any) -> Any:
        if ambient.tracer is not None and region["starts"] != (0,) * len(region["starts"]):
            starts = tuple(max(start - 1, 0) for start in region["starts"])
            stops = tuple(
                b + stop - a for a, b, stop in zip(region["starts"], starts, region["stops"], strict=True)
            )
            return unview(base, new, starts=starts, stops=stops, steps=region["steps"])
        return unview(base, new, **region)

    patch.setattr(movement.slice, "unview", wrong)


def lose_a_gradient(patch: pytest.MonkeyPatch) -> None:
    """The second factor of a product gets half its gradient, in recordings only."""
    first, second = arithmetic.mul.grads

    def wrong(*args: Any, **attrs: Any) -> Any:
        gradient = second(*args, **attrs)
        return gradient * 0.5 if ambient.tracer is not None else gradient

    patch.setattr(arithmetic.mul, "grads", (first, wrong))


def passes(program: Program) -> bool:
    """Whether a program runs compiled as it does eagerly."""
    try:
        check(program)
    except MismatchError:
        return False
    return True


@pytest.mark.parametrize("plant", [forget_a_factor, write_beside, lose_a_gradient])
def test_a_planted_fault_is_found(plant: Any) -> None:
    for number in range(MOST_PROGRAMS // CHUNK):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            failed = run_chunk(5000 + number, count=CHUNK, shrink=False)
        # Nothing but the fault may make it fail.
        if failed is not None and passes(failed.program):
            return
    pytest.fail(f"{MOST_PROGRAMS} programs do not show the fault")
