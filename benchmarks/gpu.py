"""`python -m benchmarks.gpu`: all there is to check and to measure on a GPU, in less than eight minutes.

Steps, and functions of order, beside the CPU's results, kernels beside the rate of a copy, products beside
cuBLAS, attention and steps beside PyTorch where it is installed; a table, and JSON. Without a GPU it says
what is missing, and ends.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any, Protocol

import numpy as np

import framework as fw
from benchmarks.measure import FRAMEWORKS, samples
from benchmarks.steppers.timed import Timed
from benchmarks.steppers.tracefuse import make
from benchmarks.works import WORKS, Work
from kernels import dtypes
from kernels.blocks import Dot, Total
from kernels.cost import cost
from kernels.dtypes import DType
from kernels.errors import KernelError
from kernels.files import Placed, reach
from kernels.gpu import specimens
from kernels.gpu.code import Code
from kernels.gpu.compile import compiled
from kernels.gpu.cuda import cuda
from kernels.gpu.driver import missing
from kernels.gpu.launch import Launch
from kernels.gpu.render import launch_of
from kernels.library import ELEMENTWISE, LIBRARY, LoopBuilder, placed
from kernels.work import Work as KernelWork

SECONDS = 450.0
DEVICE = "cuda"
# 64 M elements, and rows of so many. No powers of two, as on the CPU.
ELEMENTS, ROWS = (64_000_000,), (16_000, 4_000)
BOUND_BY_MEMORY = (
    "gelu", "adamw", "softmax", "log_softmax", "layer_norm", "rms_norm", "row_sum", "column_sum",
    "running_sum",
)  # fmt: skip
SIDES = (512, 1024, 2048, 4096, 8192)
# Heads of all sequences together, rows and columns of their scores; numbers of a head's rows.
HEADS, WIDTHS = (64, 2048, 2048), (64, 128)
# dtype, and whether factors are rounded to TF32.
PRECISIONS = (
    (dtypes.float32, False),
    (dtypes.float32, True),
    (dtypes.float16, False),
    (dtypes.bfloat16, False),
)
# Results of the GPU and of the CPU after two steps, over the largest.
SAME_RESULT = 1e-3
WARM, STEPS, ROUNDS = 10, 20, 10
Row = dict[str, Any]
Section = Iterator[Row]


class Machine(Protocol):
    """What times kernels: `kernels.gpu.cuda.Cuda`."""

    device: Any

    def seconds(self, launch: Launch, code: Code, rooms: Sequence[tuple[int, int]]) -> float:
        """What a launch takes; `rooms` are the bytes before and after each operand's pointer."""
        ...


# Steps beside the CPU


def checks(works: dict[str, Work] = WORKS, device: str = DEVICE) -> Section:
    """Two compiled steps of each work, on the CPU and there."""
    for name, work in works.items():
        here, there = (_results(make(work, place)) for place in ("cpu", device))
        off = max((_apart(a, b) for a, b in zip(there, here, strict=True)), default=0.0)
        yield {"name": name, "off": off, "same": bool(off <= SAME_RESULT)}


# What has the CPU's bits on a GPU too: order, positions, and sums in order. Of numbers with ties, of which
# some are NaN; with positions in the rows.
_rows_added = fw.compile(lambda x, index: x.index_add(0, index, x))
EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "sort": lambda x, at: x.sort(1),
    "sort down": lambda x, at: x.sort(0, descending=True),
    "topk": lambda x, at: x.topk(7, 1),
    "median": lambda x, at: x.median(1),
    "unique": lambda x, at: fw.unique(x + 0.0, return_inverse=True, return_counts=True),
    "cummax": lambda x, at: x.cummax(1),
    "cumsum of integers": lambda x, at: at.cumsum(1),
    "nonzero": lambda x, at: x.nonzero(),
    "searchsorted": lambda x, at: fw.searchsorted(x.sort(1).values, x),
    "histc": lambda x, at: fw.histc(x[x == x], 20),
    "bincount": lambda x, at: fw.bincount(at[0], x[1].nan_to_num()),
    "scatter": lambda x, at: x.scatter(1, at, x * 2),
    "scatter_add": lambda x, at: x.scatter_add(1, at, x),
    "index_add": lambda x, at: x.index_add(0, at[:, 0] % 5, x),
    "index_add, compiled": lambda x, at: _rows_added(x, at[:, 0] % 5),
}  # fmt: skip


def eager(device: str = DEVICE, rows: int = 300, columns: int = 1000) -> Section:
    """Functions of order and of positions there and on the CPU, bit for bit, each run twice."""
    random = np.random.default_rng(0)
    numbers = np.round(random.standard_normal((rows, columns)) * 50) / 7
    numbers[random.random(numbers.shape) < 0.01] = np.nan
    x, at = fw.tensor(numbers, dtype=fw.float32), fw.tensor(random.integers(0, rows, numbers.shape))
    for name, function in EXACT.items():
        here = _bits(function(x, at))
        yield {"name": name, "same": all(_bits(function(x.to(device), at.to(device))) == here for _ in "12")}


def _bits(result: Any) -> list[bytes]:
    tensors = [result] if isinstance(result, fw.Tensor) else result
    return [t.cpu().contiguous().numpy().tobytes() for t in tensors]


def _results(timed: Timed) -> list[list[float]]:
    results = [timed.step(*batch) for batch in timed.batches[:2]]
    return samples([array for result in results for array in timed.look(result)])


def _apart(a: list[float], b: list[float]) -> float:
    largest = max(float(np.abs(b).max(initial=0)), float(np.finfo(np.float32).tiny))
    return float(np.abs(np.subtract(a, b)).max(initial=0)) / largest


# Kernels beside a copy


def copy_of(sizes: tuple[int, ...]) -> Placed:
    """A kernel that copies float32 numbers."""
    k = LoopBuilder("copy", rows=1)
    k.store(k.load(dtypes.float32, (1,)), dtypes.float32, (1,))
    return placed(KernelWork(k.spec(), sizes, ((1,), (1,)), (0, 0)))


def kernels(machine: Machine, elements: tuple[int, ...] = ELEMENTS, rows: tuple[int, ...] = ROWS) -> Section:
    """Bytes a second of kernels that memory bounds, over those of a copy."""
    copy = copy_of(elements)
    rate = cost(copy).least / seconds(machine, copy)
    yield {"name": "copy", "seconds": cost(copy).least / rate, "GB/s": rate / 1e9, "share": 1.0}
    for name in BOUND_BY_MEMORY:
        known = LIBRARY[name]
        kernel = known.make(dtypes.float32, elements if known.family == ELEMENTWISE else rows)
        taken = seconds(machine, kernel)
        own = cost(kernel).least / taken
        yield {"name": name, "seconds": taken, "GB/s": own / 1e9, "share": own / rate}


def seconds(machine: Machine, kernel: Placed, tf32: bool = False) -> float:
    """The time of a kernel whose memories start at multiples of 256 bytes."""
    operands = list(zip(kernel.work.spec.operands, kernel.memory, kernel.offsets, strict=True))
    aligned = [max(offset * o.dtype.itemsize, 0) or 256 for o, _, offset in operands]
    launch = launch_of(kernel.work, aligned, tf32=tf32)
    rooms = [
        (offset * o.dtype.itemsize, (kernel.sizes[memory] - offset) * o.dtype.itemsize)
        if memory >= 0
        else (0, 0)
        for o, memory, offset in operands
    ]
    return machine.seconds(launch, compiled(launch, machine.device.architecture), rooms)


# Products beside cuBLAS


def products(machine: Machine, sides: Sequence[int] = SIDES) -> Section:
    """Square products of each precision, beside cuBLAS where CuPy is installed."""
    for dtype, tf32 in PRECISIONS:
        for side in sides:
            name = f"{'tf32' if tf32 else dtype.name} {side}"
            taken = seconds(machine, LIBRARY["matmul"].make(dtype, (side, side, side)), tf32)
            row: Row = {"name": name, "seconds": taken, "TFLOP/s": 2 * side**3 / taken / 1e12}
            if (theirs := cublas(dtype, tf32, side)) is not None:
                row |= {"cuBLAS, s": theirs, "share": theirs / taken}
            yield row


def cublas(dtype: DType, tf32: bool, side: int) -> float | None:
    """The time of cuBLAS through CuPy; None without CuPy, or for what CuPy has no product of."""
    if importlib.util.find_spec("cupy") is None or dtype is dtypes.bfloat16:
        return None
    cupy = importlib.import_module("cupy")
    cublas = importlib.import_module("cupy_backends.cuda.libs.cublas")
    a, b, c = (cupy.ones((side, side), dtype.numpy) for _ in range(3))
    handle = cupy.cuda.device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    cublas.setMathMode(handle, cublas.CUBLAS_TF32_TENSOR_OP_MATH if tf32 else cublas.CUBLAS_DEFAULT_MATH)
    try:
        times = []
        for _ in range(ROUNDS):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            cupy.matmul(a, b, out=c)
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end) / 1000)
        return min(times)
    finally:
        cublas.setMathMode(handle, before)


# Attention beside PyTorch's


def attention(
    machine: Machine, widths: Sequence[int] = WIDTHS, sizes: tuple[int, int, int] = HEADS
) -> Section:
    """Kernels that several became: attention forward, and the two of its gradient, of each precision."""
    for dtype, tf32 in PRECISIONS:
        for width in widths:
            for make_work in (specimens.forward, specimens.of_rows, specimens.of_columns):
                work = make_work(dtype, width, sizes)
                launch = launch_of(work, tf32=tf32)
                operands = enumerate(work.spec.operands)
                rooms = [(0, (reach(work, i)[1] + 1) * o.dtype.itemsize) for i, o in operands]
                code = compiled(launch, machine.device.architecture)
                taken = machine.seconds(launch, code, rooms)
                products = sum(isinstance(s, Dot | Total) for s in work.spec.steps)
                rate = 2 * products * math.prod(sizes) * width / taken
                name = f"{'tf32' if tf32 else dtype.name} {width} {work.spec.name}"
                yield {"name": name, "seconds": taken, "TFLOP/s": rate / 1e12}
            if (theirs := torch_attention(dtype, tf32, width, sizes)) is not None:
                yield {"name": f"{name.split()[0]} {width} torch forward", "seconds": theirs}


def torch_attention(dtype: DType, tf32: bool, width: int, sizes: tuple[int, int, int]) -> float | None:
    """The time of PyTorch's attention forward; None where it has no GPU."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = tf32
    heads, rows, columns = sizes
    kind = getattr(torch, dtype.name)
    given = [torch.ones((1, heads, n, width), dtype=kind, device=DEVICE) for n in (rows, columns, columns)]
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.nn.functional.scaled_dot_product_attention(*given)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return min(times)


# Steps beside PyTorch


def steps(works: dict[str, Work] = WORKS, device: str = DEVICE) -> Section:
    """Whole steps, and PyTorch's where it has a GPU."""
    waits: dict[str, Callable[[], None]] = {"tracefuse": fw.cuda.synchronize}
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        if torch.cuda.is_available():
            waits |= dict.fromkeys(("torch", "torch.compile"), torch.cuda.synchronize)
    for name, work in works.items():
        row: Row = {"name": name}
        for lib, wait in waits.items():
            module, maker = FRAMEWORKS[lib]
            row[lib] = _step_seconds(getattr(importlib.import_module(module), maker)(work, device), wait)
        peers = [row[lib] for lib in waits if lib != "tracefuse"]
        yield row | ({"peer / ours": min(peers) / row["tracefuse"]} if peers else {})


def _step_seconds(timed: Timed, wait: Callable[[], None]) -> float:
    """The median over rounds of a step's time, many started before the end is waited for."""
    for number in range(WARM):
        timed.step(*timed.batches[number % len(timed.batches)])
    times = []
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        for number in range(STEPS):
            timed.step(*timed.batches[number % len(timed.batches)])
        wait()
        times.append((time.perf_counter() - begin) / STEPS)
    return statistics.median(times)


# All of it


def run(sections: dict[str, Callable[[], Section]], seconds: float) -> tuple[dict[str, list[Row]], list[str]]:
    """The rows of every section, and what was left out when the time was over or went wrong."""
    end, found, left = time.perf_counter() + seconds, {}, []
    for name, section in sections.items():
        rows = found[name] = []
        try:
            for row in section():
                rows.append(row)
                print(f"{name:9}{_line(row)}", flush=True)
                if time.perf_counter() > end:
                    left.append(f"{name} after {row['name']}: {seconds:.0f} s are over")
                    break
        except (KernelError, RuntimeError, MemoryError) as error:
            left.append(f"{name} after {rows[-1]['name'] if rows else 'nothing'}: {error}")
    return found, left


def _line(row: Row) -> str:
    cells = [f"{row['name']:22}"]
    for key, value in row.items():
        if key == "seconds" or key in FRAMEWORKS or key.endswith(", s"):
            cells.append(f"{key.removesuffix(', s')} {value * 1e6:,.1f} us")
        elif isinstance(value, float):
            cells.append(f"{key} {value:.3g}")
        elif key != "name":
            cells.append(f"{key} {value}")
    return "  ".join(cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what there is time for; 1 where a result is wrong or something could not be run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after so long nothing new is begun")
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args(arguments)
    if (words := missing()) is not None:
        print(f"no GPU to run on: {words}")
        return 0
    machine = cuda(options.device)
    device = machine.device
    facts = {
        "date": date.today().isoformat(),
        "GPU": device.name,
        "capability": ".".join(map(str, device.capability)),
        "memory": device.total_memory,
        "driver": device.driver.version,
    }
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    place = f"{DEVICE}:{options.device}"
    sections: dict[str, Callable[[], Section]] = {
        "checks": lambda: checks(device=place),
        "eager": lambda: eager(place),
        "kernels": lambda: kernels(machine),
        "products": lambda: products(machine),
        "attention": lambda: attention(machine),
        "steps": lambda: steps(device=place),
    }
    found, left = run(sections, options.seconds)
    for words in left:
        print(f"left out: {words}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"facts": facts, **found, "left out": left}, file, indent=1)
    same = all(row["same"] for name in ("checks", "eager") for row in found[name])
    return int(bool(left) or not same)


if __name__ == "__main__":
    sys.exit(main())
