"""The scalar vocabulary as Triton text, in the interpreter: every word, in every dtype it is defined on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from kernels import dtypes
from kernels.dtypes import DTYPES, DType
from kernels.gpu.interpret import interpreting
from kernels.gpu.render import launch_of
from kernels.gpu.vocabulary import ULP_BOUNDS
from kernels.spec import Call, Index, Literal, Load, LoopSpec, Operand, Step, Store
from tests.kernels.cpu.native import Array, drawn, plain
from tests.kernels.cpu.test_vocabulary import by_name, words_of, words_spec
from tests.kernels.gpu.interpreted import check, work_of

ALL = tuple(DTYPES.values())
INTEGERS = tuple(d for d in ALL if d.category == dtypes.INTEGER)
# Two programs, the second of them not full.
SIZE = 300


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


def check_words(dtype: DType, words: list[tuple[str, int]], x: Array, y: Array) -> None:
    spec = words_spec(dtype, words)
    arrays = [x, y, *(np.zeros(x.size, o.dtype.numpy) for o in spec.operands[2:])]
    check(spec, (x.size,), arrays, [(1,)] * len(arrays))


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_every_word(dtype: DType) -> None:
    check_words(dtype, words_of(dtype), drawn(dtype, SIZE, 1), drawn(dtype, SIZE, 2))


def test_the_table_of_errors_has_every_rounded_function() -> None:
    exact = "sqrt floor ceil trunc round div floor_div remainder fmod maximum minimum".split()
    floating = {word for word, _ in words_of(dtypes.float32)} - {word for word, _ in words_of(dtypes.int32)}
    assert floating - set(exact) == set(ULP_BOUNDS)


@pytest.mark.parametrize("dtype", INTEGERS, ids=by_name)
def test_integer_division_and_powers(dtype: DType) -> None:
    words = [("floor_div", 2), ("remainder", 2), ("fmod", 2)]
    x, y = drawn(dtype, SIZE, 1), np.random.default_rng(2).integers(1, 7, SIZE).astype(dtype.numpy)
    check_words(dtype, [*words, ("pow", 2)], x, y)
    if dtype.is_signed:
        check_words(dtype, words, x, -y)


@pytest.mark.parametrize("source", ALL, ids=by_name)
def test_casts(source: DType) -> None:
    targets = [d for d in ALL if d is not source]
    operands = [Operand(source, (1,)), *(Operand(d, (1,)) for d in targets)]
    steps: list[Step] = [Load("x", 0)]
    for number, target in enumerate(targets, 1):
        steps += [Call(f"v{number}", "cast", ("x",), target), Store(f"v{number}", number)]
    spec = LoopSpec("casts", 1, 0, "rows", tuple(operands), tuple(steps))
    x = drawn(source, SIZE)
    if source.is_floating_point:
        # What does not fit an integer is the device's choice.
        x = plain(source, SIZE) * np.asarray(40, source.numpy)
    check(spec, (SIZE,), [x, *(np.zeros(SIZE, d.numpy) for d in targets)], [(1,)] * len(operands))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=by_name)
def test_rounding_to_16_bits(dtype: DType) -> None:
    # Ties, subnormals, the largest numbers and what is beyond them, NaN.
    bits = np.arange(0, 2**16, 17, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    with np.errstate(all="ignore"):
        x = np.concatenate([bits, bits * np.float32(1 + 2**-9), bits * np.float32(1 + 2**-12)])
    spec = LoopSpec(
        "narrow",
        1,
        0,
        "rows",
        (Operand(dtypes.float32, (1,)), Operand(dtype, (1,))),
        (Load("x", 0), Store("x", 1)),
    )
    check(spec, (x.size,), [x, np.zeros(x.size, dtype.numpy)], [(1,), (1,)])


@pytest.mark.parametrize("dtype", ALL, ids=by_name)
def test_selection_and_literals(dtype: DType) -> None:
    numbers: list[float] = [0, 1]
    if dtype.is_floating_point:
        numbers = [-0.0, np.inf, -np.inf, np.nan, 1e-45, 60000.0, 0.1]
    elif dtype.category == dtypes.INTEGER:
        numbers += [int(np.iinfo(dtype.numpy).min), int(np.iinfo(dtype.numpy).max)]
    steps: list[Step] = [Load("c", 0), Load("x", 1)]
    operands = [Operand(dtypes.bool_, (1,)), Operand(dtype, (1,))]
    for n, number in enumerate(numbers):
        steps += [
            Literal(f"n{n}", number, dtype),
            Call(f"w{n}", "where", ("c", "x", f"n{n}"), dtype.arithmetic),
        ]
        steps += [Store(f"w{n}", len(operands))]
        operands.append(Operand(dtype, (1,)))
    spec = LoopSpec("literals", 1, 0, "rows", tuple(operands), tuple(steps))
    outputs = [np.zeros(SIZE, dtype.numpy) for _ in numbers]
    check(spec, (SIZE,), [drawn(dtypes.bool_, SIZE), drawn(dtype, SIZE), *outputs], [(1,)] * len(operands))


def test_random_bits() -> None:
    i64 = dtypes.int64
    operands = (Operand(i64, (0,)), Operand(i64, (0,)), Operand(i64, (1,)), Operand(i64, (1,)))
    steps = (
        *(Load("seed", 0), Load("offset", 1), Index("i", 2)),
        *(Call("r", "random_bits", ("seed", "offset", "i"), i64), Store("r", 3)),
    )
    spec = LoopSpec("random", 1, 0, "rows", operands, steps)
    # Four at a time where blocks of four begin with the tile, one by one elsewhere.
    for seed, offset, first in (
        (0, 0, 0),
        (2**40 + 3, 2**33 + 1, 5),
        (-1, -1, 2**34),
        (7, 8, -4),
        (7, 8, -3),
    ):
        arrays = [np.array([seed]), np.array([offset]), np.array([first]), np.zeros(SIZE, np.int64)]
        check(spec, (SIZE,), arrays, [(0,), (0,), (1,), (1,)])


@pytest.mark.parametrize("row", [44, 42])
def test_random_bits_of_rows(row: int) -> None:
    # Rows that lie a multiple of four apart in the stream, and rows that do not.
    i64 = dtypes.int64
    operands = (Operand(i64, (0, 0)), Operand(i64, ("s", 1)), Operand(i64, ("s", 1)))
    steps = (
        *(Load("seed", 0), Index("i", 1)),
        *(Call("r", "random_bits", ("seed", "seed", "i"), i64), Store("r", 2)),
    )
    spec = LoopSpec("rows", 2, 0, "rows", operands, steps)
    assert ("random_quads" in launch_of(work_of(spec, (9, 40), [(0, 0), (row, 1), (40, 1)])).source) == (
        row == 44
    )
    arrays = [np.array([3]), np.array([8]), np.zeros(360, np.int64)]
    check(spec, (9, 40), arrays, [(0, 0), (row, 1), (40, 1)])
