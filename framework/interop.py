"""NumPy and DLPack: arrays in and out without copies, ufuncs on Tensors, pickling and copying.

Attaches the protocol methods to Tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from framework import elementwise as e
from framework import matrix
from framework.access import host, keep_in_step, over
from framework.device import number_of
from framework.promotion import as_operand
from framework.state import no_grad
from framework.storage import Storage, placement, root_of
from framework.tensor import Tensor, concrete, wrap
from kernels import dtypes
from kernels.gpu import arrays

_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: e.add,
    np.subtract: e.sub,
    np.multiply: e.mul,
    np.true_divide: e.div,
    np.floor_divide: e.floor_divide,
    np.remainder: e.remainder,
    np.power: e.pow,
    np.matmul: matrix.matmul,
    np.maximum: e.maximum,
    np.minimum: e.minimum,
    np.equal: e.eq,
    np.not_equal: e.ne,
    np.less: e.lt,
    np.less_equal: e.le,
    np.greater: e.gt,
    np.greater_equal: e.ge,
    np.bitwise_and: e.bitwise_and,
    np.bitwise_or: e.bitwise_or,
    np.bitwise_xor: e.bitwise_xor,
    np.negative: e.neg,
    np.absolute: e.abs,
    np.exp: e.exp,
    np.log: e.log,
    np.sqrt: e.sqrt,
    np.sin: e.sin,
    np.cos: e.cos,
    np.tanh: e.tanh,
}


def array(t: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """`np.asarray(t)`: the tensor's memory, or a converted copy."""
    data = t.numpy()
    if dtype is not None and np.dtype(dtype) != data.dtype:
        if copy is False:
            raise ValueError(f"a {data.dtype} tensor cannot become a {np.dtype(dtype)} array without a copy")
        return data.astype(dtype)
    return data.copy() if copy else data


def array_ufunc(t: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """A NumPy ufunc on Tensors: ours where there is one, which records gradients, else NumPy's on the
    arrays."""
    ours = _UFUNCS.get(ufunc)
    if method == "__call__" and ours is not None and not kwargs:
        return ours(*(as_operand(x) for x in inputs))
    arrays = tuple(x.numpy() if isinstance(x, Tensor) else x for x in inputs)
    if "out" in kwargs:
        kwargs["out"] = tuple(x.numpy() if isinstance(x, Tensor) else x for x in kwargs["out"])
    result = getattr(ufunc, method)(*arrays, **kwargs)
    return wrap(np.asarray(result)) if isinstance(result, np.ndarray | np.generic) else result


def dlpack(t: Tensor, **options: Any) -> Any:
    """A DLPack capsule of the tensor's memory, on whichever device."""
    if t.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    data = concrete(keep_in_step(t))
    if t.dtype is dtypes.bfloat16 and not t.is_cuda:
        raise BufferError("NumPy's DLPack has no bfloat16; convert with float()")
    return data.__dlpack__(**options)


def dlpack_device(t: Tensor) -> tuple[int, int]:
    """(device type, device index): 1 is the CPU, 2 a GPU."""
    number = number_of(t.device)
    return (1, 0) if number is None else (2, number)


def cuda_array_interface(t: Tensor) -> dict[str, Any]:
    """What other libraries take the memory of a tensor on a GPU by."""
    if not t.is_cuda:
        raise AttributeError(
            "Can't get __cuda_array_interface__ on a tensor of the CPU: use tensor.cuda(), or "
            "__array_interface__ of tensor.numpy()"
        )
    if t.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on a Variable that requires grad. If gradients aren't "
            "required, use var.detach() to get a Variable that doesn't require grad."
        )
    return concrete(keep_in_step(t)).__cuda_array_interface__  # type: ignore[attr-defined]


def from_dlpack(source: Any) -> Tensor:
    """A Tensor of the memory of any object with `__dlpack__`."""
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack needs an object with __dlpack__, got {type(source).__name__}")
    kind, number = source.__dlpack_device__()
    if kind != 2:
        return keep_in_step(wrap(np.from_dlpack(source)))
    xp = arrays.engine().xp
    with arrays.there(number):
        return keep_in_step(over(xp.from_dlpack(source).view()))


def rebuild(
    cls: type[Tensor],
    storage: Any,
    dtype: dtypes.DType,
    shape: Any,
    strides: Any,
    offset: int,
    requires_grad: bool,
    grad: Any = None,
    where: str | None = None,
) -> Tensor:
    """A tensor over flat `storage`, copied to the device `where` if one is named; what pickles and saved
    files call."""
    flat = storage.view(dtype.numpy)
    if where is not None and (number := number_of(where)) is not None:
        flat = arrays.put(flat, number)
    view = arrays.flat_over(flat, tuple(shape), tuple(strides), offset)
    t = object.__new__(cls)
    t._data, t._storage = view, Storage()
    if requires_grad:
        t._requires_grad = True
    t._grad = grad
    return t


def parts(t: Tensor) -> tuple[Any, ...]:
    """Arguments of `rebuild` for `t`, with the memory its view is of."""
    data = concrete(t)
    root = root_of(data)
    if not root.flags.c_contiguous or min(data.strides, default=1) < 0 or root.dtype != data.dtype:
        data = root = arrays.copied(data)
    strides, offset = placement(data)
    return type(t), root.reshape(-1), t.dtype, data.shape, strides, offset, t._requires_grad


def reduce(t: Tensor, protocol: Any) -> tuple[Any, ...]:
    """Pickling: the elements alone, as a leaf. Raises RuntimeError for a tensor with history."""
    if t.grad_fn is not None:
        raise RuntimeError(
            "only Tensors created explicitly by the user (graph leaves) can be pickled or saved; detach() "
            "this one first"
        )
    data = np.ascontiguousarray(host(t)).reshape(-1)
    raw = data.view(np.uint8) if t.dtype is dtypes.bfloat16 else data
    shape = tuple(t.shape)
    strides = wrap(np.empty(shape, np.bool_)).stride()
    state = {k: v for k, v in t.__dict__.items() if not k.startswith("_")}
    where = (None, str(t.device)) if t.is_cuda else ()
    made = rebuild, (type(t), raw, t.dtype, shape, strides, 0, t._requires_grad, *where)
    return (*made, state) if state else made


def copy(t: Tensor) -> Tensor:
    """Another leaf of the same memory. Raises RuntimeError for a tensor with history."""
    keep_in_step(t)
    function, arguments, *state = reduce(t, 4)
    made = keep_in_step(function(*arguments))
    if t.is_cuda:
        made._data = concrete(t)
    for held in state:
        made.__dict__.update(held)
    return made


def deepcopy(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy with memory of its own, `.grad` included. Raises RuntimeError for a tensor with history."""
    if id(t) in memo:
        return memo[id(t)]
    if t.grad_fn is not None:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
            "moment. "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.Module attribute "
            "that is not a leaf."
        )
    made = object.__new__(type(t))
    made._data, made._storage = arrays.copied(concrete(t)), Storage()
    made.__dict__.update({k: v for k, v in t.__dict__.items() if not k.startswith("_")})
    made._requires_grad = t._requires_grad
    memo[id(t)] = made
    if t.grad is not None:
        with no_grad():
            made._grad = deepcopy(t.grad, memo)
    return made
