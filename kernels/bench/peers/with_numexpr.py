"""The library's elementwise kernels in numexpr, one expression each."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from kernels.library import BETA1, BETA2, CORRECTION1, CORRECTION2, DECAY, EPSILON, RATE

numexpr: Any = importlib.import_module("numexpr")
Call = Callable[[], Any]


def use(threads: int) -> None:
    """Share expressions among so many threads."""
    numexpr.set_num_threads(threads)


def _expression(text: str, **numbers: float) -> Callable[..., Call]:
    """`text` in x, or in x and y, and in named numbers, into the last operand."""

    def make(*operands: Any) -> Call:
        names = dict(zip("xy", operands[:-1], strict=False)) | _typed(operands[0], numbers)
        return lambda: numexpr.evaluate(text, names, out=operands[-1])

    return make


def _typed(array: Any, numbers: dict[str, float]) -> dict[str, Any]:
    """Numbers of the array's type: a float written in the text makes all of it float64."""
    return {name: array.dtype.type(number) for name, number in numbers.items()}


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Call:
    numbers = {
        "b1": BETA1,
        "c1": 1 - BETA1,
        "b2": BETA2,
        "c2": 1 - BETA2,
        "decay": 1 - RATE * DECAY,
        "rate": RATE / CORRECTION1,
        "correction": CORRECTION2**-0.5,
        "epsilon": EPSILON,
    }
    names = {"p": p, "g": g, "m": m, "v": v} | _typed(p, numbers)

    def call() -> None:
        numexpr.evaluate("b1 * m + c1 * g", names, out=m)
        numexpr.evaluate("b2 * v + c2 * g * g", names, out=v)
        numexpr.evaluate("p * decay - m * rate / (sqrt(v) * correction + epsilon)", names, out=p)

    return call


KERNELS: dict[str, Callable[..., Call]] = {
    "copy": _expression("x"),
    "add": _expression("x + y"),
    "triad": _expression("x + 3 * y"),
    "relu": _expression("where(x > 0, x, 0)"),
    "exp": _expression("exp(x)"),
    "log": _expression("log(x)"),
    "tanh": _expression("tanh(x)"),
    "sin": _expression("sin(x)"),
    "sigmoid": _expression("1 / (1 + exp(-x))"),
    "silu": _expression("x / (1 + exp(-x))"),
    "gelu_tanh": _expression(
        "x * half * (1 + tanh((x + x * x * x * a) * b))", half=0.5, a=0.044715, b=math.sqrt(2 / math.pi)
    ),
    "adamw": _adamw,
}
