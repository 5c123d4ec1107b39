"""Plans on machines: dropout, checks, arenas, sizes, and what reaches the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import framework as fw
from compiler import ops
from compiler.binding import Arena
from compiler.gpu.program import DeviceExecutable
from compiler.interpret import evaluate
from compiler.ir import Graph, Input, Value
from compiler.plan import Request
from compiler.types import TensorType
from framework.nn import functional
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu.emulator import Emulator
from kernels.gpu.runner import Machine
from tests.compiler.gpu.recorded import Recording, clone, recording, same
from tests.kernels.gpu.standing import Standing

Array = np.ndarray[Any, Any]
F32, I64 = dtypes.float32, dtypes.int64
MACHINES = [
    pytest.param(Emulator, id="interpreter"),
    pytest.param(lambda: Standing().machine, id="graph"),
    pytest.param(lambda: Standing(graphs=False).machine, id="launches"),
]


def an_input(shape: tuple[int, ...], dtype: DType = F32, name: str = "x") -> Input:
    return Input(TensorType(shape, dtype), name=name)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def recorded(function: Callable[..., Any], *arguments: Any) -> Recording:
    """The one program of a function's compiled call."""
    with recording() as runs:
        fw.compile(function)(*arguments)
    (run,) = runs
    return run


# Random numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MACHINES)
def test_dropout_masks_are_the_cpus(make: Callable[[], Machine]) -> None:
    fw.manual_seed(3)

    def drop(x: fw.Tensor) -> Any:
        first = functional.dropout(x, 0.3)
        return first, functional.dropout(first + 1, 0.5), fw.rand(5)

    run = recorded(drop, fw.ones(13, 11))
    run.require_same(make(), rtol=0.0)
    assert 0 < (run.outputs[0] == 0).sum() < 13 * 11


def test_a_layer_with_dropout_trains_as_on_the_cpu() -> None:
    fw.manual_seed(1)
    layers = fw.nn.Sequential(fw.nn.Linear(9, 14), fw.nn.ReLU(), fw.nn.Dropout(0.4), fw.nn.Linear(14, 3))
    optimizer = fw.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)

    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(layers(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled: Any = fw.compile(step)
    with recording() as runs:
        for seed in range(3):
            compiled(fw.from_numpy(numbers(6, 9, seed=seed)), fw.tensor([0, 2, 1, 1, 0, 2]))
    machine = Emulator()
    for run in runs:
        run.require_same(machine)


# Checks ---------------------------------------------------------------------------------------------


def embedding_step() -> Recording:
    """A training step that looks weights up, compares with classes, and updates everything in place."""
    fw.manual_seed(0)
    table, head = fw.nn.Embedding(7, 5), fw.nn.Linear(5, 4)
    optimizer = fw.optim.AdamW([*table.parameters(), *head.parameters()], lr=0.1, eps=1e-3)

    def step(x: fw.Tensor, y: fw.Tensor) -> fw.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(head(table(x)), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled: Any = fw.compile(step)
    with recording() as runs:
        for _ in range(2):
            compiled(fw.tensor([1, 6, 1]), fw.tensor([3, 0, 2]))
    return runs[-1]


@pytest.mark.parametrize("make", MACHINES)
def test_a_bad_index_leaves_memory_untouched(make: Callable[[], Machine]) -> None:
    run = embedding_step()
    executable = run.require_same(make())
    indices = [i for i, x in enumerate(run.before) if x.dtype == np.int64 and x.shape == (3,)]
    assert len(indices) == 2
    told = set()
    for number in indices:
        for bad in (99, -1000):
            inputs = [clone(x) for x in run.before]
            inputs[number][1] = bad
            given = [clone(x) for x in inputs]
            with pytest.raises(RuntimeError, match="bad input found by check") as info:
                executable(*inputs)
            told.add(str(info.value))
            for after, before in zip(inputs, given, strict=True):
                np.testing.assert_array_equal(after, before)
    assert len(told) > 1
    run.require_same(executable.machine, executable=executable)


def test_several_runs_may_be_under_way_when_one_is_bad() -> None:
    run = embedding_step()
    standing = Standing()
    machine = standing.machine
    executable = DeviceExecutable(run.request, machine)
    held = [executable._copied(np.ascontiguousarray(x)) for x in run.before]
    number = next(i for i, x in enumerate(run.before) if x.dtype == np.int64 and x.shape == (3,))
    bad = executable._copied(np.array([1, 99, 1]))
    outputs = [[machine.allocate(64) for _ in run.outputs] for _ in range(3)]
    for i, memory in enumerate(held):
        executable.bind(i, memory.address)
    for memory, into in zip((held[number], bad, held[number]), outputs, strict=True):
        executable.run([(number, memory.address)], [o.address for o in into])
    assert not standing.library.launches
    assert executable.failed() > 0
    assert executable.failed() == 0
    losses = np.empty((3, 64), np.uint8)
    for (memory, *_), loss in zip(outputs, losses, strict=True):
        machine.read(memory.address, loss)
    # Fresh memory is full of one byte. What ran after the bad run trained on.
    assert (losses[1] == losses[1, 0]).all()
    first, last = losses[0, :4].view(np.float32)[0], losses[2, :4].view(np.float32)[0]
    assert first == run.outputs[0] and 0 < last < first


# Memory ---------------------------------------------------------------------------------------------


def chain(n: int) -> tuple[Graph, list[Array]]:
    """Products whose results live in the arena."""
    x = an_input((n, n))
    y: Value = x
    for _ in range(3):
        y = ops.matmul.trace(y, x)
    return Graph((x,), (ops.add.trace(y, 1.0),)), [numbers(n, n) / n]


@pytest.mark.parametrize("make", MACHINES)
def test_programs_share_an_arena_that_grows(make: Callable[[], Machine]) -> None:
    machine = make()
    arena = Arena(machine.allocate)
    (small, a), (large, b) = chain(5), chain(40)
    first = DeviceExecutable(Request(small), machine, arena)
    same(first(*a), evaluate(small, a), 1e-5, "first")
    base = arena.base
    second = DeviceExecutable(Request(large), machine, arena)
    assert arena.base != base and arena.size == second.plan.arena_bytes > first.plan.arena_bytes
    for _ in range(2):
        same(first(*a), evaluate(small, a), 1e-5, "first")
        same(second(*b), evaluate(large, b), 1e-5, "second")


def test_a_program_gives_its_memory_back() -> None:
    standing = Standing()
    graph, arrays = chain(20)
    executable = DeviceExecutable(Request(graph), standing.machine)
    executable(*arrays)
    assert standing.machine.allocator.memory_allocated() > 0
    del executable
    assert standing.machine.allocator.memory_allocated() == 0


def test_inputs_are_taken_at_any_multiple_of_their_size() -> None:
    x, y = an_input((50,)), an_input((50,), name="y")
    standing = Standing()
    executable = DeviceExecutable(Request(Graph((x, y), (ops.add.trace(x, y),))), standing.machine)
    memory = numbers(60)
    for shift in (0, 1, 2, 4):
        got = executable(memory[shift : shift + 50], memory[:50])
        np.testing.assert_array_equal(got[0], memory[shift : shift + 50] + memory[:50])


# Sizes ----------------------------------------------------------------------------------------------


def softmax(rows: int, columns: int) -> tuple[Graph, list[Array]]:
    x = an_input((rows, columns))
    e = ops.exp.trace(ops.sub.trace(x, ops.amax.trace(x, axes=(1,))))
    graph = Graph((x,), (ops.div.trace(e, ops.sum.trace(e, axes=(1,))), ops.mul.trace(x, 2.0)))
    return graph, [numbers(rows, columns)]


@pytest.mark.parametrize("sizes", [((32, 100), (48, 100), (96, 100)), ((37, 33), (41, 35), (43, 39))])
def test_new_sizes_of_a_kind_compile_nothing(sizes: tuple[tuple[int, int], ...]) -> None:
    standing = Standing()
    counts = []
    for rows, columns in sizes:
        graph, arrays = softmax(rows, columns)
        executable = DeviceExecutable(Request(graph), standing.machine)
        same(executable(*arrays), evaluate(graph, arrays), 1e-5, f"{rows} by {columns}")
        counts.append(len(standing.compiled))
    assert counts == [counts[0]] * 3


# The driver -----------------------------------------------------------------------------------------


def test_steps_replay_as_one_graph() -> None:
    run = embedding_step()
    standing = Standing()
    executable = run.require_same(standing.machine)
    calls = standing.library.calls
    for _ in range(3):
        run.require_same(standing.machine, executable=executable)
    assert calls.count("cuGraphInstantiateWithFlags") == 1 and calls.count("cuGraphLaunch") == 4
    assert "cuLaunchKernelEx" not in calls
    assert len(standing.library.launches) == 4 * len(executable.program.arguments.units)


def test_kernels_show_their_source() -> None:
    graph, _ = softmax(4, 9)
    executable = DeviceExecutable(Request(graph), Emulator())
    for view in executable.kernels:
        assert "def kernel(" in view.source and repr(view).startswith("<kernel ")
    assert replace(executable.kernels[0], level=3).level == 3


@pytest.mark.parametrize("make", MACHINES)
def test_a_kernel_alone(make: Callable[[], Machine]) -> None:
    index = fw.tensor([3, 0, 3, 1])
    run = recorded(lambda x: ((x @ x.T).relu(), x[index] * 2), fw.ones(5, 7))
    views = DeviceExecutable(run.request, make()).kernels
    for view, native in zip(views, run.executable.kernels, strict=True):
        given = view.arrays()
        same(view.run(*given), native.run(*given), 2e-5, view.spec.name)
        timing = view.bench(seconds=0.0)
        assert timing.samples == 3 and timing.best <= timing.median
    with pytest.raises(ValueError, match="works on"):
        views[0].run(np.zeros(3))


def test_kernels_show_their_machine_code() -> None:
    run = recorded(lambda x: (x * 2).sum(), fw.ones(64, 32))
    views = DeviceExecutable(run.request, Emulator()).kernels
    assert views and all(".entry kernel" in view.ptx and ".target sm_90" in view.ptx for view in views)
    assert [view.spec for view in views] == [k.spec for k in run.executable.plan.kernels]
