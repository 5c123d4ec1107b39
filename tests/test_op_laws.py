"""Laws every op keeps; the op table supplies the cases.

An op added to the table is tested here without another edit, through its `samples`.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as shapes_of

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input
from compiler.ops import sum_to
from compiler.ops.facts import Index
from compiler.ops.op import NUMPY, TABLE, Elementwise, Movement, Op, Sample, element_type
from compiler.types import TensorType, contiguous_strides, type_of_array
from kernels import dtypes
from kernels.dtypes import DType
from tests.reverse_mode import pull_back

Array = np.ndarray[Any, Any]
Case = tuple[Op, Sample, DType]

TESTED = (
    dtypes.bool_,
    dtypes.uint8,
    dtypes.int32,
    dtypes.int64,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float32,
    dtypes.float64,
)


def cases(*kinds: type[Op], only: tuple[DType, ...] = TESTED) -> list[Any]:
    """Every op of a kind, with each of its samples, in each dtype it is defined on."""
    found = []
    for op in TABLE.values():
        if isinstance(op, kinds or Op):
            for number, sample in enumerate(op.samples):
                for dtype in only:
                    if dtype.category in op.categories:
                        found.append(pytest.param((op, sample, dtype), id=f"{op.name}-{number}-{dtype.name}"))
    return found


def differentiable() -> list[Any]:
    """The float64 cases of ops with a gradient rule."""
    return [
        p for p in cases(only=(dtypes.float64,)) if any(rule is not None for rule in p.values[0][0].grads)
    ]


def inputs_of(op: Op, sample: Sample, dtype: DType) -> list[Array]:
    """Inputs drawn from the op's domain; the same ones each time."""
    rng = np.random.default_rng(zlib.crc32(f"{op.name}{sample}".encode()))
    condition = isinstance(op, Elementwise) and op.condition
    drawn = []
    for position, operand in enumerate(sample.inputs):
        if isinstance(operand, Index):
            drawn.append(rng.integers(operand.size, size=operand.shape))
        elif dtype is dtypes.bool_ or (condition and position == 0):
            drawn.append(rng.random(operand) < 0.5)
        elif dtype.is_floating_point:
            low, high = op.domain if isinstance(op, Elementwise) else (-3.0, 3.0)
            drawn.append(rng.uniform(low, high, operand).astype(dtype.numpy))
        else:
            # From 1: a divisor or an exponent must do as well.
            drawn.append(rng.integers(1, 6, size=operand).astype(dtype.numpy))
    return [np.asarray(x) for x in drawn]


def traced(op: Op, sample: Sample, arrays: list[Array]) -> tuple[tuple[Input, ...], Any]:
    """The op on IR inputs of the arrays' types."""
    inputs = tuple(Input(type_of_array(x), name=f"x{i}") for i, x in enumerate(arrays))
    return inputs, op.trace(*inputs, **sample.attrs)


# The laws
# ------------------------------------------------------------------------------------------------------------


def type_law(op: Op, sample: Sample, dtype: DType) -> None:
    """The traced type is the eager value's, which is a fresh row-major array unless it is a view."""
    arrays = inputs_of(op, sample, dtype)
    out = op(*arrays, **sample.attrs)
    assert isinstance(out, np.ndarray)
    assert traced(op, sample, arrays)[1].type == type_of_array(out)
    turned = op(*(np.array(x, order="F") for x in arrays), **sample.attrs)
    # Only the order of a sum may follow the layout.
    np.testing.assert_allclose(turned.astype(np.float64), out.astype(np.float64), rtol=1e-6)
    if not isinstance(op, Movement):
        assert out.flags.c_contiguous and turned.flags.c_contiguous
        assert not any(np.shares_memory(out, x) for x in arrays)


def body_law(op: Elementwise, sample: Sample, dtype: DType) -> None:
    """The eager value is the body on NumPy, 16-bit floats widened, on transposed operands too."""
    arrays = inputs_of(op, sample, dtype)
    wide = [x.astype(dtype.arithmetic.numpy) if x.dtype == dtype.numpy else x for x in arrays]
    out = op(*arrays, **sample.attrs)
    expected = np.asarray(op.body(NUMPY, *wide, **sample.attrs))
    if element_type(out.dtype).compute is None:
        assert expected.dtype == out.dtype
    np.testing.assert_array_equal(out, expected.astype(out.dtype))
    turned = [np.array(x, order="F") for x in arrays]
    np.testing.assert_array_equal(op(*turned, **sample.attrs), out)


def reference_law(op: Op, sample: Sample, dtype: DType) -> None:
    """The eager value is an independent formula's in float64, rounded once."""
    arrays = inputs_of(op, sample, dtype)
    floating = dtype.is_floating_point
    precise = (x.astype(np.float64) if floating and x.dtype == dtype.numpy else x for x in arrays)
    expected = REFERENCES[op.name](*precise, **sample.attrs)
    out = op(*arrays, **sample.attrs)
    if not floating or out.dtype == np.bool_:
        np.testing.assert_array_equal(out, np.asarray(expected).astype(out.dtype))
        return
    epsilon = float(np.finfo(np.float64).eps) if dtype is dtypes.float64 else _EPSILON[dtype]
    # NumPy's own float32 functions are within 4 ulp; one rounding is half an epsilon.
    tolerance = epsilon * (8 if dtype.compute is None else 0.51)
    np.testing.assert_allclose(
        out.astype(np.float64), expected, rtol=tolerance, atol=8 * 2.0**-23 if dtype.compute else epsilon
    )


_EPSILON = {dtypes.float32: 2.0**-23, dtypes.float16: 2.0**-10, dtypes.bfloat16: 2.0**-7}


def gradient_law(op: Op, sample: Sample) -> None:
    """The rules give the slope in one random direction that central differences give."""
    arrays = inputs_of(op, sample, dtypes.float64)
    rng = np.random.default_rng(1)
    out = op(*arrays, **sample.attrs)
    seed = rng.normal(size=out.shape)
    moved = [i for i, x in enumerate(arrays) if x.dtype == np.float64 and op.gradient(i) is not None]
    directions = {i: rng.normal(size=arrays[i].shape) for i in moved}
    slope = 0.0
    for i, direction in directions.items():
        rule = op.gradient(i)
        assert rule is not None
        gradient = sum_to(rule(seed, out, *arrays, **sample.attrs), arrays[i].shape)
        assert gradient.shape == arrays[i].shape
        slope += float(np.sum(gradient * direction))

    def value(t: float) -> float:
        at = [np.asarray(x + t * directions[i]) if i in directions else x for i, x in enumerate(arrays)]
        return float(np.sum(op(*at, **sample.attrs) * seed))

    assert slope == pytest.approx(central_difference(value), rel=1e-5, abs=1e-6)


def double_gradient_law(op: Op, sample: Sample) -> None:
    """Differentiating the traced rules once more gives the slope of the first gradient, seed included."""
    arrays = inputs_of(op, sample, dtypes.float64)
    rng = np.random.default_rng(2)
    inputs, out = traced(op, sample, arrays)
    if not out.dtype.is_floating_point:
        pytest.skip("a cast result that has no gradient")
    seed = Input(out.type, name="seed")
    wanted = [x for i, x in enumerate(inputs) if x.dtype is dtypes.float64 and op.gradient(i) is not None]
    firsts = pull_back(out, seed, wanted)
    total: Any = None
    for first in firsts:
        weighted = ops.mul(first, rng.normal(size=first.shape))
        flat = ops.reshape(ops.sum(weighted, axes=tuple(range(weighted.ndim))), shape=())
        total = flat if total is None else ops.add(total, flat)
    varied = [*wanted, seed]
    seconds = pull_back(total, ops.full.trace(shape=(), value=1.0, dtype=dtypes.float64), varied)
    values = dict(
        zip((*inputs, seed), (*arrays, rng.normal(size=out.shape).astype(out.dtype.numpy)), strict=True)
    )
    directions = {x: rng.normal(size=x.shape).astype(x.dtype.numpy) for x in varied}
    graph = Graph((*inputs, seed), (total, *seconds))

    def run(t: float) -> list[Array]:
        return evaluate(
            graph, [np.asarray(a + t * directions[x]) if x in directions else a for x, a in values.items()]
        )

    slope = sum(float(np.sum(s * directions[x])) for s, x in zip(run(0.0)[1:], varied, strict=True))
    assert slope == pytest.approx(central_difference(lambda t: float(run(t)[0])), rel=1e-4, abs=1e-5)


def central_difference(value: Callable[[float], float]) -> float:
    """The slope of `value` at 0, to fourth order in a step at which float64 rounding is 1e-10."""
    step = 1e-5
    near, far = value(step) - value(-step), value(2 * step) - value(-2 * step)
    return (8 * near - far) / (12 * step)


def geometry_law(op: Movement, sample: Sample) -> None:
    """`view` addresses the elements that NumPy's view does, from a base that is itself strided."""
    (shape,) = sample.inputs
    assert isinstance(shape, tuple)
    memory = np.arange(np.prod([2 * n + 1 for n in shape], dtype=np.int64)).reshape(
        [2 * n + 1 for n in shape]
    )
    for base in (
        np.arange(np.prod(shape, dtype=np.int64)).reshape(shape),
        memory[(*(slice(1, None, 2) for _ in shape), ...)],
    ):
        assert base.shape == shape
        whole = base if base.base is None or base.size == base.base.size else memory
        flat = whole.reshape(-1)
        offset = (base.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // 8
        expected = op(base, **sample.attrs)
        geometry = op.view(shape, tuple(s // 8 for s in base.strides), offset, **sample.attrs)
        assert (geometry is not None) == np.shares_memory(expected, base)
        if geometry is not None:
            new_shape, strides, start = geometry
            addresses = start + sum(
                np.ix_(*(np.arange(n) * s for n, s in zip(new_shape, strides, strict=True))),
                np.zeros((), int),
            )
            assert new_shape == expected.shape
            np.testing.assert_array_equal(flat[np.broadcast_to(addresses, new_shape)], expected)


def unview_law(op: Movement, sample: Sample) -> None:
    """Reading the view of unview(base, new) gives `new`, and elements outside the view keep their value."""
    (base,) = inputs_of(op, sample, dtypes.float64)
    out = op(base, **sample.attrs)
    new = np.arange(out.size, dtype=np.float64).reshape(out.shape) + 100
    if np.unique(op(np.arange(base.size).reshape(base.shape), **sample.attrs)).size != out.size:
        with pytest.raises(RuntimeError, match="one memory location"):
            op.unview(base, new, **sample.attrs)
        return
    written = op.unview(base, new, **sample.attrs)
    np.testing.assert_array_equal(op(written, **sample.attrs), new)
    touched = np.isin(np.arange(base.size), op(np.arange(base.size).reshape(base.shape), **sample.attrs))
    np.testing.assert_array_equal(written.reshape(-1)[~touched], base.reshape(-1)[~touched])
    assert written.shape == base.shape


def decompose_law(op: Op, sample: Sample, dtype: DType) -> None:
    """The ops a primitive decomposes to give its value and type."""
    arrays = inputs_of(op, sample, dtype)
    inputs = tuple(Input(type_of_array(x)) for x in arrays)
    assert op.decompose is not None
    value = op.decompose(*inputs, **sample.attrs)
    expected = op(*arrays, **sample.attrs)
    assert value.type == type_of_array(expected)
    np.testing.assert_array_equal(evaluate(Graph(inputs, (value,)), arrays)[0], expected)


def _relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


def _along(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, axes: function(x, axis=axes, keepdims=True)


def _position(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, axis, keepdim: function(x, axis=axis, keepdims=keepdim)


def _added_rows(x: Array, index: Array, source: Array, axis: int) -> Array:
    out = np.moveaxis(x, axis, 0).copy()
    rows = np.moveaxis(source, range(axis, axis + index.ndim), range(index.ndim))
    for position in np.ndindex(index.shape):
        out[index[position]] += rows[position]
    return np.moveaxis(out, 0, axis)


def _erf(x: Array) -> Array:
    # Maclaurin's series: converges to float64 precision in 60 terms on the law's interval.
    term, total = x.copy(), x.copy()
    for n in range(1, 60):
        term = -term * x * x / n
        total = total + term / (2 * n + 1)
    return 2 / np.sqrt(np.pi) * total


# Formulas in other words than the op's own.
REFERENCES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": lambda x: np.maximum(x, -x) if x.dtype.kind != "u" else x,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "floor_div": lambda x, y: x // y,
    "remainder": lambda x, y: x - np.floor(x / y) * y,
    "fmod": lambda x, y: x - np.trunc(x / y) * y,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "relu": _relu,
    "sign": np.sign,
    "floor": lambda x: np.floor(x),
    "ceil": lambda x: -np.floor(-x),
    "trunc": lambda x: np.sign(x) * np.floor(np.abs(x)),
    "round": lambda x: np.floor(x + 0.5),
    "sqrt": lambda x: x**0.5,
    "rsqrt": lambda x: x**-0.5,
    "exp": lambda x: np.e**x,
    "expm1": lambda x: 2 * np.exp(x / 2) * np.sinh(x / 2),
    "log": lambda x: np.log2(x) * np.log(2.0),
    "log1p": lambda x: 2 * np.arctanh(x / (2 + x)),
    "sin": lambda x: 2 * np.sin(x / 2) * np.cos(x / 2),
    "cos": lambda x: np.cos(x / 2) ** 2 - np.sin(x / 2) ** 2,
    "tanh": lambda x: np.sinh(x) / np.cosh(x),
    "erf": _erf,
    "sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2,
    "pow": lambda x, y: np.exp(y * np.log(x)) if x.dtype.kind == "f" else x**y,
    "eq": lambda x, y: ~((x < y) | (x > y)),
    "ne": lambda x, y: (x < y) | (x > y),
    "lt": lambda x, y: ~(x >= y),
    "le": lambda x, y: ~(x > y),
    "gt": lambda x, y: ~(x <= y),
    "ge": lambda x, y: ~(x < y),
    "where": lambda condition, x, y: np.choose(condition, (y, x)),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "invert": lambda x: ~x,
    "shift_left": lambda x, y: x * 2 ** y.astype(np.int64),
    "shift_right": lambda x, y: x // 2 ** y.astype(np.int64),
    "sum": _along(np.sum),
    "prod": _along(np.prod),
    "amax": _along(np.max),
    "amin": _along(np.min),
    "any": _along(np.any),
    "all": _along(np.all),
    "argmax": _position(np.argmax),
    "argmin": _position(np.argmin),
    "matmul": lambda a, b: np.einsum("...ik,...kj->...ij", a, b),
    "take": lambda x, index, axis: x[(slice(None),) * axis + (index,)],
    "take_add": _added_rows,
    "concatenate": lambda *xs, axis: np.concatenate(xs, axis),
    "pad": lambda x, low, high, value: np.pad(x, list(zip(low, high, strict=True)), constant_values=value),
}


@pytest.mark.parametrize("case", cases())
def test_traced_type_is_eager_type(case: Case) -> None:
    type_law(*case)


@pytest.mark.parametrize("case", cases(Elementwise))
def test_eager_value_is_the_body(case: tuple[Elementwise, Sample, DType]) -> None:
    body_law(*case)


@pytest.mark.parametrize("case", [p for p in cases() if p.values[0][0].name in REFERENCES])
def test_eager_value_is_an_independent_formula(case: Case) -> None:
    reference_law(*case)


@pytest.mark.parametrize("case", differentiable())
def test_gradient_in_one_direction(case: Case) -> None:
    gradient_law(*case[:2])


@pytest.mark.parametrize("case", differentiable())
def test_double_gradient_in_one_direction(case: Case) -> None:
    double_gradient_law(*case[:2])


@pytest.mark.parametrize("case", cases(Movement, only=(dtypes.float64,)))
def test_view_geometry(case: tuple[Movement, Sample, DType]) -> None:
    geometry_law(*case[:2])


@pytest.mark.parametrize("case", cases(Movement, only=(dtypes.float64,)))
def test_unview(case: tuple[Movement, Sample, DType]) -> None:
    unview_law(*case[:2])


@pytest.mark.parametrize("case", [p for p in cases() if p.values[0][0].decompose is not None])
def test_decomposition(case: Case) -> None:
    decompose_law(*case)


def test_every_op_has_samples() -> None:
    assert [op.name for op in TABLE.values() if not op.samples] == []


@pytest.mark.parametrize("name", ["add", "where", "maximum"])
@given(shapes=shapes_of.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, min_side=0, max_side=3))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_shapes_broadcast_as_numpy(name: str, shapes: Any) -> None:
    op, (first, second, third) = TABLE[name], shapes.input_shapes
    operands: list[Array] = [np.zeros(first), np.zeros(second)]
    if name == "where":
        operands = [np.zeros(third, np.bool_), *operands]
    out = op(*operands)
    assert out.shape == np.broadcast_shapes(*(x.shape for x in operands))
    assert op.trace(*(Input(type_of_array(x)) for x in operands)).type == type_of_array(out)


# The laws can fail
# ---------------------------------------------------------------------------------------------------


def planted(op: Op, **fault: Any) -> Any:
    """A faulty copy of an op, outside the table."""
    wrong = copy.copy(op)
    vars(wrong).update(name=f"planted {op.name}", **fault)
    return wrong


def test_a_wrong_gradient_is_caught() -> None:
    wrong = planted(ops.mul, grads=(lambda g, out, x, y: ops.mul(g, x), ops.mul.grads[1]))
    with pytest.raises(AssertionError):
        gradient_law(wrong, ops.mul.samples[0])


def test_a_gradient_that_is_not_differentiable_is_caught() -> None:
    # Right to first order.
    opaque = planted(ops.neg, grads=())
    wrong = planted(ops.square, grads=(lambda g, out, x: ops.mul(g, ops.mul(opaque(x), -2.0)),))
    gradient_law(wrong, ops.square.samples[0])
    with pytest.raises(AssertionError):
        double_gradient_law(wrong, ops.square.samples[0])


def test_a_wrong_body_is_caught() -> None:
    wrong = planted(ops.maximum, body=lambda k, x, y: k.where(k.lt(x, y), x, y))
    with pytest.raises(AssertionError):
        body_law(wrong, ops.maximum.samples[0], dtypes.float32)


def test_a_wrong_type_is_caught() -> None:
    wrong = planted(ops.sum, infer=lambda x, axes: TensorType(x.shape, x.dtype))
    with pytest.raises(AssertionError):
        type_law(wrong, ops.sum.samples[0], dtypes.float32)


def test_a_wrong_geometry_is_caught() -> None:
    wrong = planted(ops.flip, view=lambda shape, strides, offset, axes: (shape, strides, offset))
    with pytest.raises(AssertionError):
        geometry_law(wrong, ops.flip.samples[0])


def test_contiguous_strides_are_numpys() -> None:
    assert contiguous_strides((2, 3, 4)) == tuple(s // 8 for s in np.zeros((2, 3, 4)).strides)
