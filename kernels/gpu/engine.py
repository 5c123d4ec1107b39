"""CuPy as the engine of device arrays: looked for, and given the programs' allocator.

Knows the driver and CuPy; what arrays are used for, arrays.py and those above know.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels.gpu import driver
from kernels.gpu.arrays import Engine
from kernels.gpu.cuda import cuda
from kernels.gpu.device import device
from kernels.gpu.driver import UnavailableError


def load() -> Engine:
    """CuPy on this machine's GPUs. Raises UnavailableError, saying what is missing and how to get it."""
    count = driver.load().count
    device(0)  # tells of one that is too old
    cupy, special = _cupy()
    cupy.cuda.set_allocator(allocator(cupy))
    folder = Path(cupy.__file__).parent.parent
    sources = tuple(str(folder / name) for name in ("cupy", "cupyx", "cupy_backends"))
    return Engine(cupy, special, count, cuda, Facts, sources)


class Facts:
    """What is known of a GPU, and the memory that is lent there."""

    def __init__(self, number: int) -> None:
        self.device, self.allocator = device(number), cuda(number).allocator
        self.name, self.capability = self.device.name, self.device.capability
        self.total_memory, self.multiprocessors = self.device.total_memory, self.device.multiprocessors
        self.memory, self.synchronize = self.device.memory, self.device.synchronize
        self.pinned = self.device.pinned


def _cupy() -> tuple[Any, Any]:
    try:
        import cupy  # pyright: ignore[reportMissingImports]
        from cupyx.scipy import special  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnavailableError(
            f"tensors on a GPU need CuPy, which cannot be imported ({error}): pip install "
            "'tracefuse[gpu]', or the package of CuPy for your CUDA version"
        ) from None
    return cupy, special


def allocator(cupy: Any) -> Callable[[int], Any]:
    """What gives CuPy its memory: the allocator that programs have theirs from, so that the idle memory of
    either serves both, and is counted once.
    """

    def allocate(size: int) -> Any:
        number = cupy.cuda.runtime.getDevice()
        # Memory is lent again on the same stream; programs wait for the default one, which is no object.
        stream = cupy.cuda.get_current_stream().ptr or None
        block = cuda(number).allocator.allocate(size, stream)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.address, size, block, number), 0)

    return allocate
