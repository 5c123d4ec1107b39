"""NVIDIA's driver library through ctypes: finding it, its calls, its error codes, and what is missing where
it cannot be used.

Knows C types and names; what a device, a stream or a graph is, `kernels/gpu/device.py` says. A library is
anything that gives addresses of functions, so that a stand-in can take the driver's place.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
)
from typing import Any, Protocol

from kernels.errors import KernelError

# The driver that speaks CUDA 12.0: the oldest that takes object code made by a compiler of that generation.
OLDEST_DRIVER = 12000
_OUT_OF_MEMORY, _NO_DEVICE, _NO_BINARY, _NOT_READY = 2, 100, 209, 600
_INVALID_PTX, _UNSUPPORTED_PTX = 218, 222


class CudaError(KernelError, RuntimeError):
    """A call that the driver refused: `code` and `name` as CUDA has them, and the driver's own words."""

    def __init__(self, call: str, code: int, name: str, words: str) -> None:
        self.code, self.name = code, name
        hint = _HINTS.get(code, "")
        super().__init__(f"{call}: {name} ({code}): {words}{hint}")


class OutOfMemoryError(CudaError):
    """The device has no memory left for an allocation."""


class UnavailableError(KernelError, RuntimeError):
    """No GPU can be used: the message says what is missing and how to get it."""


_TOO_NEW = (
    "; the object code was made for another GPU or by a newer compiler than the driver knows: update the "
    "driver, or install the Triton release that came with it"
)
_HINTS = {
    _NO_BINARY: _TOO_NEW,
    _INVALID_PTX: _TOO_NEW,
    _UNSUPPORTED_PTX: _TOO_NEW,
    700: "; a kernel launched earlier read or wrote outside its memory: nothing more runs in this process",
    719: "; a kernel launched earlier failed: nothing more runs in this process",
}


class LaunchConfig(Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class KernelNode(Structure):
    """CUDA_KERNEL_NODE_PARAMS: the first version, and the two fields that the second adds, which stay 0."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


_HANDLE, _ADDRESS, _OUT = c_void_p, c_uint64, POINTER(c_void_p)
_NODE = (_OUT, _HANDLE, _HANDLE, c_size_t)
# Every call that is made, with its arguments.
CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_OUT, c_void_p),
    "cuModuleGetFunction": (_OUT, _HANDLE, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, _HANDLE),
    "cuFuncSetAttribute": (_HANDLE, c_int, c_int),
    "cuLaunchKernelEx": (_HANDLE, _HANDLE, _HANDLE, _HANDLE),
    "cuMemGetInfo": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc": (POINTER(c_uint64), c_size_t),
    "cuMemFree": (_ADDRESS,),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (_HANDLE,),
    "cuMemcpyHtoDAsync": (_ADDRESS, _HANDLE, c_size_t, _HANDLE),
    "cuMemcpyDtoHAsync": (_HANDLE, _ADDRESS, c_size_t, _HANDLE),
    "cuMemcpyDtoDAsync": (_ADDRESS, _ADDRESS, c_size_t, _HANDLE),
    "cuMemsetD8Async": (_ADDRESS, c_ubyte, c_size_t, _HANDLE),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy": (_HANDLE,),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamQuery": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, c_uint),
    "cuStreamBeginCapture": (_HANDLE, c_int),
    "cuStreamEndCapture": (_HANDLE, _OUT),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventDestroy": (_HANDLE,),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventQuery": (_HANDLE,),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (POINTER(c_float), _HANDLE, _HANDLE),
    "cuGraphCreate": (_OUT, c_uint),
    "cuGraphDestroy": (_HANDLE,),
    "cuGraphAddKernelNode": (*_NODE, _HANDLE),
    "cuGraphAddEmptyNode": _NODE,
    "cuGraphInstantiateWithFlags": (_OUT, _HANDLE, c_uint64),
    "cuGraphExecKernelNodeSetParams": (_HANDLE, _HANDLE, _HANDLE),
    "cuGraphExecDestroy": (_HANDLE,),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
}
# Those that the library has under their name and _v2: sizes became 64 bits wide.
_SECOND_VERSION = frozenset(
    "cuDeviceTotalMem cuMemGetInfo cuMemAlloc cuMemFree cuMemcpyHtoDAsync cuMemcpyDtoHAsync "
    "cuMemcpyDtoDAsync cuStreamDestroy cuStreamBeginCapture cuEventDestroy".split()
)


class Library(Protocol):
    """What has functions of the driver's names."""

    def address(self, symbol: str) -> int:
        """Where the function `symbol` is; 0 when there is none."""
        ...


class SharedLibrary:
    """libcuda of this machine. Raises UnavailableError where there is none."""

    def __init__(self, name: str = "libcuda.so.1") -> None:
        try:
            self.library = ctypes.CDLL(name)
        except OSError as error:
            raise UnavailableError(
                f"no NVIDIA driver: {error}. Install the driver for your GPU (nvidia.com/drivers); in a "
                "container, start it with the GPUs visible (docker run --gpus all)"
            ) from None

    def address(self, symbol: str) -> int:
        """As Library.address."""
        function = getattr(self.library, symbol, None)
        return ctypes.cast(function, c_void_p).value or 0 if function is not None else 0


class Driver:
    """The calls of a library, initialised. Raises UnavailableError, saying what is missing.

    `call` raises what a call returns; `functions` are the bare calls for who looks at the code itself. Any
    thread may call. After a fork every call of the child raises.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.functions = {name: self._bind(name, types) for name, types in CALLS.items()}
        _drivers.add(self)
        code = self.functions["cuInit"](0)
        if code == _NO_DEVICE:
            raise UnavailableError(_NO_GPU)
        if code:
            raise UnavailableError(f"the NVIDIA driver does not start: {self.error('cuInit', code)}")
        self.version = self.integer("cuDriverGetVersion")
        if self.version < OLDEST_DRIVER:
            raise UnavailableError(
                f"the NVIDIA driver speaks CUDA {_spoken(self.version)}, older than "
                f"{_spoken(OLDEST_DRIVER)}: install driver 525 or later"
            )
        self.count = self.integer("cuDeviceGetCount")
        if self.count == 0:
            raise UnavailableError(_NO_GPU)

    def _bind(self, name: str, types: tuple[Any, ...]) -> Callable[..., int]:
        symbol = f"{name}_v2" if name in _SECOND_VERSION else name
        address = self.library.address(symbol)
        if not address:
            raise UnavailableError(
                f"the NVIDIA driver has no {symbol}, which came with CUDA {_spoken(OLDEST_DRIVER)}: install "
                "driver 525 or later"
            )
        return CFUNCTYPE(c_int, *types)(address)

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call. Raises CudaError with the driver's words when it fails."""
        code = self.functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def integer(self, name: str, *arguments: int) -> int:
        """What a call writes to its first argument, an int."""
        found = c_int()
        self.call(name, byref(found), *arguments)
        return found.value

    def handle(self, name: str, *arguments: Any) -> int:
        """What a call makes and writes to its first argument."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made.value or 0

    def ready(self, name: str, handle: int) -> bool:
        """Whether a query says that all is done."""
        code = self.functions[name](handle)
        if code not in (0, _NOT_READY):
            raise self.error(name, code)
        return code == 0

    def error(self, name: str, code: int) -> CudaError:
        """The exception for a code that call `name` returned."""
        text = [c_char_p(), c_char_p()]
        for get, into in zip(("cuGetErrorName", "cuGetErrorString"), text, strict=True):
            self.functions[get](code, byref(into))
        title, words = ((t.value or b"unknown error").decode() for t in text)
        return (OutOfMemoryError if code == _OUT_OF_MEMORY else CudaError)(name, code, title, words)


_NO_GPU = (
    "the NVIDIA driver is here, but no GPU: check `nvidia-smi`, the environment variable "
    "CUDA_VISIBLE_DEVICES, and in a container whether its GPUs are visible (docker run --gpus all)"
)
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()
_lock = threading.Lock()
_loaded: Driver | None = None


def _spoken(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def load() -> Driver:
    """This machine's driver, started once a process. Raises UnavailableError, saying what is missing."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = Driver(SharedLibrary())
        return _loaded


def missing() -> str | None:
    """Why no GPU can be used; None when one can."""
    try:
        load()
    except UnavailableError as error:
        return str(error)
    return None


def _refuse(*_: Any) -> int:
    raise UnavailableError(
        "CUDA was started before this process was forked, and does not work in the child: start processes "
        "with the method 'spawn', or use the GPU only after the fork"
    )


def _after_fork() -> None:
    """Another thread of the parent may have held the lock; and no call may reach the parent's driver."""
    global _lock
    _lock = threading.Lock()
    for driver in _drivers:
        driver.functions = dict.fromkeys(CALLS, _refuse)


os.register_at_fork(after_in_child=_after_fork)
