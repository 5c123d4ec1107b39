"""A GPU to work with: its properties and memory, functions, streams, events, graphs.

Sizes and addresses are integers; knows nothing of kernels as specs, nor who uses which memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from kernels.errors import KernelError
from kernels.gpu import driver as _driver
from kernels.gpu.driver import Driver, KernelNode, LaunchConfig, UnavailableError

Array = np.ndarray[Any, Any]
# CUdevice_attribute and CUfunction_attribute of the facts that are read or set.
_MULTIPROCESSORS, _MAJOR, _MINOR, _SHARED_MOST = 16, 75, 76, 97
_LOCAL_BYTES, _REGISTERS, _SHARED_DYNAMIC = 3, 4, 8
# What a function may have without asking.
_SHARED_USUAL = 48 << 10
OLDEST = (8, 0)


class Device:
    """GPU number `number`, in its primary context, which CuPy and PyTorch use too.

    Raises UnavailableError for one whose compute capability is below 8.0.
    """

    def __init__(self, driver: Driver, number: int = 0) -> None:
        if not 0 <= number < driver.count:
            raise UnavailableError(f"there is no GPU {number}: the driver has {driver.count}, from 0 on")
        self.driver, self.number = driver, number
        self.handle = driver.integer("cuDeviceGet", number)
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, len(name), self.handle)
        self.name = name.value.decode()
        self.capability = self._attribute(_MAJOR), self._attribute(_MINOR)
        if self.capability < OLDEST:
            raise UnavailableError(
                f"{self.name} has compute capability {_dotted(self.capability)}; kernels need "
                f"{_dotted(OLDEST)} or higher (Ampere, 2020, or later): use device='cpu', or another GPU"
            )
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.shared_memory = self._attribute(_SHARED_MOST)
        total = c_size_t()
        driver.call("cuDeviceTotalMem", byref(total), self.handle)
        self.total_memory = total.value
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self.handle)
        self._functions: dict[tuple[str, str], Function] = {}
        self._lock = threading.Lock()

    def _attribute(self, number: int) -> int:
        return self.driver.integer("cuDeviceGetAttribute", number, self.handle)

    @property
    def architecture(self) -> str:
        """What object code is made for, e.g. "sm_90"."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def enter(self) -> None:
        """Make this the device of the calling thread's calls."""
        self.driver.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> None:
        """Make a driver call here."""
        self.enter()
        self.driver.call(name, *arguments)

    def new(self, name: str, *arguments: Any) -> int:
        """The handle that a driver call makes here."""
        self.enter()
        return self.driver.handle(name, *arguments)

    def release(self, name: str, handle: int) -> None:
        """Give something back when its object dies; no error can be told to anyone then."""
        functions = self.driver.functions
        try:
            functions["cuCtxSetCurrent"](self.context)
            functions[name](handle)
        except UnavailableError:
            pass  # It is the parent's of this forked process.

    def synchronize(self) -> None:
        """Wait for everything that was started here."""
        self.call("cuCtxSynchronize")

    # Memory

    def allocate(self, size: int) -> int:
        """The address of `size` bytes. Raises OutOfMemoryError."""
        address = c_uint64()
        self.call("cuMemAlloc", byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back, after all that was started before."""
        self.call("cuMemFree", address)

    def memory(self) -> tuple[int, int]:
        """Bytes free and bytes in all."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo", byref(free), byref(total))
        return free.value, total.value

    def write(self, address: int, array: Array, stream: Stream | None = None) -> None:
        """Copy a contiguous array to the device. The array is free to change at once unless it is pinned."""
        data = _contiguous(array).ctypes.data
        self.call("cuMemcpyHtoDAsync", address, data, array.nbytes, _raw(stream))

    def read(self, address: int, array: Array, stream: Stream | None = None) -> None:
        """Start to copy from the device into a contiguous array; done when the stream is."""
        data = _contiguous(array).ctypes.data
        self.call("cuMemcpyDtoHAsync", data, address, array.nbytes, _raw(stream))

    def copy(self, target: int, source: int, size: int, stream: Stream | None = None) -> None:
        """Copy bytes from one place on the device to another."""
        self.call("cuMemcpyDtoDAsync", target, source, size, _raw(stream))

    def fill(self, address: int, byte: int, size: int, stream: Stream | None = None) -> None:
        """Set every byte."""
        self.call("cuMemsetD8Async", address, byte, size, _raw(stream))

    def pinned(self, size: int) -> Array:
        """Bytes of host memory that copies reach without a detour; freed with the last view of them."""
        return np.asarray(Pinned(self, size))

    # What runs

    def function(self, image: bytes, name: str, shared: int = 0) -> Function:
        """A kernel of object code, which may take `shared` bytes of shared memory; loaded once a process."""
        key = hashlib.sha256(image).hexdigest(), name
        self.enter()
        with self._lock:
            found = self._functions.get(key)
            if found is None:
                found = self._functions[key] = Function(self, image, name)
            found.allow(shared)
            return found

    def stream(self) -> Stream:
        """A new stream, which keeps its order with work on the default stream."""
        return Stream(self)

    def event(self, timed: bool = False) -> Event:
        """A new event; with `timed` one whose time can be compared."""
        return Event(self, timed)

    def __repr__(self) -> str:
        gigabytes = self.total_memory / (1 << 30)
        return (
            f"<GPU {self.number}: {self.name}, compute capability {_dotted(self.capability)}, "
            f"{self.multiprocessors} multiprocessors, {gigabytes:.0f} GiB>"
        )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _contiguous(array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise KernelError("a copy to or from a device needs a contiguous array: numpy.ascontiguousarray")
    return array


_devices: dict[int, Device] = {}


def device(number: int = 0) -> Device:
    """GPU `number` of this machine, opened once a process. Raises UnavailableError: what is missing."""
    if number not in _devices:
        # Two threads may open it at once: both go on with the first.
        _devices.setdefault(number, Device(_driver.load(), number))
    return _devices[number]


class Pinned:
    """Page-locked host memory, as an array interface."""

    page_locked = True

    def __init__(self, owner: Device, size: int) -> None:
        self.owner = owner
        self.address = owner.new("cuMemHostAlloc", max(size, 1), 0)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.owner.release("cuMemFreeHost", self.address)


class Function:
    """A kernel on a device. Its module stays loaded as long as the process lives."""

    def __init__(self, owner: Device, image: bytes, name: str) -> None:
        self.owner, self.name = owner, name
        module = owner.new("cuModuleLoadData", image)
        self.handle = owner.new("cuModuleGetFunction", module, name.encode())
        self.allowed = _SHARED_USUAL

    def allow(self, shared: int) -> None:
        """Let it be launched with `shared` bytes of dynamic shared memory."""
        if shared > self.owner.shared_memory:
            raise KernelError(
                f"{self.name} needs {shared} bytes of shared memory; {self.owner.name} has "
                f"{self.owner.shared_memory}"
            )
        if shared > self.allowed:
            self.owner.call("cuFuncSetAttribute", self.handle, _SHARED_DYNAMIC, shared)
            self.allowed = shared

    def _attribute(self, number: int) -> int:
        self.owner.enter()
        return self.owner.driver.integer("cuFuncGetAttribute", number, self.handle)

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._attribute(_REGISTERS)

    @property
    def local_bytes(self) -> int:
        """Bytes of a thread in local memory: where registers that did not fit are."""
        return self._attribute(_LOCAL_BYTES)


class Call:
    """A function with its launch: grid, threads, shared memory, and the addresses of its arguments.

    `arguments` are addresses of the argument values, which are read when it is launched.
    """

    def __init__(
        self,
        function: Function,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        arguments: Sequence[int],
    ) -> None:
        self.function = function
        self.grid = grid
        self.pointers = (c_void_p * max(len(arguments), 1))(*arguments)
        self.config = LaunchConfig(grid, (threads, 1, 1), shared, None, None, 0)
        # The addresses that the driver takes.
        self.raw = ctypes.addressof(self.config), function.handle, ctypes.addressof(self.pointers), None
        self.node = KernelNode(
            function.handle, grid, (threads, 1, 1), shared, ctypes.addressof(self.pointers)
        )
        self.node_address = ctypes.addressof(self.node)

    def launch(self, stream: Stream | None = None) -> None:
        """Start it; the device is the current one."""
        self.config.stream = _raw(stream)
        self.function.owner.driver.call("cuLaunchKernelEx", *self.raw)


class Stream:
    """An order of work on a device."""

    def __init__(self, owner: Device) -> None:
        self.owner = owner
        self.handle = owner.new("cuStreamCreate", 0)

    def synchronize(self) -> None:
        """Wait for all that was started on it."""
        self.owner.call("cuStreamSynchronize", self.handle)

    def query(self) -> bool:
        """Whether all that was started on it is done."""
        self.owner.enter()
        return self.owner.driver.ready("cuStreamQuery", self.handle)

    def wait_event(self, event: Event) -> None:
        """What is started from now on begins after what `event` recorded."""
        self.owner.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """A graph that gets, when the block ends, what was started on this stream in it; nothing runs."""
        # Calls of other threads, such as allocations, may go on: the mode is "thread local".
        self.owner.call("cuStreamBeginCapture", self.handle, 1)
        graph, made, failed = Graph(self.owner, 0), c_void_p(), True
        try:
            yield graph
            failed = False
        finally:
            self.owner.enter()
            code = self.owner.driver.functions["cuStreamEndCapture"](self.handle, byref(made))
            graph.handle = made.value or 0
            # An error of the block itself goes first: ending a capture that it broke fails too.
            if code and not failed:
                raise self.owner.driver.error("cuStreamEndCapture", code)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.owner.release("cuStreamDestroy", self.handle)


def _raw(stream: Stream | None) -> int | None:
    return None if stream is None else stream.handle


class Event:
    """A point in a stream."""

    def __init__(self, owner: Device, timed: bool = False) -> None:
        self.owner = owner
        self.handle = owner.new("cuEventCreate", 0 if timed else 2)

    def record(self, stream: Stream | None = None) -> None:
        """Mark all that was started on a stream."""
        self.owner.call("cuEventRecord", self.handle, _raw(stream))

    def query(self) -> bool:
        """Whether what it marks is done."""
        self.owner.enter()
        return self.owner.driver.ready("cuEventQuery", self.handle)

    def synchronize(self) -> None:
        """Wait for what it marks."""
        self.owner.call("cuEventSynchronize", self.handle)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`; both are timed and done."""
        found = c_float()
        self.owner.call("cuEventElapsedTime", byref(found), self.handle, end.handle)
        return found.value

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.owner.release("cuEventDestroy", self.handle)


class Graph:
    """Launches with what each waits for, to be started as a whole.

    A node is a handle; the graph outlives its instances, which know its nodes by them.
    """

    def __init__(self, owner: Device, handle: int | None = None) -> None:
        self.owner = owner
        self.handle = owner.new("cuGraphCreate", 0) if handle is None else handle

    def _add(self, name: str, after: Sequence[int], *arguments: Any) -> int:
        waited = (c_void_p * max(len(after), 1))(*after)
        return self.owner.new(name, self.handle, waited, len(after), *arguments)

    def launch(self, call: Call, after: Sequence[int] = ()) -> int:
        """A node that launches `call` with what its arguments are now."""
        return self._add("cuGraphAddKernelNode", after, call.node_address)

    def join(self, after: Sequence[int]) -> int:
        """A node that does nothing but wait."""
        return self._add("cuGraphAddEmptyNode", after)

    def instantiate(self) -> GraphInstance:
        """The graph ready to run."""
        return GraphInstance(self)

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.owner.release("cuGraphDestroy", self.handle)


class GraphInstance:
    """A graph on its device."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.owner = graph, graph.owner
        self.handle = self.owner.new("cuGraphInstantiateWithFlags", graph.handle, 0)
        self.stream: Stream | None = None

    def update(self, node: int, call: Call) -> None:
        """From the next launch on, `node` launches `call` with what its arguments are now; the device is the
        current one.
        """
        self.owner.driver.call("cuGraphExecKernelNodeSetParams", self.handle, node, call.node_address)

    def launch(self, stream: Stream | None = None) -> None:
        """Start all of it; the device is the current one."""
        self.stream = stream
        self.owner.driver.call("cuGraphLaunch", self.handle, _raw(stream))

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            # It may be running.
            if self.stream is not None:
                self.owner.release("cuStreamSynchronize", self.stream.handle)
            self.owner.release("cuGraphExecDestroy", self.handle)
