"""The driver's calls and devices, on the stand-in: what is passed, what waits for what, what is refused."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.errors import KernelError
from kernels.gpu import driver
from kernels.gpu.device import Call, Device, Function, Graph
from kernels.gpu.driver import CudaError, Driver, OutOfMemoryError, UnavailableError
from kernels.gpu.standin import Image, Launched, StandIn

ROOT = Path(__file__).parents[3]
IMAGE = b"object code of one kernel"
# A pointer and numbers of every width.
TYPES = ("*fp32", "i32", "i8", "i64", "fp16", "fp64", "u16")


def opened(**facts: Any) -> tuple[StandIn, Device]:
    library = StandIn(**facts)
    library.images[IMAGE] = Image("kernel", TYPES)
    return library, Device(Driver(library))


def block(*words: bytes) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Argument values, each in eight bytes of its own, and their addresses."""
    memory = np.frombuffer(b"".join(w.ljust(8, b"\xee") for w in words), np.uint8).copy()
    return memory, [memory.ctypes.data + 8 * i for i in range(len(words))]


def arguments() -> list[bytes]:
    numbers = struct.pack("<Q", 0x1122334455667788), struct.pack("<i", -5), struct.pack("<b", -1)
    more = struct.pack("<q", -(1 << 40)), struct.pack("<e", 1.5), struct.pack("<d", 0.1)
    return [*numbers, *more, struct.pack("<H", 65535), bytes(8), bytes(8)]


def a_call(device: Device, shared: int = 0) -> tuple[Call, Any]:
    memory, addresses = block(*arguments())
    function = device.function(IMAGE, "kernel", shared)
    return Call(function, (7, 2, 1), 128, shared, addresses), memory


# What a launch passes -------------------------------------------------------------------------------


def test_every_byte_of_the_arguments_arrives() -> None:
    library, device = opened()
    call, _ = a_call(device)
    call.launch()
    device.synchronize()
    (launch,) = library.launches
    assert launch.grid == (7, 2, 1) and launch.threads == 128 and launch.shared == 0
    wanted = arguments()
    assert launch.raw == tuple(wanted)
    assert launch.values == (0x1122334455667788, -5, -1, -(1 << 40), 1.5, 0.1, 65535, 0, 0)


def test_arguments_are_taken_when_a_launch_is_called() -> None:
    library, device = opened()
    call, memory = a_call(device)
    stream = device.stream()
    call.launch(stream)
    memory[:8] = 0
    call.launch(stream)
    stream.synchronize()
    assert [launch.values[0] for launch in library.launches] == [0x1122334455667788, 0]


def test_much_shared_memory_is_asked_for_once() -> None:
    library, device = opened()
    a_call(device, 48 << 10)
    assert "cuFuncSetAttribute" not in library.calls
    for _ in range(2):
        call, _ = a_call(device, 100 << 10)
    assert library.calls.count("cuFuncSetAttribute") == 1
    assert library.calls.count("cuModuleLoadData") == 1
    call.launch()
    with pytest.raises(KernelError, match="needs 300000 bytes of shared memory; stand-in 0 has 232448"):
        device.function(IMAGE, "kernel", 300_000)


def test_a_function_says_what_it_takes() -> None:
    _, device = opened()
    function = Function(device, IMAGE, "kernel")
    assert (function.registers, function.local_bytes) == (32, 0)


# Memory ---------------------------------------------------------------------------------------------


def test_copies_go_there_and_back() -> None:
    library, device = opened()
    data = np.arange(100, dtype=np.float32)
    a, b = device.allocate(400), device.allocate(400)
    assert a % 256 == b % 256 == 0
    device.write(a, data)
    device.copy(b, a, 400)
    device.fill(a, 0xFF, 4)
    got = np.empty(100, np.float32)
    device.read(b, got)
    np.testing.assert_array_equal(got, data)
    first = np.empty(1, np.uint32)
    device.read(a, first)
    assert first[0] == 0xFFFFFFFF
    free, total = device.memory()
    assert total - free == 800
    device.free(a)
    device.free(b)
    assert not library.allocations


def test_pageable_memory_is_taken_at_once_and_pinned_memory_when_the_stream_gets_there() -> None:
    _, device = opened()
    stream, address = device.stream(), device.allocate(16)
    pinned, pageable = device.pinned(8), np.full(8, 1, np.uint8)
    pinned[:] = 1
    device.write(address, pageable, stream)
    device.write(address + 8, pinned, stream)
    pageable[:] = pinned[:] = 2
    got = device.pinned(16)
    got[:] = 0
    device.read(address, got, stream)
    assert not got.any()
    stream.synchronize()
    assert got.tolist() == [1] * 8 + [2] * 8


def test_pinned_memory_lives_as_long_as_its_views() -> None:
    library, device = opened()
    view = device.pinned(64)[8:16].view(np.int64)
    assert len(library.pinned) == 1
    view[:] = 3
    del view
    assert not library.pinned


def test_only_contiguous_arrays_are_copied() -> None:
    _, device = opened()
    with pytest.raises(KernelError, match="contiguous"):
        device.write(device.allocate(64), np.zeros((4, 4), np.float32).T)


def test_memory_runs_out() -> None:
    _, device = opened(memory=1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY \(2\): out of memory"):
        device.allocate(1 << 21)


# Order ----------------------------------------------------------------------------------------------


def test_a_stream_waits_for_an_event_of_another() -> None:
    _, device = opened()
    first, second, event = device.stream(), device.stream(), device.event()
    address = device.allocate(1)
    device.fill(address, 1, 1, first)
    event.record(first)
    second.wait_event(event)
    device.fill(address, 2, 1, second)
    second.synchronize()
    got = np.empty(1, np.uint8)
    device.read(address, got)
    assert got[0] == 2


def test_without_the_wait_the_stand_in_would_show_it() -> None:
    _, device = opened()
    first, second = device.stream(), device.stream()
    address, got = device.allocate(1), device.pinned(1)
    device.fill(address, 1, 1, first)
    device.read(address, got, second)
    second.synchronize()
    assert got[0] != 1


def test_events_have_times() -> None:
    _, device = opened()
    stream, begin, end = device.stream(), device.event(timed=True), device.event(timed=True)
    begin.record(stream)
    a_call(device)[0].launch(stream)
    end.record(stream)
    assert not end.query()
    with pytest.raises(CudaError, match="CUDA_ERROR_UNKNOWN"):
        begin.elapsed_time(end)
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) == 1
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_HANDLE"):
        device.event().elapsed_time(end)


def test_a_stream_is_done_when_its_work_is() -> None:
    library, device = opened()
    stream = device.stream()
    a_call(device)[0].launch(stream)
    assert not stream.query() and len(library.launches) == 1
    assert stream.query()


# Graphs ---------------------------------------------------------------------------------------------


def test_a_captured_stream_becomes_a_graph() -> None:
    library, device = opened()
    stream, address = device.stream(), device.allocate(4)
    call, memory = a_call(device)
    with stream.capture() as graph:
        device.fill(address, 7, 4, stream)
        call.launch(stream)
    assert not library.launches
    instance = graph.instantiate()
    memory[:8] = 0
    for _ in range(2):
        instance.launch(stream)
    got = np.empty(4, np.uint8)
    device.read(address, got)
    stream.synchronize()
    assert got.tolist() == [7] * 4
    # A graph keeps the arguments it was made with.
    assert [launch.values[0] for launch in library.launches] == [0x1122334455667788] * 2


def test_what_is_forbidden_while_capturing_is_an_error_and_ends_the_capture() -> None:
    _, device = opened()
    stream = device.stream()
    with pytest.raises(CudaError, match="STREAM_CAPTURE_UNSUPPORTED"), stream.capture():
        stream.synchronize()
    stream.synchronize()


def test_nodes_run_after_those_they_wait_for() -> None:
    order: list[int] = []
    library, device = opened(execute=lambda launch: order.append(launch.values[1]))
    call, memory = a_call(device)
    graph = Graph(device)

    def node(number: int, *after: int) -> int:
        memory[8:12] = np.frombuffer(struct.pack("<i", number), np.uint8)
        return graph.launch(call, after)

    first = [node(1), node(2)]
    joined = graph.join(first)
    last = [node(3, joined), node(4, joined)]
    instance = graph.instantiate()
    instance.launch()
    device.synchronize()
    assert sorted(order[:2]) == [1, 2] and sorted(order[2:]) == [3, 4]
    node_before = last[0]
    memory[8:12] = np.frombuffer(struct.pack("<i", 30), np.uint8)
    instance.update(node_before, call)
    order.clear()
    instance.launch()
    device.synchronize()
    assert sorted(order) == [1, 2, 4, 30]
    assert len(library.launches) == 8


# What is missing, and what fails --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"count": -1}, "no GPU: check `nvidia-smi`"),
        ({"count": 0}, "no GPU: check `nvidia-smi`"),
        ({"version": 11080}, r"speaks CUDA 11\.8, older than 12\.0: install driver 525"),
        ({"capability": (7, 5)}, r"stand-in 0 has compute capability 7\.5; kernels need 8\.0"),
    ],
)
def test_what_is_missing_is_said(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        opened(**facts)


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UnavailableError, match="there is no GPU 1: the driver has 1"):
        Device(Driver(StandIn()), 1)


def test_no_driver() -> None:
    with pytest.raises(UnavailableError, match=r"no NVIDIA driver: .*Install the driver for your GPU"):
        driver.SharedLibrary("libcuda_that_is_nowhere.so.1")


def test_a_library_without_a_function() -> None:
    library = StandIn()
    del library.addresses["cuLaunchKernelEx"]
    with pytest.raises(UnavailableError, match=r"no cuLaunchKernelEx, which came with CUDA 12\.0"):
        Driver(library)


def test_this_machine_is_asked_without_an_error() -> None:
    reason = driver.missing()
    assert reason is None or "NVIDIA driver" in reason


def test_properties() -> None:
    _, device = opened(capability=(8, 6))
    assert (device.architecture, device.multiprocessors, device.shared_memory) == ("sm_86", 132, 227 << 10)
    assert device.total_memory == 1 << 34
    assert "stand-in 0, compute capability 8.6, 132 multiprocessors, 16 GiB" in repr(device)


def test_refused_launches_raise_the_drivers_words() -> None:
    _, device = opened()
    function = device.function(IMAGE, "kernel")
    memory, addresses = block(*arguments())
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE \(1\): invalid") as info:
        Call(function, (0, 1, 1), 128, 0, addresses).launch()
    assert info.value.code == 1 and info.value.name == "CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(CudaError):
        Call(function, (1, 1, 1), 128, 100 << 10, addresses).launch()
    with pytest.raises(CudaError, match="INVALID_IMAGE"):
        device.function(b"something else", "kernel")
    with pytest.raises(CudaError, match="NOT_FOUND"):
        device.function(IMAGE, "another")
    assert memory.any()


def test_a_kernel_that_fails_is_heard_of_at_the_next_synchronisation() -> None:
    def fail(launch: Launched) -> None:
        raise MemoryError

    library, device = opened(execute=fail)
    a_call(device)[0].launch()
    with pytest.raises(CudaError, match="a kernel launched earlier read or wrote outside its memory"):
        device.synchronize()
    with pytest.raises(CudaError):
        device.allocate(1)
    assert isinstance(library.failure, MemoryError)


def test_a_new_thread_finds_its_device() -> None:
    library, device = opened()
    call, _ = a_call(device)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            device.enter()
            call.launch()
            device.synchronize()
        except BaseException as error:  # noqa: BLE001 -- it is looked at below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == [] and len(library.launches) == 1


def test_a_forked_child_gets_a_clear_error() -> None:
    _, device = opened()
    stream = device.stream()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            stream.synchronize()
            words = "nothing was raised"
        except UnavailableError as error:
            words = str(error)
        os.write(writer, words.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as end:
        words = end.read().decode()
    os.waitpid(child, 0)
    assert "forked" in words and "'spawn'" in words
    stream.synchronize()


def test_importing_needs_no_driver() -> None:
    code = "import kernels.gpu.device, sys; assert not {'numba', 'triton', 'cupy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_structures_have_the_drivers_sizes() -> None:
    assert ctypes.sizeof(driver.LaunchConfig) == 56
    assert ctypes.sizeof(driver.KernelNode) == 72
