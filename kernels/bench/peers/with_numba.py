"""The library's kernels as loops that one would write by hand for Numba, parallel and with fast math."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import prange

from kernels.library import BETA1, BETA2, CORRECTION1, CORRECTION2, DECAY, EPSILON, RATE

Call = Callable[[], Any]
_loop = numba.njit(parallel=True, fastmath=True)


def use(threads: int) -> None:
    """Share loops among so many threads."""
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


def _called(function: Callable[..., Any]) -> Callable[..., Call]:
    """A function of operands, compiled at its first call."""
    compiled = _loop(function)
    return lambda *operands: lambda: compiled(*operands)


def _unary(body: Callable[[Any], Any]) -> Callable[..., Call]:
    """A loop over `body` of one element."""
    inlined = numba.njit(fastmath=True)(body)

    def loop(x: Any, y: Any) -> None:
        for i in prange(x.size):
            y[i] = inlined(x[i])

    return _called(loop)


def _add(x: Any, y: Any, z: Any) -> None:
    for i in prange(x.size):
        z[i] = x[i] + y[i]


def _triad(x: Any, y: Any, z: Any) -> None:
    for i in prange(x.size):
        z[i] = x[i] + 3 * y[i]


def _adamw(p: Any, g: Any, m: Any, v: Any) -> None:
    one = p.dtype.type
    keep1, new1, keep2, new2 = one(BETA1), one(1 - BETA1), one(BETA2), one(1 - BETA2)
    decay, rate = one(1 - RATE * DECAY), one(RATE / CORRECTION1)
    correction, epsilon = one(CORRECTION2**-0.5), one(EPSILON)
    for i in prange(p.size):
        m[i] = keep1 * m[i] + new1 * g[i]
        v[i] = keep2 * v[i] + new2 * g[i] * g[i]
        p[i] = p[i] * decay - rate * m[i] / (math.sqrt(v[i]) * correction + epsilon)


def _softmax(x: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        most, total = x[i, 0], x.dtype.type(0)
        for j in range(columns):
            most = max(most, x[i, j])
        for j in range(columns):
            y[i, j] = math.exp(x[i, j] - most)
            total += y[i, j]
        for j in range(columns):
            y[i, j] /= total


def _log_softmax(x: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        most, total = x[i, 0], x.dtype.type(0)
        for j in range(columns):
            most = max(most, x[i, j])
        for j in range(columns):
            total += math.exp(x[i, j] - most)
        shift = most + math.log(total)
        for j in range(columns):
            y[i, j] = x[i, j] - shift


def _layer_norm(x: Any, weight: Any, bias: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        total, square = x.dtype.type(0), x.dtype.type(0)
        for j in range(columns):
            total += x[i, j]
        mean = total / x.dtype.type(columns)
        for j in range(columns):
            square += (x[i, j] - mean) * (x[i, j] - mean)
        scale = x.dtype.type(1) / math.sqrt(square / x.dtype.type(columns) + x.dtype.type(1e-5))
        for j in range(columns):
            y[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]


def _rms_norm(x: Any, weight: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        square = x.dtype.type(0)
        for j in range(columns):
            square += x[i, j] * x[i, j]
        scale = x.dtype.type(1) / math.sqrt(square / x.dtype.type(columns) + x.dtype.type(1e-5))
        for j in range(columns):
            y[i, j] = x[i, j] * scale * weight[j]


def _cross_entropy(x: Any, target: Any, _: Any, loss: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        most, total = x[i, 0], x.dtype.type(0)
        for j in range(columns):
            most = max(most, x[i, j])
        for j in range(columns):
            total += math.exp(x[i, j] - most)
        loss[i] = math.log(total) + most - x[i, target[i]]


def _row_sum(x: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        total = x.dtype.type(0)
        for j in range(columns):
            total += x[i, j]
        y[i] = total


def _row_max(x: Any, y: Any) -> None:
    rows, columns = x.shape
    for i in prange(rows):
        most = x[i, 0]
        for j in range(columns):
            most = max(most, x[i, j])
        y[i] = most


def _column_sum(x: Any, y: Any) -> None:
    rows, columns = x.shape
    threads = numba.get_num_threads()
    for part in prange(threads):
        first, last = part * columns // threads, (part + 1) * columns // threads
        y[first:last] = 0
        for i in range(rows):
            for j in range(first, last):
                y[j] += x[i, j]


_HALF, _ROOT, _TANH = np.float32(0.5), np.float32(math.sqrt(0.5)), np.float32(math.sqrt(2 / math.pi))
_ONE, _CUBIC = np.float32(1), np.float32(0.044715)
KERNELS: dict[str, Callable[..., Call]] = {
    "copy": _unary(lambda x: x),
    "add": _called(_add),
    "triad": _called(_triad),
    "relu": _unary(lambda x: max(x, 0)),
    "exp": _unary(lambda x: math.exp(x)),
    "log": _unary(lambda x: math.log(x)),
    "tanh": _unary(lambda x: math.tanh(x)),
    "erf": _unary(lambda x: math.erf(x)),
    "sin": _unary(lambda x: math.sin(x)),
    "sigmoid": _unary(lambda x: _ONE / (_ONE + math.exp(-x))),
    "silu": _unary(lambda x: x / (_ONE + math.exp(-x))),
    "gelu": _unary(lambda x: _HALF * x * (_ONE + math.erf(x * _ROOT))),
    "gelu_tanh": _unary(lambda x: _HALF * x * (_ONE + math.tanh((x + x * x * x * _CUBIC) * _TANH))),
    "adamw": _called(_adamw),
    "softmax": _called(_softmax),
    "log_softmax": _called(_log_softmax),
    "layer_norm": _called(_layer_norm),
    "rms_norm": _called(_rms_norm),
    "cross_entropy": _called(_cross_entropy),
    "row_sum": _called(_row_sum),
    "row_max": _called(_row_max),
    "column_sum": _called(_column_sum),
}
