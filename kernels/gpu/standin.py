"""A driver library without a GPU, for tests and for measuring what launches cost the host.

Device memory is host memory; every call is checked as the driver checks it, and recorded. What a stream is
given runs as late as the driver allows, and a graph's nodes in the least expected order, so that a missing
wait shows. A kernel is what `images` says of its object code: the types of its parameters; `execute` runs it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_char_p, c_int, c_void_p
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kernels.gpu.driver import CALLS, KernelNode, LaunchConfig

# CUresult.
INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, INVALID_CONTEXT, INVALID_HANDLE = 1, 2, 200, 201, 400
NOT_FOUND, NOT_READY, ILLEGAL_ADDRESS, STREAM_CAPTURE, UNKNOWN = 500, 600, 700, 900, 999
_NAMES = {
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    INVALID_VALUE: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    OUT_OF_MEMORY: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    INVALID_IMAGE: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    INVALID_CONTEXT: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    INVALID_HANDLE: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    NOT_FOUND: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    ILLEGAL_ADDRESS: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    STREAM_CAPTURE: (
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing",
    ),
    UNKNOWN: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}
# How a kernel reads a parameter of each of Triton's types.
FORMATS = {
    "i1": "<b", "u1": "<B", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
    "i64": "<q", "u64": "<Q", "fp16": "<e", "fp32": "<f", "fp64": "<d",
}  # fmt: skip


class Refusal(Exception):  # noqa: N818 -- a code on its way out
    """What a call returns instead of success."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(code)
        self.code, self.why = code, why


@dataclass(frozen=True)
class Image:
    """What object code has: its kernel's name, the types of its parameters."""

    name: str
    types: tuple[str, ...]


@dataclass(frozen=True)
class Launched:
    """A launch as a kernel sees it: `values` of its parameters, `raw` the bytes they were read from."""

    image: bytes
    name: str
    grid: tuple[int, int, int]
    threads: int
    shared: int
    values: tuple[Any, ...]
    raw: tuple[bytes, ...]


@dataclass
class _Function:
    image: bytes
    name: str
    types: tuple[str, ...]
    allowed: int = 48 << 10


@dataclass
class _Work:
    """Something a stream was given: runs after what `waits` gives, streams and numbers of their works."""

    number: int
    run: Callable[[], None]
    waits: tuple[tuple[int, int], ...] = ()


@dataclass
class _Event:
    timed: bool
    at: tuple[int, int] | None = None
    done: float | None = None


@dataclass
class _Node:
    run: Callable[[], None] | None
    after: tuple[int, ...]


@dataclass
class _Capture:
    nodes: dict[int, _Node] = field(default_factory=dict)
    last: tuple[int, ...] = ()


class StandIn:
    """The library: give it to `kernels.gpu.driver.Driver`.

    `images` maps object code to what it has; `execute` gets every kernel's launch when it runs.
    """

    def __init__(
        self,
        capability: tuple[int, int] = (9, 0),
        version: int = 13000,
        count: int = 1,
        execute: Callable[[Launched], None] | None = None,
        memory: int = 1 << 34,
    ) -> None:
        self.images: dict[bytes, Image] = {}
        self.execute = execute
        self.capability, self.version, self.count, self.total = capability, version, count, memory
        self.calls: list[str] = []
        self.launches: list[Launched] = []
        # Milliseconds so far, of which every launch takes some.
        self.clock = 0.0
        self.duration: Callable[[Launched], float] = lambda launch: 1.0
        # What an execution raised: the device is unusable from then on.
        self.failure: BaseException | None = None
        self.allocations: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, np.ndarray[Any, Any]] = {}
        self._keep: list[Any] = []
        self._handles = iter(range(0x1000, 1 << 40, 16))
        self._functions: dict[int, _Function] = {}
        self._modules: dict[int, bytes] = {}
        self._streams: dict[int, deque[_Work]] = {0: deque()}
        self._captures: dict[int, _Capture] = {}
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, dict[int, _Node]] = {}
        self._instances: dict[int, dict[int, _Node]] = {}
        self._current = threading.local()
        self._number = 0
        self._lock = threading.RLock()
        self.addresses: dict[str, int] = {}
        for name, types in CALLS.items():
            function = CFUNCTYPE(c_int, *types)(partial(self._answer, name))
            self._keep.append(function)
            address = ctypes.cast(function, c_void_p).value or 0
            self.addresses[name] = self.addresses[f"{name}_v2"] = address

    def address(self, symbol: str) -> int:
        """As Library.address."""
        return self.addresses.get(symbol, 0)

    def _answer(self, name: str, *arguments: Any) -> int:
        """The code that a call returns; an exception must not leave a C callback."""
        with self._lock:
            self.calls.append(name)
            try:
                if self.failure is not None and name not in _ALWAYS:
                    return ILLEGAL_ADDRESS
                if name not in _WITHOUT_CONTEXT and not getattr(self._current, "context", 0):
                    return INVALID_CONTEXT
                getattr(self, f"_{name}")(*arguments)
            except Refusal as refusal:
                return refusal.code
            except Exception as error:  # noqa: BLE001 -- it would be lost
                self.failure = error
                return UNKNOWN
            return ILLEGAL_ADDRESS if self.failure is not None and name not in _ALWAYS else 0

    def _new(self) -> int:
        return next(self._handles)

    # Devices

    def _cuInit(self, flags: int) -> None:
        if self.count < 0:
            raise Refusal(100)

    def _cuDriverGetVersion(self, version: Any) -> None:
        version[0] = self.version

    def _cuGetErrorName(self, code: int, text: Any) -> None:
        text[0] = c_char_p(self._text(code, 0))

    def _cuGetErrorString(self, code: int, text: Any) -> None:
        text[0] = c_char_p(self._text(code, 1))

    def _text(self, code: int, which: int) -> bytes:
        words = _NAMES.get(code, _NAMES[UNKNOWN])[which].encode()
        self._keep.append(words)
        return words

    def _cuDeviceGetCount(self, count: Any) -> None:
        count[0] = max(self.count, 0)

    def _cuDeviceGet(self, device: Any, number: int) -> None:
        device[0] = number

    def _cuDeviceGetName(self, name: int, size: int, device: int) -> None:
        words = f"stand-in {device}".encode()
        ctypes.memmove(name, words, len(words) + 1)

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:
        facts = {75: self.capability[0], 76: self.capability[1], 16: 132, 97: 227 << 10}
        value[0] = facts[attribute]

    def _cuDeviceTotalMem(self, size: Any, device: int) -> None:
        size[0] = self.total

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        context[0] = 0x100 + device

    def _cuCtxSetCurrent(self, context: int | None) -> None:
        self._current.context = context or 0

    def _cuCtxSynchronize(self) -> None:
        for stream in self._streams:
            self._drain(stream)

    # Functions

    def _cuModuleLoadData(self, module: Any, image: int) -> None:
        known = [x for x in self.images if _begins(image, x)]
        if not known:
            raise Refusal(INVALID_IMAGE)
        module[0] = handle = self._new()
        self._modules[handle] = known[0]

    def _cuModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:
        image = self._modules[module]
        if self.images[image].name != name.decode():
            raise Refusal(NOT_FOUND)
        function[0] = handle = self._new()
        self._functions[handle] = _Function(image, name.decode(), self.images[image].types)

    def _cuFuncGetAttribute(self, value: Any, attribute: int, function: int) -> None:
        value[0] = {3: 0, 4: 32}[attribute]

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        if attribute != 8 or value > 227 << 10:
            raise Refusal(INVALID_VALUE)
        self._functions[function].allowed = value

    def _cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: int | None) -> None:
        c = LaunchConfig.from_address(config)
        if extra or c.attribute_count:
            raise Refusal(INVALID_VALUE)
        launch = self._launched(function, c, parameters)
        self._give(c.stream or 0, partial(self._execute, launch))

    def _launched(self, function: int, shape: LaunchConfig | KernelNode, parameters: int) -> Launched:
        """A launch with its parameters as they are now."""
        if function not in self._functions:
            raise Refusal(INVALID_HANDLE)
        known = self._functions[function]
        grid, block = tuple(shape.grid), tuple(shape.block)
        fits = 0 < grid[0] < 1 << 31 and all(0 < n < 1 << 16 for n in grid[1:])
        if not fits or not 0 < block[0] <= 1024 or block[1:] != (1, 1) or shape.shared > known.allowed:
            raise Refusal(INVALID_VALUE)
        values, raw = [], []
        # Two pointers to scratch memory follow the parameters that the source names.
        for number, kind in enumerate((*known.types, "*u8", "*u8")):
            form = "<Q" if kind.startswith("*") else FORMATS[kind]
            address = c_void_p.from_address(parameters + 8 * number).value
            raw.append(ctypes.string_at(address or 0, struct.calcsize(form)))
            values.append(struct.unpack(form, raw[-1])[0])
        return Launched(known.image, known.name, grid, block[0], shape.shared, tuple(values), tuple(raw))

    def _execute(self, launch: Launched) -> None:
        self.launches.append(launch)
        self.clock += self.duration(launch)
        if self.execute is not None:
            self.execute(launch)

    # Memory

    def _cuMemGetInfo(self, free: Any, total: Any) -> None:
        free[0], total[0] = self.total - self._allocated(), self.total

    def _allocated(self) -> int:
        return sum(len(x) - 256 for x in self.allocations.values())

    def _cuMemAlloc(self, address: Any, size: int) -> None:
        if size == 0:
            raise Refusal(INVALID_VALUE)
        if self._allocated() + size > self.total:
            raise Refusal(OUT_OF_MEMORY)
        # Fresh memory holds what nobody would take for a result.
        memory = np.full(size + 256, 0xA5, np.uint8)
        address[0] = start = -(-memory.ctypes.data // 256) * 256
        self.allocations[start] = memory

    def _cuMemFree(self, address: int) -> None:
        self._cuCtxSynchronize()
        if self.allocations.pop(address, None) is None:
            raise Refusal(INVALID_VALUE)

    def inside(self, address: int, size: int) -> bool:
        """Whether bytes lie in one allocation on the device."""
        return any(a <= address and address + size <= a + len(m) - 256 for a, m in self.allocations.items())

    def _is_pinned(self, address: int) -> bool:
        return any(a <= address < a + max(len(m), 1) for a, m in self.pinned.items())

    def _cuMemHostAlloc(self, address: Any, size: int, flags: int) -> None:
        memory = np.full(size, 0xA5, np.uint8)
        address[0] = memory.ctypes.data
        self.pinned[memory.ctypes.data] = memory

    def _cuMemFreeHost(self, address: int) -> None:
        self._cuCtxSynchronize()
        del self.pinned[address]

    def _move(self, target: int, source: int, size: int, ends: Sequence[int]) -> None:
        """Copy; the addresses in `ends` are on the device."""
        if not all(self.inside(address, size) for address in ends):
            raise Refusal(INVALID_VALUE)
        ctypes.memmove(target, source, size)

    def _cuMemcpyHtoDAsync(self, target: int, source: int | None, size: int, stream: int | None) -> None:
        if size and not self.inside(target, size):
            raise Refusal(INVALID_VALUE)
        if size and source is not None:
            if not self._is_pinned(source):
                # The driver takes pageable memory along.
                taken = ctypes.create_string_buffer(ctypes.string_at(source, size), size)
                self._give(stream or 0, lambda: self._move(target, ctypes.addressof(taken), size, ()))
                return
            self._give(stream or 0, partial(self._move, target, source, size, (target,)))

    def _cuMemcpyDtoHAsync(self, target: int | None, source: int, size: int, stream: int | None) -> None:
        if size and target is not None:
            if not self.inside(source, size):
                raise Refusal(INVALID_VALUE)
            self._give(stream or 0, partial(self._move, target, source, size, (source,)))
            if not self._is_pinned(target):
                self._drain(stream or 0)

    def _cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: int | None) -> None:
        if not self.inside(target, size) or not self.inside(source, size):
            raise Refusal(INVALID_VALUE)
        self._give(stream or 0, partial(self._move, target, source, size, (target, source)))

    def _cuMemsetD8Async(self, address: int, byte: int, size: int, stream: int | None) -> None:
        if not self.inside(address, size):
            raise Refusal(INVALID_VALUE)
        self._give(stream or 0, partial(_set, address, byte, size))

    # Streams and events

    def _give(self, stream: int, run: Callable[[], None], waits: tuple[tuple[int, int], ...] = ()) -> int:
        """Append work to a stream, or to the graph it captures: its number."""
        if stream not in self._streams:
            raise Refusal(INVALID_HANDLE)
        if stream in self._captures:
            capture = self._captures[stream]
            node = self._new()
            capture.nodes[node], capture.last = _Node(run, capture.last), (node,)
            return 0
        if stream == 0 and self._captures:
            raise Refusal(STREAM_CAPTURE)
        self._number += 1
        self._streams[stream].append(_Work(self._number, run, waits))
        return self._number

    def _drain(self, stream: int, last: float = float("inf"), most: int = 1 << 60) -> None:
        """Run what a stream was given up to number `last`, after all it waits for; at most so many works."""
        if stream in self._captures:
            raise Refusal(STREAM_CAPTURE)
        queue = self._streams.get(stream, deque())
        while queue and queue[0].number <= last and most:
            work, most = queue.popleft(), most - 1
            # The default stream waits for all that came before, and all others for it.
            for other in [0] if stream else list(self._streams):
                if other != stream:
                    self._drain(other, work.number)
            for other, number in work.waits:
                self._drain(other, number)
            if self.failure is None:
                try:
                    work.run()
                except Exception as error:  # noqa: BLE001 -- the device is lost, whatever it was
                    self.failure = error

    def _cuStreamCreate(self, stream: Any, flags: int) -> None:
        stream[0] = handle = self._new()
        self._streams[handle] = deque()

    def _cuStreamDestroy(self, stream: int) -> None:
        self._drain(stream)
        del self._streams[stream]

    def _cuStreamSynchronize(self, stream: int | None) -> None:
        if (stream or 0) not in self._streams:
            raise Refusal(INVALID_HANDLE)
        self._drain(stream or 0)

    def _cuStreamQuery(self, stream: int | None) -> None:
        if self._streams[stream or 0]:
            self._drain(stream or 0, most=1)
            raise Refusal(NOT_READY)

    def _cuStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> None:
        at = self._events[event].at
        self._give(stream or 0, lambda: None, () if at is None else (at,))

    def _cuStreamBeginCapture(self, stream: int, mode: int) -> None:
        self._captures[stream] = _Capture()

    def _cuStreamEndCapture(self, stream: int, graph: Any) -> None:
        graph[0] = handle = self._new()
        self._graphs[handle] = self._captures.pop(stream).nodes

    def _cuEventCreate(self, event: Any, flags: int) -> None:
        event[0] = handle = self._new()
        self._events[handle] = _Event(not flags & 2)

    def _cuEventDestroy(self, event: int) -> None:
        del self._events[event]

    def _cuEventRecord(self, event: int, stream: int | None) -> None:
        known = self._events[event]
        known.done = None

        def run() -> None:
            known.done = self.clock

        known.at = stream or 0, self._give(stream or 0, run)

    def _cuEventQuery(self, event: int) -> None:
        known = self._events[event]
        if known.at is not None and known.done is None:
            self._drain(*known.at, most=1)
            raise Refusal(NOT_READY)

    def _cuEventSynchronize(self, event: int) -> None:
        at = self._events[event].at
        if at is not None:
            self._drain(*at)

    def _cuEventElapsedTime(self, milliseconds: Any, start: int, end: int) -> None:
        first, last = self._events[start], self._events[end]
        if not (first.timed and last.timed) or first.at is None or last.at is None:
            raise Refusal(INVALID_HANDLE)
        if first.done is None or last.done is None:
            raise Refusal(NOT_READY)
        milliseconds[0] = last.done - first.done

    # Graphs

    def _cuGraphCreate(self, graph: Any, flags: int) -> None:
        graph[0] = handle = self._new()
        self._graphs[handle] = {}

    def _cuGraphDestroy(self, graph: int) -> None:
        del self._graphs[graph]

    def _add(
        self, out: Any, graph: int, after: int | None, count: int, run: Callable[[], None] | None
    ) -> None:
        waited = tuple((c_void_p * count).from_address(after)) if after and count else ()
        if not set(waited) <= self._graphs[graph].keys():
            raise Refusal(INVALID_VALUE)
        out[0] = handle = self._new()
        self._graphs[graph][handle] = _Node(run, waited)

    def _cuGraphAddKernelNode(self, out: Any, graph: int, after: int | None, count: int, new: int) -> None:
        node = KernelNode.from_address(new)
        launch = self._launched(node.function, node, node.parameters)
        self._add(out, graph, after, count, partial(self._execute, launch))

    def _cuGraphAddEmptyNode(self, out: Any, graph: int, after: int | None, count: int) -> None:
        self._add(out, graph, after, count, None)

    def _cuGraphInstantiateWithFlags(self, out: Any, graph: int, flags: int) -> None:
        out[0] = handle = self._new()
        self._instances[handle] = dict(self._graphs[graph])

    def _cuGraphExecKernelNodeSetParams(self, instance: int, node: int, new: int) -> None:
        old, shape = self._instances[instance][node], KernelNode.from_address(new)
        launch = self._launched(shape.function, shape, shape.parameters)
        self._instances[instance][node] = _Node(partial(self._execute, launch), old.after)

    def _cuGraphExecDestroy(self, instance: int) -> None:
        del self._instances[instance]

    def _cuGraphLaunch(self, instance: int, stream: int | None) -> None:
        nodes = dict(self._instances[instance])
        self._give(stream or 0, partial(self._run_graph, nodes))

    def _run_graph(self, nodes: dict[int, _Node]) -> None:
        """Run nodes, the youngest of those that may run first."""
        done: set[int] = set()
        while ready := [h for h, n in nodes.items() if h not in done and set(n.after) <= done]:
            node = nodes[ready[-1]]
            if node.run is not None:
                node.run()
            done.add(ready[-1])


def _set(address: int, byte: int, size: int) -> None:
    ctypes.memset(address, byte, size)


def _begins(address: int, content: bytes) -> bool:
    """Whether memory begins with `content`; reads little further than they agree."""
    steps = range(0, len(content), 16)
    return all(ctypes.string_at(address + i, len(content[i : i + 16])) == content[i : i + 16] for i in steps)


# Calls that work when the device is lost, and those that need no current context.
_ALWAYS = frozenset(("cuGetErrorName", "cuGetErrorString", "cuCtxSetCurrent"))
_WITHOUT_CONTEXT = _ALWAYS | frozenset(
    "cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetAttribute "
    "cuDeviceTotalMem cuDevicePrimaryCtxRetain".split()
)
