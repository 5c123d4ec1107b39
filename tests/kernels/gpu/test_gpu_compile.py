"""Launches to machine code for four architectures: the cache, and what the code of products is made of."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernels import cache, dtypes
from kernels.dtypes import DType
from kernels.errors import BuildError
from kernels.gpu import compile as compilation
from kernels.gpu.code import Code
from kernels.gpu.compile import ARCHITECTURES, cached, compile_all, compiled, digest
from kernels.gpu.inspection import SHARED, Access, inspect
from kernels.gpu.launch import Launch
from kernels.gpu.matmul import render
from kernels.gpu.product_tiles import Tile
from kernels.gpu.quality import failures
from kernels.library import matmul
from kernels.spec import PRODUCT, Call, Index, Literal, Load, MatmulSpec, Operand, Store
from kernels.work import Work

needs_triton = pytest.mark.skipif(compilation.triton_version() is None, reason="Triton is not installed")
F, H, B, D = dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64


def product(
    form: str = "nn", dtype: DType = F, size: int = 256, cut: Tile | None = None, tf32: bool = False
) -> Launch:
    return render(matmul("product", form, dtype, (size, size, size)).work, tf32=tf32, cut=cut)


def code_of(launch: Launch) -> Code:
    """Something that the cache may hold for a launch."""
    types = tuple(p.type for p in launch.parameters)
    version = compilation.triton_version() or "3"
    return Code("sm_90", "kernel", b"\x7fELF\n", "// PTX\n", 4, 128, 1024, types, 0, 1, version)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEFUSE_CACHE", str(tmp_path))


def test_code_survives_the_cache() -> None:
    code = code_of(product())
    assert Code.from_bytes(code.as_bytes()) == code


def test_cached_code_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = product()
    code = code_of(launch)
    cache.write(digest(launch, "sm_90"), code.as_bytes())
    for name in [m for m in sys.modules if m.split(".")[0] == "triton"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(compilation, "triton_version", lambda: None)
    assert compiled(launch, "sm_90") == code
    with pytest.raises(
        BuildError, match=r"product for sm_80 .* needs Triton.*pip install 'tracefuse\[gpu\]'"
    ):
        compiled(launch, "sm_80")


def test_code_of_another_triton_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = product()
    name = digest(launch, "sm_90")
    cache.write(name, code_of(launch).as_bytes())
    assert cached(name) is not None
    monkeypatch.setattr(compilation, "triton_version", lambda: "0.1")
    assert cached(name) is None


def test_everything_that_decides_about_the_code_is_in_its_name() -> None:
    launch = product()
    first = replace(launch.parameters[0], divisibility=4)
    others = [
        replace(launch, source=launch.source + "\n"),
        replace(launch, parameters=(first, *launch.parameters[1:])),
        replace(launch, constants=(*launch.constants[:-1], ("GROUP", 4))),
        replace(launch, warps=8),
        replace(launch, stages=1),
        replace(launch, exact=False),
    ]
    names = {digest(x, "sm_90") for x in (launch, *others)} | {digest(launch, "sm_80")}
    assert len(names) == len(others) + 2
    same = replace(launch, name="other", grid=(1, 1, 1), arguments=(1,) * len(launch.arguments))
    assert digest(same, "sm_90") == digest(launch, "sm_90")


@needs_triton
def test_compiling_fills_the_cache_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = product(cut=Tile(16, 16, 16, 1, 1))
    requests = [(launch, "sm_80"), (launch, "gfx942"), (replace(launch, name="again"), "sm_80")]
    first = compile_all(requests)
    assert first[0] == first[2] and [c.architecture for c in first[:2]] == ["sm_80", "gfx942"]
    assert first[0].types == tuple(p.type for p in launch.parameters)
    assert (first[0].threads, first[1].threads) == (32, 64)
    monkeypatch.setattr(compilation, "_attempt", None)
    assert compile_all(requests) == first


@needs_triton
def test_what_cannot_be_compiled_is_named() -> None:
    with pytest.raises(BuildError, match=r"product does not compile for turing.*sm_90"):
        compiled(product(), "turing")
    wrong = replace(product(), source="def kernel(p0):\n    nothing(p0)\n")
    with pytest.raises(BuildError, match="product does not compile for sm_90"):
        compiled(wrong, "sm_90")


PTX = """\
.visible .entry kernel(
.param .u64 .ptr .global .align 16 kernel_param_0,
.param .u64 .ptr .global .align 1 kernel_param_1,
.param .u32 kernel_param_2
)
ld.param.b64 %rd1, [kernel_param_0];
ld.param.b64 %rd2, [kernel_param_1];
ld.param.b32 %r1, [kernel_param_2];
mov.u32 %r2, %tid.x;
mul.wide.s32 %rd3, %r2, 4;
add.s64 %rd4, %rd1, %rd3;
@%p1 ld.global.L1::evict_last.v4.b32 { %r3, %r4, %r5, %r6 }, [ %rd4 + 0 ];
ld.global.b32 %r7, [%rd2];
mul.wide.s32 %rd5, %r7, 4;
add.s64 %rd6, %rd1, %rd5;
ld.global.b16 %rs1, [%rd6];
cp.async.cg.shared.global [ %r8 + 0 ], [ %rd4 + 0 ], 0x10, %r9;
st.global.v2.b64 [ %rd4 + 16 ], { %rd8, %rd9 };
add.f64 %fd1, %fd2, %fd3;
"""


def test_accesses_are_found_by_pointer_and_width() -> None:
    code = replace(code_of(product()), assembly=PTX, architecture="gfx942")
    assert inspect(code).wide == 0
    from_ptx = inspect(replace(code, architecture="sm_90", binary=no_notes()))
    assert set(from_ptx.accesses) == {
        Access("load", 0, 128, False, 1),
        Access("load", 1, 32, True, 1),
        Access("load", 0, 16, False, 1),
        Access("copy", 0, 128, False, 1),
        Access("store", 0, 128, False, 1),
    }
    assert from_ptx.widths == {"copy 128": 1, "load 128": 1, "load 16": 1, "store 128": 1}
    assert from_ptx.wide == 1


def no_notes() -> bytes:
    """A file in ELF form without sections."""
    return bytes(64)


@needs_triton
@pytest.mark.parametrize("form", ["nn", "nt", "tn"])
@pytest.mark.parametrize("dtype, tf32", [(F, False), (F, True), (H, False), (B, False)])
def test_products_are_wide_and_on_tensor_cores(form: str, dtype: DType, tf32: bool) -> None:
    launch = product(form, dtype, tf32=tf32)
    for code in compile_all([(launch, a) for a in ARCHITECTURES]):
        found = inspect(code)
        assert found.spilled == 0 and found.memory <= SHARED[code.architecture], found
        assert found.wide == 0, found
        assert bool(found.tensor) or not (dtype.compute or tf32), found
        # From registers AMD's matrix cores leave a row's neighbours in, halves are stored in eights of bytes.
        half_store = {"store 64"} if dtype.compute and code.architecture == "gfx942" else set()
        # Hopper and Blackwell take TF32 from shared memory along k only: others are copied one by one.
        turned = {"copy 32"} if tf32 and form != "nt" and code.architecture in ("sm_90", "sm_100") else set()
        wide = {"copy 128", "load 128", "store 128"} | half_store | turned
        assert set(found.widths) <= wide, (code.architecture, found)


@needs_triton
def test_float64_products_are_float64() -> None:
    for code in compile_all([(product("nn", D), a) for a in ARCHITECTURES]):
        found = inspect(code)
        assert found.spilled == 0 and found.tensor and found.wide > 0, found


@needs_triton
def test_spills_are_seen() -> None:
    found = inspect(compiled(product(dtype=H, cut=Tile(128, 64, 16, 1, 1)), "sm_80"))
    assert found.spilled > 0 and found.registers == 255


def epilogue(n: int, images: int = 8) -> Work:
    """Dropout of gelu's erf of a batch of products plus a bias, and the mask."""
    long = dtypes.int64
    whole, column, nothing = ("s", "s", 1), (0, 0, 1), (0, 0, 0)
    forms = (whole, whole, whole, whole, nothing, whole, column)
    kinds = (F, F, F, dtypes.bool_, long, long, F)
    steps = (
        Load("seed", 4),
        Index("place", 5),
        Call("drawn", "random_bits", ("seed", "seed", "place"), long),
        Literal("half", 2**31, long),
        Call("kept", "lt", ("drawn", "half"), dtypes.bool_),
        Literal("zero", 0.0, F),
        Load("bias", 6),
        Call("sum", "add", (PRODUCT, "bias"), F),
        Call("bell", "erf", ("sum",), F),
        Call("result", "where", ("kept", "bell", "zero"), F),
        Store("result", 2),
        Store("kept", 3),
    )
    operands = tuple(Operand(kind, form) for kind, form in zip(kinds, forms, strict=True))
    spec = MatmulSpec("dropout", 1, F, 4, 2, operands, steps)
    strides = tuple((n * n, n, 1) if form is whole else form for form in forms)
    return Work(spec, (images, n, n, n), strides, (0,) * len(forms))


def convolution(channels: int) -> Work:
    """3x3 windows of 28x28 images in channels-last order."""
    width, out = 28 * channels, 32
    operands = (
        Operand(F, ("s", "s", "s", "s", 1)),
        Operand(F, (0, 0, "s", "s", 1)),
        Operand(F, ("s", "s", "s", 1)),
    )
    spec = MatmulSpec("convolution", 2, F, 4, 2, operands, (Store(PRODUCT, 2),), depth=2)
    strides = (
        (28 * width, width, channels, width, 1),
        (0, 0, 3 * channels * out, out, 1),
        (26 * 26 * out, 26 * out, out, 1),
    )
    return Work(spec, (64, 26, 26, out, 3, 3 * channels), strides, (0, 0, 0))


@needs_triton
def test_epilogues_convolutions_flags_and_wide_offsets_compile_well() -> None:
    works = [epilogue(256), convolution(1), convolution(32), epilogue(8192, 40)]
    launches = [render(work, flags=2 * (number == 0)) for number, work in enumerate(works)]
    assert [any(p.type == "i64" for p in x.parameters[-3:]) for x in launches] == [False, False, False, True]
    requests = [(launch, a) for launch in launches for a in ("sm_80", "gfx942")]
    for (launch, _), code in zip(requests, compile_all(requests), strict=True):
        work = works[launches.index(launch)]
        assert failures(work, launch, inspect(code)) == [], (launch, code.architecture)
