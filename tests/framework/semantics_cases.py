"""The reference semantics of tensor operations as a table: a small function, its inputs, what it must give.

Every case runs eagerly in test_semantics.py, and may run through any other way of calling a function.
Values were read off PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import framework as fw

nan, inf = float("nan"), float("inf")


@dataclass(frozen=True)
class Case:
    """`fn(*tensors of inputs)` gives `expected` (an array, a number or a tuple of them), or raises `(type,
    pattern)`.

    With `gradient`, `expected` holds instead the gradient of the sum of the result for each floating input.
    `rtol` 0 asks for the very number, nan, sign of zero and dtype included.
    """

    name: str
    fn: Callable[..., Any]
    inputs: tuple[np.ndarray[Any, Any], ...]
    expected: Any = None
    raises: tuple[type[Exception], str] | None = None
    gradient: bool = False
    rtol: float = 0.0


def f32(*values: Any) -> np.ndarray[Any, Any]:
    """A float32 vector, or the array of one nested list."""
    return _array(values, np.float32)


def f64(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.float64)


def f16(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.float16)


def i64(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.int64)


def i32(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.int32)


def i16(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.int16)


def u8(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.uint8)


def boolean(*values: Any) -> np.ndarray[Any, Any]:
    return _array(values, np.bool_)


def scalar(value: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """A 0-d array."""
    return np.asarray(value, dtype)


def _array(values: tuple[Any, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.array(values[0] if len(values) == 1 and isinstance(values[0], list) else list(values), dtype)


def _iadd_index(x: fw.Tensor) -> fw.Tensor:
    y = x.clone()
    y[[0, 0]] += 1
    return y


def _second_derivative(x: fw.Tensor) -> fw.Tensor:
    (g,) = fw.autograd.grad((x**4).sum(), x, create_graph=True)
    return g


_QUOTIENTS = (f32(1, 0.5, 6, inf, -inf, 1), f32(0.1, 0.1, 0.2, 1, 1, 0))
_EMPTY = f32([])

VALUES = (
    Case("floor_div", lambda x, y: x // y, _QUOTIENTS, f32(9, 4, 29, nan, nan, inf)),
    Case("remainder", lambda x, y: x % y, (f32(-7, 7, 5, inf), f32(3, -3, inf, 1)), f32(2, -2, 5, nan)),
    Case("fmod", lambda x, y: fw.fmod(x, y), (f32(-7, 7), f32(3, -3)), f32(-1, 1)),
    Case("integer floor_div", lambda x, y: x // y, (i64(-7, 7, -7), i64(2, -2, -2)), i64(-4, -4, 3)),
    Case("int32 min // -1", lambda x: x // -1, (i32(-(2**31)),), i32(-(2**31))),
    Case("int / int", lambda x, y: x / y, (i64(1, 3), i64(2, 2)), f32(0.5, 1.5)),
    Case("x // 0", lambda x, y: x // y, (i64(1), i64(0)), raises=(RuntimeError, "ZeroDivisionError")),
    Case("x % 0", lambda x, y: x % y, (i64(1), i64(0)), raises=(RuntimeError, "ZeroDivisionError")),
    Case("x // 0 number", lambda x: x // 0, (i64(1),), raises=(RuntimeError, "ZeroDivisionError")),
    Case("int ** -1", lambda x: x**-1, (i64(2),), raises=(RuntimeError, "negative integer powers")),
    Case("int32 wraps", lambda x: x + 1, (i32(2**31 - 1),), i32(-(2**31))),
    Case("int32 wraps, then widens", lambda x: (x + 1).to(fw.int64), (i32(2**31 - 1),), i64(-(2**31))),
    Case("uint8 wraps below", lambda x: x - 1, (u8(0),), u8(255)),
    Case("uint8 wraps above, then widens", lambda x, y: (x + y).to(fw.int16), (u8(128), u8(128)), i16(0)),
    Case("1 << 64", lambda x: x << 64, (i64(1),), i64(0)),
    Case("1 << -1", lambda x: x << -1, (i64(1),), i64(0)),
    Case("-1 >> 70", lambda x: x >> 70, (i64(-1),), i64(-1)),
    Case("0 ** 0", lambda x, y: x**y, (f32(0), f32(0)), f32(1)),
    Case("negative ** fraction", lambda x: x ** (1 / 3), (f32(-8),), f32(nan)),
    Case("relu nan", lambda x: x.relu(), (f32(nan, -1, 2),), f32(nan, 0, 2)),
    Case("clamp nan", lambda x: x.clamp(0, 1), (f32(nan, -1, 2),), f32(nan, 0, 1)),
    Case("clamp nan limit", lambda x, y: fw.clamp(x, min=y), (f32(1, nan), f32(nan, 1)), f32(nan, nan)),
    Case("maximum nan", lambda x, y: fw.maximum(x, y), (f32(nan, 1), f32(1, nan)), f32(nan, nan)),
    Case("minimum nan", lambda x, y: fw.minimum(x, y), (f32(nan, 1), f32(1, nan)), f32(nan, nan)),
    Case("max nan", lambda x: x.max(), (f32(1, nan, 2),), scalar(nan)),
    Case("min nan", lambda x: x.min(), (f32(1, nan, 2),), scalar(nan)),
    Case("max dim nan", lambda x: tuple(x.max(0)), (f32(1, nan, 2),), (scalar(nan), scalar(1, np.int64))),
    Case("argmax nan", lambda x: x.argmax(), (f32(1, nan, 2),), scalar(1, np.int64)),
    Case("argmax tie", lambda x: x.argmax(), (f32(1, 3, 3),), scalar(1, np.int64)),
    Case("argmin tie", lambda x: x.argmin(), (f32(3, 1, 1),), scalar(1, np.int64)),
    Case("argmax tie transposed", lambda x: x.t().argmax(), (f32([[1, 2], [3, 3]]),), scalar(1, np.int64)),
    Case(
        "argmax tie after an op",
        lambda x: (x.t() * 2).argmax(),
        (f32([[1, 2], [3, 3]]),),
        scalar(1, np.int64),
    ),
    Case("argmax tie by row", lambda x: x.argmax(1), (f32([[2, 2], [1, 3]]),), i64(0, 1)),
    Case("clamp min > max", lambda x: x.clamp(min=3, max=1), (f32(2),), f32(1)),
    Case("empty sum", lambda x: x.sum(), (_EMPTY,), scalar(0)),
    Case("empty prod", lambda x: x.prod(), (_EMPTY,), scalar(1)),
    Case("empty mean", lambda x: x.mean(), (_EMPTY,), scalar(nan)),
    Case("empty max", lambda x: x.max(), (_EMPTY,), raises=(RuntimeError, "numel|reduction dim")),
    Case("empty amax", lambda x: x.amax(0), (_EMPTY,), raises=(IndexError, "reduction dim")),
    Case("empty logsumexp", lambda x: x.logsumexp(0), (_EMPTY,), scalar(-inf)),
    Case("empty var_mean", lambda x: fw.var_mean(x), (_EMPTY,), (scalar(nan), scalar(nan))),
    Case("empty cumsum", lambda x: x.cumsum(0), (_EMPTY,), _EMPTY),
    Case("logsumexp -inf", lambda x: x.logsumexp(0), (f32(-inf, -inf),), scalar(-inf)),
    Case("logsumexp inf", lambda x: x.logsumexp(0), (f32(inf, 0),), scalar(inf)),
    Case("softmax of -inf row", lambda x: x.softmax(0), (f32(-inf, -inf),), f32(nan, nan)),
    *(
        Case(
            f"softmax with -inf, width {n}",
            lambda x: x.softmax(-1),
            (np.where(np.arange(n) % 2 == 1, np.float32(-inf), np.float32(0)),),
            np.where(np.arange(n) % 2 == 1, 0, 1 / ((n + 1) // 2)).astype(np.float32),
            rtol=1e-6,
        )
        for n in (2, 3, 8, 17, 64, 1000)
    ),
    Case("log_softmax with -inf", lambda x: x.log_softmax(0), (f32(-inf, 0),), f32(-inf, 0)),
    Case("var of one", lambda x: x.var(), (f32(3),), scalar(nan)),
    Case("var correction", lambda x: x.var(correction=5), (f32(1, 2),), scalar(inf)),
    Case("std of large", lambda x: x.std(), (f32(1e30, 2e30),), scalar(7.0710676e29), rtol=1e-7),
    Case("mean of integers", lambda x: x.mean(), (i64(1, 2),), raises=(RuntimeError, "floating point")),
    Case("sum of bool", lambda x: x.sum(), (boolean(True, True),), scalar(2, np.int64)),
    Case("sum of uint8", lambda x: x.sum(), (u8(255, 255),), scalar(510, np.int64)),
    Case("sum of int32", lambda x: x.sum(), (i32(2**31 - 1, 1),), scalar(2**31, np.int64)),
    Case("cumsum of bool", lambda x: x.cumsum(0), (boolean(True, True),), i64(1, 2)),
    Case("round", lambda x: x.round(), (f32(0.5, 1.5, 2.5, -0.5),), f32(0, 2, 2, -0.0)),
    Case("sign nan", lambda x: x.sign(), (f32(nan, -2, 0),), f32(0, -1, 0)),
    Case("11 / 7", lambda x, y: x / y, (f32(11), f32(7)), f32(1.5714285373687744)),
    Case(
        "11 / 7 among others", lambda x, y: (x + 0) / (y * 1) * 1, (f32(11), f32(7)), f32(1.5714285373687744)
    ),
    Case("constant -0.0", lambda x: x * 0 + -0.0, (f32(-1),), f32(-0.0)),
    Case("constant inf", lambda x: x + inf, (f32(1),), f32(inf)),
    Case("constant nan", lambda x: x + nan, (f32(1),), f32(nan)),
    Case("constant 1e-45", lambda x: x + 1e-45, (f32(0),), f32(1e-45)),
    Case("constant 2 ** 63", lambda x: x * 2.0**63, (f32(1),), f32(2.0**63)),
    Case("denormal product", lambda x: x * 2.0**-124, (f32(0.1875),), f32(8.816207631167156e-39)),
    Case("sort nan", lambda x: x.sort().values, (f32(nan, 1, -inf),), f32(-inf, 1, nan)),
    Case("stable sort", lambda x: x.sort(stable=True).indices, (i64(1, 0, 1, 0),), i64(1, 3, 0, 2)),
)

PROMOTION = (
    Case("f32 + 0-d f64", lambda x, y: x + y, (f32(1), scalar(1, np.float64)), f32(2)),
    Case("f32 + number", lambda x: x + 2.5, (f32(1),), f32(3.5)),
    Case("int64 + number", lambda x: x + 2.5, (i64(1),), f32(3.5)),
    Case("f16 + 0-d int", lambda x, y: x + y, (f16(1), scalar(1, np.int64)), f16(2)),
    Case("int32 + 0-d int64", lambda x, y: x + y, (i32(1), scalar(1, np.int64)), i32(2)),
    Case("bool + bool", lambda x, y: x + y, (boolean(True), boolean(True)), boolean(True)),
    Case("bool * 2", lambda x: x * 2, (boolean(True),), i64(2)),
    Case("bool - bool", lambda x, y: x - y, (boolean(True), boolean(True)), raises=(RuntimeError, "bool")),
    Case("int8 + uint8", lambda x, y: x + y, (np.array([1], np.int8), u8(255)), i16(256)),
    Case("int64 + f32", lambda x, y: x + y, (i64(1), f32(0.5)), f32(1.5)),
    Case("f32 + f64", lambda x, y: x + y, (f32(1), f64(1)), f64(2)),
    Case("int64 + 0-d f32", lambda x, y: x + y, (i64(1), scalar(0.5)), f32(1.5)),
    Case("sqrt of int", lambda x: x.sqrt(), (i64(4),), f32(2)),
    Case("bool < number", lambda x: x < 0.5, (boolean(True, False),), boolean(False, True)),
)

INDEXING = (
    Case(
        "gather negative",
        lambda x, i: x.gather(0, i),
        (f32(1, 2), i64(-1)),
        raises=(IndexError, "out of range"),
    ),
    Case(
        "gather beyond", lambda x, i: x.gather(0, i), (f32(1, 2), i64(2)), raises=(IndexError, "out of range")
    ),
    Case(
        "index_select negative",
        lambda x, i: x.index_select(0, i),
        (f32(1, 2), i64(-1)),
        raises=(IndexError, "out of range"),
    ),
    Case(
        "index_add beyond",
        lambda x, i, s: x.index_add(0, i, s),
        (f32(1, 2), i64(2), f32(1)),
        raises=(IndexError, "out of range"),
    ),
    Case(
        "scatter negative",
        lambda x, i, s: x.scatter(0, i, s),
        (f32(1, 2), i64(-1), f32(1)),
        raises=(IndexError, "out of range"),
    ),
    Case(
        "scatter_add beyond",
        lambda x, i, s: x.scatter_add(0, i, s),
        (f32(1, 2), i64(2), f32(1)),
        raises=(IndexError, "out of range"),
    ),
    Case("x[idx] wraps", lambda x, i: x[i], (f32(1, 2, 3), i64(-1, 0)), f32(3, 1)),
    Case("x[idx] beyond", lambda x, i: x[i], (f32(1, 2), i64(2)), raises=(IndexError, "out of")),
    Case("x[[0, 0]] += 1", _iadd_index, (i64(1, 2),), i64(2, 2)),
    Case(
        "index_add repeats",
        lambda x, i, s: x.index_add(0, i, s),
        (f32(1, 2), i64(0, 0), f32(1, 1)),
        f32(3, 2),
    ),
    Case("mask", lambda x: x[x > 1], (f32(1, 2, 3),), f32(2, 3)),
)

GRADIENTS = (
    Case("maximum tie", lambda x, y: fw.maximum(x, y), (f32(1), f32(1)), (f32(0.5), f32(0.5)), gradient=True),
    Case("minimum tie", lambda x, y: fw.minimum(x, y), (f32(1), f32(1)), (f32(0.5), f32(0.5)), gradient=True),
    Case("clamp limits", lambda x: x.clamp(0, 1), (f32(0, 0.5, 1, 2),), (f32(1, 1, 1, 0),), gradient=True),
    Case("amax ties", lambda x: x.amax(), (f32(2, 2, 1),), (f32(0.5, 0.5, 0),), gradient=True),
    Case("max dim picks one", lambda x: x.max(0).values, (f32(2, 2, 1),), (f32(1, 0, 0),), gradient=True),
    Case("max shares", lambda x: x.max(), (f32(2, 2, 1),), (f32(0.5, 0.5, 0),), gradient=True),
    Case("relu at 0", lambda x: x.relu(), (f32(0),), (f32(0),), gradient=True),
    Case("abs at 0", lambda x: x.abs(), (f32(0),), (f32(0),), gradient=True),
    Case("sqrt at 0", lambda x: x.sqrt(), (f32(0),), (f32(inf),), gradient=True),
    Case("norm at 0", lambda x: x.norm(), (f32(0, 0),), (f32(0, 0),), gradient=True),
    Case("prod one zero", lambda x: x.prod(), (f32(0, 2, 3),), (f32(6, 0, 0),), gradient=True),
    Case("prod two zeros", lambda x: x.prod(), (f32(0, 0, 3),), (f32(0, 0, 0),), gradient=True),
    Case("where trap", lambda x: fw.where(x > 0, x.log(), 0), (f32(0),), (f32(nan),), gradient=True),
    Case(
        "second derivative of x ** 4",
        _second_derivative,
        (f64(0.5, 1.5, 2.5, 3.5),),
        (f64(3, 27, 75, 147),),
        gradient=True,
        rtol=1e-12,
    ),
    Case(
        "gather repeats",
        lambda x, i: x.gather(0, i),
        (f32(1, 2, 3), i64(0, 0, 2)),
        (f32(2, 0, 1),),
        gradient=True,
    ),
    Case(
        "broadcast sums",
        lambda x, y: x * y,
        (f32([[1], [2]]), f32(3, 4)),
        (f32([[7], [7]]), f32(3, 3)),
        gradient=True,
    ),
)

CASES = VALUES + PROMOTION + INDEXING + GRADIENTS
