"""Device memory that is kept: what is reused, what goes back, what is counted."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

from kernels.gpu.device import Device
from kernels.gpu.driver import Driver, OutOfMemoryError
from kernels.gpu.memory import ALIGNMENT, SEGMENT, Allocator, size_class
from kernels.gpu.standin import StandIn

MEBIBYTE = 1 << 20


def an_allocator(**facts: Any) -> tuple[StandIn, Device, Allocator]:
    library = StandIn(**facts)
    device = Device(Driver(library))
    return library, device, Allocator(device)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000, 65537, MEBIBYTE, MEBIBYTE + 1, 123456789])
def test_size_classes_waste_little(size: int) -> None:
    rounded = size_class(size)
    assert rounded >= size and rounded % ALIGNMENT == 0 and size_class(rounded) == rounded
    assert rounded - size <= max(size / 8 + 1, ALIGNMENT)


def test_blocks_are_aligned_and_apart() -> None:
    _, _, allocator = an_allocator()
    sizes = [1, 300, 4096, 100_000, 3 * MEBIBYTE, 7, 0]
    blocks = [allocator.allocate(n) for n in sizes]
    spans = sorted((b.address, b.address + max(b.size, 1)) for b in blocks)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_small_blocks_share_a_segment() -> None:
    library, _, allocator = an_allocator()
    blocks = [allocator.allocate(1000) for _ in range(1000)]
    assert len(library.allocations) == 1 and allocator.memory_reserved() == SEGMENT
    more = [allocator.allocate(500_000) for _ in range(4)]
    assert len(library.allocations) == 2
    assert len({b.address for b in blocks + more}) == 1004


@pytest.mark.parametrize("size", [1000, 5 * MEBIBYTE])
def test_a_block_that_came_back_is_lent_again(size: int) -> None:
    library, _, allocator = an_allocator()
    block = allocator.allocate(size)
    address = block.address
    del block
    assert allocator.memory_allocated() == 0
    again = allocator.allocate(size - 100)
    assert again.address == address and again.size == size - 100
    assert library.calls.count("cuMemAlloc") == 1 and "cuMemFree" not in library.calls


def test_streams_do_not_share_blocks() -> None:
    _, device, allocator = an_allocator()
    first, second = device.stream(), device.stream()
    address = allocator.allocate(1000, first).address
    assert allocator.allocate(1000, second).address != address
    assert allocator.allocate(1000, first).address == address


def test_a_block_used_elsewhere_waits_for_that_stream() -> None:
    _, device, allocator = an_allocator()
    own, other = device.stream(), device.stream()
    block = allocator.allocate(1000, own)
    address = block.address
    device.fill(address, 0, 1000, other)
    block.record_stream(other)
    del block
    # The stand-in does a stream's work one piece at a time, when it is asked whether it is done.
    early = allocator.allocate(1000, own)
    assert early.address != address
    other.synchronize()
    assert allocator.allocate(1000, own).address == address
    assert allocator.memory_stats()["allocation.all.current"] == 1


def test_the_cache_is_emptied_of_what_nobody_uses() -> None:
    library, _, allocator = an_allocator()
    kept = allocator.allocate(1000)
    large = allocator.allocate(5 * MEBIBYTE)
    del large
    allocator.empty_cache()
    assert len(library.allocations) == 1 and allocator.memory_reserved() == SEGMENT
    del kept
    allocator.empty_cache()
    assert not library.allocations and allocator.memory_reserved() == 0
    assert allocator.allocate(1000).size == 1000


def test_idle_memory_goes_back_before_memory_runs_out() -> None:
    _, _, allocator = an_allocator(memory=8 * MEBIBYTE)
    block = allocator.allocate(5 * MEBIBYTE)
    del block
    kept = allocator.allocate(6 * MEBIBYTE)
    assert allocator.memory_stats()["num_alloc_retries"] == 1
    with pytest.raises(OutOfMemoryError) as info:
        allocator.allocate(3 * MEBIBYTE)
    assert info.value.__notes__ == [
        f"{3 * MEBIBYTE} bytes were needed; {6 * MEBIBYTE} bytes are in use, {6 * MEBIBYTE} reserved"
    ]
    assert allocator.memory_stats()["num_ooms"] == 1 and kept.size == 6 * MEBIBYTE
    assert allocator.allocate(MEBIBYTE).size == MEBIBYTE


def test_statistics() -> None:
    _, _, allocator = an_allocator()
    a, b = allocator.allocate(1000), allocator.allocate(3 * MEBIBYTE)
    del b
    stats = allocator.memory_stats()
    assert stats["allocation.all.current"] == 1 and stats["allocation.all.peak"] == 2
    assert stats["allocation.all.allocated"] == 2 and stats["allocation.all.freed"] == 1
    assert stats["requested_bytes.all.current"] == 1000 and stats["allocated_bytes.all.current"] == 1024
    assert stats["allocated_bytes.all.peak"] == allocator.max_memory_allocated() == 1024 + 3 * MEBIBYTE
    assert stats["segment.all.current"] == 2
    assert stats["reserved_bytes.all.current"] == SEGMENT + 3 * MEBIBYTE
    allocator.reset_peak_memory_stats()
    assert allocator.max_memory_allocated() == allocator.memory_allocated() == 1024 and a.size == 1000


def test_threads_get_blocks_of_their_own() -> None:
    _, _, allocator = an_allocator()
    held: list[Any] = []

    def work() -> None:
        for n in range(200):
            block = allocator.allocate(1000 + n)
            if n % 3 == 0:
                held.append(block)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({b.address for b in held}) == len(held) == 4 * 67
