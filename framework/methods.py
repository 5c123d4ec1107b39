"""Attaches the functions of tensors to Tensor as methods and operators, and derives the in-place methods.

The only place that knows which function is which method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from compiler.errors import TraceError
from compiler.ops import arithmetic, compare
from compiler.ops.op import Elementwise
from framework import (
    access,
    autograd,
    comparison,
    conversion,
    creation,
    elementwise,
    functional,
    html,
    indexing,
    inplace,
    interop,
    joining,
    printing,
    random,
    small,
)
from framework import views as v
from framework.promotion import OPERANDS, as_operand
from framework.state import is_recording
from framework.tensor import Tensor, concrete
from kernels import dtypes

# Functions of several tensors, or that a property or another method stands for.
_NOT_METHODS = frozenset(
    """
    atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors bucketize cat cdist concat
    concatenate dstack einsum hstack is_complex is_floating_point is_tensor isin meshgrid numel searchsorted
    stack tensordot vstack where
    """.split()
)

_IN_PLACE = """
    abs absolute acos acosh add addcdiv addcmul addmm addmv addr arccos arcsin arctan asin asinh atan atan2
    atanh baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil
    clamp clamp_max clamp_min clip copysign cos cosh cumprod cumsum deg2rad digamma div divide eq erf erfc
    erfinv exp exp2 expm1 fix float_power floor floor_divide fmod frac ge gt heaviside hypot index_add
    index_copy index_fill ldexp le lerp lgamma log log10 log1p log2 logical_and logical_not logical_or
    logical_xor logit lt masked_fill masked_scatter mul multiply nan_to_num ne neg negative pow rad2deg
    reciprocal relu remainder round rsqrt scatter scatter_add sgn sigmoid sign sin sinh sqrt square sub
    subtract tan tanh tril triu true_divide trunc xlogy """.split()


def _in_place(compute: Callable[..., Any], name: str, op: Elementwise | None = None) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return inplace.update(self, compute, args, kwargs, name, op)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"In-place form of `{name[:-1]}`; returns the tensor."
    return method


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """A binary operator: NotImplemented for what is no operand, so that Python asks the other side."""

    def operator(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERANDS):
            try:
                other = as_operand(other)
            except TypeError:
                return NotImplemented
        return function(self, other)

    operator.__name__ = function.__name__
    operator.__doc__ = function.__doc__
    return operator


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def operator(self: Tensor, other: Any) -> Any:
        if not isinstance(other, OPERANDS):
            try:
                other = as_operand(other)
            except TypeError:
                return NotImplemented
        return function(other, self)

    operator.__name__ = f"reflected_{function.__name__}"
    operator.__doc__ = function.__doc__
    return operator


_OPERATORS = {
    "add": functional.add,
    "sub": functional.sub,
    "mul": functional.mul,
    "truediv": functional.div,
    "floordiv": functional.floor_divide,
    "mod": functional.remainder,
    "pow": functional.pow,
    "matmul": functional.matmul,
    "and": functional.bitwise_and,
    "or": functional.bitwise_or,
    "xor": functional.bitwise_xor,
    "lshift": functional.bitwise_left_shift,
    "rshift": functional.bitwise_right_shift,
}
# Those that are one op on most operands, and what they are on all.
_OPS = {
    "add": (arithmetic.add, elementwise.promoting(arithmetic.add)),
    "sub": (arithmetic.sub, elementwise.subtracted),
    "mul": (arithmetic.mul, elementwise.promoting(arithmetic.mul)),
    "truediv": (arithmetic.div, elementwise.divided),
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradient of this tensor to the `.grad` of the leaves it depends on."""
    autograd.backward(self, gradient, retain_graph, create_graph, inputs)


def _iterate(self: Tensor) -> Iterator[Tensor]:
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(v.unbind(self))


def _contains(self: Tensor, element: Any) -> bool:
    if not isinstance(element, OPERANDS):
        raise RuntimeError(
            "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
            f"{type(element).__name__}."
        )
    return bool((self == element).any())


def _converter(dtype: dtypes.DType) -> Callable[..., Tensor]:
    def method(self: Tensor, memory_format: Any = None) -> Tensor:
        return conversion.convert(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


def _new(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, dtype: dtypes.DType | None = None, **kwargs: Any) -> Tensor:
        kwargs.setdefault("device", self.device)
        return make(*args, dtype=dtype or self.dtype, **kwargs)

    method.__doc__ = f"As `{make.__name__}`, with the dtype and on the device of this tensor."
    return method


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where `condition` holds, `other` elsewhere."""
    return functional.where(condition, self, other)


def _listed(self: Tensor) -> list[str]:
    """What completion shows: no internals."""
    return sorted(name for name in dir(Tensor) if name[0] != "_" or name.startswith("__"))


def _reduce_ex(self: Tensor, protocol: Any) -> tuple[Any, ...]:
    return interop.reduce(self, protocol)


def _transposed(self: Tensor) -> Tensor:
    """The dimensions in reverse order, a view."""
    return v.permute(self, tuple(reversed(range(self.ndim))))


def _squeeze_(self: Tensor, dim: Any = None) -> Tensor:
    """As `squeeze`: the tensor itself changes its shape."""
    return _become(self, v.squeeze(self, dim))


def _unsqueeze_(self: Tensor, dim: int) -> Tensor:
    """As `unsqueeze`: the tensor itself changes its shape."""
    return _become(self, v.unsqueeze(self, dim))


def _transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """As `transpose`: the tensor itself changes its shape."""
    return _become(self, v.transpose(self, dim0, dim1))


def _t_(self: Tensor) -> Tensor:
    """As `t`: the tensor itself changes its shape."""
    return _become(self, v.t(self))


def _become(self: Tensor, view: Tensor) -> Tensor:
    """Let `self` have the geometry of its own `view`."""
    if is_recording():
        raise TraceError("a tensor changes its shape in place: use the out-of-place function")
    self._data = concrete(view)
    if view._node is not None:
        self._node, self._output = view._node, view._output
    self._storage.writes += 1  # what was saved of the tensor has another geometry now
    if self._base is not None:
        self._view, self._view_version = view._view, self._version
    return self


def _attach() -> None:
    for name in functional.__all__:
        if name not in _NOT_METHODS:
            setattr(Tensor, name, getattr(functional, name))
    for name in _IN_PLACE:
        setattr(Tensor, f"{name}_", _in_place(getattr(functional, name), f"{name}_"))
    for name, function in _OPERATORS.items():
        setattr(Tensor, f"__{name}__", _operator(function))
        setattr(Tensor, f"__r{name}__", _reflected(function))
        setattr(Tensor, f"__i{name}__", _in_place(function, f"{name}_"))
    for name, (op, general) in _OPS.items():
        in_place = _in_place(_OPERATORS[name], f"{op.name}_", op)
        setattr(Tensor, f"{op.name}_", in_place)
        setattr(Tensor, f"__i{name}__", in_place)
        setattr(Tensor, f"__{name}__", small.binary(op, _operator(general)))
        setattr(Tensor, f"__r{name}__", _reflected(small.binary(op, general)))
    for name in _COMPARISONS:
        op = getattr(compare, name)
        setattr(Tensor, f"__{name}__", small.binary(op, _operator(elementwise.promoting(op))))
    for name in ("copy_", "fill_", "zero_"):
        setattr(Tensor, name, getattr(inplace, name))
    for name in (
        "uniform_",
        "normal_",
        "log_normal_",
        "exponential_",
        "bernoulli_",
        "random_",
        "bernoulli",
        "multinomial",
    ):
        setattr(Tensor, name, getattr(random, name))
    for name in ("view", "view_as", "reshape_as", "expand", "expand_as"):
        setattr(Tensor, name, getattr(v, name))
    for name in ("repeat", "unfold"):
        setattr(Tensor, name, getattr(joining, name))
    for name in ("to", "type_as", "cpu", "cuda", "contiguous", "pin_memory", "is_pinned"):
        setattr(Tensor, name, getattr(conversion, name))
    for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
        setattr(Tensor, name, _new(getattr(creation, name[4:])))
    for names, dtype in _CONVERTERS.items():
        for name in names.split():
            setattr(Tensor, name, _converter(dtype))


_CONVERTERS = {
    "float": dtypes.float32,
    "double": dtypes.float64,
    "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "bool": dtypes.bool_,
    "byte": dtypes.uint8,
    "char": dtypes.int8,
    "short": dtypes.int16,
    "int": dtypes.int32,
    "long": dtypes.int64,
}
_SINGLE: dict[str, Any] = {
    "__new__": staticmethod(creation.construct),
    "__getitem__": indexing.getitem,
    "__setitem__": indexing.setitem,
    "index_put": indexing.index_put,
    "index_put_": indexing.index_put_,
    "__neg__": functional.neg,
    "__pos__": functional.positive,
    "__abs__": functional.abs,
    "__invert__": functional.bitwise_not,
    "__iter__": _iterate,
    "__contains__": _contains,
    "__repr__": printing.text,
    "_repr_html_": html.tensor,
    "__dir__": _listed,
    "__str__": printing.text,
    "__format__": printing.formatted,
    "__array__": interop.array,
    "__array_ufunc__": interop.array_ufunc,
    "numpy": access.numpy,
    "data_ptr": access.data_ptr,
    "__cuda_array_interface__": property(interop.cuda_array_interface),
    "__dlpack__": interop.dlpack,
    "__dlpack_device__": interop.dlpack_device,
    "__reduce_ex__": _reduce_ex,
    "__copy__": interop.copy,
    "__deepcopy__": interop.deepcopy,
    "backward": _backward,
    "where": _where,
    "type": conversion.type_,
    "nelement": comparison.numel,
    "ndimension": Tensor.dim,
    "isin": comparison.isin,
    "T": property(_transposed),
    "mT": property(v.adjoint),
    "H": property(_transposed),
    "squeeze_": _squeeze_,
    "unsqueeze_": _unsqueeze_,
    "transpose_": _transpose_,
    "t_": _t_,
}


_attach()
for _name, _method in _SINGLE.items():
    setattr(Tensor, _name, _method)
