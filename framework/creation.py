"""Making tensors: from Python data, filled with a number, and number ranges.

Random tensors are in random.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.dims import is_symbolic
from compiler.ops.arithmetic import mul as product
from compiler.ops.compare import where as select_where
from compiler.ops.creation import full as full_op
from compiler.ops.creation import iota
from compiler.ops.op import RuntimeOperand
from framework.access import host, keep_in_step, over
from framework.apply import apply_op
from framework.device import number_of
from framework.elementwise import add, le, mul, sub
from framework.promotion import Number, convert, number_dtype, scalar
from framework.size import Size, shape_argument
from framework.state import ambient
from framework.tensor import Tensor, wrap
from framework.transfer import created, creating, moved, placed
from framework.views import contiguous_copy, expand
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import arrays


def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new leaf with a copy of `data`: numbers, nested sequences, an ndarray or a Tensor."""
    if isinstance(data, Tensor):
        made = contiguous_copy(data.detach())
        made = made if device is None else moved(made, number_of(device))
        made = made if dtype is None else convert(made, dtype)
    elif isinstance(data, RuntimeOperand):
        creating(device)
        made = scalar(data, dtype)
    elif arrays.is_device(_from_device(data)):
        made = tensor(over(_from_device(data)), dtype=dtype, device=device)
    else:
        number = creating(device)
        made = wrap(placed(_array_of(data, dtype, copy=True), number))
    return _finished(made, requires_grad)


def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """`data` as a Tensor, sharing memory with an ndarray (or being the Tensor itself) where the dtype
    allows."""
    foreign: Any = data if isinstance(data, Tensor) else _from_device(data)
    if arrays.is_device(foreign):
        data = keep_in_step(over(foreign))
    if isinstance(data, Tensor):
        data = data if device is None else moved(data, number_of(device))
        return data if dtype is None else convert(data, dtype)
    number = creating(device)
    if isinstance(data, RuntimeOperand):
        return scalar(data, dtype)
    if number is not None:
        return wrap(arrays.put(_array_of(data, dtype, copy=False), number))
    return keep_in_step(wrap(_array_of(data, dtype, copy=False)))


asarray = as_tensor


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A Tensor that shares the memory of `array`. Raises TypeError for anything else, and dtypes we do not
    store."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtypes.of_numpy(array.dtype)
    return keep_in_step(wrap(array))


def frombuffer(
    buffer: Any, *, dtype: DType, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A vector that shares the memory of a buffer."""
    return _finished(keep_in_step(wrap(np.frombuffer(buffer, dtype.numpy, count, offset))), requires_grad)


def _from_device(data: Any) -> Any:
    """A device array over what another library has on a GPU, without a copy; anything else itself."""
    if isinstance(data, np.ndarray | list | tuple | int | float) or not hasattr(
        data, "__cuda_array_interface__"
    ):
        return data
    # A view: an array of its own would be taken for memory that nobody else has.
    return arrays.engine().xp.asarray(data).view()


def _finished(t: Tensor, requires_grad: bool) -> Tensor:
    return t.requires_grad_(True) if requires_grad else t


def _array_of(data: Any, dtype: DType | None, copy: bool) -> np.ndarray[Any, Any]:
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        target = dtypes.of_numpy(array.dtype) if dtype is None else dtype
        return np.array(array, target.numpy, order="C") if copy else np.asarray(array, target.numpy)
    if hasattr(data, "__dlpack__") or hasattr(data, "__array__"):
        return _array_of(np.asarray(data), dtype, copy)
    array = _from_python(data)
    target = dtype or _inferred(data, array)
    if array.dtype.kind == "f" and target.category != dtypes.FLOATING:
        with np.errstate(all="ignore"):
            return array.astype(target.numpy)
    return array.astype(target.numpy, copy=False)


def _from_python(data: Any) -> np.ndarray[Any, Any]:
    data = _with_arrays(data)
    try:
        array = np.array(data)
    except ValueError:
        raise ValueError(
            f"expected sequences of one length at every depth, got {_abbreviated(data)}"
        ) from None
    except OverflowError:
        raise RuntimeError("Overflow when unpacking long long") from None
    if array.dtype.kind not in "bif" and array.size:
        if array.dtype.kind == "u" and array.dtype.itemsize == 8:
            raise RuntimeError("Overflow when unpacking long long")
        if array.dtype.kind != "u" and array.dtype.kind != "V":
            raise TypeError(
                f"tensor() needs numbers, bools or nested sequences of them, got {_abbreviated(data)}"
            )
    return array


def _abbreviated(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _with_arrays(data: Any) -> Any:
    """Tensors inside sequences as the arrays or numbers they hold."""
    if isinstance(data, Tensor):
        return data.item() if data.ndim == 0 else host(data)
    if isinstance(data, list | tuple) and data and not isinstance(data[0], int | float):
        return [_with_arrays(x) for x in data]
    if isinstance(data, range):
        return list(data)
    if isinstance(data, list | tuple) and any(isinstance(x, Tensor) for x in data):
        return [_with_arrays(x) for x in data]
    return data


def _inferred(data: Any, array: np.ndarray[Any, Any]) -> DType:
    leaf = data
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    if isinstance(leaf, np.ndarray | Tensor):
        return leaf.dtype if isinstance(leaf, Tensor) else dtypes.of_numpy(leaf.dtype)
    if array.size == 0 or array.dtype.kind == "f":
        return ambient.default_dtype
    return dtypes.bool_ if array.dtype.kind == "b" else dtypes.int64


def _filled(shape: tuple[int, ...], value: Number, dtype: DType, device: Any, requires_grad: bool) -> Tensor:
    number = creating(device)
    for n in shape:
        if n < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    if isinstance(value, RuntimeOperand):
        # One times the number is the number, whatever its sign or kind.
        one = created(full_op, {"shape": shape, "value": 1.0, "dtype": dtype}, number)
        return _finished(apply_op(product, (one, value), {}), requires_grad)
    value = bool(value) if dtype is dtypes.bool_ else value
    made = created(full_op, {"shape": shape, "value": value, "dtype": dtype}, number)
    return _finished(made, requires_grad)


def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """A tensor of one number, whose dtype it takes when none is given."""
    shape = shape_argument((size,))
    if isinstance(fill_value, Tensor):
        value = fill_value.detach() if device is None else moved(fill_value.detach(), number_of(device))
        made = expand(value if dtype is None else convert(value, dtype), shape)
        return _finished(contiguous_copy(made), requires_grad)
    return _filled(shape, fill_value, dtype or number_dtype(fill_value), device, requires_grad)


def _filler(value: Number, name: str) -> Callable[..., Tensor]:
    def function(
        *size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False, **layout: Any
    ) -> Tensor:
        shape = shape_argument((layout["size"],) if "size" in layout else size)
        return _filled(shape, value, dtype or ambient.default_dtype, device, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"A tensor of {value}s, in the default floating dtype unless `dtype` is given."
    return function


zeros = _filler(0, "zeros")
ones = _filler(1, "ones")
# Uninitialised memory would differ between eager and compiled runs; zeros cost one pass.
empty = _filler(0, "empty")


def _filler_like(value: Number, name: str) -> Callable[..., Tensor]:
    def function(
        input: Tensor,
        *,
        dtype: DType | None = None,
        device: Any = None,
        requires_grad: bool = False,
        **layout: Any,
    ) -> Tensor:
        where = input.device if device is None else device
        return _filled(tuple(input.shape), value, dtype or input.dtype, where, requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"A tensor of {value}s with the shape and dtype of `input`."
    return function


zeros_like = _filler_like(0, "zeros_like")
ones_like = _filler_like(1, "ones_like")
empty_like = _filler_like(0, "empty_like")


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """A tensor of one number with the shape and dtype of `input`."""
    where = input.device if device is None else device
    return full(
        tuple(input.shape), fill_value, dtype=dtype or input.dtype, device=where, requires_grad=requires_grad
    )


def _number(x: Any) -> Number:
    return x.item() if isinstance(x, Tensor | np.generic) else x


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """start, start + step, … below `end`; int64 unless a number is a float."""
    number = creating(device)
    start, end = (0, start) if end is None else (start, end)
    start, end, step = _number(start), _number(end), _number(step)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    whole = all(isinstance(x, int) for x in (start, end, step))
    dtype = dtype or (dtypes.int64 if whole else ambient.default_dtype)
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    shape = (count if is_symbolic(count) else int(count),)
    position = created(iota, {"shape": shape, "axis": 0, "dtype": dtypes.int64}, number)
    if not whole:
        position = convert(position, dtypes.float64)
    position = position if step == 1 else mul(position, step)
    position = position if start == 0 else add(position, start)
    return _finished(convert(position, dtype), requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """`steps` numbers at equal distances from `start` to `end`, both included."""
    number = creating(device)
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    start, end = float(_number(start)), float(_number(end))
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    index = created(iota, {"shape": (steps,), "axis": 0, "dtype": dtypes.int64}, number)
    position = convert(index, dtypes.float64)
    # From both ends, so that the last number is `end` exactly.
    from_start = add(mul(position, step), start)
    from_end = sub(end, mul(sub(float(steps - 1), position), step))
    values = apply_op(select_where, (le(index, (steps - 1) // 2), from_start, from_end), {})
    return _finished(convert(values, dtype or ambient.default_dtype), requires_grad)


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """`base` to the power of `linspace(start, end, steps)`."""
    powers = base ** linspace(start, end, steps, dtype=dtypes.float64, device=device)
    return _finished(convert(powers, dtype or ambient.default_dtype), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """The identity matrix of n rows and m (n) columns."""
    number = creating(device)
    shape = (n, n if m is None else m)
    row = created(iota, {"shape": shape, "axis": 0, "dtype": dtypes.int64}, number)
    column = created(iota, {"shape": shape, "axis": 1, "dtype": dtypes.int64}, number)
    return _finished(convert(row == column, dtype or ambient.default_dtype), requires_grad)


def _triangle_indices(positions: Callable[..., Any], name: str, where: str) -> Callable[..., Tensor]:
    def function(
        row: int, col: int, offset: int = 0, *, dtype: DType | None = None, device: Any = None, **layout: Any
    ) -> Tensor:
        number = creating(device)
        found = np.stack(positions(row, offset, col)).astype((dtype or dtypes.int64).numpy)
        return wrap(placed(found, number))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Rows and columns (2, n) of the elements on a diagonal of a matrix and {where} it."
    return function


tril_indices = _triangle_indices(np.tril_indices, "tril_indices", "below")
triu_indices = _triangle_indices(np.triu_indices, "triu_indices", "above")


def scalar_tensor(
    value: Number, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor of a number, in the default floating dtype unless `dtype` is given."""
    dtype = dtype or ambient.default_dtype
    return full((), value, dtype=dtype, device=device, requires_grad=requires_grad)


def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A copy in row-major memory, through which gradients flow."""
    made = contiguous_copy(input)
    if made._node is not None:
        made._node.label = "CloneBackward0"
    return made


def construct(cls: type[Tensor], *args: Any, device: Any = None, dtype: DType | None = None) -> Tensor:
    """`Tensor(2, 3)` is zeros of a shape, `Tensor(data)` a copy of data, both in the default floating
    dtype."""
    dtype = dtype or ambient.default_dtype
    if not args or all(isinstance(n, int) for n in args) or isinstance(args[0], Size):
        return zeros(*(args or (0,)), dtype=dtype, device=device)
    return tensor(args[0], dtype=dtype, device=device)


def _typed(dtype: DType, name: str) -> Callable[..., Tensor]:
    def function(*args: Any) -> Tensor:
        return construct(Tensor, *args, dtype=dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `Tensor(...)`, in {dtype.name}."
    return function


BoolTensor = _typed(dtypes.bool_, "BoolTensor")
ByteTensor = _typed(dtypes.uint8, "ByteTensor")
CharTensor = _typed(dtypes.int8, "CharTensor")
ShortTensor = _typed(dtypes.int16, "ShortTensor")
IntTensor = _typed(dtypes.int32, "IntTensor")
LongTensor = _typed(dtypes.int64, "LongTensor")
HalfTensor = _typed(dtypes.float16, "HalfTensor")
BFloat16Tensor = _typed(dtypes.bfloat16, "BFloat16Tensor")
FloatTensor = _typed(dtypes.float32, "FloatTensor")
DoubleTensor = _typed(dtypes.float64, "DoubleTensor")
