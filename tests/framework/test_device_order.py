"""Order, running totals and positions of tensors on a GPU: what the CPU gives, and nothing goes through it.

On a stand-in for CuPy, whose second device is used while the first is the current one.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framework as fw
from kernels.gpu import arrays, ordering
from tests import cupy_standin

FLOATS = (fw.float32, fw.float64, fw.float16, fw.bfloat16)
NUMBERS = (*FLOATS, fw.int64, fw.int32, fw.int16, fw.int8, fw.uint8)


@pytest.fixture(autouse=True, scope="module")
def devices() -> Iterator[None]:
    with cupy_standin.installed():
        yield


@pytest.fixture
def kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but single numbers be copied to the host."""
    get = cupy_standin.ndarray.get

    def few(self: Any, *rest: Any, **named: Any) -> Any:
        assert self.size <= 1, f"{self.dtype}{list(self.shape)} is copied to the host"
        return get(self, *rest, **named)

    monkeypatch.setattr(cupy_standin.ndarray, "get", few)


def same(there: Any, here: Any) -> None:
    """Results, or tuples of them, have the types and the bits of those on the CPU."""
    if isinstance(here, tuple):
        assert len(there) == len(here)
        for a, b in zip(there, here, strict=True):
            same(a, b)
        return
    assert str(there.device) == "cuda:1" and here.device.type == "cpu"
    assert there.dtype is here.dtype and tuple(there.shape) == tuple(here.shape)
    data = fw.Tensor.detach(there)._data
    assert bytes(data._array.tobytes()) == here.detach().contiguous().numpy().tobytes()


def numbers(dtype: Any, *shape: int) -> Any:
    """Numbers with many ties; of floats some are NaN, infinite, or a zero with a sign."""
    random = np.random.default_rng(len(shape))
    drawn = random.integers(0 if dtype is fw.uint8 else -4, 5, shape).astype(np.float64)
    if dtype in FLOATS:
        drawn[random.random(shape) < 0.1] = np.nan
        drawn[random.random(shape) < 0.1] = -0.0
        drawn[random.random(shape) < 0.1] = -np.inf
    return fw.tensor(drawn, dtype=dtype)


ORDERED: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: tuple(x.sort(1)),
    "sort_first": lambda x: tuple(x.sort(0, descending=True)),
    "argsort": lambda x: x.argsort(-1, stable=True),
    "topk": lambda x: tuple(x.topk(3, 1)),
    "lowest": lambda x: tuple(x.topk(2, 0, largest=False)),
    "kthvalue": lambda x: tuple(x.kthvalue(2, 1)),
    "median": lambda x: tuple(x.median(1, keepdim=True)),
    "median_of_all": lambda x: x.median(),
    "nanmedian": lambda x: tuple(x.nanmedian(0)),
    "nanmedian_of_all": lambda x: x.nanmedian(),
    "cummax": lambda x: tuple(x.cummax(1)),
    "cummin": lambda x: tuple(x.cummin(0)),
    "unique_consecutive": lambda x: fw.unique_consecutive(x, return_inverse=True, return_counts=True),
    "unique_slices": lambda x: fw.unique_consecutive(x, return_inverse=True, return_counts=True, dim=1),
    "nonzero": lambda x: x.nonzero(),
    "nonzero_axes": lambda x: x.nonzero(as_tuple=True),
    "isin": lambda x: fw.isin(x, x[0]),
    "not_isin": lambda x: fw.isin(x, x[0, :0], invert=True),
    "searched": lambda x: fw.searchsorted(x[0].sort().values, x),
    "searched_rows": lambda x: fw.searchsorted(x.sort(1).values, x, right=True, out_int32=True),
    "sorter": lambda x: fw.searchsorted(x, x, sorter=x.argsort(1)),
    "scatter": lambda x: x.scatter(1, (x != x).long() + (x == 1), x * 2),
    "multiplied": lambda x: x.scatter(1, (x != x).long() + (x == 1), x, reduce="multiply"),
    "multiplied_number": lambda x: x.scatter(0, (x[:4] > 0).long(), 3, reduce="multiply"),
    "scatter_few": lambda x: x.scatter(0, fw.zeros_like(x[:2, :3]).long(), 3),
    "rows_put": lambda x: _put(x.clone()),
    "index_copy": lambda x: x.index_copy(1, (x[0, :3] == x[0, :3]).long(), x[:, 2:5]),
    "repeated": lambda x: x.repeat_interleave((x[0] == x[0]).long() + 1, 1),
    "masked": lambda x: x.masked_scatter(x > 0, x.flatten().contiguous()),
}  # fmt: skip


def _put(x: Any) -> Any:
    x[(x[:, 0] != x[:, 0]).long()] = x.clone()
    return x


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.usefixtures("kept_there")
def test_as_on_the_cpu(name: str, dtype: Any) -> None:
    x = numbers(dtype, 5, 7)
    same(ORDERED[name](x.cuda(1)), ORDERED[name](x))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.usefixtures("kept_there")
def test_distinct_elements(dtype: Any) -> None:
    x = numbers(dtype, 5, 7)
    there, here = (fw.unique(t, return_inverse=True, return_counts=True) for t in (x.cuda(1), x))
    same(there[1:], here[1:])
    # Which of two zeros stands for both is open.
    same(there[0] + 0, here[0] + 0)
    for y, dim in ((x, 0), (x.clamp(-1, 1)[:, :2], 0), (x[:1].clamp(0, 1), 1), (x[:, :0], 0), (x[:0], 0)):
        there, here = (fw.unique(t, return_inverse=True, return_counts=True, dim=dim) for t in (y.cuda(1), y))
        same(there[1:], here[1:])
        same(there[0] + 0, here[0] + 0)


@pytest.mark.usefixtures("kept_there")
def test_running_totals() -> None:
    x = fw.tensor(np.random.default_rng(0).integers(-3, 4, (3, 70)))
    for y in (x, x.int(), x > 0, x.float(), x.half()):
        same(y.cuda(1).cumsum(1), y.cumsum(1))
        same(y.cuda(1).cumsum(0), y.cumsum(0))
    same(x.cuda(1).cumprod(1), x.cumprod(1))
    same(x.cuda(1).int().cumsum(1, dtype=fw.int8), x.int().cumsum(1, dtype=fw.int8))


def test_running_totals_of_floats_are_near() -> None:
    for dtype, bound in ((fw.float32, 1e-5), (fw.float64, 1e-13), (fw.bfloat16, 1e-1)):
        x = fw.randn(4, 1000, dtype=dtype)
        there, here = x.cuda(1).cumsum(1).cpu().double(), x.cumsum(1).double()
        np.testing.assert_allclose(there.numpy(), here.numpy(), 0, bound * 30)
        product = (1 + x / 100).cuda(1).cumprod(1).cpu().double()
        np.testing.assert_allclose(product.numpy(), (1 + x / 100).cumprod(1).double().numpy(), bound * 10)
    leaf = fw.randn(3, 5).requires_grad_()
    leaf_there = leaf.detach().cuda(1).requires_grad_()
    (leaf.cumsum(1) * 2).sum().backward()
    (leaf_there.cumsum(1) * 2).sum().backward()
    assert fw.allclose(leaf_there.grad.cpu(), leaf.grad)


@pytest.mark.usefixtures("kept_there")
def test_counts() -> None:
    x = fw.tensor([3, 0, 3, 1, 7], dtype=fw.int32)
    w = fw.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    for weights in (None, w, w.double(), x):
        there = None if weights is None else weights.cuda(1)
        same(fw.bincount(x.cuda(1), there, 2), fw.bincount(x, weights, 2))
    same(fw.bincount(x[:0].cuda(1), minlength=3), fw.bincount(x[:0], minlength=3))
    for bad in (fw.tensor([1, -1]), fw.tensor([1, -1]).cuda(1)):
        with pytest.raises(ValueError, match="no negative"):
            fw.bincount(bad)
    with pytest.raises(ValueError, match="same length"):
        fw.bincount(x.cuda(1), w[:2].cuda(1))
    for y in (fw.randn(300), fw.randn(300).double(), fw.tensor([2.0, 2.0]), fw.linspace(0, 1, 11)):
        same(fw.histc(y.cuda(1), 10), fw.histc(y, 10))
        same(fw.histc(y.cuda(1), 7, -0.5, 0.5), fw.histc(y, 7, -0.5, 0.5))


@pytest.mark.usefixtures("kept_there")
def test_drawing() -> None:
    weights = fw.tensor([[0.0, 1.0, 3.0, 0.0, 2.0], [1.0, 0.0, 0.0, 5.0, 0.5]])
    for draw in (
        lambda w: fw.multinomial(w, 40, True),
        lambda w: fw.multinomial(w, 2),
        lambda w: fw.multinomial(w[0], 1),
        lambda w: fw.randperm(50, device=w.device),
    ):
        fw.manual_seed(3)
        here = draw(weights)
        fw.manual_seed(3)
        same(draw(weights.cuda(1)), here)
    for bad in ([[-1.0, 2.0]], [[float("nan"), 2.0]]):
        with pytest.raises(RuntimeError, match="inf"):
            fw.multinomial(fw.tensor(bad).cuda(1), 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.usefixtures("kept_there")
def test_functions_of_elements(dtype: Any) -> None:
    x = fw.linspace(-0.9, 0.9, 13, dtype=dtype)
    for function in (fw.asin, fw.acos, fw.atan, fw.asinh, fw.atanh, fw.signbit, fw.erfinv, fw.lgamma):
        same(function(x.cuda(1)), function(x))
    same(fw.acosh(x.cuda(1) + 3), fw.acosh(x + 3))
    same(fw.digamma(x.cuda(1) + 3), fw.digamma(x + 3))
    leaves = [(x + 3).requires_grad_(), (x.cuda(1) + 3).requires_grad_()]
    for leaf in leaves:
        fw.digamma(leaf).sum().backward()
    same(leaves[1].grad, leaves[0].grad)
    same(fw.atan2(x.cuda(1), x.cuda(1)[:1]), fw.atan2(x, x[:1]))
    same(fw.copysign(x.cuda(1), x.cuda(1) * 0), fw.copysign(x, x * 0))


def test_bad_positions() -> None:
    x = fw.zeros(2, 3, device="cuda:1")
    with pytest.raises(IndexError, match="index 3 is out of range for a dimension of size 3"):
        x.scatter(1, fw.tensor([[0, 3]]).cuda(1), 1.0)
    with pytest.raises(RuntimeError, match="negative"):
        x.repeat_interleave(fw.tensor([1, -1]).cuda(1), 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_at_positions_are_in_order(dtype: Any) -> None:
    random = np.random.default_rng(0)
    x, source = (fw.tensor(random.standard_normal((2, n, 5)) * 100.0, dtype=dtype) for n in (4, 60))
    index = fw.tensor(random.integers(0, 4, 60))
    each = fw.tensor(random.integers(0, 4, (2, 60, 5)))
    same(x.cuda(1).index_add(1, index.cuda(1), source.cuda(1)), x.index_add(1, index, source))
    same(x.cuda(1).scatter_add(1, each.cuda(1), source.cuda(1)), x.scatter_add(1, each, source))


@pytest.mark.parametrize("body", [ordering.BODY, ordering.PRODUCTS], ids=["sums", "products"])
def test_the_kernel_of_totals(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    code, library = tmp_path / "add.c", tmp_path / "add.so"
    code.write_text(
        "typedef float T; typedef long long n64;\n"
        "void run(const n64* at, const n64* order, const T* source, n64 count, n64 inner, n64 length, T* out,"
        f" n64 size) {{\nfor (n64 i = size - 1; i >= 0; --i) {{ {body} }}\n}}\n"
    )
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(code), "-o", str(library)], check=True)
    run, kernels = ctypes.CDLL(str(library)).run, list[tuple[Any, ...]]()

    def kernel(*text: str) -> Any:
        kernels.append(text)

        def call(*given: Any, size: int) -> None:
            pointers = [x if isinstance(x, int) else x.data.ptr for x in given]
            run(*map(ctypes.c_longlong, (*pointers, size)))

        return call

    xp = types.ModuleType("cupy")
    vars(xp).update({**vars(cupy_standin.xp), "ElementwiseKernel": kernel})
    monkeypatch.setattr(arrays.engine(), "xp", xp)
    random = np.random.default_rng(1)
    for outer, length, inner, count in (
        (1, 5, 1, 40),
        (1, 9, 1, 30),
        (1, 3, 7, 30),
        (2, 4, 3, 9),
        (1, 1, 1, 1),
        (2, 3, 4, 0),
    ):
        out = random.standard_normal((outer, length, inner)).astype(np.float32)
        source = random.standard_normal((outer, count, inner)).astype(np.float32)
        index = random.integers(0, length, count)
        there = arrays.put(out, 0)
        given = arrays.put(index, 0), arrays.put(source, 0)
        if body is ordering.BODY:
            ordering.add_rows(there, *given)
            np.add.at(out, (slice(None), index), source)
        elif outer == inner == 1:
            ordering.multiply_at(there.reshape(-1), given[0], given[1].reshape(-1))
            np.multiply.at(out, (slice(None), index), source)
        assert there.get().tobytes() == out.tobytes()
    assert len(kernels) == 1 and kernels[0][2] is body
