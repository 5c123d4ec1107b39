"""Vector math against higher precision: documented ulp bounds, special values, exact functions, no calls."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from kernels.cpu import lanes as vectors
from kernels.cpu import tables
from kernels.cpu.target import lanes
from kernels.cpu.vector_math import FUNCTIONS, ULP_BOUNDS
from kernels.scalar import NumpyScalars
from tests.kernels.cpu import minimax

Array = np.ndarray[Any, Any]
DTYPES = (np.float32, np.float64)
BINARY = {"pow", "fmod", "remainder", "floor_div", "maximum", "minimum"}
EXACT = sorted(FUNCTIONS.keys() - ULP_BOUNDS.keys())
UNARY = sorted(ULP_BOUNDS.keys() - BINARY)
WIDE = np.longdouble
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1,
    -1,
    0.5,
    -0.5,
    1.5,
    2.5,
    3,
    -3,
    7,
    -7,
    0.1,
    0.2,
    -8,
    1 / 3,
    -2,
]
SPECIAL += [1e-45, -1e-45, 1e-38, -2e-38, 3.4e38, 5e-324, 2e-308, -1.7e308, 6, 5]
SPECIAL += [2.0**24 - 1, 2.0**24, 2.0**53 - 1, 2.0**53]
needs_wide = pytest.mark.skipif(np.finfo(WIDE).nmant < 63, reason="no type wider than float64 here")


@cache
def compiled(name: str, dtype: type[Any], width: int = lanes()) -> Any:
    """A C function (operand addresses, result address, vectors) that applies FUNCTIONS[name]."""
    vector = ir.VectorType(ir.FloatType() if dtype is np.float32 else ir.DoubleType(), width)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        bases = [builder.inttoptr(address, vector.as_pointer()) for address in args[:-1]]
        *operands, result = [builder.gep(base, [args[-1]]) for base in bases]
        values = [builder.load(p, align=4) for p in operands]
        builder.store(FUNCTIONS[name](builder, *values), result, align=4)
        return context.get_dummy_value()

    i64 = types.int64
    if name in BINARY:

        @intrinsic
        def step2(typing: Any, x: Any, y: Any, out: Any, i: Any) -> Any:
            return types.void(i64, i64, i64, i64), code

        @cfunc(types.void(i64, i64, i64, i64))
        def loop2(x, y, out, count):  # type: ignore[no-untyped-def]
            for i in range(count):
                step2(x, y, out, i)

        return loop2

    @intrinsic
    def step1(typing: Any, x: Any, out: Any, i: Any) -> Any:
        return types.void(i64, i64, i64), code

    @cfunc(types.void(i64, i64, i64))
    def loop1(x, out, count):  # type: ignore[no-untyped-def]
        for i in range(count):
            step1(x, out, i)

    return loop1


def computed(name: str, *operands: Array, width: int = lanes()) -> Array:
    """FUNCTIONS[name] of arrays of one length, padded to whole vectors."""
    size, dtype = operands[0].size, operands[0].dtype.type
    padded = [np.concatenate([x, np.ones(-size % width, dtype)]) for x in operands]
    out = np.empty_like(padded[0])
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (len(operands) + 2))
    kind(compiled(name, dtype, width).address)(
        *(x.ctypes.data for x in padded), out.ctypes.data, out.size // width
    )
    return out[:size]


def every_kind(dtype: type[Any], count: int, seed: int = 0) -> Array:
    """Special values, random bit patterns, and the ranges where the functions change."""
    random = np.random.default_rng(seed)
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = random.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(dtype)
    scales = [1, 2, 10, 110 if dtype is np.float32 else 750, 1e4, 1e5]
    ranges = [random.uniform(-s, s, count // 2) for s in scales] + [random.uniform(0.5, 2, count // 2)]
    with np.errstate(all="ignore"):
        return np.concatenate([np.array(SPECIAL).astype(dtype), bits, *(r.astype(dtype) for r in ranges)])


def sigmoid(x: Array) -> Array:
    return np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x)))


def erf(x: Array) -> Array:
    """To the precision of `x`'s type, from mpmath."""
    with mpmath.workprec(80):
        exact = [mpmath.erf(float(v)) for v in x]
    high = [float(v) for v in exact]
    low = [float(v - h) for v, h in zip(exact, high, strict=True)]
    return np.array(high, x.dtype) + np.array(low, x.dtype)


REFERENCES: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, name) for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh")},
    "pow": np.power,
    "sigmoid": sigmoid,
    "erf": erf,
}


def assert_within(bound: float, got: Array, wide: Array, *operands: Array) -> None:
    """`got` is within `bound` ulp of `wide`; NaN, infinities and the sign of zeros agree."""
    info, dtype = np.finfo(got.dtype), got.dtype
    narrow = wide.astype(dtype)
    edge = np.isnan(narrow) | np.isinf(narrow) | (narrow == 0)
    _, exponent = np.frexp(np.where(edge, 1, wide))
    unit = np.ldexp(wide.dtype.type(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
    error = np.abs(got.astype(wide.dtype) - wide) / unit
    same = (got == narrow) & (np.signbit(got) == np.signbit(narrow)) | np.isnan(got) & np.isnan(narrow)
    # A true value a hair from overflow or underflow may round either way.
    wrong = np.where(edge, ~same & ~(error <= bound), ~(error <= bound))
    rows = [(*(x[i] for x in operands), got[i], narrow[i], error[i]) for i in np.flatnonzero(wrong)[:5]]
    assert not wrong.any(), f"{wrong.sum()} results off; operands, got, wanted, ulp: {rows}"


@pytest.mark.parametrize("name", UNARY)
def test_float32_is_within_its_bound(name: str) -> None:
    x = every_kind(np.float32, 200 if name == "erf" else 1 << 17)
    with np.errstate(all="ignore"):
        assert_within(ULP_BOUNDS[name][0], computed(name, x), REFERENCES[name](x.astype(np.float64)), x)


@needs_wide
@pytest.mark.parametrize("name", UNARY)
def test_float64_is_within_its_bound(name: str) -> None:
    x = every_kind(np.float64, 200 if name == "erf" else 1 << 14)
    with np.errstate(all="ignore"):
        assert_within(ULP_BOUNDS[name][1], computed(name, x), REFERENCES[name](x.astype(WIDE)), x)


@pytest.mark.parametrize("name", ["erf", "tanh", "expm1", "log1p"])
def test_the_pieces_of_a_function_meet(name: str) -> None:
    """Every float32 for a stretch around each point where one form gives way to another."""
    for point in (0.625, 0.92, 3.95, 2.0**-25, 0.34657, 0.41421):
        x = np.float32(point) + np.arange(-200, 200, dtype=np.float32) * np.spacing(np.float32(point))
        x = np.concatenate([x, -x])
        with np.errstate(invalid="ignore"):
            expected = REFERENCES[name](x.astype(np.float64))
        assert_within(ULP_BOUNDS[name][0], computed(name, x), expected, x)


def powers(dtype: type[Any]) -> tuple[Array, Array]:
    """Bases and exponents: special pairs, results of every size, bases near 1, integers, random bits."""
    special = [grid.ravel().astype(dtype) for grid in np.meshgrid(SPECIAL, SPECIAL)]
    random, count, top = np.random.default_rng(1), 1 << 13, 90 if dtype is np.float32 else 740
    base = np.exp(random.uniform(-80, 80, count))
    bases = [base, 1 + random.uniform(-1e-3, 1e-3, count), random.integers(-20, 20, count).astype(float)]
    exponents = [random.uniform(-top, top, count) / np.log(base), random.uniform(-1e5, 1e5, count)]
    exponents.append(random.integers(-20, 20, count).astype(float))
    bits = every_kind(dtype, count, 2), every_kind(dtype, count, 3)
    x = np.concatenate([special[0], bits[0], *(b.astype(dtype) for b in bases)])
    return x, np.concatenate([special[1], bits[1], *(e.astype(dtype) for e in exponents)])


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=needs_wide)])
def test_pow(dtype: type[Any]) -> None:
    with np.errstate(all="ignore"):
        x, y = powers(dtype)
        wide = np.float64 if dtype is np.float32 else WIDE
        expected = np.power(x.astype(wide), y.astype(wide))
        assert_within(ULP_BOUNDS["pow"][DTYPES.index(dtype)], computed("pow", x, y), expected, x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", EXACT)
def test_exact_functions_give_the_bits_of_eager(name: str, dtype: type[Any]) -> None:
    with np.errstate(all="ignore"):
        operands = powers(dtype) if name in BINARY else (every_kind(dtype, 1 << 14),)
        expected = np.asarray(getattr(NumpyScalars(), name)(*operands), dtype)
    got = computed(name, *operands)
    same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | np.isnan(got) & np.isnan(expected)
    if name in ("maximum", "minimum"):
        same |= (got == 0) & (expected == 0)  # NumPy leaves the sign of max(0, -0) to the CPU
    rows = [(*(x[i] for x in operands), got[i], expected[i]) for i in np.flatnonzero(~same)[:5]]
    assert same.all(), rows


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_nan_wins(name: str) -> None:
    x, y = np.array([np.nan, 1, np.nan, 2], np.float32), np.array([1, np.nan, np.nan, 3], np.float32)
    assert np.isnan(computed(name, x, y)).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("name", "huge"), [("sin", 1e30), ("cos", 1e30), ("fmod", 1e30)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rare_lane_does_not_change_its_neighbours(name: str, huge: float, dtype: type[Any]) -> None:
    x = np.linspace(-50, 50, 4 * lanes()).astype(dtype)
    operands = (x, np.full_like(x, 0.7)) if name in BINARY else (x,)
    alone = computed(name, *operands)
    x[3 :: lanes()] = huge
    beside = computed(name, *operands)
    others = np.arange(x.size) % lanes() != 3
    np.testing.assert_array_equal(alone[others], beside[others])
    expected = getattr(np, name)(np.float64(dtype(huge)), *(np.float64(y[0]) for y in operands[1:]))
    np.testing.assert_allclose(beside[3], expected, rtol=1e-6 if dtype is np.float32 else 1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_cpus_give_the_same_bits(dtype: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight lanes and no instructions of AVX-512 against this machine's own code."""
    x = every_kind(dtype, 1 << 12)
    names = ("exp", "sigmoid", "log")
    usual = [computed(name, x) for name in names]
    compiled.cache_clear()
    monkeypatch.setattr(vectors, "features", frozenset)
    try:
        for name, values in zip(names, usual, strict=True):
            np.testing.assert_array_equal(computed(name, x, width=8), values)
    finally:
        compiled.cache_clear()


def library_calls(name: str, dtype: type[Any]) -> set[str]:
    """Names of C mathematics functions in the machine code."""
    assembly = compiled(name, dtype)._library.get_asm_str()
    names = "sin|cos|exp|exp2|expm1|log|log2|log1p|tanh|erf|pow|fmod|floor|rint|ldexp|fma|sqrt"
    return set(re.findall(rf"\b(?:{names})f?\b", assembly))


@pytest.mark.parametrize("name", sorted(ULP_BOUNDS))
def test_no_scalar_calls(name: str) -> None:
    assert not library_calls(name, np.float32)


def test_scalar_calls_would_be_seen() -> None:
    assert library_calls("sin", np.float64) == {"sin"}


def test_subnormal_results_are_kept() -> None:
    x = np.float32([-88, -95, -103])
    np.testing.assert_array_equal(computed("exp", x), np.exp(x.astype(np.float64)).astype(np.float32))
    assert computed("pow", np.float32([2.0]), np.float32([-149]))[0] == np.float32(1e-45)


def test_the_tables_can_be_derived() -> None:
    coefficients, error = minimax.polynomial(*minimax.fits(single=True)["exp"])
    assert error < -26
    np.testing.assert_allclose(coefficients, tables.FLOAT32.exp, rtol=1e-3)
