"""Sets of kernels that are one on a GPU: attention and its gradient, in every form that programs have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import framework as fw
from compiler.compare import compare
from compiler.gpu.probe import OnMachine
from compiler.gpu.program import DeviceExecutable
from compiler.passes import recomputing
from framework.nn import functional as F
from kernels.gpu.emulator import Emulator
from kernels.gpu.runner import Machine
from kernels.varying import Varying
from tests.compiler.gpu.recorded import Recording, clone, recording, same
from tests.kernels.gpu.standing import Standing

Array = np.ndarray[Any, Any]
# Two blocks of rows and three steps of columns, neither full; heads of 20 numbers, which are padded.
OUTER, ROWS, COLUMNS, WIDTH = (2, 3), 70, 67, 20
SCORES = math.prod(OUTER) * ROWS * COLUMNS


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def factors(width: int = WIDTH, dtype: Any = fw.float32) -> list[fw.Tensor]:
    """Queries, keys and values."""
    shapes = [(*OUTER, n, width) for n in (ROWS, COLUMNS, COLUMNS)]
    return [fw.from_numpy(numbers(*shape, seed=i)).to(dtype) for i, shape in enumerate(shapes)]


def small() -> list[fw.Tensor]:
    """As `factors`, of few rows."""
    return [x[:1, :2, :9].contiguous() for x in factors()]


def recorded(function: Callable[..., Any], *arguments: Any) -> Recording:
    """The one program of a function's compiled call."""
    with recording() as runs:
        fw.compile(function)(*arguments)
    (run,) = runs
    return run


def check(run: Recording, launches: int, rtol: float = 2e-5, hidden: int = SCORES) -> DeviceExecutable:
    """The program gives what the CPU's gives, in so many launches, and keeps nothing of `hidden` elements."""
    executable = DeviceExecutable(run.request, Emulator())
    inputs = [clone(x) for x in run.before]
    same(executable(*inputs), run.outputs, rtol, "output")
    assert len({id(launch) for launch in executable.program.launches}) == launches
    assert hidden not in {b.type.size for b in executable.plan.arena}
    return executable


def trained(*given: fw.Tensor, **options: Any) -> Recording:
    """A forward and a backward pass, whose gradient depends on the result."""
    given = tuple(x.requires_grad_(True) for x in given)

    def step(query: fw.Tensor, key: fw.Tensor, value: fw.Tensor) -> Any:
        result = F.scaled_dot_product_attention(query, key, value, **options)
        (result * result).sum().backward()
        return result, query.grad, key.grad, value.grad

    return recorded(step, *given)


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gradients compute again what they need, however small it is."""
    monkeypatch.setattr(recomputing, "THERE", recomputing.Limits(0, 0, 10**6, 0, drawn=True))


def forms() -> dict[str, dict[str, Any]]:
    seen = np.random.default_rng(3).random((ROWS, COLUMNS)) > 0.4
    seen[4] = False
    added = numbers(2, 1, ROWS, COLUMNS, seed=5)
    added[0, 0, 7] = added[0, 0, 8, 1:] = -np.inf
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "dropped": {"dropout_p": 0.4},
        "seen": {"attn_mask": fw.from_numpy(seen), "dropout_p": 0.25},
        "added": {"attn_mask": fw.from_numpy(added)},
    }


FORMS = forms()
# The launch that looks for rows that see nothing.
MASKS = {"seen": 1, "added": 1}


def shifted(query: fw.Tensor, key: fw.Tensor, value: fw.Tensor, shift: fw.Tensor) -> fw.Tensor:
    """Attention whose scores have something added, by the letter."""
    return fw.softmax(query @ key.transpose(-2, -1) + shift, -1) @ value


# Forward --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_attention_is_one_launch_without_scores(form: str) -> None:
    fw.manual_seed(1)
    run = recorded(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **FORMS[form]), *factors())
    check(run, 1 + MASKS.get(form, 0))


def test_what_is_dropped_is_the_cpus() -> None:
    fw.manual_seed(2)
    query, key, _ = factors()
    value = fw.eye(COLUMNS).expand(*OUTER, COLUMNS, COLUMNS).contiguous()
    run = recorded(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3), query, key, value)
    (got,) = check(run, 1)(*[clone(x) for x in run.before])
    np.testing.assert_array_equal(got == 0, run.outputs[0] == 0)
    assert 0.25 < (got == 0).mean() < 0.35


@pytest.mark.parametrize("name, rtol", [("float16", 4e-3), ("bfloat16", 3e-2), ("float64", 1e-12)])
def test_every_floating_dtype(name: str, rtol: float) -> None:
    dtype = getattr(fw, name)
    given = factors(dtype=dtype)
    run = recorded(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *given)
    executable = check(run, 1, rtol)
    (got,) = executable(*[clone(x) for x in run.before])
    query, key, value = (x.to(fw.float64).numpy() for x in given)
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(WIDTH)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol, rtol * np.abs(wanted).max())


def test_scores_that_grow_along_the_rows() -> None:
    """The maximum so far changes in every step, by more than exp can hold."""
    query, key, value = factors()
    steep = fw.from_numpy(np.linspace(-300, 900, COLUMNS, dtype=np.float32))
    run = recorded(
        lambda q, k, v, s: fw.softmax(q @ k.transpose(-2, -1) + s, -1) @ v, query, key, value, steep
    )
    check(run, 1)


def test_rows_that_see_nothing_and_rows_of_no_number() -> None:
    mask = np.zeros((ROWS, COLUMNS), np.float32)
    mask[3] = mask[5, 10:] = mask[6, :50] = -np.inf
    mask[7, 2], mask[8, 60] = np.nan, np.inf
    run = recorded(shifted, *factors(), fw.from_numpy(mask))
    (got,) = check(run, 1)(*[clone(x) for x in run.before])
    rows = np.isnan(got).all((0, 1, 3))
    np.testing.assert_array_equal(np.flatnonzero(rows), [3, 7, 8])


def test_heads_beside_each_other_and_shared() -> None:
    """Views of one projection; a batch of keys for all heads."""
    whole = fw.from_numpy(numbers(2, ROWS, 3, 5, 16))

    def heads(x: fw.Tensor, shared: fw.Tensor) -> Any:
        query, key, value = (x[:, :, i].transpose(1, 2) for i in range(3))
        first = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return first.transpose(1, 2).reshape(2, ROWS, 80), F.scaled_dot_product_attention(
            query, shared, shared
        )

    run = recorded(heads, whole, fw.from_numpy(numbers(2, 1, 40, 16, seed=4)).expand(2, 5, 40, 16))
    check(run, 2, hidden=2 * 5 * ROWS * ROWS)


def test_keys_that_are_stored_the_other_way_and_columns_that_are_reduced() -> None:
    query, key, value = factors()
    turned = key.transpose(-2, -1).contiguous()
    check(recorded(lambda q, k, v: fw.softmax(q @ k, -1) @ v, query, turned, value), 1)

    def columns(query: fw.Tensor, key: fw.Tensor, value: fw.Tensor) -> fw.Tensor:
        return value.transpose(-2, -1) @ fw.softmax(key @ query.transpose(-2, -1), -2)

    check(recorded(columns, query, key, value), 1)


def test_weights_that_the_caller_wants_are_stored() -> None:
    def both(query: fw.Tensor, key: fw.Tensor, value: fw.Tensor) -> Any:
        weights = fw.softmax(query @ key.transpose(-2, -1), -1)
        return weights @ value, weights

    check(recorded(both, *factors()), 1)


def test_what_does_not_fit_is_computed_as_before() -> None:
    query, key = (fw.from_numpy(numbers(n, 130)) for n in (20, 30))
    run = recorded(lambda q, k: F.scaled_dot_product_attention(q, k, k), query, key)
    executable = run.require_same(Emulator())
    assert len(executable.program.launches) == len(executable.kernels) == 3
    run = recorded(lambda q, k: F.scaled_dot_product_attention(q, k, k), query[:, :20], key[:, :20])
    apart = DeviceExecutable(run.request, Emulator(), blocks=False)
    run.require_same(apart.machine, executable=apart)
    assert len(apart.program.launches) == 3


# Training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "seen"])
def test_gradients_keep_what_they_need(form: str) -> None:
    """The first launch stores the weights, and the mask of what is dropped; a product of the weights alone
    is one of the others.
    """
    fw.manual_seed(4)
    run = trained(*factors(), **FORMS[form])
    check(run, 4 + MASKS.get(form, 0) + (form == "causal"), 1e-4, hidden=-1)


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize("form", FORMS)
def test_gradients_compute_it_again(form: str) -> None:
    fw.manual_seed(4)
    run = trained(*factors(), **FORMS[form])
    check(run, 3 + MASKS.get(form, 0) + (form == "causal"), 1e-4)


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize("name, rtol", [("float16", 1e-2), ("bfloat16", 8e-2), ("float64", 1e-11)])
def test_gradients_of_every_floating_dtype(name: str, rtol: float) -> None:
    check(trained(*factors(dtype=getattr(fw, name)), is_causal=True), 4, rtol)


def test_a_gradient_that_is_given_is_in_the_same_set() -> None:
    query, key, value = (x.requires_grad_(True) for x in factors())

    def step(q: fw.Tensor, k: fw.Tensor, v: fw.Tensor, g: fw.Tensor) -> Any:
        result = F.scaled_dot_product_attention(q, k, v)
        result.backward(g)
        return result, q.grad, k.grad, v.grad

    check(recorded(step, query, key, value, fw.ones(*OUTER, ROWS, WIDTH)), 2)


# Sizes and machines ---------------------------------------------------------------------------------


def test_sizes_that_vary_compile_once() -> None:
    varying, machine = Varying(), Emulator()
    codes: list[Any] = []
    for rows, columns in ((40, 50), (70, 67), (90, 99)):
        query, key = (fw.from_numpy(numbers(2, n, 16, seed=n)) for n in (rows, columns))
        run = recorded(lambda q, k: F.scaled_dot_product_attention(q, k, k), query, key)
        executable = DeviceExecutable(run.request, machine, varying=varying)
        run.require_same(machine, executable=executable)
        codes.append([launch.code for launch in executable.program.launches])
    assert codes[1] == codes[2] and len(codes[0]) == 1


def test_attention_on_a_gpu_is_one_node_of_the_graph() -> None:
    run = recorded(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *factors())
    standing = Standing()
    machine: Machine = standing.machine
    executable = run.require_same(machine)
    run.require_same(machine, executable=executable)
    assert len(standing.library.launches) == 2


def test_kernels_of_a_set_are_compared_one_by_one() -> None:
    run = recorded(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *small())
    found = compare(run.request, run.before, place=OnMachine(Emulator()))
    assert found.kernels == 3 and found.difference is None


def test_a_set_that_ends_in_memory_of_the_caller_waits_for_checks() -> None:
    """A bad index leaves the caller's memory as it was, though the set does not depend on it."""

    def step(query: fw.Tensor, key: fw.Tensor, value: fw.Tensor, table: fw.Tensor, at: fw.Tensor) -> Any:
        return value.copy_(F.scaled_dot_product_attention(query, key, key)), table[at]

    query, key, value = small()
    run = recorded(step, query, key, fw.zeros(*query.shape), value[0, 0], fw.tensor([1, 3]))
    executable = run.require_same(Emulator())
    assert len(executable.program.launches) < len(executable.kernels)
    number = next(i for i, x in enumerate(run.before) if x.dtype == np.int64)
    inputs = [clone(x) for x in run.before]
    inputs[number][0] = 99
    given = [clone(x) for x in inputs]
    with pytest.raises(RuntimeError, match="bad input found by check"):
        executable(*inputs)
    for after, before in zip(inputs, given, strict=True):
        np.testing.assert_array_equal(after, before)
