"""Generated kernels as plain Python against their machine code: the same bits, whatever the kernel."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from kernels import dtypes
from kernels.cpu import matmul_words, vocabulary
from kernels.cpu.plain import matmul_words as plain_matmul_words
from kernels.cpu.plain import vocabulary as plain_vocabulary
from kernels.cpu.plain.lanes import fma
from kernels.cpu.plain.run import run
from kernels.cpu.runner import source_of
from kernels.dtypes import DType
from kernels.errors import KernelError
from kernels.files import Placed, placed
from kernels.library import LIBRARY
from kernels.prepared import Prepared, aligned, filled
from kernels.spec import Call, Load, LoopSpec, Operand, Step, Store
from kernels.work import Work

Array = np.ndarray[Any, Any]
FLOATS = (dtypes.float32, dtypes.float64)
SIZES = {1: (37,), 2: (5, 37), 3: (9, 21, 37), 4: (2, 9, 21, 37)}
UNARY = "neg abs sqrt rsqrt exp expm1 log log1p sin cos tanh erf sigmoid floor ceil trunc round".split()
BINARY = "add sub mul div floor_div remainder fmod maximum minimum pow".split()


def same(native: Array, plain: Array) -> None:
    """Equal bits, but for what is in a NaN."""
    if native.dtype.kind == "f":
        missing = np.isnan(native)
        assert np.array_equal(missing, np.isnan(plain))
        native, plain = native[~missing], plain[~missing]
    wrong = np.flatnonzero(native.view(f"u{native.itemsize}") != plain.view(f"u{plain.itemsize}"))
    assert not len(wrong), f"{len(wrong)} differ: {native[wrong[:3]]} {plain[wrong[:3]]}"


def check(kernel: Placed, arrays: list[Array]) -> list[Array]:
    """Run a kernel both ways; the memory after it."""
    copies = [aligned(len(x), d) for x, d in zip(arrays, kernel.dtypes, strict=True)]
    for copy, x in zip(copies, arrays, strict=True):
        copy[:] = x
    Prepared(kernel, arrays=copies)()
    plain = [x.copy() for x in arrays]
    run(source_of(kernel.work.spec), "kernel.py", kernel, plain)
    for native, other in zip(copies, plain, strict=True):
        same(native, other)
    return copies


def wild(dtype: DType, count: int, seed: int) -> Array:
    """Floats of every kind: any bits at all, usual numbers, and the special ones."""
    rng = np.random.default_rng(seed)
    kind = dtype.numpy
    bits = rng.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
    usual = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 7, count)).astype(kind)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, 1e30, -1e-30, 88.0, -104.0, 710.0]
    return np.concatenate([bits, usual, np.resize(np.array(special, kind), count)])


def test_the_plain_words_are_those_of_the_machine_code() -> None:
    assert set(plain_vocabulary.EXPORTS) == set(vocabulary.EXPORTS)
    assert set(plain_vocabulary.WORDS) == set(vocabulary.WORDS)
    for name in ("multiply", "sweep", "dot_panel", "transpose_panel"):
        assert callable(getattr(matmul_words, name)) and callable(getattr(plain_matmul_words, name))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_every_function_on_every_kind_of_number(dtype: DType) -> None:
    for name in UNARY + BINARY:
        inputs = 2 if name in BINARY else 1
        steps: list[Step] = [Load(f"x{i}", i) for i in range(inputs)]
        steps += [Call("y", name, tuple(f"x{i}" for i in range(inputs)), dtype), Store("y", inputs)]
        spec = LoopSpec(name, 1, 0, "rows", (Operand(dtype, (1,)),) * (inputs + 1), tuple(steps))
        arrays = [wild(dtype, 200, seed) for seed in range(inputs)]
        kernel = placed(Work(spec, (600,), ((1,),) * (inputs + 1), (0,) * (inputs + 1)))
        check(kernel, [*arrays, np.zeros(600, dtype.numpy)])


@pytest.mark.parametrize("dtype", dtypes.DTYPES.values(), ids=lambda d: d.name)
def test_integers_bools_and_casts(dtype: DType) -> None:
    floating = dtype.is_floating_point
    names = ["maximum", "eq", "lt"] if floating else ["and_", "xor", "maximum", "eq"]
    if not floating and dtype is not dtypes.bool_:
        names += ["floor_div", "remainder", "fmod", "shift_left", "shift_right", "mul", "pow"]
    register = dtype.arithmetic
    for name, target in itertools.zip_longest(names, dtypes.DTYPES.values()):
        name, target = name or "maximum", target or dtype
        result = dtypes.bool_ if name in ("eq", "lt") else register
        steps: tuple[Step, ...] = (
            Load("x", 0),
            Load("y", 1),
            Call("z", name, ("x", "y"), result),
            Call("w", "cast", ("z",), target),
            Store("w", 2),
        )
        operands = (Operand(dtype, (1,)), Operand(dtype, (1,)), Operand(target, (1,)))
        work = Work(LoopSpec(name, 1, 0, "rows", operands, steps), (53,), ((1,),) * 3, (0,) * 3)
        rng = np.random.default_rng(0)
        given = [rng.integers(1, 9, 53).astype(dtype.numpy) for _ in range(2)]
        check(placed(work), [*given, np.zeros(53, target.numpy)])


@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_of_the_library(name: str) -> None:
    named = LIBRARY[name]
    for dtype in (*FLOATS, dtypes.float16, dtypes.bfloat16):
        kernel = named.make(dtype, SIZES[len(named.default)])
        check(kernel, filled(kernel))


def test_few_rows_and_a_tall_product() -> None:
    for name, sizes in (("matmul_nt", (3, 64, 40)), ("matmul", (1, 16, 100)), ("matmul", (70, 30, 33))):
        kernel = LIBRARY[name].make(dtypes.float32, sizes)
        check(kernel, filled(kernel))


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(1)
    for kind in (np.float32, np.float64):
        x, y = (rng.standard_normal(300).astype(kind) for _ in range(2))
        # Sums that nearly cancel, and addends that are far apart, are where rounding twice shows.
        z = np.concatenate(
            [-(x[:150] * y[:150]), x[150:] * kind(2.0) ** rng.integers(-40, 40, 150).astype(kind)]
        )
        for a, b, c, got in zip(x, y, z.astype(kind), fma(x, y, z.astype(kind)), strict=True):
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
            near = [got, np.nextafter(got, kind(np.inf)), np.nextafter(got, kind(-np.inf))]
            assert min(abs(Fraction(float(n)) - exact) for n in near) == abs(Fraction(float(got)) - exact)


def test_memory_that_is_not_the_kernels_is_not_touched() -> None:
    kernel = LIBRARY["copy"].make(dtypes.float32, (37,))
    source = source_of(kernel.work.spec).replace("p0, j, active", "p0, j + 30, active")
    source = source.replace("p0, 0 + j, active", "p0, 30 + j, active")
    assert "30" in source
    with pytest.raises(KernelError, match=r"memory 0 \(p0\) are touched, which has 37 of float32"):
        run(source, "kernel.py", kernel, filled(kernel))
