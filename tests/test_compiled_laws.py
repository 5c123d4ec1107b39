"""Laws of compiled code; the op table supplies the cases.

Every op, in every dtype it is defined on, compiled alone and between two neighbours, gives what it gives
eagerly; and so do its gradient rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.errors import LoweringError
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value
from compiler.ops.op import TABLE, Elementwise, Op, Sample
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType, type_of_array
from kernels import dtypes
from kernels.cpu.vector_math import ULP_BOUNDS
from kernels.dtypes import DType
from tests.kernels.cpu.native import assert_near
from tests.reverse_mode import pull_back
from tests.test_op_laws import TESTED, cases, differentiable, inputs_of, planted, traced

Array = np.ndarray[Any, Any]
Case = tuple[Op, Sample, DType]


def is_defined(op: Op, dtype: DType) -> bool:
    """Whether an op takes a dtype: streams of random words are int64 alone."""
    return dtype.category in op.categories and (op is not ops.random_word or dtype is dtypes.int64)


def has_compiled_form(op: Op, dtype: DType) -> bool:
    """Integer products are left to NumPy; everything else compiles."""
    return op.name != "matmul" or dtype.is_floating_point


# Sums, whose order is the kernel's own.
ROUNDED = (
    "sum", "prod", "matmul", "contract", "convolution", "scatter_add", "take_add", "standardize", "softmax",
    "dot", "log_softmax", "shares",
)  # fmt: skip


def allowed_ulps(op: Op, dtype: DType) -> int:
    """How far compiled and eager values may be apart: not at all, but for functions and sums, which round."""
    rounds = isinstance(op, Elementwise) and not op.functions.isdisjoint(ULP_BOUNDS)
    rounded = rounds or op.name in ROUNDED
    if not rounded or not dtype.is_floating_point:
        return 0
    # NumPy is within 4 ulp of the true value; 16-bit results are equal or neighbours.
    return 8 if dtype.compute is None else 1


def run(inputs: tuple[Input, ...], outputs: tuple[Value, ...], arrays: list[Array]) -> list[Array]:
    """The outputs of the compiled graph."""
    return Executable(Request(Graph(inputs, outputs)))(*arrays)


def alone_law(op: Op, sample: Sample, dtype: DType) -> None:
    """A compiled program of one op gives the eager value."""
    arrays = inputs_of(op, sample, dtype)
    inputs, out = traced(op, sample, arrays)
    if not has_compiled_form(op, dtype):
        with pytest.raises(LoweringError, match="matmul"):
            run(inputs, (out,), arrays)
        return
    (got,) = run(inputs, (out,), arrays)
    assert type_of_array(got) == out.type
    assert_near(got, op(*arrays, **sample.attrs), allowed_ulps(op, dtype), f"{op.name} {dtype.name}")


def before(x: Value) -> Value:
    """A neighbour that changes no value: its bound is below every number of the laws."""
    if x.dtype is dtypes.bool_:
        return ops.bitwise_or.trace(x, False)
    return ops.maximum.trace(x, -100 if x.dtype.is_signed else 0)


def after(x: Value) -> Value:
    """A neighbour that rounds nothing."""
    if x.dtype is dtypes.bool_:
        return ops.invert.trace(x)
    return ops.mul.trace(x, 2)


def fused_law(op: Op, sample: Sample, dtype: DType) -> None:
    """An op between two pointwise ones gives what the three give eagerly."""
    arrays = inputs_of(op, sample, dtype)
    inputs = tuple(Input(type_of_array(x), name=f"x{i}") for i, x in enumerate(arrays))
    out = after(op.trace(*(before(x) for x in inputs), **sample.attrs))
    (got,) = run(inputs, (out,), arrays)
    (wanted,) = evaluate(Graph(inputs, (out,)), arrays)
    assert_near(got, wanted, allowed_ulps(op, dtype), f"{op.name} {dtype.name} among others")


def joint_law(together: list[Elementwise], dtype: DType) -> None:
    """Ops of one kernel, each between neighbours of its own, give what they give eagerly."""
    arrays: list[Array] = []
    inputs: list[Input] = []
    outputs: list[Value] = []
    joined: Value | None = None
    for op in together:
        own = inputs_of(op, op.samples[0], dtype)
        mine = [Input(type_of_array(x), name=f"{op.name}{i}") for i, x in enumerate(own)]
        outputs.append(after(op.trace(*(before(x) for x in mine), **op.samples[0].attrs)))
        one = ops.cast.trace(outputs[-1], dtype=dtypes.float64)
        joined = one if joined is None else ops.maximum.trace(joined, one)
        arrays, inputs = arrays + own, inputs + mine
    assert joined is not None
    graph = Graph(tuple(inputs), (*outputs, joined) if len(outputs) > 1 else tuple(outputs))
    executable = Executable(Request(graph))
    assert len(executable.kernels) == 1
    for op, got, wanted in zip(together, executable(*arrays), evaluate(graph, arrays), strict=False):
        assert_near(got, wanted, allowed_ulps(op, dtype), f"{op.name} {dtype.name} among others")


def gradient_law(op: Op, sample: Sample) -> None:
    """The rules of every input, compiled together with the op, give what they give node by node."""
    arrays = inputs_of(op, sample, dtypes.float64)
    inputs, out = traced(op, sample, arrays)
    if not out.dtype.is_floating_point:
        pytest.skip("a cast result that has no gradient")
    seed = Input(out.type, name="seed")
    wanted = [x for i, x in enumerate(inputs) if x.dtype is dtypes.float64 and op.gradient(i) is not None]
    everything = [*arrays, np.random.default_rng(0).normal(size=out.shape).astype(out.dtype.numpy)]
    graph = Graph((*inputs, seed), (out, *pull_back(out, seed, wanted)))
    got = Executable(Request(graph))(*everything)
    for a, b in zip(got, evaluate(graph, everything), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def first_samples(only: tuple[DType, ...] = TESTED) -> list[Any]:
    """Cases of each op's first sample."""
    found = [p for p in cases(only=only) if p.values[0][1] is p.values[0][0].samples[0]]
    return [p for p in found if is_defined(p.values[0][0], p.values[0][2])]


def other_samples(*only: DType) -> list[Any]:
    """Cases of all the others: broadcast operands, other axes."""
    return [p for p in cases(only=only) if p.values[0][1] is not p.values[0][0].samples[0]]


@pytest.mark.parametrize("case", first_samples())
def test_alone(case: Case) -> None:
    alone_law(*case)


@pytest.mark.parametrize("case", other_samples(dtypes.float32))
def test_alone_broadcast_or_along_other_axes(case: Case) -> None:
    alone_law(*case)


@pytest.mark.parametrize("case", [p for p in first_samples() if not isinstance(p.values[0][0], Elementwise)])
def test_between_neighbours(case: Case) -> None:
    if has_compiled_form(case[0], case[2]):
        fused_law(*case)


@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize("dtype", TESTED, ids=lambda d: d.name)
def test_elementwise_ops_between_neighbours(dtype: DType, arity: int) -> None:
    found = [op for op in TABLE.values() if isinstance(op, Elementwise) and is_defined(op, dtype)]
    found = [op for op in found if len(op.samples[0].inputs) == arity and op is not ops.random_word]
    for start in range(0, len(found), 10):
        joint_law(found[start : start + 10], dtype)


@pytest.mark.parametrize("case", differentiable())
def test_gradients(case: Case) -> None:
    gradient_law(*case[:2])


# Special values -----------------------------------------------------------------------------------

_NUMBERS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -8.0, 1e-45, 3e38, 7.0]


def special(op: Elementwise, dtype: DType, count: int) -> list[Array]:
    """Every pair of special values, as operands of `op`."""
    if dtype is dtypes.bool_:
        numbers = np.array([False, True])
    elif dtype.is_floating_point:
        numbers = np.array(_NUMBERS).astype(dtype.numpy)
    else:
        limits = np.iinfo(dtype.numpy)
        numbers = np.array([limits.min, limits.max, 0, 1, 2, 3, limits.max // 2], dtype.numpy)
    grid = [x.reshape(-1) for x in np.meshgrid(*[numbers] * min(count - op.condition, 2))]
    if op.check is not None and not dtype.is_floating_point and len(grid) > 1:
        low = 0 if op is ops.pow else 1
        keep = grid[1] >= low
        grid = [x[keep] for x in grid]
    return [np.arange(grid[0].size) % 2 == 0, *grid] if op.condition else grid


@pytest.mark.parametrize("dtype", TESTED, ids=lambda d: d.name)
def test_special_values(dtype: DType) -> None:
    with np.errstate(all="ignore"):
        for op in TABLE.values():
            if (
                not isinstance(op, Elementwise)
                or not is_defined(op, dtype)
                or op in (ops.cast, ops.unit_interval)
            ):
                continue
            arrays = special(op, dtype, len(op.samples[0].inputs))
            if op.name == "random_word":
                arrays = [arrays[0], arrays[-1], arrays[0]]
            if dtype is dtypes.float64 and "pow" in op.functions:
                arrays = [x[np.abs(arrays[1]) < 1e30] for x in arrays]
            inputs = tuple(Input(type_of_array(x)) for x in arrays)
            (got,) = run(inputs, (op.trace(*inputs),), arrays)
            assert_near(got, op(*arrays), allowed_ulps(op, dtype), f"{op.name} {dtype.name}")


@pytest.mark.parametrize("source", TESTED, ids=lambda d: d.name)
def test_casts_to_every_dtype(source: DType) -> None:
    array = np.array([0, 1, 2, 100, 5, 1]).astype(source.numpy)
    if source.is_signed:
        array[2] = array[2] * -1
    x = Input(type_of_array(array))
    outputs = tuple(ops.cast.trace(x, dtype=d) for d in TESTED)
    for got, wanted in zip(
        run((x,), outputs, [array]), (ops.cast(array, dtype=d) for d in TESTED), strict=True
    ):
        assert_near(got, wanted, 0, source.name)


@pytest.mark.parametrize(
    "dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.float16], ids=lambda d: d.name
)
@pytest.mark.parametrize("draw", [ops.uniform, ops.normal], ids=["uniform", "normal"])
def test_random_numbers_have_the_same_bits(draw: Any, dtype: DType) -> None:
    kind = TensorType((), dtypes.int64)
    seed, offset = Input(kind, name="seed"), Input(kind, name="offset")
    arrays = [np.array(2**40 + 7), np.array(3)]
    (got,) = run((seed, offset), (draw(seed, offset, shape=(7, 33), dtype=dtype),), arrays)
    np.testing.assert_array_equal(got, draw(*arrays, shape=(7, 33), dtype=dtype))


# The laws can fail --------------------------------------------------------------------------------


def test_a_wrong_body_is_caught() -> None:
    wrong = planted(ops.sub, body=lambda k, x, y: k.sub(y, x))
    for law in (alone_law, fused_law):
        with pytest.raises(AssertionError):
            law(wrong, ops.sub.samples[0], dtypes.float32)


def test_a_wrong_combination_is_caught() -> None:
    wrong = planted(ops.amax, combine="min")
    with pytest.raises(AssertionError):
        alone_law(wrong, ops.amax.samples[0], dtypes.float32)


def test_an_op_without_a_compiled_form_says_so() -> None:
    strange = planted(ops.random_bits, decompose=None)
    arrays = inputs_of(ops.random_bits, ops.random_bits.samples[0], dtypes.int64)
    inputs, out = traced(strange, ops.random_bits.samples[0], arrays)
    with pytest.raises(LoweringError, match="random_bits"):
        run(inputs, (out,), arrays)
