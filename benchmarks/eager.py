"""`python -m benchmarks.eager [--common] [--against torch] [--python PATH]`: what eager operations cost.

One small op with and without recording, a forward and backward pass of three ops, and elementwise ops on
large arrays; with `--common` the ops that programs have most, on small tensors that record. Each framework
runs in a process of its own, in rounds that alternate, on equal threads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.machine import describe, pin, thread_environment
from benchmarks.steps import ask, versions

# The module that each framework's names are in: they share the names used here.
FRAMEWORKS = {"tracefuse": "framework", "torch": "torch"}
OURS = "tracefuse"
SMALL, SIDE, LARGE = 64, 64, 1 << 24
# A round times about this many seconds of each work, a loop of a small one at a time.
SECONDS, LOOP = 0.4, 200

Call = Callable[[], Any]


def works(fw: Any) -> dict[str, tuple[Call, int]]:
    """What is timed, with the calls in one loop."""
    a, b = fw.ones(SMALL, requires_grad=True), fw.ones(SMALL, requires_grad=True)
    c, d = fw.ones(SMALL), fw.ones(SMALL)
    x, w = fw.ones(SIDE, SIDE) * 0.01, (fw.ones(SIDE, SIDE) * 0.01).requires_grad_()
    # Not of one value: time may depend on it.
    left, right = fw.linspace(-1.0, 1.0, LARGE), fw.linspace(0.5, 2.0, LARGE)

    def forward_and_backward() -> None:
        w.grad = None
        (x @ w).relu().sum().backward()

    return {
        f"a + b, {SMALL} elements, recorded": (lambda: a + b, LOOP),
        f"a * b, {SMALL} elements, recorded": (lambda: a * b, LOOP),
        f"exp(b), {SMALL} elements, recorded": (lambda: b.exp(), LOOP),
        f"c + d, {SMALL} elements, not recorded": (lambda: c + d, LOOP),
        f"sum(relu(x @ w)), {SIDE}x{SIDE}, and backward": (forward_and_backward, LOOP),
        "a + b, 16 M elements": (lambda: left + right, 1),
        "a * b, 16 M elements": (lambda: left * right, 1),
        "exp(a), 16 M elements": (lambda: left.exp(), 1),
    }


def common(fw: Any) -> dict[str, tuple[Call, int]]:
    """Frequent ops and layers on vectors of 64 elements and matrices of 64 x 64, recorded."""
    functional = fw.nn.functional
    a, b = (fw.rand(SMALL) + 0.5).requires_grad_(), (fw.rand(SMALL) + 0.5).requires_grad_()
    m, k, free = fw.rand(SIDE, SIDE).requires_grad_(), fw.rand(SIDE, SIDE).requires_grad_(), fw.zeros(SMALL)
    classes, rows, half = fw.randint(0, 10, (SIDE,)), fw.randint(0, SIDE, (16,)), fw.rand(SMALL) > 0.5
    layer, shape = fw.nn.Linear(SIDE, SIDE), (SIDE,)
    calls: dict[str, Call] = {
        "a * 2.0": lambda: a * 2.0,
        "relu(a)": lambda: a.relu(),
        "sigmoid(a)": lambda: a.sigmoid(),
        "where(c, a, b)": lambda: fw.where(half, a, b),
        "clamp(a)": lambda: a.clamp(0.6, 1.2),
        "a.reshape": lambda: a.reshape(8, 8),
        "m.t()": lambda: m.t(),
        "m[3]": lambda: m[3],
        "m[:, 2:5]": lambda: m[:, 2:5],
        "m[3, 4]": lambda: m[3, 4],
        "m[rows]": lambda: m[rows],
        "cat": lambda: fw.cat([a, b]),
        "stack": lambda: fw.stack([a, b]),
        "a.sum()": lambda: a.sum(),
        "m.sum(0)": lambda: m.sum(0),
        "m.mean(-1)": lambda: m.mean(-1),
        "m.amax(-1)": lambda: m.amax(-1),
        "a @ b": lambda: a @ b,
        "m @ k": lambda: m @ k,
        "linear": lambda: functional.linear(m, k, a),
        "nn.Linear": lambda: layer(m),
        "softmax": lambda: functional.softmax(m, -1),
        "log_softmax": lambda: functional.log_softmax(m, -1),
        "cross_entropy": lambda: functional.cross_entropy(m, classes),
        "mse_loss": lambda: functional.mse_loss(m, k),
        "layer_norm": lambda: functional.layer_norm(m, shape, a, b),
        "gelu": lambda: functional.gelu(m),
        "dropout": lambda: functional.dropout(m, 0.1),
        "embedding": lambda: functional.embedding(rows, m),
        "rand": lambda: fw.rand(SMALL),
        "add_": lambda: free.add_(0.5),
        "zero_": lambda: free.zero_(),
    }
    for name in ("softmax", "cross_entropy", "layer_norm", "gelu"):
        calls[f"{name} and backward"] = _with_backward(calls[name], (m, a, b))
    return {name: (call, 4) for name, call in calls.items()}


def _with_backward(call: Call, leaves: Sequence[Any]) -> Call:
    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        call().sum().backward()

    return run


def microseconds(call: Call, loop: int) -> tuple[float, float]:
    """Median and best of the mean time of a call in one loop."""
    times: list[float] = []
    for _ in range(loop):
        call()
    end = time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(loop):
            call()
        times.append((time.perf_counter() - begin) / loop * 1e6)
    return statistics.median(times), min(times)


def measure(framework: str, frequent: bool) -> dict[str, tuple[float, float]]:
    """Median and best of each work in microseconds, in this process."""
    fw = importlib.import_module(FRAMEWORKS[framework])
    return {name: microseconds(*work) for name, work in (common if frequent else works)(fw).items()}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eager", description=__doc__)
    peers = [name for name in FRAMEWORKS if name != OURS]
    parser.add_argument(
        "--against", nargs="*", choices=peers, default=[], metavar="PEER", help=" ".join(peers)
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--common", action="store_true", help="the most frequent ops instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", choices=FRAMEWORKS, help="time this framework here, and print JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rounds and print a line for each work; 1 when a framework failed."""
    options = options_of(arguments)
    if options.child:
        pin(options.threads)
        print(json.dumps(measure(options.child, options.common)))
        return 0
    print(f"{describe()}; {options.threads} threads\n{versions(options.python)}")
    environment = thread_environment(options.threads)
    frameworks = [OURS, *options.against]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in frameworks}
    for _ in range(options.rounds):
        for name, found in rounds.items():
            python = sys.executable if name == OURS else options.python
            child = ["benchmarks.eager", "--child", name, "--threads", str(options.threads)]
            child += ["--common"] if options.common else []
            found.append(ask(python, child, environment))
            if "error" in found[-1]:
                print(f"{name}: {found[-1]['error']}")
                return 1
    print(f"{'microseconds, median (best)':44}" + "".join(f"{name:>24}" for name in frameworks))
    for work in rounds[OURS][0]:
        medians = [statistics.median(r[work][0] for r in rounds[name]) for name in frameworks]
        bests = [min(r[work][1] for r in rounds[name]) for name in frameworks]
        cells = [f"{m:.2f} ({b:.2f})" for m, b in zip(medians, bests, strict=True)]
        print(f"{work:44}" + "".join(f"{cell:>24}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
