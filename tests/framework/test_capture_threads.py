"""One compiled function in several threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn, optim
from framework.capture.compile import CompiledFunction

ROOT = Path(__file__).parents[2]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in threads that start together; an error in one is raised here."""
    barrier, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 -- raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.replays
def test_threads_call_one_function() -> None:
    compiled = CompiledFunction(lambda x: (x * 2 + 1).sum(1))

    def work(number: int) -> None:
        for i in range(50):
            x = fw.full((200, 300), float(number * 100 + i))
            assert (compiled(x) == (2.0 * (number * 100 + i) + 1) * 300).all()

    in_threads(4, work)
    assert len(compiled.variants) == 1


def test_threads_capture_different_functions_at_once() -> None:
    def work(number: int) -> None:
        compiled = CompiledFunction(lambda x: x * float(number) + 1)
        for _ in range(5):
            assert compiled(fw.ones(7)).tolist() == [number + 1.0] * 7

    in_threads(4, work)


@pytest.mark.replays
def test_threads_with_shapes_of_their_own() -> None:
    compiled = CompiledFunction(lambda x: (x + 1).cumsum(0) if x.ndim == 3 else (x + 1).sum())

    def work(number: int) -> None:
        for _ in range(20):
            assert compiled(fw.ones(number + 1, 3)).item() == 2 * 3 * (number + 1)

    in_threads(4, work)
    # One for the size that came first, one for every other.
    assert len(compiled.variants) == 2


def test_eager_work_goes_on_while_another_thread_captures() -> None:
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for n in range(1, 12):
                compiled = CompiledFunction(lambda x: x * 2)
                assert compiled(fw.ones(n)).tolist() == [2] * n
            stop.set()
            return
        while not stop.is_set():
            x = fw.ones(3).requires_grad_()
            (x * 2).sum().backward()
            assert x.grad is not None and x.grad.tolist() == [2] * 3

    in_threads(2, work)


def test_threads_train_models_of_their_own() -> None:
    def train(compiled: bool) -> list[float]:
        w = fw.full((50, 4), 0.5).requires_grad_()
        optimizer = optim.SGD([w], lr=0.1)

        def step(x: fw.Tensor) -> fw.Tensor:
            optimizer.zero_grad()
            loss = ((x @ w) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        function = CompiledFunction(step) if compiled else step
        return [function(fw.full((20, 50), 0.1)).item() for _ in range(10)]

    wanted = train(compiled=False)

    def work(number: int) -> None:
        np.testing.assert_allclose(train(compiled=True), wanted, rtol=1e-5)

    in_threads(3, work)


def test_one_step_shared_by_threads_counts_every_call() -> None:
    total = fw.zeros(3)
    compiled = CompiledFunction(lambda x: total.add_(x).sum())
    compiled(fw.ones(3))
    in_threads(4, lambda number: [compiled(fw.ones(3)) for _ in range(25)] and None)
    assert total.tolist() == [101.0] * 3


SCRIPT = """
import os, sys
import framework as fw
compiled = fw.compile(lambda x: (x * 2).sum(1), strict=True)
x = fw.ones(400, 500)
assert compiled(x).tolist() == [1000.0] * 400
pid = os.fork()
if pid == 0:
    ok = all(compiled(x).tolist() == [1000.0] * 400 for _ in range(3))
    ok = ok and fw.compile(lambda x: (x + 1).sum(0), strict=True)(x).tolist() == [800.0] * 500
    os._exit(0 if ok else 1)
_, status = os.waitpid(pid, 0)
assert compiled(x).tolist() == [1000.0] * 400
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_goes_on() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, check=True, timeout=60)


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    script = (
        "import framework as fw, sys\n"
        "f = fw.compile(lambda x: (x * 2).exp().sum(), strict=True)\n"
        "f(fw.ones(9))\n"
        "print(all(k.cached for k in f.explain().kernels), 'numba' in sys.modules)"
    )
    environment: dict[str, Any] = {**os.environ, "TRACEFUSE_CACHE": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for _ in range(2)
    ]
    assert [line.split() for line in outputs] == [["False", "True"], ["True", "False"]]


def test_a_model_is_compiled_in_a_thread_and_used_in_another() -> None:
    model = nn.Linear(3, 2)
    compiled = CompiledFunction(model)
    results: list[fw.Tensor] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: results.append(compiled(fw.ones(3)).detach()))
        thread.start()
        thread.join()
    results.append(compiled(fw.ones(3)).detach())
    assert results[0].tolist() == results[1].tolist() == results[2].tolist()
