"""Whole training steps on Triton's interpreter beside the CPU's program, and on the stand-in for a GPU."""

from __future__ import annotations

from unittest.mock import patch

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from benchmarks.steppers import common
from benchmarks.steppers.tracefuse import make
from benchmarks.works import Work
from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp
from kernels.gpu.emulator import Emulator
from tests.compiler.gpu.recorded import recording
from tests.kernels.gpu.standing import Standing

# The first call records, the second replays.
CALLS = 2
WORKS: dict[str, Work] = {
    "mlp": Mlp((20, 33, 18, 10), 7),
    "cnn": Cnn(image=9, channels=(1, 3, 5), widths=(6, 10), batch=3),
    "gpt": Gpt(layers=1, width=12, heads=3, vocabulary=11, context=5, batch=2),
    "lstm": Lstm(width=9, times=3, batch=3),
    "softmax": Softmax(5, 37),
    "layer_norm": LayerNorm(9, 35),
    "cross_entropy": CrossEntropy(6, 33),
    "gelu_chain": GeluChain(1001),
    "black_scholes": BlackScholes(301),
    "adamw": AdamW(tensors=3, elements=57),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_step_gives_what_it_gives_on_the_cpu(name: str) -> None:
    # Adam divides gradients by their size: one that is zero but for rounding must not become a whole step.
    with patch.object(common, "EPS", 1e-3), recording() as runs:
        step, batches, _ = make(WORKS[name])
        for number in range(CALLS):
            step(*batches[number])
    assert len(runs) == CALLS
    machine = Emulator()
    executable = runs[0].require_same(machine)
    # The same program on other memory.
    assert runs[1].executable is runs[0].executable
    runs[1].require_same(machine, executable=executable)


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_step_is_one_graph_on_a_gpu(name: str) -> None:
    """The stand-in runs the nodes of a level in the least expected order."""
    with patch.object(common, "EPS", 1e-3), recording() as runs:
        step, batches, _ = make(WORKS[name])
        for number in range(CALLS):
            step(*batches[number])
    standing = Standing()
    executable = runs[0].require_same(standing.machine)
    runs[1].require_same(standing.machine, executable=executable)
    assert standing.library.calls.count("cuGraphLaunch") == CALLS
    assert len(standing.library.launches) == CALLS * len(executable.program.arguments.units)


def test_an_optimizer_is_one_launch() -> None:
    """Beside the kernel that counts its steps; parameters of one kind share it."""
    with recording() as runs:
        step, batches, _ = make(AdamW(tensors=20, elements=48))
        step(*batches[0])
    standing = Standing()
    executable = runs[0].require_same(standing.machine)
    assert len(executable.kernels) == 21
    assert [x.grid for x in standing.library.launches] == [(1, 1, 1), (20, 1, 1)]
