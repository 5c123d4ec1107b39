"""Random programs of reads, views and writes over tensors that alias each other: compiled as eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from tests.framework.capture_check import Twins, World

# One instruction: what to do, and the numbers of the tensors it is done to.
Instruction = tuple[str, int, int]
UNARY = {
    "neg": fw.neg,
    "abs": fw.abs,
    "relu": fw.relu,
    "square": fw.square,
    "clamp": lambda x: x.clamp(-2, 2),
}
BINARY = {"add": fw.add, "sub": fw.sub, "mul": fw.mul, "maximum": fw.maximum}
VIEWS = ("tail", "turned", "row", "flat", "reversed", "detach")
WRITES = ("add_", "mul_", "copy_", "zero_", "clamp_")
KINDS = ("unary", "binary", "binary", "view", "view", "write", "write", "sum", "backward")


def drawn(seed: int, length: int = 12) -> tuple[Instruction, ...]:
    """A random program; operands are counted from the newest tensor."""
    rng = np.random.default_rng(seed)
    names = {
        "unary": tuple(UNARY),
        "binary": tuple(BINARY),
        "view": VIEWS,
        "write": WRITES,
        "sum": ("sum",),
        "backward": ("backward",),
    }
    program = []
    for _ in range(length):
        kind = str(rng.choice(KINDS))
        program.append((str(rng.choice(names[kind])), int(rng.integers(8)), int(rng.integers(8))))
    return tuple(program)


def executed(
    program: tuple[Instruction, ...], tensors: list[fw.Tensor], weight: fw.Tensor
) -> list[fw.Tensor]:
    """Run a program on (4, 4) tensors and what it makes of them; the last tensors are its result."""
    found = list(tensors)
    for name, first, second in program:
        x, y = found[-1 - first % len(found)], found[-1 - second % len(found)]
        # Operands of another shape are cut from the rows of a whole one.
        y = y if y.shape == x.shape else fw.full(tuple(x.shape), 0.5)
        if name in UNARY:
            found.append(UNARY[name](x))
        elif name in BINARY:
            found.append(BINARY[name](x, y).clamp(-50, 50))
        elif name in VIEWS:
            found.append(viewed(name, x))
        elif name in WRITES:
            written(name, x, y)
        elif name == "sum":
            found.append(x.sum().reshape(1, 1).expand(4, 4) * 0.125)
        else:
            (weight * found[0].detach().clamp(-3, 3)).sum().backward()
    return found[-3:]


def viewed(name: str, x: fw.Tensor) -> fw.Tensor:
    """A tensor that shares the memory of `x`."""
    if name == "turned":
        return x.t() if x.ndim == 2 else x
    if name == "flat":
        return x.reshape(-1)
    if name == "row":
        return x[0] if x.ndim == 2 else x
    if name == "tail":
        return x[1:] if x.shape[0] > 1 else x
    return x.flip(0) if name == "reversed" else x.detach()


def written(name: str, x: fw.Tensor, y: fw.Tensor) -> None:
    """Write to `x`, from a copy of `y`: the two may share memory."""
    y = y.clone()
    if name == "zero_":
        x.zero_()
    elif name == "clamp_":
        x.clamp_(-1, 1)
    elif name == "copy_":
        x.copy_(y)
    elif name == "add_":
        x.add_(y).clamp_(-50, 50)
    else:
        x.mul_(y).clamp_(-50, 50)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    program = drawn(seed)

    def make() -> World:
        kept = fw.rand(4, 4) - 0.5
        view = kept[1:3]
        weight = fw.ones(4, 4).requires_grad_()

        def run(x: fw.Tensor, y: fw.Tensor) -> Any:
            return executed(program, [kept, view, x, y], weight)

        return run, lambda: (kept, view, weight)

    twins = Twins(make)
    for i in range(3):
        fw.manual_seed(100 + i)
        twins.call(fw.rand(4, 4) - 0.5, fw.rand(4, 4) - 0.5)
    twins.expect("replay")
