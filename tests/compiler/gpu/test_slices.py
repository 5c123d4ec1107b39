"""Products in slices of their depth: what they give, from run to run the same, and what they are as code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import framework as fw
from compiler.gpu.program import DeviceExecutable
from compiler.gpu.slices import sliced
from framework.nn import functional as F
from kernels.gpu.emulator import Emulator
from kernels.gpu.report import report
from kernels.spec import MatmulSpec
from tests.compiler.gpu.recorded import Recording, clone, recording, same
from tests.kernels.gpu.standing import Standing

RNG = np.random.default_rng(0)


def tensor(*shape: int, dtype: Any = None) -> fw.Tensor:
    x = fw.tensor(RNG.standard_normal(shape).astype(np.float32))
    return x if dtype is None else x.to(dtype)


def recorded(function: Any, *arguments: Any) -> Recording:
    with recording() as runs:
        fw.compile(function)(*arguments)
    (run,) = runs
    return run


def both(run: Recording, more: int = 1, rtol: float = 2e-5, tf32: bool = False) -> DeviceExecutable:
    """Check a program in which `more` products are in slices; twice, with the same bits."""
    program = DeviceExecutable(run.request, Emulator(), tf32=tf32)
    assert len(program.kernels) == len(run.executable.kernels) + more
    assert sum(k.spec.name.startswith("slices_of_") for k in program.kernels) == more
    first, second = ([*map(clone, run.before)] for _ in range(2))
    one, two = program(*first), program(*second)
    same(one, run.outputs, rtol, "output")
    same(first, run.after, rtol, "input")
    for a, b in zip([*one, *first], [*two, *second], strict=True):
        np.testing.assert_array_equal(a, b)
    return program


def test_a_gradient_of_weights_with_what_follows() -> None:
    def step(x: fw.Tensor, g: fw.Tensor, w: fw.Tensor, b: fw.Tensor) -> fw.Tensor:
        w.sub_(0.01 * (x.T @ g + b).relu())
        return w.T * 2

    program = both(recorded(step, tensor(2048, 20), tensor(2048, 37), tensor(20, 37), tensor(37)))
    parts = program.kernels[0].kernel
    assert isinstance(parts.spec, MatmulSpec) and parts.extents == (16, 20, 37, 128)


@pytest.mark.parametrize("dtype", [fw.float16, fw.bfloat16], ids=str)
def test_other_dtypes(dtype: Any) -> None:
    run = recorded(lambda x, y: (x @ y).tanh(), tensor(17, 3000, dtype=dtype), tensor(3000, 9, dtype=dtype))
    both(run, rtol=2e-2)


def test_batches_and_two_of_a_level() -> None:
    def step(x: fw.Tensor, y: fw.Tensor, z: fw.Tensor) -> tuple[fw.Tensor, fw.Tensor]:
        return x @ y, (z.T @ z) * 0.5

    run = recorded(step, tensor(2, 9, 2048), tensor(2, 2048, 8), tensor(3001, 10))
    assert 3001 % 2, "what has no parts of equal length stays one kernel"
    both(run)
    run = recorded(step, tensor(2, 9, 2048), tensor(2, 2048, 8), tensor(2048, 10))
    program = both(run, more=2)
    places = sorted(b for k, b in program.plan.arena.items() if k.name.startswith("slices of"))
    assert len(places) == len(set(places)) == 2
    standing = DeviceExecutable(run.request, Standing().machine)
    same(standing(*map(clone, run.before)), run.outputs, 2e-5, "output")


def test_a_convolutions_gradient_is_cut_between_images() -> None:
    def step(x: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
        w = w.detach().requires_grad_()
        F.conv2d(x, w).square().sum().backward()
        assert w.grad is not None
        return w.grad

    program = both(recorded(step, tensor(8, 2, 16, 16), tensor(3, 2, 3, 3)), rtol=1e-4)
    (parts,) = (k.kernel for k in program.kernels if k.spec.name == "contract" and k.kernel.extents[0] == 8)
    assert isinstance(parts.spec, MatmulSpec) and parts.spec.depth > 1


def test_large_ones_are_wide_and_do_not_spill() -> None:
    def step(x: fw.Tensor, g: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
        return w - x.T @ g

    for dtype in (fw.float32, fw.float16):
        run = recorded(step, *(fw.zeros(*s, dtype=dtype) for s in ((65536, 128), (65536, 128), (128, 128))))
        plan = run.executable.plan
        found = sliced(plan.kernels, plan.levels)
        assert len(found.kernels) == len(plan.kernels) + 1
        product, total = report([(k.spec.name, k.placed()) for k in found.kernels], ["sm_90"])
        # A tile of 64 sums has no 16 bytes for each thread; the slices (p0), 64 times as much, are read so.
        narrow = [
            words for words in total.failed if not words.endswith((" of p1 (float32)", " of p2 (float32)"))
        ]
        assert product.failed == () and narrow == []
