"""The library's kernels in plain NumPy; the special functions it lacks are SciPy's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from kernels.library import BETA1, BETA2, CORRECTION1, CORRECTION2, DECAY, EPSILON, RATE

Call = Callable[[], Any]


def use(threads: int) -> None:
    """NumPy's elementwise functions run on one thread; its BLAS was given its threads when it was loaded."""


def _into(ufunc: Any) -> Callable[..., Call]:
    """A function of arrays that writes into the last one."""
    return lambda *operands: lambda: ufunc(*operands[:-1], out=operands[-1])


def _softmax(x: Any, y: Any) -> Call:
    def call() -> Any:
        exponential = np.exp(x - x.max(1, keepdims=True))
        return np.divide(exponential, exponential.sum(1, keepdims=True), out=y)

    return call


def _log_softmax(x: Any, y: Any) -> Call:
    def call() -> Any:
        shifted = x - x.max(1, keepdims=True)
        return np.subtract(shifted, np.log(np.exp(shifted).sum(1, keepdims=True)), out=y)

    return call


def _layer_norm(x: Any, weight: Any, bias: Any, y: Any) -> Call:
    def call() -> Any:
        centred = x - x.mean(1, keepdims=True)
        scale = 1 / np.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)
        return np.add(centred * scale * weight, bias, out=y)

    return call


def _rms_norm(x: Any, weight: Any, y: Any) -> Call:
    return lambda: np.multiply(x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5), weight, out=y)


def _cross_entropy(x: Any, target: Any, _: Any, loss: Any) -> Call:
    rows = np.arange(len(x))

    def call() -> Any:
        most = x.max(1)
        total = np.exp(x - most[:, None]).sum(1)
        return np.subtract(np.log(total) + most, x[rows, target], out=loss)

    return call


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Call:
    def call() -> None:
        np.multiply(m, BETA1, out=m)
        np.add(m, (1 - BETA1) * g, out=m)
        np.multiply(v, BETA2, out=v)
        np.add(v, (1 - BETA2) * g * g, out=v)
        np.multiply(p, 1 - RATE * DECAY, out=p)
        size = np.sqrt(v) * CORRECTION2**-0.5 + EPSILON
        np.subtract(p, m * (RATE / CORRECTION1) / size, out=p)

    return call


def _product(form: str) -> Callable[..., Call]:
    def make(a: Any, b: Any, c: Any) -> Call:
        left, right = (x.T if f == "t" else x for x, f in zip((a, b), form, strict=True))
        return lambda: np.matmul(left, right, out=c)

    return make


KERNELS: dict[str, Callable[..., Call]] = {
    "copy": lambda x, y: lambda: np.copyto(y, x),
    "add": _into(np.add),
    "triad": lambda x, y, z: lambda: np.add(x, 3.0 * y, out=z),
    "relu": lambda x, y: lambda: np.maximum(x, 0, out=y),
    "exp": _into(np.exp),
    "log": _into(np.log),
    "tanh": _into(np.tanh),
    "sin": _into(np.sin),
    "erf": _into(special.erf),
    "sigmoid": _into(special.expit),
    "silu": lambda x, y: lambda: np.multiply(x, special.expit(x), out=y),
    "gelu": lambda x, y: lambda: np.multiply(x * 0.5, special.erf(x * math.sqrt(0.5)) + 1, out=y),
    "gelu_tanh": lambda x, y: (
        lambda: np.multiply(x * 0.5, np.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1, out=y)
    ),
    "adamw": _adamw,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "cross_entropy": _cross_entropy,
    "row_sum": lambda x, y: lambda: np.sum(x, 1, out=y),
    "row_max": lambda x, y: lambda: np.max(x, 1, out=y),
    "running_sum": lambda x, y: lambda: np.cumsum(x, 1, out=y),
    "column_sum": lambda x, y: lambda: np.sum(x, 0, out=y),
    "matmul": _product("nn"),
    "matmul_nt": _product("nt"),
    "matmul_tn": _product("tn"),
    "matmul_tt": _product("tt"),
    "batched_matmul": _product("nn"),
}
