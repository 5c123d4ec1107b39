"""Arrays in device memory: CuPy, loaded on first use, and the way between there and the host.

Knows arrays, and GPUs by their number; knows no tensors, ops or programs. What works on either kind of array
asks here for what NumPy's own dispatch to CuPy leaves out.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from kernels.dtypes import DType
from kernels.philox import device_bits
from kernels.scalar import NumpyScalars

ndarray = np.ndarray
Array = Any  # of NumPy or of CuPy
_lock = threading.RLock()


class Engine:
    """CuPy, or what stands for it: `xp` has NumPy's names, `special` SciPy's. Of the `count` GPUs
    `machine(number)` is what programs run on, `facts(number)` name, capability and memory. Its Python code is
    in `sources`.
    """

    def __init__(
        self,
        xp: Any,
        special: Any,
        count: int,
        machine: Callable[[int], Any],
        facts: Callable[[int], Any],
        sources: tuple[str, ...],
    ) -> None:
        self.sources = sources
        self.xp, self.count, self.machine, self.facts, self.special = xp, count, machine, facts, special
        self.ndarray: type = xp.ndarray
        self.scalars = DeviceScalars(xp, special)

    @property
    def current(self) -> int:
        """The GPU that "cuda" without a number is."""
        return self.xp.cuda.Device().id


class Known:
    """The engine that was loaded; None before a first use."""

    engine: Engine | None = None

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """Where the engine's Python code is."""
        return () if cls.engine is None else cls.engine.sources


def engine() -> Engine:
    """The engine, loaded now if need be. Raises UnavailableError, saying what is missing."""
    if Known.engine is None:
        from kernels.gpu.engine import load  # with the driver's part: half as much again to import

        with _lock:
            if Known.engine is None:
                Known.engine = load()
    return Known.engine


# Where arrays are


def is_device(x: Any) -> bool:
    """Whether `x` is an array in device memory."""
    return Known.engine is not None and isinstance(x, Known.engine.ndarray)


def is_array(x: Any) -> bool:
    """Whether `x` is an array, wherever."""
    return isinstance(x, ndarray) or is_device(x)


def number_of(x: Any) -> int | None:
    """The GPU that an array is on; None for the host."""
    return x.device.id if is_device(x) else None


def common(operands: Iterable[Any]) -> int | None:
    """The GPU that operands are on, arrays of the host among them or not; None where all are on the host.

    Raises RuntimeError for two GPUs.
    """
    found = None
    for x in operands:
        if is_device(x):
            number = x.device.id
            if found is not None and found != number:
                raise RuntimeError(different(f"cuda:{found}", f"cuda:{number}"))
            found = number
    return found


def different(first: str, second: str) -> str:
    """What is said of operands on different devices."""
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}! Move one with .to(other.device)"
    )


def there(number: int | None) -> Any:
    """A context in which GPU `number` is the current one."""
    known = Known.engine
    if number is None or known is None or known.count == 1:
        return contextlib.nullcontext()
    return known.xp.cuda.Device(number)


def located(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays, run with the GPU of the first one as the current one."""

    @wraps(function)
    def call(x: Any, *others: Any, **named: Any) -> Any:
        with there(number_of(x)):
            return function(x, *others, **named)

    return call


def machine(number: int) -> Any:
    """What programs of GPU `number` run on."""
    with there(number):  # the driver's calls make it the current one
        return engine().machine(number)


def namespace(x: Any) -> Any:
    """The module whose functions make arrays where `x` is."""
    return np if isinstance(x, ndarray) or not is_device(x) else engine().xp


# Between host and devices


def put(x: Any, number: int) -> Array:
    """A row-major copy of a host array on GPU `number`; of one that is there already the array itself, of one
    on another GPU a copy."""
    known = engine()
    with there(number):
        if not isinstance(x, known.ndarray):
            return known.xp.asarray(np.asarray(x, order="C"))
        return x if x.device.id == number else x.copy(order="C")


def get(x: Any) -> Any:
    """The elements on the host: a row-major copy of a device array, anything else itself. Waits."""
    return x.get() if is_device(x) else x


def row_major(x: Any, dtype: Any = None) -> Array:
    """`x` without gaps, of `dtype` if one is given: itself where it is so already. Has no more axes, as
    np.ascontiguousarray might."""
    if type(x) is ndarray and dtype is None and x.flags.c_contiguous:
        return x
    if is_device(x):
        return engine().xp.ascontiguousarray(x, dtype)
    return np.asarray(x, dtype, order="C")


def copied(x: Any) -> Array:
    """A row-major copy in memory of its own, where `x` is."""
    if is_device(x):
        with there(x.device.id):
            return x.copy(order="C")
    return np.array(x, order="C")


def overwrite(target: Array, data: Any) -> None:
    """Put `data`, converted and broadcast, into the memory of `target`; from any device."""
    number = number_of(target)
    if number is None:
        np.copyto(target, get(data), casting="unsafe")
        return
    with there(number):
        source = put(data, number) if is_array(data) else data
        engine().xp.copyto(target, source, casting="unsafe")


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Array:
    """New memory on GPU `number`."""
    with there(number):
        return engine().xp.empty(shape, dtype)


# Memory


def address(x: Array) -> int:
    """Where element 0, ..., 0 is."""
    return x.data.ptr if is_device(x) else x.ctypes.data


def bounds(x: Array) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one after its last."""
    if not is_device(x):
        return byte_bounds(x)
    first = x.data.ptr
    if not x.size:
        return first, first
    steps = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + x.itemsize


def strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of the memory of `x`, with strides in bytes."""
    if not is_device(x):
        return np.lib.stride_tricks.as_strided(x, shape, strides)
    # CuPy's as_strided makes an array that does not tell whose memory it views.
    view = x.view()
    view._set_shape_and_strides(shape, strides, True, True)
    return view


def share(x: Array, y: Array) -> bool:
    """Whether arrays may have memory in common."""
    if is_device(x) or is_device(y):
        (low, high), (start, stop) = bounds(x), bounds(y)
        return number_of(x) == number_of(y) and low < stop and start < high
    return np.may_share_memory(x, y)


def flat_over(x: Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    """A view of flat `x` from element `offset` on, with strides in elements."""
    size = x.itemsize
    if is_device(x):
        return strided(x[offset:] if math.prod(shape) else x[:0], shape, tuple(s * size for s in strides))
    return np.ndarray(shape, x.dtype, x, offset * size, tuple(s * size for s in strides))


class DeviceScalars(NumpyScalars):
    """The vocabulary on device arrays: CuPy's functions under NumPy's names.

    Differences to the host: exp and its kind round as CUDA's do, and what a float outside the range of an
    integer dtype becomes.
    """

    def __init__(self, xp: Any, special: Any) -> None:
        for word, function in vars(NumpyScalars).items():
            plain = function.__func__ if isinstance(function, staticmethod) else None
            if isinstance(plain, np.ufunc):
                setattr(self, word, getattr(xp, plain.__name__))
        self.xp, self.erf = xp, special.erf

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return self.xp.where(condition, x, y)

    @staticmethod
    def cast(x: Any, dtype: DType) -> Any:
        return x.astype(dtype.numpy)

    def random_bits(self, seed: Any, offset: Any, i: Any) -> Any:
        return device_bits(seed, offset, i, self.xp)
