"""What is missing for tensors on a GPU is said; CuPy's memory comes from the programs' allocator."""

from __future__ import annotations

import ctypes
import inspect
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import framework as fw
from kernels import philox
from kernels.gpu import arrays, cuda, device, driver, streams
from kernels.gpu.driver import Driver, UnavailableError
from kernels.gpu.standin import StandIn
from kernels.gpu.streams import BODY
from tests import cupy_standin


@contextmanager
def machine(library: StandIn | None, cupy: Any = None) -> Iterator[None]:
    """A machine with this driver library, or none, and with this CuPy, or none."""

    def load() -> Driver:
        return Driver(driver.SharedLibrary("libnowhere.so.1") if library is None else library)

    modules: dict[str, Any] = {"cupy": cupy, "cupyx": None, "cupyx.scipy": None}
    if cupy is not None:
        modules["cupyx"], modules["cupyx.scipy"] = types.ModuleType("cupyx"), types.ModuleType("scipy")
        modules["cupyx.scipy"].special = cupy_standin.special
    with ExitStack() as stack:
        stack.enter_context(patch.object(arrays.Known, "engine", None))
        stack.enter_context(patch.object(driver, "load", load))
        stack.enter_context(patch.dict(device._devices, clear=True))
        stack.enter_context(patch.dict(sys.modules, modules))
        cuda.cuda.cache_clear()
        yield
        cuda.cuda.cache_clear()


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (None, "no NVIDIA driver: .*Install the driver for your GPU"),
        (StandIn(count=0), "GPU"),
        (StandIn(count=-1), "GPU"),
        (StandIn(version=11000), "install driver 525 or later"),
        (StandIn(capability=(7, 5)), r"compute capability 7.5; kernels need 8.0"),
        (StandIn(), r"need CuPy, which cannot be imported .*pip install 'tracefuse\[gpu\]'"),
    ],
)
def test_what_is_missing_is_said(library: StandIn | None, words: str) -> None:
    with machine(library):
        assert not fw.cuda.is_available() and fw.cuda.device_count() == 0
        for make in (
            lambda: fw.zeros(2, device="cuda"),
            lambda: fw.ones(2).cuda(),
            lambda: fw.rand(2, device="cuda:0"),
            lambda: fw.nn.Linear(2, 2).to("cuda"),
            fw.cuda.init,
        ):
            with pytest.raises(RuntimeError, match=words):
                make()
        with pytest.raises(UnavailableError):
            arrays.engine()
        x = fw.ones(2)
        assert x.pin_memory() is x


def test_asking_never_raises() -> None:
    with patch.object(arrays, "engine", side_effect=OSError("a broken library")):
        assert fw.cuda.is_available() is False and not fw.cuda.is_bf16_supported()


def test_cupy_has_its_memory_from_the_allocator_of_programs() -> None:
    made: list[Any] = []
    cupy = types.ModuleType("cupy")
    vars(cupy).update(vars(cupy_standin.xp))
    cupy.__file__ = "/somewhere/cupy/__init__.py"
    vars(cupy)["cuda"] = types.SimpleNamespace(
        set_allocator=made.append,
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
        UnownedMemory=lambda address, size, owner, number: (address, size, owner, number),
        MemoryPointer=lambda memory, offset: (memory, offset),
    )
    with machine(StandIn(), cupy):
        known = arrays.engine()
        assert known.count == 1 and known.sources[0] == "/somewhere/cupy"
        facts = known.facts(0)
        assert facts.name == "stand-in 0" and facts.capability == (9, 0)
        (address, size, block, number), offset = made[0](1000)
        assert (size, number, offset) == (1000, 0, 0) and address == block.address and address % 256 == 0
        assert facts.allocator.memory_stats()["requested_bytes.all.current"] == 1000
        del block
        assert facts.allocator is known.machine(0).allocator
        pinned = facts.pinned(100)
        assert pinned.nbytes == 100 and pinned.base.page_locked


def test_random_streams_of_one_kernel_are_philox(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "philox.c", tmp_path / "philox.so"
    source.write_text(
        "typedef long long n64;\n"
        "void run(const n64* seed, const n64* offset, n64* results, n64 first, n64 stop) {\n"
        f"for (n64 i = first; i < stop; ++i) {{ n64 out; {BODY} results[i - first] = out; }}\n}}\n"
    )
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    run = ctypes.CDLL(str(library)).run
    run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_longlong] * 2
    for seed, offset in ((0, 0), (67280421310721, 5), (-3, 2**40 + 7)):
        words, numbers = np.zeros(1001, np.int64), (np.array(seed), np.array(offset))
        run(*(x.ctypes.data for x in numbers), words.ctypes.data, 0, len(words))
        np.testing.assert_array_equal(words, philox.stream(seed, offset, len(words)))
        far = np.arange(2**34 - 3, 2**34 + 6)
        words = np.zeros(len(far), np.int64)
        run(*(x.ctypes.data for x in numbers), words.ctypes.data, int(far[0]), int(far[-1]) + 1)
        np.testing.assert_array_equal(words, philox.random_bits(seed, offset, far))


def test_one_kernel_is_built_where_kernels_can_be() -> None:
    made: list[Any] = []

    def kernel(*text: str) -> Any:
        made.append(text)
        return lambda seed, offset, size: (seed, offset, size)

    xp: Any = types.ModuleType("cupy")
    xp.ElementwiseKernel = kernel
    assert streams.stream("seed", "offset", 7, xp) == streams.stream("seed", "offset", 7, xp)
    assert [text[2] for text in made] == [BODY]


def test_the_stand_in_has_what_cupy_has() -> None:
    cupy = pytest.importorskip("cupy")
    for line in filter(str.strip, (cupy_standin._FUNCTIONS + cupy_standin._VIEWS).splitlines()):
        name, _, parameters = line.strip().partition("(")
        wanted = inspect.signature(eval(f"lambda {parameters.removesuffix(')')}: None"))
        theirs = inspect.signature(getattr(cupy, name))
        assert list(theirs.parameters) == list(wanted.parameters), name
    for name in cupy_standin._UFUNCS.split():
        assert type(getattr(cupy, name)) is cupy.ufunc, name
        ours, their = getattr(cupy_standin.xp, name), getattr(cupy, name)
        assert ours.ufunc.nin == their.nin, name
    for name in vars(cupy_standin.ndarray):
        if not name.startswith("_"):
            assert hasattr(cupy.ndarray, name), name
    assert callable(cupy.ndarray._set_shape_and_strides)
    scalars = arrays.DeviceScalars(cupy, types.SimpleNamespace(erf=None))
    assert isinstance(scalars.add, cupy.ufunc) and not isinstance(scalars.add, np.ufunc)
    for name in ("UnownedMemory", "MemoryPointer", "set_allocator", "get_current_stream", "Device", "Event"):
        assert hasattr(cupy.cuda, name)
