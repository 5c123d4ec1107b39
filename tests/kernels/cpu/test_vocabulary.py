"""The scalar vocabulary as machine code against NumPy: every word, in every dtype it is defined on.

All the words of a dtype share one kernel, which serves every size.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dtypes
from kernels.cpu.vector_math import ULP_BOUNDS
from kernels.dtypes import DTYPES, DType
from kernels.spec import Call, Index, Literal, Load, LoopSpec, Operand, Step, Store
from tests.kernels.cpu.native import (
    EXTENTS,
    Array,
    assert_near,
    check,
    drawn,
    plain,
    run_native,
    run_reference,
)

ALL = tuple(DTYPES.values())
NUMERIC = tuple(d for d in ALL if d is not dtypes.bool_)
# NumPy is within 4 ulp of the true value, we are within 1.5.
FUNCTION_ULPS = 6


def by_name(dtype: DType) -> str:
    return dtype.name


FLOATING_UNARY = "sqrt rsqrt exp expm1 log log1p sin cos tanh erf sigmoid floor ceil trunc round".split()
COMPARISONS = "eq ne lt le gt ge".split()


def words_of(dtype: DType) -> list[tuple[str, int]]:
    """(word, operands) of every word that is defined on `dtype`, division and integer powers aside."""
    words = [(w, 2) for w in COMPARISONS] + [("maximum", 2), ("minimum", 2), ("add", 2), ("mul", 2)]
    if dtype.category != dtypes.FLOATING:
        words += [("and_", 2), ("or_", 2), ("xor", 2), ("invert", 1)]
    if dtype.category == dtypes.INTEGER:
        words += [("shift_left", 2), ("shift_right", 2)]
    if dtype.category == dtypes.FLOATING:
        words += [(w, 1) for w in FLOATING_UNARY] + [(w, 2) for w in ("div", "pow")]
        words += [(w, 2) for w in ("floor_div", "remainder", "fmod")]
    if dtype.category != dtypes.BOOL:
        words += [("sub", 2), ("neg", 1), ("abs", 1)]
    return words


def words_spec(dtype: DType, words: list[tuple[str, int]]) -> LoopSpec:
    """One loop that stores every word's value of x and y."""
    wide = dtype.arithmetic
    steps: list[Step] = [Load("x", 0), Load("y", 1)]
    operands = [Operand(dtype, (1,)), Operand(dtype, (1,))]
    for number, (word, arity) in enumerate(words):
        result = dtypes.bool_ if word in COMPARISONS else wide
        steps += [Call(f"v{number}", word, ("x", "y")[:arity], result), Store(f"v{number}", len(operands))]
        operands.append(Operand(dtypes.bool_ if result is dtypes.bool_ else dtype, (1,)))
    return LoopSpec(f"words_{dtype.name}", 1, 0, "rows", tuple(operands), tuple(steps))


def check_words(dtype: DType, words: list[tuple[str, int]], x: Array, y: Array) -> None:
    spec = words_spec(dtype, words)
    arrays = [x, y, *(np.zeros(x.size, o.dtype.numpy) for o in spec.operands[2:])]
    strides = [(1,)] * len(arrays)
    got = run_native(spec, (x.size,), arrays, strides)
    wanted = run_reference(spec, (x.size,), arrays, strides)
    for (word, _), a, b in zip(words, got[2:], wanted[2:], strict=True):
        rounded_off = word in ULP_BOUNDS
        # After rounding to 16 bits, neighbours in float32 are equal or neighbours.
        ulps = 0 if not rounded_off else FUNCTION_ULPS if dtype.compute is None else 1
        assert_near(a, b, ulps, f"{word} of {dtype.name}")


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_every_word(dtype: DType) -> None:
    for size in EXTENTS:
        check_words(dtype, words_of(dtype), drawn(dtype, size, 1), drawn(dtype, size, 2))


@pytest.mark.parametrize("dtype", [d for d in NUMERIC if not d.is_floating_point], ids=by_name)
def test_integer_division_and_powers(dtype: DType) -> None:
    words = [("floor_div", 2), ("remainder", 2), ("fmod", 2), ("pow", 2)]
    for size in EXTENTS:
        x, y = drawn(dtype, size, 1), np.random.default_rng(2).integers(1, 7, size).astype(dtype.numpy)
        check_words(dtype, words, x, y)
        if dtype.is_signed:
            check_words(dtype, words[:3], x, -y)


@pytest.mark.parametrize("source", ALL, ids=by_name)
def test_casts(source: DType) -> None:
    targets = [d for d in ALL if d is not source]
    operands = [Operand(source, (1,)), *(Operand(d, (1,)) for d in targets)]
    steps: list[Step] = [Load("x", 0)]
    for number, target in enumerate(targets, 1):
        steps += [Call(f"v{number}", "cast", ("x",), target), Store(f"v{number}", number)]
    spec = LoopSpec("casts", 1, 0, "rows", tuple(operands), tuple(steps))
    for size in EXTENTS:
        x = drawn(source, size)
        if source.is_floating_point:
            x = plain(source, size) * np.asarray(
                40, source.numpy
            )  # What does not fit an integer is the CPU's choice.
        check(spec, (size,), [x, *(np.zeros(size, d.numpy) for d in targets)], [(1,)] * len(operands))


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_selection_and_literals(dtype: DType) -> None:
    numbers = [-0.0, np.inf, np.nan, 1e-45, 2.0**63, 0.1] if dtype.is_floating_point else [0, 1]
    if dtype.category == dtypes.INTEGER:
        limits = np.iinfo(dtype.numpy)
        numbers += [int(limits.min), int(limits.max)]
    steps: list[Step] = [Load("c", 0), Load("x", 1)]
    operands = [Operand(dtypes.bool_, (1,)), Operand(dtype, (1,))]
    for n, number in enumerate(numbers):
        if dtype is dtypes.float16 and number == 2.0**63:
            number = 60000.0
        steps += [
            Literal(f"n{n}", number, dtype),
            Call(f"w{n}", "where", ("c", "x", f"n{n}"), dtype.arithmetic),
        ]
        steps += [Store(f"w{n}", len(operands))]
        operands.append(Operand(dtype, (1,)))
    spec = LoopSpec("literals", 1, 0, "rows", tuple(operands), tuple(steps))
    for size in EXTENTS:
        outputs = [np.zeros(size, dtype.numpy) for _ in numbers]
        check(
            spec, (size,), [drawn(dtypes.bool_, size), drawn(dtype, size), *outputs], [(1,)] * len(operands)
        )


def test_random_bits() -> None:
    i64 = dtypes.int64
    operands = (Operand(i64, (0,)), Operand(i64, (0,)), Operand(i64, (1,)), Operand(i64, (1,)))
    steps = (
        Load("seed", 0),
        Load("offset", 1),
        Index("i", 2),
        Call("r", "random_bits", ("seed", "offset", "i"), i64),
        Store("r", 3),
    )
    spec = LoopSpec("random", 1, 0, "rows", operands, steps)
    for seed, offset, first in ((0, 0, 0), (2**40 + 3, 2**33 + 1, 5), (-1, -1, 2**34)):
        arrays = [np.array([seed]), np.array([offset]), np.array([first]), np.zeros(100, np.int64)]
        check(spec, (100,), arrays, [(0,), (0,), (1,), (1,)])
