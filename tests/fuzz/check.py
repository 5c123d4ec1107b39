"""One program, eagerly and compiled: the difference that no rounding explains, told as source to read.

What sits on an edge (a branch, a tie, a cancellation) shows as a difference between two eager runs as well,
one of them with noise of a few units in the last place after every op.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ops.op import TABLE, Elementwise
from tests.fuzz.observe import Difference, Observation, differences
from tests.fuzz.program import Program
from tests.fuzz.render import source_of
from tests.fuzz.world import World

ROUNDED = (
    "add sub mul div square reciprocal sqrt rsqrt exp expm1 log log1p sin cos tanh erf sigmoid pow sum prod "
    "matmul"
).split()
NOISE = {np.dtype(np.float16): 1e-3, np.dtype(np.float32): 3e-7, np.dtype(np.float64): 1e-15}
# Noisy runs, and how many times their spread a difference may be.
RUNS, ALLOWED = 4, 30.0
# How often each outcome was met.
tally: Counter[str] = Counter()
# Where the source of the program that runs is kept, for a process that does not survive it.
trail: list[Path] = []


class MismatchError(AssertionError):
    """A compiled program did not do what the eager one did."""

    def __init__(self, program: Program, text: str) -> None:
        super().__init__(text)
        self.program = program


@contextlib.contextmanager
def noisy(seed: int) -> Iterator[None]:
    """Every op that rounds gives a result that is off by a few units in the last place."""
    rng = np.random.default_rng(seed)

    def with_noise(eager: Any) -> Any:
        def noised(*inputs: Any, **attrs: Any) -> Any:
            out = eager(*inputs, **attrs)
            size = NOISE.get(out.dtype)
            if size is None:
                return out
            return np.asarray(out * (1 + size * rng.uniform(-1, 1, out.shape)), out.dtype)

        return noised

    kept = {name: TABLE[name].eager for name in ROUNDED}
    try:
        for name, eager in kept.items():
            TABLE[name].eager = with_noise(eager)
            if isinstance(TABLE[name], Elementwise):
                vars(TABLE[name])["direct"] = {}  # which computes small values without it
        yield
    finally:
        for name, eager in kept.items():
            TABLE[name].eager = eager
            vars(TABLE[name]).pop("direct", None)


def check(program: Program) -> None:
    """Raise MismatchError when the compiled program differs from the eager one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(program)


def _check(program: Program) -> None:
    source = source_of(program)
    for path in trail:
        path.write_text(report(program, source, []))
    wanted = World(program, source, compiled=False).run()
    world = World(program, source, compiled=True)
    got = world.run()
    tally["programs"] += 1
    tally[world.function.explain().mode] += 1
    rtol = 1e-6 * (8 + program.size())
    pairs = enumerate(zip(got, wanted, strict=False))
    found = [(n, d) for n, (a, b) in pairs for d in differences(a, b, rtol)]
    if not found:
        return
    spread = _spread(program, source, wanted)
    left = [(n, d) for n, d in found if not _explained(n, d, spread)]
    tally["on an edge"] += not left
    if left:
        raise MismatchError(program, report(program, source, left))


def _spread(program: Program, source: str, wanted: list[Observation]) -> list[dict[str, float]]:
    """By call and path, the largest difference of noisy runs; infinite where more than values differ."""
    spread: list[dict[str, float]] = [{} for _ in wanted]
    for seed in range(RUNS):
        with noisy(seed):
            runs = World(program, source, compiled=False).run()
        for here, a, b in zip(spread, runs, wanted, strict=False):
            for d in differences(a, b, 0.0):
                here[d.path] = max(here.get(d.path, 0.0), d.amount)
    return spread


def _explained(number: int, d: Difference, spread: list[dict[str, float]]) -> bool:
    """Whether noise makes a difference as large, here or, where it changes what happens, anywhere before."""
    # A branch that noise can turn makes what happens after it uncertain.
    if any(amount == np.inf for here in spread[: number + 1] for amount in here.values()):
        return True
    return d.amount <= ALLOWED * spread[number].get(d.path, 0.0)


def report(program: Program, source: str, found: list[tuple[int, Difference]]) -> str:
    """The differences, the source and the calls."""
    lines = [f"call {n}: {d.path}: {d.words}" for n, d in found[:8]]
    calls = [f"call {n}: {call}" for n, call in enumerate(program.calls)]
    head = f"reach={program.reach!r} second={program.second!r} optimizer={program.optimizer}"
    return "\n".join(["(compiled for eager)", *lines, "", source, *calls, head])
