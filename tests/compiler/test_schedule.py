"""Which ops share a kernel: the decisions that make a program fast, as golden facts.

Functions of the framework are captured for their graphs; values are other tests' business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import framework as fw
import framework.nn.functional as F
from compiler import ops
from compiler.facts import KernelFacts
from compiler.ir import Graph, Input, Value
from compiler.plan import Request
from compiler.schedule import Group, Scheduler
from compiler.types import TensorType
from framework import nn, optim
from framework.capture.compile import CompiledFunction
from kernels import dtypes
from tests.compiler.random_graphs import random_graph
from tests.compiler.simulate import planned

ROWS, WIDTH = 32, 48


def kernels_of(function: Callable[..., Any], *tensors: fw.Tensor) -> list[KernelFacts]:
    """The kernels of a function's program."""
    compiled = CompiledFunction(function, strict=True)
    compiled(*tensors)
    return compiled.explain().kernels


def large(kernels: list[KernelFacts]) -> list[tuple[str, ...]]:
    """Ops of each kernel that goes over a whole batch, leaving those over single rows or numbers."""
    return [k.ops for k in kernels if math.prod(k.extents) >= ROWS * WIDTH]


def fused(outputs: tuple[Value, ...], inputs: tuple[Input, ...]) -> list[list[str]]:
    """Names of the ops of every kernel of a graph."""
    return [[n.op.name for n in k.nodes] for k in planned(Request(Graph(inputs, outputs))).kernels]


def batch(requires_grad: bool = False) -> fw.Tensor:
    return fw.rand(ROWS, WIDTH).requires_grad_(requires_grad)


def weights(requires_grad: bool = False) -> tuple[fw.Tensor, fw.Tensor]:
    return fw.rand(WIDTH).requires_grad_(requires_grad), fw.rand(WIDTH).requires_grad_(requires_grad)


# Whole functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_is_one_kernel(axis: int) -> None:
    (kernel,) = kernels_of(lambda x: x.softmax(axis), batch())
    assert set(kernel.ops) == {"amax", "sub", "exp", "sum", "div", "mul"}


def test_softmax_backward_is_one_kernel() -> None:
    def both(x: fw.Tensor, g: fw.Tensor) -> fw.Tensor:
        (gradient,) = fw.autograd.grad(x.softmax(-1), x, g)
        return gradient

    assert len(kernels_of(both, batch(True), batch())) == 1


def test_log_softmax_and_its_loss_are_one_kernel_over_the_batch() -> None:
    def loss(x: fw.Tensor, target: fw.Tensor) -> fw.Tensor:
        return F.nll_loss(x.log_softmax(-1), target)

    assert len(large(kernels_of(loss, batch(), fw.zeros(ROWS, dtype=fw.int64)))) == 1


def test_the_loss_and_its_gradient_are_one_kernel_over_the_batch() -> None:
    def both(x: fw.Tensor, target: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        loss = F.cross_entropy(x, target)
        (gradient,) = fw.autograd.grad(loss, x)
        return loss.detach(), gradient

    (only,) = large(kernels_of(both, batch(True), fw.zeros(ROWS, dtype=fw.int64)))
    assert "exp" in only and "log" in only


def test_layer_norm_is_one_kernel() -> None:
    assert len(kernels_of(lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b), batch(), *weights())) == 1


def test_layer_norm_backward_is_one_kernel() -> None:
    def backward(x: fw.Tensor, w: fw.Tensor, b: fw.Tensor, g: fw.Tensor) -> tuple[fw.Tensor, ...]:
        return fw.autograd.grad(F.layer_norm(x, (WIDTH,), w, b), (x, w, b), g)

    assert len(kernels_of(backward, batch(True), *weights(True), batch())) == 1


def test_variance_is_one_kernel() -> None:
    assert len(kernels_of(lambda x: x.var(-1), batch())) == 1


def test_a_chain_of_fifty_ops_is_one_kernel() -> None:
    def chain(x: fw.Tensor) -> fw.Tensor:
        for _ in range(25):
            x = (x + 0.5).tanh()
        return x

    (kernel,) = kernels_of(chain, batch())
    assert len(kernel.ops) == 50


def test_a_linear_layer_and_its_activation_are_one_kernel() -> None:
    (kernel,) = kernels_of(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), batch(), fw.rand(10, WIDTH), fw.rand(10)
    )
    assert kernel.ops[0] == "matmul" and "erf" in kernel.ops


def linear_step() -> list[KernelFacts]:
    """Kernels of a training step of one linear layer with SGD and momentum."""
    layer = nn.Linear(WIDTH, 10)
    optimizer = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def step(x: fw.Tensor) -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return kernels_of(step, batch())


def test_a_bias_gradient_and_its_update_are_one_kernel() -> None:
    facts = linear_step()
    assert [k for k in facts if k.extents == (10, ROWS) and {"sum", "sub"} <= set(k.ops)]


def test_a_weight_gradient_and_its_small_update_are_one_kernel() -> None:
    def step(w: fw.Tensor, x: fw.Tensor, g: fw.Tensor) -> None:
        w -= 0.1 * (x.t() @ g)

    facts = kernels_of(step, fw.rand(10, WIDTH), fw.rand(ROWS, 10), fw.rand(ROWS, WIDTH))
    assert [k.ops for k in facts] == [("matmul", "mul", "sub")]


def test_an_update_of_many_arrays_is_gone_through_on_its_own() -> None:
    facts = linear_step()
    assert [k.ops for k in facts if k.extents == (10, WIDTH, ROWS)] == [("matmul",)]
    assert [k for k in facts if k.extents == (10 * WIDTH,) and {"mul", "sub"} <= set(k.ops)]


def test_updates_of_many_parameters_share_launches() -> None:
    parameters = [fw.rand(10).requires_grad_() for _ in range(20)]
    for p in parameters:
        p.grad = fw.rand(10)
    optimizer = optim.AdamW(parameters)
    facts = kernels_of(lambda: optimizer.step())
    # The numbers of the step first, then everything at once.
    assert len({k.level for k in facts}) <= 2


# Graphs -------------------------------------------------------------------------------------------

kind = TensorType((ROWS, WIDTH), dtypes.float32)
x, y = Input(kind, name="x"), Input(kind, name="y")


def test_views_cost_no_kernel() -> None:
    value = ops.flip.trace(
        ops.permute.trace(ops.slice.trace(x, starts=(2, 1), stops=(30, 40), steps=(1, 3)), axes=(1, 0)),
        axes=(0,),
    )
    assert fused((ops.neg.trace(value),), (x,)) == [["neg"]]


def test_a_broadcast_row_value_is_computed_once_per_row() -> None:
    total = ops.sum.trace(x, axes=(1,))
    names = fused((ops.mul.trace(y, ops.exp.trace(total)),), (x, y))
    assert names == [["sum", "exp", "mul"]]


def test_an_expensive_value_smaller_than_the_loop_is_not_computed_again() -> None:
    column = Input(TensorType((WIDTH,), dtypes.float32), name="column")
    assert len(fused((ops.mul.trace(x, ops.exp.trace(column)),), (x, column))) == 2
    assert len(fused((ops.mul.trace(x, ops.add.trace(column, 1.0)),), (x, column))) == 1


def test_reductions_along_different_axes_that_feed_each_other_are_apart() -> None:
    columns = ops.sum.trace(x, axes=(0,))
    assert len(fused((ops.sum.trace(ops.sub.trace(x, columns), axes=(1,)),), (x,))) == 2


def test_a_group_never_waits_for_itself() -> None:
    # x -> product -> sum, and x -> sum: merging both ends around the product would be a cycle.
    a = ops.exp.trace(x)
    product = ops.matmul.trace(a, Input(TensorType((WIDTH, WIDTH), dtypes.float32)))
    w = product.inputs[1]
    assert isinstance(w, Input)
    names = fused((ops.add.trace(a, product),), (x, w))
    assert ["exp"] in names and len(names) == 2


def test_a_large_tensor_reduced_and_used_again_is_shared_by_threads() -> None:
    big = Input(TensorType((1000, 1000), dtypes.float32), name="big")
    whole = ops.sum.trace(big, axes=(0, 1))
    assert len(fused((ops.div.trace(big, whole),), (big,))) >= 2


def test_a_kernel_does_not_grow_without_end() -> None:
    value: Value = x
    for _ in range(500):
        value = ops.add.trace(ops.mul.trace(value, 1.5), 0.5)
    names = fused((value,), (x,))
    assert sum(len(n) for n in names) == 1000
    assert 4 <= len(names) <= 20


def test_the_plan_is_the_same_each_time() -> None:
    def texts() -> list[str]:
        value = ops.sum.trace(ops.exp.trace(ops.add.trace(x, y)), axes=(0,))
        return [
            str(k.spec) for k in planned(Request(Graph((x, y), (value, ops.mul.trace(x, value))))).kernels
        ]

    assert texts() == texts()


class Watched(Scheduler):
    """A scheduler whose order of groups is looked at after every merge."""

    merges = 0

    def replace(self, first: Group, second: Group, merged: Group) -> None:
        super().replace(first, second, merged)
        self.merges += 1
        assert set(self.position) >= set(self.groups)
        for group in self.groups:
            assert all(self.position[g] < self.position[group] for g in self.before[group])
            assert all(group in self.after[g] for g in self.before[group])
            assert self.before[group] == {
                self.group[x] for n in group.nodes for x in n.inputs if x in self.group
            } - {group}


def test_groups_keep_an_order_while_they_merge() -> None:
    merges = 0
    for seed in range(3000, 3040):
        graph, _ = random_graph(seed, dtypes.float32, nodes=60, exact=False)
        scheduler = Watched(graph)
        scheduler.run()
        merges += scheduler.merges
    assert merges > 200
