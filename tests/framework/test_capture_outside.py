"""Driven calls and what others hold: memory that NumPy writes to, copies, gradients and parameters that share
memory, optimizers of the user's own.
"""

from __future__ import annotations

import copy
import cProfile
import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.capture import driver
from framework.capture.book import StretchProgram
from tests.framework.capture_check import Twins, World, nothing

X = fw.tensor([1.0, 2.0, 3.0])
GIVEN = np.array([1.0, 2.0, 3.0], np.float32)


def written_array(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    array = x.numpy()
    first = x * 3
    array[0] = 100.0
    second = x + 1
    array[1] = 7.0
    return first, second, x * 1


def written_view(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    y = x * 2
    array = y.detach()[1:].numpy()
    first = y * 3
    array[0] = 100.0
    y.add_(1)
    return first, y, float(array[0])


def written_source(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    array = GIVEN.copy()
    given = fw.from_numpy(array)
    first = given * 3 + x
    array += 1
    second = given * 2
    given.add_(1)
    array *= 2
    return first, second, given * 1, float(array.sum())


def written_operand(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    array, index = GIVEN.copy(), np.array([0, 1])
    first, second = x + array, x[index]
    array += 1
    index[0] = 2
    return first, second, x[index]


def written_address(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    y = x * 2
    memory = ctypes.cast(y.data_ptr(), ctypes.POINTER(ctypes.c_float))
    first = y * 3
    memory[0] = 9.0
    return first, y * 2, y


def copied(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    y = x * 2
    alias, apart = copy.copy(y), copy.deepcopy(y)
    y.add_(1)
    first = alias * 1
    alias.mul_(2)
    return first, y * 1, apart


def reinterpreted(x: fw.Tensor, log: list[int]) -> Any:
    log.append(0)
    y = x * 2
    bits = y.view(fw.int32)
    y.add_(1)
    before = bits * 1
    bits.add_(1)
    return before, y * 1, bits


FUNCTIONS = [
    written_array,
    written_view,
    written_source,
    written_operand,
    written_address,
    copied,
    reinterpreted,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_memory_that_others_hold(function: Callable[..., Any]) -> None:
    twins = Twins(lambda: (function, nothing))
    for _ in range(3):
        twins.call(X, [])
    twins.expect("driven")


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 7])
def test_work_cut_anywhere(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(driver, "MOST_DEFERRED", most)

    def make() -> World:
        layer = fw.nn.Linear(3, 2)
        optimizer = fw.optim.Adam(layer.parameters(), lr=0.1)

        def function(x: fw.Tensor, log: list[Any]) -> Any:
            y = x
            for _ in range(5):
                y = (y + x).sin() * x
                log.append(y.sum().item())
            part = y[1:]
            part.add_(1)
            optimizer.zero_grad()
            loss = (layer(y) ** 2).sum()
            loss.backward()
            optimizer.step()
            return y * 2, part, loss

        return function, lambda: [layer.weight, layer.bias]

    twins = Twins(make, rtol=1e-4)
    for _ in range(3):
        twins.call(X, [])


def assigned_at_once(a: fw.Tensor, b: fw.Tensor, shared: bool) -> None:
    a.grad = fw.zeros(3)
    b.grad = a.grad if shared else fw.zeros(3)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_leaves_that_share_a_gradient_now_and_then(order: tuple[bool, ...]) -> None:
    def make() -> World:
        a, b = fw.ones(3).requires_grad_(), fw.ones(3).requires_grad_()

        def function(x: fw.Tensor, shared: bool, log: list[int]) -> Any:
            log.append(0)
            assigned_at_once(a, b, shared)
            (a * x + b * 2).sum().backward()
            assert a.grad is not None and b.grad is not None
            return a.grad * 1, b.grad * 1

        return function, lambda: (a, b)

    twins = Twins(make)
    for _ in range(3):
        for shared in order:
            twins.call(X, shared, [])


def test_gradients_and_parameters_that_lie_in_one_buffer() -> None:
    def make() -> World:
        a = fw.nn.Parameter(fw.ones(3))
        b = fw.nn.Parameter(fw.ones(3))
        own, buffers = b.data, [fw.zeros(6), fw.zeros(6)]
        optimizer = fw.optim.SGD([a, b], lr=0.1)

        def function(x: fw.Tensor, shared: bool, log: list[int]) -> Any:
            log.append(0)
            b.data = a.data if shared else own
            with fw.no_grad():
                a.zero_()
                b.zero_()
            a.grad, b.grad = buffers[shared][1:4], None
            (a * x + b * x * x).sum().backward()
            optimizer.step()
            return a * 1, b * 1

        return function, lambda: (a, b, buffers)

    twins = Twins(make)
    for shared in (False, True, False, True):
        twins.call(X, shared, [])


class Counting(fw.optim.Optimizer):
    """An optimizer with Python state that its update reads and changes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.scale, self.count = 1.0, 0

    def _update_group(self, group: dict[str, Any]) -> None:
        self.count += 1
        for p in group["params"]:
            if p.grad is not None:
                p.sub_(p.grad * self.scale)


def test_an_optimizer_with_state_of_its_own() -> None:
    def make() -> World:
        a = fw.nn.Parameter(fw.ones(3))
        optimizer = Counting([a])

        def function(x: fw.Tensor, scale: float) -> int:
            optimizer.scale = scale
            optimizer.zero_grad()
            (a * x).sum().backward()
            optimizer.step()
            return optimizer.count

        return function, lambda: (a, optimizer.count)

    twins = Twins(make)
    for scale in (1.0, 2.0, 1.0, 3.0):
        twins.call(X, scale)


def test_a_leaf_of_another_shape() -> None:
    def make() -> World:
        a = fw.nn.Parameter(fw.ones(3))

        def function(x: fw.Tensor, flat: bool) -> Any:
            a.data = a.data.reshape((3,) if flat else (1, 3))
            a.grad = None
            (a + x.expand(2, 3)).sum().backward()
            assert a.grad is not None
            return a.grad * 1

        return function, lambda: a

    twins = Twins(make)
    for flat in (False, True, False, True):
        twins.call(X, flat)


def test_another_thread_reads_what_a_driven_call_has_made() -> None:
    def function(x: fw.Tensor, log: list[float]) -> Any:
        y = x * 2
        part = y[1:]

        def read() -> None:
            log.append((y + 1).sum().item())
            log.append(float(part.numpy()[0]))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            log.extend(pool.map(lambda k: (part * k).sum().item(), range(4)))
        y.add_(1)
        return y, part

    twins = Twins(lambda: (function, nothing))
    for _ in range(3):
        twins.call(X, [])
    twins.expect("driven")


def test_threads_ask_while_a_driven_call_goes_on() -> None:
    @fw.compile
    def function(x: fw.Tensor, ask: Callable[[Any], Any]) -> tuple[fw.Tensor, list[Any]]:
        asked, y = [], x
        for _ in range(200):
            y = (y * 1.01 + x).sin()
            asked.append((y, ask(y)))
        return y, asked

    with ThreadPoolExecutor(2) as pool:
        y, asked = function(X, lambda y: pool.submit(lambda: (y * 1).sum().item()))
    for made, found in asked:
        np.testing.assert_allclose(found.result(), made.sum().item(), rtol=1e-5)
    assert y.shape == (3,)


def test_an_interrupt_that_is_caught_leaves_values(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts: list[int] = []
    run = StretchProgram.run

    def interrupted(self: StretchProgram, arrays: list[Any]) -> Any:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return run(self, arrays)

    monkeypatch.setattr(StretchProgram, "run", interrupted)

    @fw.compile
    def function(x: fw.Tensor, log: list[str]) -> fw.Tensor:
        y = x * 2
        try:
            log.append(str(y.sum().item()))
        except KeyboardInterrupt:
            log.append("interrupted")
        return y

    log: list[str] = []
    function(X, log)
    interrupts.append(1)
    assert function(X, log).tolist() == [2.0, 4.0, 6.0]
    assert log == ["12.0", "interrupted"]


@pytest.mark.replays
def test_a_profiler_watches_on_behind_a_capture() -> None:
    def after() -> int:
        return len("abc")

    def step(x: fw.Tensor) -> fw.Tensor:
        y = x * 2
        y.sum().backward()
        return y

    profiler, seen = cProfile.Profile(), []
    compiled = fw.compile(step)
    profiler.enable()
    compiled(fw.ones(3, requires_grad=True))
    after()
    profiler.disable()
    assert "after" in {entry.code.co_name for entry in profiler.getstats() if not isinstance(entry.code, str)}
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        compiled(fw.ones(4, requires_grad=True))
        after()
    finally:
        sys.setprofile(None)
    assert "after" in seen
    assert compiled.explain().mode == "replay"
