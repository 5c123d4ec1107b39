"""What Triton's interpreter lacks: bfloat16, libdevice, checked memory, and reductions that take no seconds.

Every function here takes the place of one of Triton 3.9 while `kernels.gpu.interpret` is at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kernels.gpu.checked import ADD, LOAD, STORE, Array

# libdevice in NumPy.
UNARY: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "rint": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {"pow": np.power, "fmod": np.fmod}


def widened(bits: Array) -> Array:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Array) -> Array:
    """The bits of the nearest bfloat16, of two the even one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, nearest).astype(np.uint16)


def replacements() -> Iterator[tuple[object, str, object]]:
    """(owner, attribute, value) of everything that is put in place of Triton's own."""
    from scipy import special
    from triton.language import bfloat16, block_type, float32, tensor
    from triton.language.extra import libdevice
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    builder: Any = interpreter.interpreter_builder
    semantic: Any = interpreter.interpreter_semantic

    # bfloat16

    plain_cast, plain_dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def wide(handle: Any) -> Any:
        is_narrow = handle.dtype.scalar == bfloat16
        return TensorHandle(widened(handle.data), float32) if is_narrow else handle

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        # A comparison's result says that it is of its operands' type.
        if source.dtype.scalar == target.scalar and source.data.dtype != np.bool_:
            return source
        if target.scalar == bfloat16:
            return TensorHandle(narrowed(wide(source).data.astype(np.float32)), bfloat16)
        return plain_cast(self, wide(source), target)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, wide(a), wide(b), *rest)

    # Memory

    def touch(pointers: Any, mask: Any, kind: str) -> None:
        size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        addresses, active = np.broadcast_arrays(pointers.data, mask.data)
        builder.memory.touch(addresses[active], size, kind)

    plain_load, plain_store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    plain_add = InterpreterBuilder.create_atomic_rmw

    def create_masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        touch(pointers, mask, LOAD)
        return plain_load(self, pointers, mask, *rest)

    def create_masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        touch(pointers, mask, STORE)
        return plain_store(self, pointers, value, mask, *rest)

    def create_atomic_rmw(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        touch(pointers, mask, ADD)
        return plain_add(self, operation, pointers, value, mask, *rest)

    def create_barrier(self: Any) -> None:
        builder.memory.synchronize()

    # Functions and reductions

    def elementwise(function: Callable[..., Array]) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            tensors = [semantic.to_tensor(x) for x in operands]
            if len(tensors) == 2:
                tensors = semantic.binary_op_type_checking_impl(*tensors)
            first = tensors[0]
            result = function(*(t.handle.data for t in tensors))
            data = np.asarray(result, first.handle.data.dtype)
            return tensor(TensorHandle(data, first.dtype), first.type)

        return run

    def of_array(array: Array, dtype: Any) -> Any:
        return tensor(TensorHandle(array, dtype), block_type(dtype, list(array.shape)))

    def generic_reduce(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
        """Halves are combined with halves: of what is combined, one half is before the other."""
        dtypes = [x.dtype for x in inputs]
        axis = 0 if self.axis is None else self.axis
        parts = [np.ravel(x.handle.data) if self.axis is None else x.handle.data for x in inputs]
        while (count := parts[0].shape[axis]) > 1:
            halves = [np.split(x, [count // 2, count // 2 * 2], axis)[:2] for x in parts]
            left, right = (
                [of_array(h[side], d) for h, d in zip(halves, dtypes, strict=True)] for side in (0, 1)
            )
            made = self.combine_fn(*left, *right)
            parts = [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]
        if not self.keep_dims:
            parts = [np.squeeze(x, axis) for x in parts]
        return [self.to_tensor(x if x.shape else x.item(), d) for x, d in zip(parts, dtypes, strict=True)]

    def generic_scan(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
        """All is combined with what is 1, 2, 4, ... before it."""
        dtypes = [x.dtype for x in inputs]
        parts, step = [np.moveaxis(x.handle.data, self.axis, -1) for x in inputs], 1
        while step < parts[0].shape[-1]:
            left = [of_array(np.roll(x, step, -1), d) for x, d in zip(parts, dtypes, strict=True)]
            right = [of_array(x, d) for x, d in zip(parts, dtypes, strict=True)]
            made = self.combine_fn(*left, *right)
            after = [x.handle.data for x in (made if isinstance(made, tuple) else (made,))]
            parts = [
                np.concatenate([x[..., :step], y[..., step:]], -1) for x, y in zip(parts, after, strict=True)
            ]
            step *= 2
        whole = [np.ascontiguousarray(np.moveaxis(x, -1, self.axis)) for x in parts]
        return [self.to_tensor(x, d) for x, d in zip(whole, dtypes, strict=True)]

    for replacement in (
        cast_impl, create_dot, create_masked_load, create_masked_store, create_atomic_rmw, create_barrier,
    ):  # fmt: skip
        yield InterpreterBuilder, replacement.__name__, replacement
    yield interpreter.ReduceOps, "generic_reduce", generic_reduce
    yield interpreter.ScanOps, "generic_scan", generic_scan
    for name, function in (UNARY | BINARY | {"erf": special.erf}).items():
        yield libdevice, name, elementwise(function)
    # A third of the time would go into looking for integers that wrap, which ours may do.
    yield builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)
