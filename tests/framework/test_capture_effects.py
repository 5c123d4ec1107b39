"""What a compiled function does besides tensor work: it happens once per call, or strict=True refuses it."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework.capture.compile import CompiledFunction, CompileError
from tests.framework.capture_check import Twins, World, nothing

counter = 0


def ones(n: int = 3) -> fw.Tensor:
    return fw.ones(n)


def values(function: Callable[..., Any]) -> Callable[..., list[float]]:
    """The compiled function, giving lists."""
    compiled = CompiledFunction(function)
    return lambda *args: compiled(*args).tolist()


# What is done
# --------------------------------------------------------------------------------------------------


class Tally:
    """An object that counts."""

    def __init__(self) -> None:
        self.count = 0
        self.items: dict[str, Any] = {}


def effects() -> dict[str, Callable[[], World]]:
    """Worlds with an effect in their function, and a look at it."""

    def appending() -> World:
        log: list[int] = []

        def run(x: fw.Tensor) -> fw.Tensor:
            log.append(len(log))
            return x + 1

        return run, lambda: list(log)

    def extending() -> World:
        log: list[int] = []

        def run(x: fw.Tensor) -> fw.Tensor:
            nonlocal log
            log += [1]
            return x + 1

        return run, lambda: list(log)

    def attribute() -> World:
        tally = Tally()

        def run(x: fw.Tensor) -> fw.Tensor:
            tally.count += 1
            return x * tally.count

        return run, lambda: tally.count

    def set_attribute() -> World:
        tally = Tally()

        def run(x: fw.Tensor) -> fw.Tensor:
            setattr(tally, "count", tally.count + 1)  # noqa: B010 -- the builtin is what is tested
            return x * tally.count

        return run, lambda: tally.count

    def item() -> World:
        table = {"n": 0}

        def run(x: fw.Tensor) -> fw.Tensor:
            table["n"] += 1
            return x + table["n"]

        return run, lambda: dict(table)

    def update() -> World:
        table: dict[str, int] = {}

        def run(x: fw.Tensor) -> fw.Tensor:
            table.update(n=table.get("n", 0) + 1)
            return x + 1

        return run, lambda: dict(table)

    def set_added() -> World:
        seen: set[int] = set()

        def run(x: fw.Tensor) -> fw.Tensor:
            seen.add(len(seen))
            return x + 1

        return run, lambda: sorted(seen)

    def nonlocal_counter() -> World:
        count = 0

        def run(x: fw.Tensor) -> fw.Tensor:
            nonlocal count
            count += 1
            return x * count

        return run, lambda: count

    def inside_a_helper() -> World:
        log: list[int] = []

        def note(n: int) -> int:
            log.append(n)
            return n

        def run(x: fw.Tensor) -> fw.Tensor:
            return x * note(2)

        return run, lambda: list(log)

    def iterator() -> World:
        numbers = iter(range(100))

        def run(x: fw.Tensor) -> fw.Tensor:
            return x * next(numbers)

        return run, nothing

    def generator() -> World:
        def counting() -> Any:
            n = 0
            while True:
                n += 1
                yield n

        numbers = counting()

        def run(x: fw.Tensor) -> fw.Tensor:
            for n in numbers:
                return x * n
            return x

        return run, nothing

    def lock_held() -> World:
        lock = threading.Lock()

        def run(x: fw.Tensor) -> fw.Tensor:
            lock.acquire(blocking=False)
            return x * 2

        def look() -> bool:
            held = lock.locked()
            if held:
                lock.release()
            return held

        return run, look

    def lock_held_for_a_while() -> World:
        lock = threading.RLock()

        def run(x: fw.Tensor) -> fw.Tensor:
            with lock:
                return x * 2

        return run, nothing

    def tensor_kept() -> World:
        kept: list[fw.Tensor] = []

        def run(x: fw.Tensor) -> fw.Tensor:
            y = x * 2
            kept.append(y)
            return y + 1

        return run, lambda: list(kept)

    def array_written() -> World:
        array = np.zeros(3)

        def run(x: fw.Tensor) -> fw.Tensor:
            array[0] += 1
            return x + 1

        return run, lambda: array.tolist()

    def caught() -> World:
        log: list[str] = []

        def run(x: fw.Tensor) -> fw.Tensor:
            try:
                log.append("try")
                raise KeyError("mine")
            except BaseException as error:  # noqa: BLE001 -- what is tested
                log.append(type(error).__name__)
            return x + 1

        return run, lambda: list(log)

    def cached() -> World:
        calls: list[int] = []

        @functools.lru_cache
        def slow(n: int) -> int:
            calls.append(n)
            return n * 2

        def run(x: fw.Tensor) -> fw.Tensor:
            return x * slow(2) * slow(3)

        return run, lambda: list(calls)

    def finaliser() -> World:
        log: list[str] = []

        class Noisy:
            def __del__(self) -> None:
                log.append("gone")

        def run(x: fw.Tensor) -> fw.Tensor:
            Noisy()
            return x + 1

        return run, lambda: list(log)

    def context() -> World:
        log: list[str] = []

        @contextlib.contextmanager
        def noted() -> Any:
            log.append("in")
            yield
            log.append("out")

        def run(x: fw.Tensor) -> fw.Tensor:
            with noted():
                return x + 1

        return run, lambda: list(log)

    return {name: make for name, make in locals().items() if callable(make)}


@pytest.mark.parametrize("name", effects())
def test_effects_happen_once_per_call(name: str) -> None:
    twins = Twins(effects()[name])
    for _ in range(4):
        twins.call(ones())


def count_up(x: fw.Tensor) -> fw.Tensor:
    global counter
    counter += 1
    return x * counter


def test_a_global_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "counter", 0)
    run = values(count_up)
    assert [run(ones(1)) for _ in range(4)] == [[1], [2], [3], [4]]


def test_print_prints_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        y = x * 2
        print("sum", y.sum())
        return y

    compiled = CompiledFunction(function)
    for _ in range(3):
        compiled(ones())
    assert capsys.readouterr().out == "sum tensor(6.)\n" * 3


@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        (lambda: random.random(), lambda: random.seed(1)),
        (lambda: random.randint(0, 100), lambda: random.seed(1)),
        (lambda: np.random.rand(), lambda: np.random.seed(1)),
        (lambda: float(np.random.normal()), lambda: np.random.seed(1)),
    ],
)
def test_draws_of_python_and_numpy(draw: Callable[[], float], seed: Callable[[], None]) -> None:
    compiled = CompiledFunction(lambda x: x * draw())
    seed()
    got = [compiled(fw.ones(1, dtype=fw.float64)).item() for _ in range(4)]
    seed()
    assert got == [pytest.approx(draw()) for _ in range(4)]
    assert len(set(got)) > 1


def test_a_random_generator_closed_over() -> None:
    rngs = [np.random.default_rng(1), np.random.default_rng(1)]
    worlds = iter(rngs)

    def make() -> World:
        rng = next(worlds)
        return (lambda x: x * float(rng.random())), nothing

    twins = Twins(make)
    for _ in range(4):
        twins.call(ones())


def test_files_are_written_every_time(tmp_path: Any) -> None:
    path = tmp_path / "log"

    def function(x: fw.Tensor) -> fw.Tensor:
        with path.open("a") as file:
            file.write("x")
        return x + 1

    compiled = CompiledFunction(function)
    for _ in range(3):
        compiled(ones())
    assert path.read_text() == "xxx"


def test_local_containers_are_no_effect() -> None:
    def function(x: fw.Tensor) -> fw.Tensor:
        parts = []
        for i in range(3):
            parts.append(x * float(i))
        table = {}
        table.update(a=parts[0])
        return fw.stack(parts).sum(0) + table["a"] + sum(len(str(i)) for i in range(3))

    twins = Twins(lambda: (function, nothing))
    for _ in range(3):
        twins.call(ones())
    twins.expect("replay", 1)


# strict
# --------------------------------------------------------------------------------------------------


@pytest.mark.replays
def test_strict_refuses_what_would_run_eagerly() -> None:
    log: list[int] = []

    @fw.compile(strict=True)
    def function(x: fw.Tensor) -> fw.Tensor:
        log.append(1)
        return x

    for _ in range(2):
        with pytest.raises(CompileError, match=r"test_capture_effects.py:\d+"):
            function(ones())
    assert log == []


@pytest.mark.replays
def test_strict_passes_what_can_be_replayed() -> None:
    function = fw.compile(lambda x: x * 2, strict=True)
    assert [function(ones()).tolist() for _ in range(2)] == [[2.0] * 3] * 2


@pytest.mark.parametrize("thing", [3, "text", fw.ones(2)])
def test_only_callables_compile(thing: Any) -> None:
    with pytest.raises(TypeError, match="compile expects"):
        fw.compile(thing)
