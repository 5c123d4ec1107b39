"""Programs against the interpreter: random graphs, writes in place, checks, memory, threads, constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value, constant
from compiler.plan import Request
from compiler.program import Executable
from compiler.types import TensorType
from kernels import dtypes
from kernels.cpu import pool
from kernels.dtypes import DType
from kernels.files import load
from kernels.prepared import Prepared
from tests.compiler.random_graphs import random_graph

Array = np.ndarray[Any, Any]
F32, F64, I64 = dtypes.float32, dtypes.float64, dtypes.int64


def an_input(shape: tuple[int, ...], dtype: DType = F32, name: str = "x") -> Input:
    return Input(TensorType(shape, dtype), name=name)


def run(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of the compiled graph."""
    return Executable(Request(graph))(*arrays)


def same(got: Sequence[Array], wanted: Sequence[Array], rtol: float = 0.0) -> None:
    """Equal arrays, types included; with `rtol`, floats may differ by it."""
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if rtol and a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(a, b)


# Random graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_exact_graphs_give_the_interpreters_bits(seed: int) -> None:
    graph, arrays = random_graph(seed, (F32, F64, I64)[seed % 3])
    same(run(graph, arrays), evaluate(graph, arrays))


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_graphs_are_near_the_interpreter(seed: int) -> None:
    graph, arrays = random_graph(seed, F64, exact=False)
    same(run(graph, arrays), evaluate(graph, arrays), rtol=1e-9)


@pytest.mark.parametrize("seed", range(200, 204))
def test_strided_inputs(seed: int) -> None:
    graph, arrays = random_graph(seed, F32)
    turned = [np.asfortranarray(x) for x in arrays]
    strides = {i: tuple(s // 4 for s in x.strides) for i, x in enumerate(turned)}
    same(Executable(Request(graph, strides=strides))(*turned), evaluate(graph, arrays))


def test_a_program_runs_again_on_other_arrays() -> None:
    graph, arrays = random_graph(7, F32)
    executable = Executable(Request(graph))
    first = executable(*arrays)
    others = [x + 1 for x in arrays]
    same(executable(*others), evaluate(graph, others))
    same(executable(*arrays), first)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1, 1), (2, 0, 4)])
def test_shapes_without_or_with_one_element(shape: tuple[int, ...]) -> None:
    x = an_input(shape)
    axes = tuple(range(len(shape)))
    total = ops.sum.trace(ops.mul.trace(ops.add.trace(x, 1.0), x), axes=axes)
    graph = Graph((x,), (total, ops.add.trace(x, total), ops.prod.trace(x, axes=axes)))
    array = np.full(shape, 3, np.float32)
    same(run(graph, [array]), evaluate(graph, [array]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_reductions_of_nothing(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = an_input(shape)
    graph = Graph((x,), (ops.sum.trace(x, axes=axes), ops.add.trace(ops.prod.trace(x, axes=axes), 1.0)))
    same(run(graph, [np.zeros(shape, np.float32)]), evaluate(graph, [np.zeros(shape, np.float32)]))


def test_outputs_that_are_inputs_views_constants_or_twice_the_same() -> None:
    x = an_input((2, 3))
    y = ops.add.trace(x, 1.0)
    turned = ops.permute.trace(y, axes=(1, 0))
    numbers = constant(np.arange(3, dtype=np.float32))
    full = ops.full.trace(shape=(2, 2), value=7, dtype=I64)
    counted = ops.iota.trace(shape=(2, 3), axis=1, dtype=I64)
    graph = Graph(
        (x,),
        (
            x,
            y,
            y,
            turned,
            numbers,
            constant(np.float64(2.5)),
            full,
            counted,
            ops.flip.trace(counted, axes=(1,)),
        ),
    )
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = run(graph, [array])
    same(outputs, evaluate(graph, [array]))
    memory = [array, *outputs]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(memory) for b in memory[:i])


def test_literals_survive() -> None:
    x = an_input((5,), F32)
    numbers = [-0.0, np.inf, -np.inf, np.nan, 1e-45, 2.0**63, 0.1]
    graph = Graph(
        (x,), tuple(ops.where.trace(ops.lt.trace(x, 9.0), constant(np.float32(n)), x) for n in numbers)
    )
    for out, number in zip(run(graph, [np.zeros(5, np.float32)]), numbers, strict=True):
        wanted = np.full(5, number, np.float32)
        np.testing.assert_array_equal(out.view(np.int32) & 0x7FFFFFFF, wanted.view(np.int32) & 0x7FFFFFFF)
        np.testing.assert_array_equal(np.signbit(out), np.signbit(wanted))


def test_subnormal_numbers_before_while_and_after_compiling() -> None:
    def product() -> float:
        return float(np.float32(0.1875) * np.float32(2.0**-124))

    before = product()
    x = an_input((1,))
    (out,) = run(Graph((x,), (ops.mul.trace(x, 2.0**-124),)), [np.array([0.1875], np.float32)])
    assert before == float(out[0]) == product() == 8.816207631167156e-39


def test_a_quotient_is_not_a_product_with_a_reciprocal() -> None:
    x = an_input((3,))
    (out,) = run(
        Graph((x,), (ops.mul.trace(ops.add.trace(ops.div.trace(x, 7.0), 0.0), 1.0),)),
        [np.full(3, 11, np.float32)],
    )
    assert out[0] == np.float32(1.5714285373687744)


def test_no_multiply_add_is_fused() -> None:
    # (1 + e)² - (1 + 2e) is 0 when the square is rounded first, and e² when it is not.
    x, y = an_input((4,), F64), an_input((4,), F64, "y")
    graph = Graph((x, y), (ops.sub.trace(ops.mul.trace(x, x), y),))
    one = np.full(4, 1 + 2.0**-40)
    (out,) = run(graph, [one, np.full(4, 1 + 2.0**-39)])
    np.testing.assert_array_equal(out, 0.0)


# Writes -------------------------------------------------------------------------------------------


def written(
    graph: Graph, writes: tuple[tuple[int, Value], ...], arrays: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Outputs and inputs after a program with writes ran."""
    everything = Graph(graph.inputs, (*graph.outputs, *(v for _, v in writes)))
    executable = Executable(Request(everything, writes))
    copies = [x.copy() for x in arrays]
    return executable(*copies), copies


def check_writes(
    inputs: tuple[Input, ...],
    outputs: tuple[Value, ...],
    writes: tuple[tuple[int, Value], ...],
    arrays: Sequence[Array],
) -> None:
    """Outputs and written inputs are the interpreter's, all computed from the old values."""
    got, after = written(Graph(inputs, outputs), writes, arrays)
    wanted = evaluate(Graph(inputs, (*outputs, *(v for _, v in writes))), arrays)
    same(got, wanted[: len(outputs)])
    expected = list(arrays)
    for (number, _), value in zip(writes, wanted[len(outputs) :], strict=True):
        expected[number] = value
    same(after, expected)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(np.float32)


def test_an_update_in_place() -> None:
    x, g = an_input((70,)), an_input((70,), name="g")
    check_writes((x, g), (), ((0, ops.sub.trace(x, ops.mul.trace(g, 0.5))),), [numbers(70), numbers(70)])


def test_old_values_are_read_before_they_are_overwritten() -> None:
    x, y = an_input((5, 40)), an_input((5, 40), name="y")
    new = ops.add.trace(x, y)
    # Readers of the old x: a reduction, a transpose, the other input's new value, an output.
    rows = ops.sum.trace(x, axes=(1,))
    turned = ops.permute.trace(ops.mul.trace(x, 3.0), axes=(1, 0))
    check_writes(
        (x, y), (rows, turned, x), ((0, new), (1, ops.sub.trace(x, y))), [numbers(5, 40), numbers(5, 40)]
    )


def test_two_inputs_change_places() -> None:
    x, y = an_input((9,)), an_input((9,), name="y")
    check_writes((x, y), (), ((0, y), (1, x)), [numbers(9), numbers(9) + 1])


def test_an_input_reversed_or_turned_into_itself() -> None:
    x = an_input((33,))
    check_writes((x,), (), ((0, ops.flip.trace(x, axes=(0,))),), [numbers(33)])
    check_writes((x,), (), ((0, ops.add.trace(ops.flip.trace(x, axes=(0,)), x)),), [numbers(33)])
    square = an_input((17, 17))
    check_writes(
        (square,),
        (),
        ((0, ops.add.trace(ops.permute.trace(square, axes=(1, 0)), square)),),
        [numbers(17, 17)],
    )


def test_one_value_written_to_two_inputs_and_returned() -> None:
    x, y = an_input((6,)), an_input((6,), name="y")
    new = ops.add.trace(x, y)
    check_writes((x, y), (new,), ((0, new), (1, new)), [numbers(6), numbers(6)])


def test_an_input_replaced_by_its_product_with_a_matrix() -> None:
    x, w = an_input((8, 8)), an_input((8, 8), name="w")
    product = ops.matmul.trace(x, w)
    check_writes((x, w), (), ((0, product), (1, ops.sub.trace(w, product))), [numbers(8, 8), numbers(8, 8)])


def test_an_input_scattered_into_and_gathered_from_itself() -> None:
    x, index = an_input((6, 3)), an_input((4,), I64, "index")
    rows = ops.take.trace(x, index, axis=0)
    new = ops.take_add.trace(x, index, ops.mul.trace(rows, 2.0), axis=0)
    check_writes((x, index), (rows,), ((0, new),), [numbers(6, 3), np.array([0, 5, 5, 2])])
    taken = an_input((4, 3))
    replaced = ops.add.trace(ops.take.trace(taken, index, axis=0), 1.0)
    check_writes((taken, index), (), ((0, replaced),), [numbers(4, 3), np.array([3, 2, 1, 0])])


def test_a_slice_of_an_input_updated() -> None:
    x = an_input((4, 6))
    attrs = {"starts": (1, 0), "stops": (3, 6), "steps": (1, 2)}
    part = ops.slice.trace(x, **attrs)
    check_writes(
        (x,), (part,), ((0, ops.slice_update.trace(x, ops.neg.trace(part), **attrs)),), [numbers(4, 6)]
    )


def test_a_strided_input_is_written_in_its_own_layout() -> None:
    x = an_input((3, 5))
    request = Request(
        Graph((x,), (ops.add.trace(x, 1.0),)), ((0, ops.add.trace(x, 1.0)),), strides={0: (1, 3)}
    )
    request = Request(Graph((x,), (request.writes[0][1],)), request.writes, strides={0: (1, 3)})
    array = np.asfortranarray(numbers(3, 5))
    old = array.copy()
    Executable(request)(array)
    np.testing.assert_array_equal(array, old + 1)


@pytest.mark.parametrize("seed", range(300, 308))
def test_random_writes(seed: int) -> None:
    graph, arrays = random_graph(seed, F32, nodes=10)
    rng = np.random.default_rng(seed)
    candidates = [v for v in graph.nodes if v not in graph.inputs and v.dtype is F32 and 0 not in v.shape]
    writes = []
    for number, x in enumerate(graph.inputs):
        value = candidates[rng.integers(len(candidates))]
        value = ops.amin.trace(value, axes=tuple(range(value.ndim)))
        value = ops.reshape.trace(value, shape=())
        writes.append(
            (
                number,
                ops.add.trace(graph.inputs[number], value)
                if rng.random() < 0.7
                else ops.expand.trace(value, shape=x.shape),
            )
        )
    check_writes(graph.inputs, graph.outputs, tuple(writes), arrays)


# Checks -------------------------------------------------------------------------------------------


def test_a_failed_check_stops_before_anything_is_written() -> None:
    x, index = an_input((4, 3)), an_input((2,), I64, "index")
    bad = ops.reshape.trace(
        ops.any.trace(ops.bitwise_or.trace(ops.lt.trace(index, 0), ops.ge.trace(index, 4)), axes=(0,)),
        shape=(),
    )
    new = ops.sub.trace(x, 1.0)
    late = ops.take.trace(new, index, axis=0)
    executable = Executable(Request(Graph((x, index), (late, new, bad)), ((0, new),), (bad,)))
    array = numbers(4, 3)
    old = array.copy()
    with pytest.raises(RuntimeError, match="check"):
        executable(array, np.array([0, 4]))
    np.testing.assert_array_equal(array, old)
    (rows,) = executable(array, np.array([0, 3]))
    np.testing.assert_array_equal(rows, (old - 1)[[0, 3]])
    np.testing.assert_array_equal(array, old - 1)


# Threads ------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = pool.get_num_threads()
    yield
    pool.set_num_threads(before)


def large_graph() -> tuple[Graph, list[Array]]:
    """Reductions of every direction, products and pointwise work, each large enough to be shared."""
    rng = np.random.default_rng(0)
    x, w = an_input((300, 257)), an_input((257, 130), name="w")
    e = ops.exp.trace(x)
    rows = ops.sum.trace(e, axes=(1,))
    columns = ops.sum.trace(ops.mul.trace(x, x), axes=(0,))
    whole = ops.sum.trace(ops.sin.trace(x), axes=(0, 1))
    product = ops.relu.trace(ops.matmul.trace(ops.div.trace(e, rows), w))
    outputs = (rows, columns, whole, product, ops.sum.trace(product, axes=(0,)))
    arrays = [rng.normal(size=(300, 257)).astype(np.float32), rng.normal(size=(257, 130)).astype(np.float32)]
    return Graph((x, w), outputs), arrays


def test_any_number_of_threads_gives_the_same_bits(threads: None) -> None:
    graph, arrays = large_graph()
    results = []
    for count in (1, 2, 3):
        pool.set_num_threads(count)
        executable = Executable(Request(graph))
        assert executable.program.parallel
        results += [executable(*arrays) for _ in range(3)]
    for other in results[1:]:
        same(other, results[0])
    same(results[0], evaluate(graph, arrays), rtol=2e-5)


def test_a_program_made_for_fewer_threads_runs_with_more(threads: None) -> None:
    # The exponential is kept in memory of each thread's own.
    x = an_input((400, 300))
    e = ops.exp.trace(ops.sub.trace(x, ops.amax.trace(x, axes=(1,))))
    graph = Graph((x,), (ops.div.trace(e, ops.sum.trace(e, axes=(1,))),))
    array = np.random.default_rng(0).normal(size=(400, 300)).astype(np.float32)
    pool.set_num_threads(1)
    executable = Executable(Request(graph))
    wanted = executable(array)
    for count in (2, 4, 1):
        pool.set_num_threads(count)
        for _ in range(20):
            same(executable(array), wanted)


def test_sums_of_a_million_stay_accurate() -> None:
    x = an_input((1000, 1000))
    graph = Graph((x,), tuple(ops.sum.trace(x, axes=axes) for axes in ((0,), (1,), (0, 1))))
    outputs = run(graph, [np.full((1000, 1000), 0.1, np.float32)])
    for out, count in zip(outputs, (1e3, 1e3, 1e6), strict=True):
        np.testing.assert_allclose(out, count * float(np.float32(0.1)), rtol=1e-6)


# Memory -------------------------------------------------------------------------------------------


def test_a_chain_of_kernels_reuses_memory() -> None:
    # Each product needs the one before; only two of the eight results live at any time.
    x = an_input((64, 64))
    y: Value = x
    for _ in range(8):
        y = ops.matmul.trace(y, x)
    executable = Executable(Request(Graph((x,), (y,))))
    assert executable.plan.arena_bytes <= 2 * 64 * 64 * 4
    array = np.eye(64, dtype=np.float32)[::-1].copy()
    same(executable(array), [np.eye(64, dtype=np.float32)[::-1]])


def test_calling_allocates_only_the_outputs() -> None:
    graph, arrays = large_graph()
    executable = Executable(Request(graph))
    before = executable.arena.base
    first = executable(*arrays)
    second = executable(*arrays)
    assert executable.arena.base == before
    assert not any(np.shares_memory(a, b) for a in first for b in second)


# Kernels in files ---------------------------------------------------------------------------------


def test_a_saved_kernel_runs_alone(tmp_path: Path) -> None:
    x, w = an_input((30, 20)), an_input((20, 10), name="w")
    index = constant(np.array([3, 0, 3]))
    product = ops.relu.trace(ops.matmul.trace(ops.take.trace(x, index, axis=0), w))
    strides = {0: (1, 30)}
    executable = Executable(Request(Graph((x, w), (product, ops.sum.trace(x, axes=(0,)))), strides=strides))
    assert len(executable.kernels) > 2
    for kernel in executable.kernels:
        kernel.save(tmp_path / "kernel.json")
        kept = load(tmp_path / "kernel.json")
        assert kept.work == kernel.kernel.work()
        native = Prepared(kept)
        oracle = Prepared(kept, arrays=[x.copy() for x in native.arrays])
        native()
        oracle.reference()
        same(native.arrays, oracle.arrays, rtol=1e-5)
