"""Products for GPUs in Triton's interpreter: every stride pattern, tail and storage type."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernels import dtypes
from kernels.dtypes import DType
from kernels.errors import SpecError
from kernels.gpu import interpret
from kernels.gpu.checked import Memory
from kernels.gpu.matmul import render
from kernels.gpu.product_tiles import EXACT, TF32, Tile, candidates, ranked
from kernels.reference import run_matmul
from kernels.spec import PRODUCT, Call, Index, Literal, Load, MatmulSpec, Operand, Store, pattern
from kernels.work import Work
from tests.kernels.specs import epilogue_spec

pytest.importorskip("triton", reason="Triton is not installed")

F, H, B, D = dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64
SMALL = Tile(16, 32, 16, 2, 3)
TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-13}
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True, scope="module")
def held_open() -> Any:
    with interpret.interpreting():
        yield


def strides_of(array: Array) -> tuple[int, ...]:
    return tuple(
        0 if n == 1 else s // array.itemsize for s, n in zip(array.strides, array.shape, strict=True)
    )


def operand(array: Array, dtype: DType) -> Operand:
    return Operand(dtype, tuple(pattern(s) for s in strides_of(array)))


def base_of(array: Any) -> Array:
    """The array whose memory a view is on."""
    while array.base is not None:
        array = array.base
    return array


def check(
    spec: MatmulSpec,
    extents: Sequence[int],
    arrays: Sequence[Array],
    cut: Tile | None = SMALL,
    **options: Any,
) -> None:
    """Run the launch of `spec` on views and compare all of their memory with what the oracle makes."""
    work = Work(spec, tuple(extents), tuple(strides_of(x) for x in arrays), (0,) * len(arrays))
    launch = render(work, cut=cut, **options)
    bases = list({id(x): x for x in map(base_of, arrays)}.values())
    flat = [x.reshape(-1).view() for x in bases]
    expected = [x.copy() for x in flat]
    number = [next(i for i, b in enumerate(bases) if b is base_of(x)) for x in arrays]
    address = [x.__array_interface__["data"][0] for x in arrays]
    offsets = [(a - bases[i].ctypes.data) // bases[i].itemsize for a, i in zip(address, number, strict=True)]
    run_matmul(spec, extents, [expected[i] for i in number], work.strides, offsets)
    interpret.run(launch, address, Memory(flat))
    depth = 1 + np.sqrt(np.prod(extents[spec.batch + 2 :]))
    for got, right in zip(flat, expected, strict=True):
        bound = TOLERANCE[got.itemsize] if got.dtype.kind not in "biu" else 0
        got, right = got.astype(np.float64), right.astype(np.float64)
        np.testing.assert_allclose(
            got, right, rtol=bound, atol=bound * depth, err_msg=f"{spec}\n{launch.source}"
        )


def laid_out(random: np.random.Generator, shape: Sequence[int], form: str, dtype: DType) -> Array:
    """A random array: contiguous ("n"), stored transposed ("t"), or one that steps over elements ("s")."""
    *batch, rows, columns = shape
    if form == "t":
        return random.normal(size=(*batch, columns, rows)).astype(dtype.numpy).swapaxes(-1, -2)
    if form == "s":
        return random.normal(size=(*batch, 2 * rows, 3 * columns)).astype(dtype.numpy)[..., ::2, ::3]
    return random.normal(size=shape).astype(dtype.numpy)


def product(a: Array, b: Array, c: Array, stored: DType) -> MatmulSpec:
    """A spec that only stores the product."""
    wide = stored.arithmetic
    steps = (Store(PRODUCT, 2),)
    if wide is not stored:
        steps = (Call("rounded", "cast", (PRODUCT,), stored), Store("rounded", 2))
    operands = tuple(operand(x, stored) for x in (a, b, c))
    return MatmulSpec("product", a.ndim - 2, wide, 4, 2, operands, steps)


def check_product(
    form: str, stored: DType, batch: Sequence[int], m: int, n: int, k: int, **options: Any
) -> None:
    random = np.random.default_rng(m + n + k)
    a = laid_out(random, (*batch, m, k), form[0], stored)
    b = laid_out(random, (*batch, k, n), form[1], stored)
    c = np.full((*batch, m, n), np.nan, np.float32).astype(stored.numpy)
    check(product(a, b, c, stored), (*batch, m, n, k), [a, b, c], **options)


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt", "ss"])
@pytest.mark.parametrize("stored", [F, D, H, B], ids=lambda d: d.name)
def test_strides_and_tails(form: str, stored: DType) -> None:
    for m, n, k in ((1, 1, 1), (17, 33, 16), (16, 32, 40), (3, 70, 5)):
        check_product(form, stored, (), m, n, k)


def test_nothing_to_sum_gives_zeros_and_nothing_to_make_gives_no_program() -> None:
    check_product("nn", F, (), 5, 6, 0)
    for m, n in ((0, 5), (5, 0)):
        check_product("nn", F, (), m, n, 4)


@pytest.mark.parametrize("stored", [F, H], ids=lambda d: d.name)
def test_tiles_that_are_chosen(stored: DType) -> None:
    for m, n, k in ((100, 10, 70), (1, 300, 33), (130, 150, 20), (16, 20, 600)):
        check_product("nt", stored, (), m, n, k, cut=None)


def test_batches() -> None:
    for form in ("nn", "tt"):
        check_product(form, F, (3,), 17, 35, 18)
        check_product(form, H, (2, 2), 5, 7, 9)


def test_many_tiles_are_walked_in_groups() -> None:
    check_product("nn", F, (), 16 * 9 + 1, 32 * 2 + 1, 3)


def test_batches_of_which_one_factor_has_none() -> None:
    """A weight for all images, and an image for all weights, walked with rows and with columns."""
    random = np.random.default_rng(0)
    for m, n in ((5, 40), (200, 7)):
        one = np.broadcast_to(laid_out(random, (1, 1, m, 9), "n", F), (3, 4, m, 9))
        every = laid_out(random, (3, 4, m, 9), "n", F)
        b = np.broadcast_to(laid_out(random, (3, 1, 9, n), "t", F), (3, 4, 9, n))
        for a in (one, every):
            c = np.zeros((3, 4, m, n), "f")
            check(product(a, b, c, F), (3, 4, m, n, 9), [a, b, c])
            wide = np.zeros((3, 4, n, m), "f").swapaxes(-1, -2)
            check(product(a, b, wide, F), (3, 4, m, n, 9), [a, b, wide])


@pytest.mark.parametrize("dtype", [F, D], ids=lambda d: d.name)
@pytest.mark.parametrize("sizes", [(3, 2, 4), (2, 3, 17), (1, 1, 1), (2, 2, 16)])
def test_a_convolution_is_a_sum_over_several_axes(dtype: DType, sizes: tuple[int, int, int]) -> None:
    """A is a window that slides over a larger array, B is shared by the batch."""
    random = np.random.default_rng(0)
    rows, columns, channels = sizes
    for m, n in ((9, 5), (20, 33)):
        batch = 3
        image = random.normal(size=(batch + rows - 1, m + columns - 1, channels)).astype(dtype.numpy)
        one, two, three = image.strides
        view = np.lib.stride_tricks.as_strided
        a = view(image, (batch, m, *sizes), (one, two, one, two, three))
        taps = random.normal(size=(n, *sizes)).astype(dtype.numpy).transpose(1, 2, 3, 0)
        b = np.broadcast_to(taps, (batch, *taps.shape))
        c = np.zeros((batch, m, n), dtype.numpy)
        operands = tuple(operand(x, dtype) for x in (a, b, c))
        spec = MatmulSpec("convolution", 1, dtype, 4, 2, operands, (Store(PRODUCT, 2),), depth=3)
        check(spec, (batch, m, n, *sizes), [a, b, c])


def test_the_gradient_of_a_convolution_sums_over_images_and_positions() -> None:
    random = np.random.default_rng(0)
    images, height, width, inputs, outputs, taps = 2, 4, 5, 3, 6, 3
    image = random.normal(size=(images, height + taps - 1, width + taps - 1, inputs)).astype("f")
    gradient = random.normal(size=(images, height, width, outputs)).astype("f")
    s = image.strides
    window = np.lib.stride_tricks.as_strided(
        image, (taps, taps, images, height, width, inputs), (s[1], s[2], *s)
    )
    a = np.broadcast_to(gradient.transpose(3, 0, 1, 2), (taps, taps, outputs, images, height, width))
    c = np.zeros((taps, taps, outputs, inputs), "f")
    operands = tuple(operand(x, F) for x in (a, window, c))
    spec = MatmulSpec("gradient", 2, F, 4, 2, operands, (Store(PRODUCT, 2),), depth=3)
    check(spec, (taps, taps, outputs, inputs, images, height, width), [a, window, c])


def test_epilogue_with_broadcast_operands_and_several_stores() -> None:
    random = np.random.default_rng(0)
    for m, n, k in ((6, 16, 5), (20, 33, 20)):
        arrays = [
            random.normal(size=(m, k)).astype("f"),
            random.normal(size=(k, n)).astype("f"),
            np.broadcast_to(random.normal(size=n).astype("f"), (m, n)),
            np.zeros((n, m), "f").T,
            np.broadcast_to(random.normal(size=m).astype("f")[:, None], (m, n)),
            random.normal(size=(m, n)).astype("f"),
            np.zeros((m, n), np.bool_),
        ]
        check(epilogue_spec(), (m, n, k), arrays)


def test_a_row_and_a_column_of_one_store_where_a_stride_is_nothing() -> None:
    random = np.random.default_rng(0)
    for m, n in ((1, 40), (40, 1), (1, 1)):
        a, b = random.normal(size=(m, 5)).astype("f"), random.normal(size=(5, n)).astype("f")
        c, count = np.zeros((m, n), "f"), np.zeros((m, n), "f")
        operands = tuple(operand(x, F) for x in (a, b, c, count))
        steps = (Literal("two", 2.0, F), Store(PRODUCT, 2), Store("two", 3))
        check(MatmulSpec("one", 0, F, 4, 2, operands, steps), (m, n, 5), [a, b, c, count])


def test_dropout_draws_the_bits_of_each_position() -> None:
    random = np.random.default_rng(0)
    batch, m, n, k = 2, 18, 40, 6
    a, b = random.normal(size=(batch, m, k)).astype("f"), random.normal(size=(batch, k, n)).astype("f")
    bits, c, seed = np.zeros((batch, m, n), np.int64), np.zeros((batch, m, n), "f"), np.array([7], np.int64)
    whole = np.broadcast_to(seed, (batch, m, n))
    i64 = dtypes.int64
    operands = (
        *(operand(x, F) for x in (a, b, c)),
        operand(bits, i64),
        Operand(i64, (0, 0, 0)),
        operand(bits, i64),
    )
    steps = (
        Load("seed", 4),
        Index("place", 5),
        Call("drawn", "random_bits", ("seed", "seed", "place"), i64),
        Literal("half", 2**31, i64),
        Call("kept", "lt", ("drawn", "half"), dtypes.bool_),
        Literal("zero", 0.0, F),
        Call("result", "where", ("kept", PRODUCT, "zero"), F),
        Store("result", 2),
        Store("drawn", 3),
    )
    spec = MatmulSpec("dropout", 1, F, 4, 2, operands, steps)
    strides = tuple(strides_of(x) for x in (a, b, c, bits, whole, bits))
    start = 11
    launch = render(Work(spec, (batch, m, n, k), strides, (0,) * 6), cut=SMALL)
    interpret.run(
        launch, [*(x.ctypes.data for x in (a, b, c, bits, seed)), start], Memory([a, b, c, bits, seed])
    )
    flat = [x.reshape(-1).copy() for x in (a, b, c, bits)]
    arrays = [*flat, seed, np.zeros(1, np.int64)]
    run_matmul(spec, (batch, m, n, k), arrays, strides, [0, 0, 0, 0, 0, start])
    np.testing.assert_array_equal(bits.reshape(-1), flat[3])
    np.testing.assert_allclose(c.reshape(-1), flat[2], rtol=1e-5, atol=1e-5)


def test_infinity_and_nan_stay_in_their_row_and_column() -> None:
    a, b, c = np.ones((17, 5), "f"), np.ones((5, 35), "f"), np.zeros((17, 35), "f")
    a[16], b[:, 34] = np.inf, np.nan
    check(product(a, b, c, F), (17, 35, 5), [a, b, c])
    assert np.isinf(c[16, :34]).all() and np.isnan(c[:, 34]).all() and np.isfinite(c[:16, :34]).all()


def test_a_kernel_with_a_flag_that_is_set_does_nothing() -> None:
    a, b = np.ones((3, 4), "f"), np.ones((4, 5), "f")
    spec = product(a, b, np.zeros((3, 5), "f"), F)
    strides = tuple(strides_of(x) for x in (a, b, np.zeros((3, 5), "f")))
    launch = render(Work(spec, (3, 5, 4), strides, (0, 0, 0)), flags=2)
    for values in itertools.product((False, True), repeat=2):
        flags, c = np.array(values), np.zeros((3, 5), "f")
        addresses = [*(x.ctypes.data for x in (a, b, c)), flags.ctypes.data, flags.ctypes.data + 1]
        interpret.run(launch, addresses, Memory([a, b, c, flags]))
        assert (c == 0).all() if any(values) else (c == 4).all()


def test_large_offsets_are_counted_in_64_bits() -> None:
    def types(rows: int) -> set[str]:
        work = Work(
            product(*(np.zeros((2, 2), "f"),) * 3, F), (2, 2, 2), ((rows, 1), (2, 1), (2, 1)), (0, 0, 0)
        )
        return {p.type for p in render(work).parameters if not p.is_pointer}

    assert (types(2**31 - 2), types(2**31)) == ({"i32"}, {"i64"})


def test_sizes_of_one_class_share_a_kernel() -> None:
    def code(m: int, n: int, k: int) -> object:
        a, b, c = np.zeros((m, k), "f"), np.zeros((k, n), "f"), np.zeros((m, n), "f")
        work = Work(product(a, b, c, F), (m, n, k), tuple(map(strides_of, (a, b, c))), (0, 0, 0))
        return render(work, cut=SMALL).code

    assert code(64, 128, 32) == code(80, 48, 160) != code(64, 128, 33)


def test_values_may_have_any_names() -> None:
    """Names that the kernel's text has for sizes, indices and masks too."""
    names = ("i0", "n1", "inside_row", "s2_0")
    operands = (Operand(F, ("s", 1)),) * 3
    steps = (
        Load(names[0], 2),
        Call(names[1], "add", (PRODUCT, names[0]), F),
        Call(names[2], "mul", (names[1], names[0]), F),
        Call(names[3], "sub", (names[2], names[1]), F),
        Store(names[3], 2),
    )
    spec = MatmulSpec("names", 0, F, 4, 2, operands, steps)
    random = np.random.default_rng(0)
    check(spec, (17, 33, 5), [random.normal(size=s).astype("f") for s in ((17, 5), (5, 33), (17, 33))])


def test_an_epilogue_that_reads_at_a_position_is_refused() -> None:
    operands = (Operand(F, ("s", 1)),) * 3
    spec = MatmulSpec("bad", 0, F, 4, 2, operands, (Load("x", 2, PRODUCT), Store("x", 2)))
    with pytest.raises(SpecError, match="bad"):
        render(Work(spec, (2, 2, 2), ((2, 1),) * 3, (0, 0, 0)))


@pytest.mark.parametrize("factor, precision", [(F, EXACT), (F, TF32), (H, EXACT), (D, EXACT)])
def test_tiles_fit_and_small_products_have_small_ones(factor: DType, precision: str) -> None:
    for cut in candidates(1000, factor, precision):
        assert (cut.rows + cut.columns) * cut.depth * cut.stages * factor.itemsize <= 98304
        assert min(cut.rows, cut.columns) >= 16 and cut.warps in (1, 2, 4, 8)
    small = ranked(8, 16, 1000, 1, factor, precision)[0]
    large = ranked(4096, 4096, 1000, 1, factor, precision)[0]
    assert (small.rows, small.columns) == (16, 16)
    assert large.rows * large.columns == max(c.rows * c.columns for c in candidates(1000, factor, precision))
