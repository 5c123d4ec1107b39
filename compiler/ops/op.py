"""One op, one `Op`: its name, type rule, eager value, gradients and, for elementwise ops, its loop body.

`TABLE` is the only list of ops; a fact about an op is a field of it. Knows nothing of scheduling or devices.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from compiler import sizes
from compiler import where as location
from compiler.dims import is_symbolic
from compiler.ir import Apply, Measure, Value, constant
from compiler.ops.facts import Check, Sample
from compiler.ops.quiet import is_inside, own, quiet, run_quietly
from compiler.types import TensorType, type_of_array
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import arrays
from kernels.memory import LARGE, in_order
from kernels.scalar import EXPENSIVE, NumpyScalars, PooledScalars

TABLE: dict[str, Op] = {}
NUMPY = NumpyScalars()
ndarray = np.ndarray
_BOOL = np.dtype(np.bool_)
POOLED = PooledScalars()
NUMBERS = (int, float)  # Python's, bool included; they take the dtype of the other operand.


class RuntimeOperand:
    """A number that is known only when a program runs. Acts as a Python number where ops meet it.

    `typed(dtype)` is its IR value, or an array; `plain()` the Python number, which the program then depends
    on.
    """

    __slots__ = ()

    def typed(self, dtype: DType) -> Any:
        """The number as an operand of `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} defines no typed value")

    def plain(self) -> Any:
        """The number as it is now."""
        raise NotImplementedError(f"{type(self).__name__} defines no plain value")


# (gradient of the output, output, *inputs, **attrs) -> gradient of one input, before it is summed to that
# input's shape.
GradientRule = Callable[..., Any]


class Op:
    """A primitive. Call it on arrays to compute, on IR values to append a node, on Tensors to record a
    gradient.

    `grads` has one rule per input, None where no gradient flows; a variadic op has one rule for all of them,
    which is
    also given the input's `position`. `decompose`, made of other ops, replaces the op before scheduling.
    `samples` and
    `categories` are what tests/test_op_laws.py draws inputs for: cases, and the dtype categories the op is
    defined on.
    Compared by identity and not changed once made.
    """

    # Whether the first input is a bool of its own dtype, as `where`'s.
    condition: bool = False

    def __init__(
        self,
        name: str,
        eager: Callable[..., Any],
        infer: Callable[..., TensorType],
        grads: tuple[GradientRule | None, ...] = (),
        variadic: bool = False,
        decompose: Callable[..., Any] | None = None,
        check: Check | None = None,
        samples: tuple[Sample, ...] = (),
        *,
        categories: tuple[int, ...] = (dtypes.BOOL, dtypes.INTEGER, dtypes.FLOATING),
    ) -> None:
        if name in TABLE:
            raise ValueError(f"op {name!r} is defined twice")
        self.name = name
        self.eager = eager
        self.infer = infer
        self.grads = grads
        self.variadic = variadic
        self.decompose = decompose
        self.check = check
        self.samples = samples
        self.categories = categories
        # What recording found out about the rules, by the inputs that want a gradient (one bit each).
        self.plans: dict[int, Any] = {}
        TABLE[name] = self

    def gradient(self, position: int) -> GradientRule | None:
        """The gradient rule of input `position`."""
        if not self.variadic:
            return self.grads[position] if position < len(self.grads) else None
        rule = self.grads[0]
        return None if rule is None else lambda *a, **k: rule(*a, position=position, **k)

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        traced = False
        for x in inputs:
            kind = type(x)
            if kind is ndarray or kind is float or kind is int:
                continue
            hook = getattr(kind, "__apply_op__", None)
            if hook is not None:
                return hook(self, inputs, attrs)
            traced = traced or isinstance(x, Value)
        if traced:
            return self.trace(*inputs, **attrs)
        return self.value(inputs, attrs)

    def compute(self, *inputs: Any, **attrs: Any) -> np.ndarray[Any, Any]:
        """The value on arrays and Python numbers. Raises what the check or the type rule says, before any
        work."""
        return self.value(inputs, attrs)

    def value(self, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """`compute`, for who has operands and attributes as these: spreading them takes 0.2 µs each time."""
        for x in inputs:
            if type(x) is not ndarray:
                inputs = self.typed(inputs)
                if arrays.Known.engine is not None and (number := arrays.common(inputs)) is not None:
                    return self.compute_there(number, inputs, attrs)
                break
        if self.check is not None:
            failed = self.check.failed(*inputs, **attrs)
            if failed is not None and failed.any():
                raise self.check.error(*inputs, **attrs)
        try:
            # Not in `quiet`, which the ops that `eager` itself may be made of are run in.
            return own.run(self.eager, *inputs, **attrs)
        except RuntimeError as error:
            if not is_inside(error):
                raise
            return run_quietly(self.eager, *inputs, **attrs)
        except (ValueError, TypeError):
            self.infer(*(type_of_array(x) for x in inputs), **attrs)  # Says in our words what NumPy rejected.
            raise

    def compute_there(self, number: int, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Any:
        """The value on GPU `number`, which `inputs` are on, or arrays of the host that go there."""
        with arrays.there(number):
            if self.check is not None:
                failed = self.check.failed(*inputs, **attrs)
                if failed is not None and failed.any():
                    raise self.check.error(*map(arrays.get, inputs), **attrs)
            try:
                return self.eager(*[self.operand_there(x, number) for x in inputs], **attrs)
            except (ValueError, TypeError):
                self.infer(*(type_of_array(x) for x in inputs), **attrs)
                raise

    def operand_there(self, x: Any, number: int) -> Any:
        """An operand as `eager` takes it on GPU `number`."""
        return x if arrays.is_device(x) else arrays.put(x, number)

    def trace(self, *inputs: Any, **attrs: Any) -> Apply:
        """Append this op to a graph. Arrays become constants, Python numbers literals of the other operands'
        dtype."""
        where = location.user_line()
        for name, x in attrs.items():
            if type(x) is tuple or isinstance(x, RuntimeOperand):
                attrs[name] = _known(x)
        for x in inputs:
            if not isinstance(x, Value):
                given = self.typed(inputs)
                inputs = tuple([v if isinstance(v, Value) else constant(v, where) for v in given])
                break
        made = self.infer(*[v.type for v in inputs], **attrs)
        return Apply(made, op=self, inputs=inputs, attrs=attrs, where=where)

    def typed(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Inputs with every Python number made a 0-d array of the last typed operand's dtype, but the
        condition's."""
        last, numbers = None, []
        for i, x in enumerate(inputs):
            if type(x) is not ndarray and isinstance(x, NUMBERS):
                numbers.append(i)
            elif i or not self.condition:
                last = x
        if not numbers:
            return inputs
        dtype = dtypes.float32 if last is None else element_type(last.dtype)
        typed = list(inputs)
        for i in numbers:
            typed[i] = typed_number(inputs[i], dtype)
        return tuple(typed)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def dtype_of(x: Any) -> DType | None:
    """Dtype of an operand (array, IR value or Tensor); None for a Python number."""
    return None if isinstance(x, NUMBERS) else element_type(x.dtype)


def element_type(dtype: DType | np.dtype[Any]) -> DType:
    """The DType of what an array, IR value or Tensor calls its dtype. A gradient rule that asks `x.dtype`
    keeps no `x`."""
    return dtype if isinstance(dtype, DType) else dtypes.of_numpy(dtype)


_PLAIN = {int}


def _known(x: Any) -> Any:
    """An attribute without runtime numbers: attributes are part of the code."""
    if isinstance(x, tuple):
        if _PLAIN.issuperset(map(type, x)) or not any(isinstance(i, RuntimeOperand) for i in x):
            return x
        return tuple([_known(item) for item in x])
    return x.plain() if isinstance(x, RuntimeOperand) else x


def typed_number(x: bool | float, dtype: DType) -> Any:
    """A Python number as a read-only 0-d array; integers wrap at the width as PyTorch's do.

    A runtime number or a symbolic size becomes an IR value.
    """
    if type(x) is not float and type(x) is not int:
        if isinstance(x, RuntimeOperand):
            return x.typed(dtype)
        if is_symbolic(x):
            return Measure(TensorType((), dtype), size=x)  # type: ignore[arg-type]
    return _number(x, dtype, math.copysign(1.0, x) if x == 0 else 1.0)


# Making a 0-d array of a number costs 2 µs, as much as adding to it. `sign` tells the two zeros apart.
@lru_cache(maxsize=4096, typed=True)
def _number(x: bool | float, dtype: DType, sign: float) -> np.ndarray[Any, Any]:
    if isinstance(x, int) and dtype.category == dtypes.INTEGER:
        made = np.asarray(x & (2 ** (8 * dtype.itemsize) - 1), np.uint64).astype(dtype.numpy)
    else:
        with np.errstate(all="ignore"):
            made = np.asarray(x).astype(dtype.numpy)
    made.flags.writeable = False
    return made


def owned(out: Any) -> np.ndarray[Any, Any]:
    """What NumPy's functions give, as a row-major array: of operands without axes they make scalars, and they
    give a transposed operand's layout to the result, while traced strides are known.
    """
    if type(out) is ndarray and out.flags.c_contiguous:
        return out
    return arrays.row_major(out) if arrays.is_device(out) else np.array(out, order="C")


def _listed(types: tuple[TensorType, ...]) -> str:
    return ", ".join(map(str, types))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcast shape, with PyTorch's error when there is none."""
    if any(map(sizes.any_symbolic, shapes)):
        shape = sizes.broadcast(shapes)
        if shape is not None:
            return shape
    else:
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            pass
    listed = " and ".join(str(list(s)) for s in shapes)
    raise RuntimeError(
        f"shapes {listed} cannot be broadcast together: aligned at the right, each pair of sizes "
        f"must be equal or one of "
        "them 1; reshape or unsqueeze one side"
    )


class _Steps:
    """Stands for the scalar vocabulary; what it gives is a function's name with its operands."""

    def __getattr__(self, function: str) -> Callable[..., Any]:
        return lambda *operands: (function, operands)


class _Probe:
    """Stands for the scalar vocabulary and notes which of its functions a body calls."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    def __getattr__(self, function: str) -> Callable[..., int]:
        self.called.add(function)
        return lambda *operands: 0


class Elementwise(Op):
    """An op on corresponding elements; `body(k, *elements, **attrs)` over the scalar vocabulary is its whole
    meaning.

    Inputs broadcast and have one dtype, but for a leading bool `condition`. 16-bit floats enter the body as
    float32, and its result is rounded once, to the output's dtype, which is `fixed` where it is not the
    inputs'. `unit` is the second operand that changes nothing, `domain` the interval that the law tests draw
    inputs from.
    """

    def __init__(
        self,
        *facts: Any,
        body: Callable[..., Any],
        commutative: bool = False,
        unit: float | None = None,
        condition: bool = False,
        domain: tuple[float, float] = (-3.0, 3.0),
        fixed: np.dtype[Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(*facts, **others)
        self.body = body
        self.fixed = fixed
        self.commutative = commutative
        self.unit = unit
        self.condition = condition
        self.domain = domain

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        # As gradient rules have it most.
        made = self.small(inputs) if type(inputs[-1]) is ndarray or type(inputs[0]) is ndarray else None
        return super().__call__(*inputs, **attrs) if made is None else made

    def value(self, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        made = self.small(inputs)
        return super().value(inputs, attrs) if made is None else made

    def small(self, inputs: tuple[Any, ...]) -> np.ndarray[Any, Any] | None:
        """The value on small arrays of one dtype, and numbers with them; None for what is more, or fails."""
        first, last = inputs[0], inputs[-1]
        if type(last) is not ndarray:
            # Two operands, or the branches of a condition.
            x = inputs[-2] if len(inputs) > 1 else last
            if type(x) is not ndarray or (type(last) is not float and type(last) is not int):
                return None
            last = typed_number(last, dtypes.OF_NUMPY[x.dtype])
            inputs = (*inputs[:-1], last)
        dtype = last.dtype
        function = self.direct.get(dtype)
        if function is None or last.nbytes >= LARGE:
            return None
        if len(inputs) > 1:
            x = inputs[-2]
            if type(x) is not ndarray:
                if type(x) is not float and type(x) is not int:
                    return None
                x = typed_number(x, dtypes.OF_NUMPY[dtype])
                inputs = (x, last) if len(inputs) == 2 else (first, x, last)
            elif x.dtype is not dtype or x.nbytes >= LARGE:
                return None
            if len(inputs) > 2 and (type(first) is not ndarray or first.dtype is not _BOOL):
                return None
        try:
            made = quiet(function, *inputs)
            return made if type(made) is ndarray and made.flags.c_contiguous else owned(made)
        except (ValueError, RuntimeError):
            return None  # it is said in our words, or done in another context

    def operand_there(self, x: Any, number: int) -> Any:
        """A number without axes stays one: a kernel's argument instead of memory."""
        if arrays.is_device(x):
            return x
        return arrays.put(x, number) if x.ndim else x[()]

    @cached_property
    def direct(self) -> dict[np.dtype[Any], Callable[..., Any]]:
        """By the one dtype of small inputs: what computes the value on any such arrays, as `eager` does."""
        arity = self.body.__code__.co_argcount - 1
        if self.body.__code__.co_kwonlyargcount or self.check is not None:
            return {}
        last = self.body(_Steps(), *range(arity))
        if not isinstance(last, tuple):
            return {}  # an operand itself, whose memory must not be shared
        name, operands = last
        plain = [d for d in dtypes.DTYPES.values() if d.compute is None]
        only = getattr(NUMPY, name) if operands == tuple(range(arity)) else None
        if isinstance(only, np.ufunc):
            loops = {d.numpy: f"{d.numpy.char * arity}->{(self.fixed or d.numpy).char}" for d in plain}
            return {dtype: only for dtype, loop in loops.items() if loop in only.types}
        if self.fixed is not None:
            return {}
        if only is not None:
            return {d.numpy: only for d in plain if d.category in self.categories}
        return dict.fromkeys((dtypes.float32.numpy, dtypes.float64.numpy), partial(self.body, NUMPY))

    @cached_property
    def functions(self) -> frozenset[str]:
        """Functions of the scalar vocabulary that the body calls."""
        probe = _Probe()
        inputs = self.body.__code__.co_argcount - 1
        keywords = self.body.__kwdefaults__ or {}
        named = [k for k in inspect.signature(self.body).parameters.values() if k.kind is k.KEYWORD_ONLY]
        self.body(probe, *range(inputs), **{k.name: dtypes.float32 for k in named if k.name not in keywords})
        return frozenset(probe.called)

    @property
    def expensive(self) -> bool:
        """Whether a value is better stored than computed again."""
        return not self.functions.isdisjoint(EXPENSIVE)


# Elementwise law-test shapes by arity: plain, then every input broadcast somewhere.
_ELEMENTWISE_SAMPLES = (
    (Sample(()),),
    (Sample(((3, 4),)),),
    (Sample(((3, 4), (3, 4))), Sample(((3, 1), (2, 1, 4)))),
    (Sample(((3, 4), (3, 4), (3, 4))), Sample(((3, 1), (4,), (2, 1, 1)))),
)


def elementwise(
    name: str,
    *,
    body: Callable[..., Any],
    grads: tuple[GradientRule | None, ...] = (),
    result: DType | None = None,
    condition: bool = False,
    attrs: dict[str, Any] | None = None,
    **facts: Any,
) -> Elementwise:
    """Define an elementwise op. The output has the inputs' dtype unless `result` or the attribute `dtype`
    names one.

    `attrs` are the attributes of its law-test samples.
    """

    fixed = None if result is None else result.numpy

    def eager(*inputs: Any, **attrs: Any) -> Any:
        common = inputs[-1].dtype
        for x in inputs[1:] if condition else inputs:
            if x.dtype is not common and x.dtype != common:
                # `infer` says it better.
                raise TypeError(f"{name} got {', '.join(str(x.dtype) for x in inputs)}")
        if condition and inputs[0].dtype != np.bool_:
            raise TypeError(f"{name} got a condition of {inputs[0].dtype}")
        there = arrays.Known.engine is not None and any(map(arrays.is_device, inputs))
        scalars = arrays.engine().scalars if there else NUMPY
        if common.itemsize == 2 and dtypes.of_numpy(common).compute is not None:
            wide = tuple(x.astype(np.float32) if x.dtype == common else x for x in inputs)
            out = body(scalars, *wide, **attrs)
        elif there:
            out = body(scalars, *inputs, **attrs)
        elif inputs[0].nbytes < LARGE and inputs[-1].nbytes < LARGE:
            out = body(NUMPY, *inputs, **attrs)
        else:
            out = body(POOLED, *map(in_order, inputs), **attrs)
        output = attrs["dtype"].numpy if attrs else fixed or common
        if type(out) is ndarray and out.dtype is output and out.flags.c_contiguous:
            for x in inputs:
                if out is x:
                    return out.copy()  # An identity body must not share the caller's memory.
            return out
        if there:
            made = arrays.row_major(out, output)
            return made.copy() if any(made is x for x in inputs) else made
        # Row-major, so that traced strides are known: NumPy gives a transposed operand's layout to the
        # result, and
        # a scalar for operands without axes.
        return np.array(out, output, order="C")

    def infer(*types: TensorType, **attrs: Any) -> TensorType:
        dtype, shape = types[-1].dtype, types[-1].shape
        for t in types[1:] if condition else types:
            if t.dtype is not dtype:
                raise TypeError(f"{name} needs operands of one dtype, got {_listed(types)}; cast one first")
        if condition and types[0].dtype is not dtypes.bool_:
            raise TypeError(f"{name} needs a bool condition, got {_listed(types)}; compare with zero first")
        for t in types:
            # A number broadcasts to anything.
            if t.shape and not sizes.same_shape(t.shape, shape):
                shape = broadcast_shapes(*(t.shape for t in types))
                break
        return TensorType(shape, attrs.get("dtype", result) or dtype)

    arity = body.__code__.co_argcount - 1
    samples = tuple(Sample(s.inputs, attrs or {}) for s in _ELEMENTWISE_SAMPLES[arity])
    op = Elementwise(
        name, eager, infer, grads, samples=samples, body=body, condition=condition, fixed=fixed, **facts
    )
    return op


class Reduction(Op):
    """A reduction over `axes`, which stay with size 1. `combine` is "add", "mul", "max" or "min"."""

    def __init__(
        self, *facts: Any, combine: str, identity: Callable[[DType], float | int | bool], **others: Any
    ) -> None:
        super().__init__(*facts, **others)
        self.combine = combine
        self.identity = identity


class Scan(Op):
    """Each element combined with all before it along `axis`, by "add", "mul", "max" or "min".

    With two inputs, the first is what all that came before is multiplied by.
    """

    def __init__(self, *facts: Any, combine: str, **others: Any) -> None:
        super().__init__(*facts, **others)
        self.combine = combine


Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


class Movement(Op):
    """An op that only re-addresses its input.

    `view(shape, strides, offset, **attrs)` is the result's geometry in elements, None when the input must be
    copied
    first; `unview(base, new, **attrs)`, made of ops, is `base` with `new` written through the view. One that
    `rises` may be applied before the elementwise ops above it, with no more work than after them.
    """

    def __init__(
        self,
        *facts: Any,
        view: Callable[..., Geometry | None],
        unview: Callable[..., Any],
        rises: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(*facts, **others)
        self.rises = rises
        self.view = view
        self.unview = unview

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        if type(inputs[0]) is ndarray and len(inputs) == 1:
            return self.value(inputs, attrs)
        return super().__call__(*inputs, **attrs)

    def value(self, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        if type(inputs[0]) is ndarray:
            try:
                return self.eager(*inputs, **attrs)  # nothing that NumPy could warn of
            except (ValueError, TypeError):
                pass  # `infer` says it better
        return super().value(inputs, attrs)
