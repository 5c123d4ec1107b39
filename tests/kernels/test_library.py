"""The library's kernels: natively as in the reference, from their text, from a file, and as NumPy says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf, log_softmax, softmax

from kernels import dtypes
from kernels.dtypes import DType
from kernels.errors import SpecError
from kernels.files import Placed, load, placed, save
from kernels.library import LIBRARY, MATMUL, ROWS, LoopBuilder
from kernels.prepared import Prepared
from kernels.text import parse

SIZES = {"elementwise": (1003,), ROWS: (37, 101), MATMUL: (13, 37, 21)}


def make(name: str, dtype: DType = dtypes.float32) -> Placed:
    kernel = LIBRARY[name]
    sizes = (3, *SIZES[MATMUL]) if name == "batched_matmul" else SIZES[kernel.family]
    return kernel.make(dtype, sizes)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", LIBRARY)
def test_as_the_reference(name: str, dtype: DType) -> None:
    native, oracle = Prepared(make(name, dtype)), Prepared(make(name, dtype))
    native()
    oracle.reference()
    precision = {dtypes.float32: 2e-5, dtypes.float64: 1e-12, dtypes.bfloat16: 2e-2}[dtype]
    for got, wanted in zip(native.arrays, oracle.arrays, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=precision, atol=precision
        )


@pytest.mark.parametrize("name", LIBRARY)
def test_text_and_file(name: str, tmp_path: Path) -> None:
    kernel = make(name)
    assert parse(str(kernel.work.spec)) == kernel.work.spec
    save(kernel, tmp_path / "kernel.json")
    assert load(tmp_path / "kernel.json") == kernel


def run(name: str) -> list[np.ndarray]:
    """Operands before and after: inputs as they were, then every operand as it is."""
    kernel = Prepared(make(name, dtypes.float64))
    before = [x.copy() for x in kernel.arrays]
    kernel()
    return [*before, *kernel.arrays]


def test_what_they_mean() -> None:
    x, _, _, y = run("gelu")
    np.testing.assert_allclose(y, x / 2 * (1 + erf(x / np.sqrt(2))), rtol=1e-12)
    x, y = (run("softmax")[i].reshape(37, 101) for i in (0, 3))
    np.testing.assert_allclose(y, softmax(x, axis=1), rtol=1e-12)
    x, y = (run("log_softmax")[i].reshape(37, 101) for i in (0, 3))
    np.testing.assert_allclose(y, log_softmax(x, axis=1), rtol=1e-12)
    x, w, b, _, *_, y = run("layer_norm")
    x = x.reshape(37, 101)
    centred = x - x.mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(y.reshape(37, 101), wanted, rtol=1e-9)
    x, w, _, *_, y = run("rms_norm")
    x = x.reshape(37, 101)
    wanted = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(y.reshape(37, 101), wanted, rtol=1e-12)
    x, target, _, *_, loss = run("cross_entropy")
    wanted = -log_softmax(x.reshape(37, 101), axis=1)[np.arange(37), target]
    np.testing.assert_allclose(loss, wanted, rtol=1e-10)
    x, _, _, y = run("column_sum")
    np.testing.assert_allclose(y, x.reshape(37, 101).sum(0), rtol=1e-12)


def test_adamw_is_one_step() -> None:
    p, g, m, v, p2, g2, m2, v2 = run("adamw")
    np.testing.assert_array_equal(g2, g)
    np.testing.assert_allclose(m2, 0.9 * m + 0.1 * g, rtol=1e-12)
    np.testing.assert_allclose(v2, 0.999 * v + 0.001 * g * g, rtol=1e-12)
    step = m2 / (1 - 0.9**10) / (np.sqrt(v2 / (1 - 0.999**10)) + 1e-8)
    np.testing.assert_allclose(p2, p * (1 - 1e-5) - 1e-3 * step, rtol=1e-12)


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(1, 64, 64), (5, 1, 7), (6, 8, 1), (1, 1, 1)])
def test_products_of_every_form(form: str, sizes: tuple[int, int, int]) -> None:
    kernel = Prepared(LIBRARY["matmul" if form == "nn" else f"matmul_{form}"].make(dtypes.float64, sizes))
    m, k, n = sizes
    a, b, c = kernel.arrays
    kernel()
    left = a.reshape(k, m).T if form[0] == "t" else a.reshape(m, k)
    right = b.reshape(n, k).T if form[1] == "t" else b.reshape(k, n)
    np.testing.assert_allclose(c.reshape(m, n), left @ right, rtol=1e-12)


def indexed() -> LoopBuilder:
    k = LoopBuilder("take", rows=1)
    number = k.load(dtypes.int64, (1,))
    k.store(k.load(dtypes.float32, (0,), number), dtypes.float32, (1,))
    return k


def test_indexed_memory_is_stated() -> None:
    from_spec = LIBRARY["cross_entropy"].make(dtypes.float32, (4, 5)).work
    with pytest.raises(SpecError, match="how large"):
        placed(from_spec)
    assert "p1[v1]" in str(indexed().spec())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "starts with"),
        ("loop f(row0) vector rows\n  p0: float33[1]", "no dtype"),
        ("loop f(row0) vector rows\n  p1: float32[1]", "expected operand p0"),
        ("loop f(row0) vector rows\n  p0: float32[1]\n  a = load p1", "operand 1 of 1"),
        ("loop f(row0) vector rows\n  p0: float32[1]\n  a = what is this", "no step"),
        ("loop f(row0) vector rows\n  a = x1: float32", "no number"),
    ],
)
def test_wrong_text(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(text)


def test_literals_of_every_kind() -> None:
    lines = ["loop f(row0) vector rows", "  p0: float32[1]"]
    lines += [f"  a{i} = {x}: {d}" for i, (x, d) in enumerate(
        [("-inf", "float32"), ("nan", "float64"), ("1e-05", "float32"), ("-3", "int64"), ("True", "bool")]
    )]  # fmt: skip
    assert str(parse("\n".join(lines))) == "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("form", "other", "form"),
        ("extents", [2000], "leaves its memory"),
        ("extents", [2, 3], "extents"),
        ("strides", [[2], [1]], "do not fit"),
        ("offsets", [-1, 0], "leaves its memory"),
        ("memory", [0], "operands"),
        ("sizes", 7, "no kernel"),
    ],
)
def test_wrong_files(name: str, value: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    save(make("exp"), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(SpecError, match=message):
        load(path)
