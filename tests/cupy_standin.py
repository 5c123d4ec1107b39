"""A stand-in for CuPy on host memory, as strict as CuPy: what works with it works with CuPy's arrays too.

Its array is no np.ndarray, refuses to become one, takes no np.ndarray for an operand, has only the functions,
parameters and methods that CuPy 14 has, of which only those used here, and belongs to one of several devices,
that must be the current one. Its memory comes from the allocator of device memory.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special as scipy_special

from kernels.gpu.arrays import Engine, Known
from kernels.gpu.emulator import Emulator
from kernels.gpu.memory import Allocator, Block
from kernels.memory import bytes_at
from tests import cuda_standin
from tests.cuda_standin import COUNT, Device, Event, Stream, current, current_stream, elapsed

_SCALARS = bool | int | float | np.generic


class Source:
    """Host memory for an allocator; what is freed is overwritten first."""

    def __init__(self) -> None:
        self.held: dict[int, np.ndarray[Any, Any]] = {}

    def allocate(self, size: int) -> int:
        memory = np.full(size + 256, 0xA5, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.held[address] = memory
        return address

    def free(self, address: int) -> None:
        self.held.pop(address)[...] = 0xDD

    def event(self) -> Any:
        return Event()


# A machine that stands for the only device, with memory of its own.
_machines: dict[int, Any] = {}


def allocator(number: int) -> Allocator:
    """The memory of one device."""
    return _machines[number].allocator if _machines else _allocator(number)


@cache
def _allocator(number: int) -> Allocator:
    return Allocator(Source())


def machine(number: int) -> Any:
    """What programs of one device run on; to make one is to make its device the current one."""
    assert current.device == number
    return _machines[number] if _machines else _emulator(number)


@cache
def _emulator(number: int) -> Emulator:
    return Emulator()


class Flags:
    """As cupy.ndarray.flags."""

    def __init__(self, array: np.ndarray[Any, Any], owned: bool) -> None:
        self.c_contiguous = array.flags.c_contiguous
        self.f_contiguous = array.flags.f_contiguous
        self.owndata = owned


class Pointer:
    """As cupy.cuda.MemoryPointer."""

    def __init__(self, ptr: int, device: Device) -> None:
        self.ptr, self.device = ptr, device


def _allocated(shape: Any, dtype: Any) -> ndarray:
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    block = allocator(current.device).allocate(size)
    made = object.__new__(ndarray)
    made._array = bytes_at(block.address, size).view(dtype).reshape(shape)
    made.base, made._block, made._number = None, block, current.device
    return made


def _own(array: Any) -> ndarray:
    """New memory with the elements of a host array."""
    array = np.asarray(array)
    made = _allocated(array.shape, array.dtype)
    made._array[...] = array
    return made


def _viewing(array: np.ndarray[Any, Any], source: ndarray) -> ndarray:
    """`array`, of the memory of `source`; a copy where it is none of it."""
    low = source._array
    while isinstance(low.base, np.ndarray):
        low = low.base
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    if base is not low and not np.may_share_memory(array, source._array) and array.size:
        return _own(array)
    made = object.__new__(ndarray)
    made._array, made._number, made._block = array, source._number, None
    made.base = source if source.base is None else source.base
    return made


def _taken(x: Any) -> Any:
    """An operand as the host's functions take it."""
    if isinstance(x, ndarray):
        if x._number != current.device:
            raise ValueError(
                f"Array device must be same as the current device: array device = {x._number} while current "
                f"= {current.device}"
            )
        return x._array
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if isinstance(x, tuple | list):
        return type(x)([_taken(item) for item in x])
    return x


def _given(result: Any) -> Any:
    if isinstance(result, np.ndarray | np.generic):
        return _own(result)
    return type(result)([_given(x) for x in result]) if isinstance(result, tuple | list) else result


class ndarray:  # noqa: N801 -- CuPy's name
    """As cupy.ndarray."""

    _array: np.ndarray[Any, Any]
    _block: Block | None
    base: ndarray | None
    _number: int
    __array_priority__ = 100

    def __init__(self, shape: Any, dtype: Any = float) -> None:
        made = _allocated(shape, dtype)
        self._array, self._block, self.base, self._number = made._array, made._block, None, made._number

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    strides = property(lambda self: self._array.strides)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    itemsize = property(lambda self: self._array.itemsize)
    nbytes = property(lambda self: self._array.nbytes)
    device = property(lambda self: Device(self._number))
    data = property(lambda self: Pointer(self._array.ctypes.data, Device(self._number)))
    flags = property(lambda self: Flags(self._array, self.base is None))
    T = property(lambda self: self.transpose())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self._array.flags.c_contiguous else self.strides
        data = self.data.ptr if self.size else 0, False
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": strides,
            "data": data,
            "version": 3,
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        return Capsule(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._number

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy "
            "array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or not hasattr(xp, ufunc.__name__):
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        if ufunc.__name__ in ("greater", "greater_equal", "less", "less_equal", "equal", "not_equal"):
            inputs = tuple(x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in inputs)
        return getattr(xp, ufunc.__name__)(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module: Any = xp
        for name in func.__module__.split(".")[1:]:
            module = getattr(module, name, None)
        ours = getattr(module, func.__name__, None)
        return NotImplemented if ours is None else ours(*args, **kwargs)

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray[Any, Any]:
        return np.array(self._array, order="C")

    def item(self) -> Any:
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._array.item()

    def tolist(self) -> Any:
        return self._array.tolist()

    def __getitem__(self, index: Any) -> ndarray:
        index = _taken(index)
        index = index if isinstance(index, tuple) else (index,)
        # With the ellipsis one element is a view too, as CuPy's.
        index = index if any(i is Ellipsis for i in index) else (*index, ...)
        return _viewing(np.asarray(self._array[index]), self)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_taken(index)] = _taken(value)

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        return _viewing(self._array.reshape(*shape), self)

    def transpose(self, *axes: Any) -> ndarray:
        return _viewing(self._array.transpose(*axes), self)

    def swapaxes(self, a: int, b: int) -> ndarray:
        return _viewing(self._array.swapaxes(a, b), self)

    def view(self, dtype: Any = None) -> ndarray:
        return _viewing(self._array.view() if dtype is None else self._array.view(dtype), self)

    def _set_shape_and_strides(self, shape: Any, strides: Any, c: bool, f: bool) -> None:
        self._array = np.lib.stride_tricks.as_strided(self._array, shape, strides)

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        if not copy and self.dtype == np.dtype(dtype) and (order != "C" or self._array.flags.c_contiguous):
            return self
        with np.errstate(all="ignore"):
            return _own(_taken(self).astype(dtype))

    def copy(self, order: str = "C") -> ndarray:
        return _own(self._array)  # on the current device, wherever it was

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return _own(self._array.any(axis, keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return _own(self._array.all(axis, keepdims=keepdims))

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return _own(self._array.sum(axis, dtype, keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return _own(self._array.min(axis, keepdims=keepdims))

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        return _own(self._array.max(axis, keepdims=keepdims))

    def __len__(self) -> int:
        return len(self._array)

    def __bool__(self) -> bool:
        return bool(self._array)

    def __int__(self) -> int:
        return int(self._array)

    def __float__(self) -> float:
        return float(self._array)

    def __index__(self) -> int:
        return self._array.__index__()

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))


def _operator(name: str, ufunc: str, reflected: bool) -> Callable[..., Any]:
    def method(self: ndarray, *others: Any) -> Any:
        operands = (*others, self) if reflected else (self, *others)
        return getattr(xp, ufunc)(*operands)

    return method


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip
_COMPARED = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
for _name, _function in _OPERATORS.items():
    setattr(ndarray, f"__{_name}__", _operator(_name, _function, False))
    setattr(ndarray, f"__r{_name}__", _operator(_name, _function, True))
for _name, _function in {**_COMPARED, "neg": "negative", "abs": "absolute", "invert": "invert"}.items():
    setattr(ndarray, f"__{_name}__", _operator(_name, _function, False))


class Capsule:
    """What `__dlpack__` gives."""

    def __init__(self, array: ndarray) -> None:
        self.array = array


class Ufunc:
    """As cupy.ufunc: `reduce` and `accumulate` are not reached through NumPy's."""

    def __init__(self, ufunc: np.ufunc) -> None:
        self.ufunc, self.__name__ = ufunc, f"cupy_{ufunc.__name__}"

    def __call__(
        self, *operands: Any, out: ndarray | None = None, dtype: Any = None, casting: str = "same_kind"
    ) -> Any:
        for x in operands:
            if not isinstance(x, ndarray | np.ndarray | _SCALARS):
                raise TypeError(f"Unsupported type {type(x)}")
        with np.errstate(all="ignore"):
            # NumPy takes a number of its own for an operand of that dtype, as CuPy does.
            result = self.ufunc(*_taken(operands), dtype=dtype, casting=casting)
        if out is None:
            return _own(result)
        out._array[...] = result
        return out


class Add(Ufunc):
    def at(self, a: ndarray, indices: Any, b: Any) -> None:
        if a.dtype.char not in "iIlLqQefdFD" or a.dtype == np.int64:
            raise TypeError("scatter_add only supports int32, float16, float32, float64, uint32, uint64")
        np.add.at(a._array, _taken(indices), _taken(b))


_UFUNCS = """
    subtract multiply divide true_divide negative absolute fmod maximum minimum sqrt exp expm1 log log1p
    sin cos tanh
    power floor ceil trunc rint equal not_equal less less_equal greater greater_equal bitwise_and bitwise_or
    bitwise_xor invert left_shift right_shift floor_divide remainder logical_and logical_or logical_not isnan
    isfinite isinf signbit arctan2 arcsin arccos arctan sinh cosh arcsinh arccosh arctanh tan exp2 log2 log10
    cbrt copysign hypot nextafter square sign
"""
# Parameters of CuPy 14's functions.
_FUNCTIONS = """
    where(condition, x=None, y=None)
    take(a, indices, axis=None, out=None)
    concatenate(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
    stack(tup, axis=0, out=None, *, dtype=None, casting='same_kind')
    full(shape, fill_value, dtype=None, order='C')
    arange(start, stop=None, step=1, dtype=None)
    zeros(shape, dtype=float, order='C')
    ones(shape, dtype=float, order='C')
    argmax(a, axis=None, dtype=None, out=None, keepdims=False)
    argmin(a, axis=None, dtype=None, out=None, keepdims=False)
    sum(a, axis=None, dtype=None, out=None, keepdims=False)
    prod(a, axis=None, dtype=None, out=None, keepdims=False)
    amax(a, axis=None, out=None, keepdims=False)
    amin(a, axis=None, out=None, keepdims=False)
    any(a, axis=None, out=None, keepdims=False)
    all(a, axis=None, out=None, keepdims=False)
    clip(a, a_min, a_max, out=None)
    cumsum(a, axis=None, dtype=None, out=None)
    cumprod(a, axis=None, dtype=None, out=None)
    nonzero(a)
    choose(a, choices, out=None, mode='raise')
    argsort(a, axis=-1, kind=None)
    lexsort(keys)
"""
_VIEWS = """
    broadcast_to(array, shape)
    flip(a, axis=None)
    moveaxis(a, source, destination)
    swapaxes(a, axis1, axis2)
"""


def _checked(text: str, call: Callable[..., Any]) -> Callable[..., Any]:
    name, _, parameters = text.strip().partition("(")
    signature = inspect.signature(eval(f"lambda {parameters.removesuffix(')')}: None"))

    def function(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        with np.errstate(all="ignore"):
            return call(getattr(np, name), args, kwargs)

    function.__name__ = name
    return function


def _computed(function: Any, args: Any, kwargs: Any) -> Any:
    return _given(function(*_taken(args), **{k: _taken(v) for k, v in kwargs.items()}))


def _argsort(a: ndarray, axis: int = -1, kind: Any = None) -> ndarray:
    # Of integers alone: what CuPy makes of NaN and of -0.0 is not to matter.
    if kind not in (None, "stable") or a.dtype.kind not in "iu" or not a.size:
        raise AssertionError(f"a sort of {a.dtype}{list(a.shape)} of kind {kind}")
    return _own(np.argsort(_taken(a), axis, kind="stable"))


def _lexsort(keys: ndarray) -> ndarray:
    if keys.dtype.kind not in "iu" or keys.ndim != 2 or not keys.size:
        raise AssertionError(f"a sort by {keys.dtype}{list(keys.shape)}")
    return _own(np.lexsort(_taken(keys)))


def _viewed(function: Any, args: Any, kwargs: Any) -> Any:
    return _viewing(function(args[0]._array, *args[1:], **kwargs), args[0])


def _matmul(a: ndarray, b: ndarray, *, out: ndarray | None = None) -> ndarray:
    x, y = _taken(a), _taken(b)
    wide = np.float32 if a.itemsize == 2 and a.dtype.kind != "i" else a.dtype
    result = np.matmul(x.astype(wide, copy=False), y.astype(wide, copy=False)).astype(a.dtype, copy=False)
    if out is None:
        return _own(result)
    out._array[...] = result
    return out


def _copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    np.copyto(_taken(dst), _taken(src), casting=casting)  # type: ignore[arg-type]


def _asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False
) -> ndarray:
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    interface = getattr(a, "__cuda_array_interface__", None)
    if interface is not None:
        return _outside(interface, a)
    return _own(np.asarray(a, dtype))


def _outside(interface: dict[str, Any], owner: Any) -> ndarray:
    """An array over another library's memory."""
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    made = object.__new__(ndarray)
    size = int(np.prod(shape)) * dtype.itemsize
    made._array = bytes_at(interface["data"][0], size).view(dtype).reshape(shape)
    made.base, made._block, made._number = None, owner, current.device
    return made


def _ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    if (
        isinstance(a, ndarray)
        and a._array.flags.c_contiguous
        and (dtype is None or a.dtype == np.dtype(dtype))
    ):
        return a
    return _own(np.asarray(_taken(a), dtype))


def _from_dlpack(source: Any) -> ndarray:
    kind, number = source.__dlpack_device__()
    if kind == 1:
        return _own(np.from_dlpack(source))
    with Device(number):
        capsule = source.__dlpack__(stream=1)
        return capsule.array.view()


xp = types.ModuleType("cupy")
xp.ndarray = ndarray  # type: ignore[attr-defined]
xp.add = Add(np.add)  # type: ignore[attr-defined]
for _name in _UFUNCS.split():
    setattr(xp, _name, Ufunc(getattr(np, _name)))
for _line in _FUNCTIONS.strip().splitlines():
    _function = _checked(_line, _computed)
    setattr(xp, _function.__name__, _function)
for _line in _VIEWS.strip().splitlines():
    _function = _checked(_line, _viewed)
    setattr(xp, _function.__name__, _function)
for _name, _value in {
    "abs": xp.absolute,  # type: ignore[attr-defined]
    "matmul": _matmul,
    "argsort": _argsort,
    "lexsort": _lexsort,
    "copyto": _copyto,
    "asarray": _asarray,
    "ascontiguousarray": _ascontiguousarray,
    "empty": lambda shape, dtype=float, order="C": _allocated(shape, dtype),
    "result_type": lambda *xs: np.result_type(*(_taken(x) for x in xs)),
    "from_dlpack": _from_dlpack,
    "float32": np.float32,
}.items():
    setattr(xp, _name, _value)
xp.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
    Device=Device,
    Stream=Stream,
    Event=Event,
    get_current_stream=current_stream,
    get_elapsed_time=elapsed,
)
special = types.SimpleNamespace(
    **{name: Ufunc(getattr(scipy_special, name)) for name in ("erf", "digamma", "gammaln", "erfinv")},
    polygamma=lambda n, x: _own(scipy_special.polygamma(n._array, _taken(x)).astype(x.dtype)),
)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Pinned:
    """As the driver's page-locked memory."""

    page_locked = True

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.uint8)
        self.__array_interface__ = self.array.__array_interface__


class Facts:
    """What is asked of a device."""

    name, capability, total_memory, multiprocessors = "stand-in", (9, 0), 1 << 34, 132

    def __init__(self, number: int) -> None:
        assert current.device == number
        self.number, self.allocator = number, allocator(number)

    def pinned(self, size: int) -> np.ndarray[Any, Any]:
        return np.asarray(Pinned(size))

    def memory(self) -> tuple[int, int]:
        assert current.device == self.number
        used = self.allocator.memory_reserved()
        return self.total_memory - used, self.total_memory

    def synchronize(self) -> None:
        """What is under way is a given machine's."""
        assert current.device == self.number
        for given in _machines.values():
            given.synchronize()


@contextmanager
def installed(given: Any = None, *sources: str) -> Iterator[Engine]:
    """Inside, "cuda" is two devices made of host memory; or one, the machine that is `given`, whose Python
    code is in `sources`."""
    before, count = Known.engine, COUNT if given is None else 1
    _machines.update({} if given is None else {0: given})
    sources = (__file__, cuda_standin.__file__, *sources)
    Known.engine = Engine(xp, special, count, machine, Facts, sources)
    try:
        yield Known.engine
    finally:
        Known.engine = before
        _machines.clear()
        current.device, current.stream = 0, None
