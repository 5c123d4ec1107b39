"""GPUs under the names of `torch.cuda`: which there are, streams, events and memory.

Random numbers are the same on every device, so seeds and states here are the default generator's.
"""

from __future__ import annotations

import contextlib
from typing import Any

from framework import random
from framework.device import device as _device
from framework.device import number_of
from framework.state import python_effect
from framework.tensor import Tensor
from kernels.gpu import arrays


def is_available() -> bool:
    """Whether tensors can be on a GPU. Never raises: `init()` says what is missing."""
    try:
        arrays.engine()
    except Exception:  # noqa: BLE001 -- a broken driver or CuPy is one that is not there
        return False
    return True


@python_effect
def init() -> None:
    """Start CUDA now. Raises RuntimeError, saying what is missing."""
    arrays.engine()


@python_effect
def is_initialized() -> bool:
    """Whether CUDA was used already."""
    return arrays.Known.engine is not None


def device_count() -> int:
    """How many GPUs there are: 0 where none can be used."""
    return arrays.engine().count if is_available() else 0


@python_effect
def current_device() -> int:
    """The number of the GPU that "cuda" means."""
    return arrays.engine().current


def _number(device: Any) -> int:
    """The GPU that a number, name or device means; the current one for None."""
    number = number_of("cuda" if device is None else _device(device))
    if number is None:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return number


@python_effect
def set_device(device: Any) -> None:
    """Make another GPU the one that "cuda" means on this thread."""
    arrays.engine().xp.cuda.Device(_number(device)).use()


class device:  # noqa: N801 -- PyTorch's name
    """A context in which another GPU is the one that "cuda" means."""

    @python_effect
    def __init__(self, device: Any) -> None:
        self.idx = _number(device)
        self._entered: list[Any] = []

    @python_effect
    def __enter__(self) -> None:
        entered = arrays.engine().xp.cuda.Device(self.idx)
        entered.__enter__()
        self._entered.append(entered)

    @python_effect
    def __exit__(self, *exception: object) -> None:
        self._entered.pop().__exit__(*exception)


class Properties:
    """What is known of a GPU."""

    def __init__(self, facts: Any) -> None:
        self.name: str = facts.name
        self.major, self.minor = facts.capability
        self.total_memory: int = facts.total_memory
        self.multi_processor_count: int = facts.multiprocessors

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count})"
        )


def _facts(device: Any) -> Any:
    number = _number(device)
    with arrays.there(number):  # the driver's calls make it the current one
        return arrays.engine().facts(number)


def get_device_properties(device: Any = None) -> Properties:
    """Name, capability, memory and multiprocessors of a GPU."""
    return Properties(_facts(device))


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return _facts(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, e.g. (9, 0)."""
    return _facts(device).capability


def is_bf16_supported() -> bool:
    """Whether bfloat16 is computed in hardware: on every GPU that is used."""
    return is_available()


@python_effect
def synchronize(device: Any = None) -> None:
    """Wait for everything that was started on a GPU."""
    with arrays.there(_number(device)):
        _facts(device).synchronize()


# Streams and events


class Event:
    """A point in the work of a stream; with `enable_timing` one whose time can be compared."""

    @python_effect
    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._event = arrays.engine().xp.cuda.Event(blocking, not enable_timing, interprocess)
        self._timed = enable_timing

    @python_effect
    def record(self, stream: Stream | None = None) -> None:
        """Mark all that was started on `stream`, the current one if None."""
        self._event.record((current_stream() if stream is None else stream)._stream)

    @python_effect
    def wait(self, stream: Stream | None = None) -> None:
        """Let what `stream` is given from now on begin after what was marked."""
        (current_stream() if stream is None else stream).wait_event(self)

    @python_effect
    def query(self) -> bool:
        """Whether what was marked is done."""
        return bool(self._event.done)

    @python_effect
    def synchronize(self) -> None:
        """Wait for what was marked."""
        self._event.synchronize()

    @python_effect
    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`. Both were recorded, are done, and have timing."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return arrays.engine().xp.cuda.get_elapsed_time(self._event, end_event._event)


class Stream:
    """An order of work on a GPU. Inside `with stream(s)` eager ops are given to it; compiled programs have a
    stream of their own, which waits for it and it for them."""

    @python_effect
    def __init__(self, device: Any = None, priority: int = 0, _stream: Any = None) -> None:
        self._number = _number(device)
        if _stream is None:
            with arrays.there(self._number):
                _stream = arrays.engine().xp.cuda.Stream()
        self._stream = _stream

    @property
    def device(self) -> _device:
        """The GPU."""
        return _device("cuda", self._number)

    @property
    def cuda_stream(self) -> int:
        """CUDA's handle; 0 is the default stream."""
        return self._stream.ptr

    @python_effect
    def synchronize(self) -> None:
        """Wait for all that was started on it."""
        self._stream.synchronize()

    @python_effect
    def query(self) -> bool:
        """Whether all that was started on it is done."""
        return bool(self._stream.done)

    @python_effect
    def record_event(self, event: Event | None = None) -> Event:
        """Mark all that was started on it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    @python_effect
    def wait_event(self, event: Event) -> None:
        """Let what it is given from now on begin after what `event` marks."""
        self._stream.wait_event(event._event)

    @python_effect
    def wait_stream(self, stream: Stream) -> None:
        """Let what it is given from now on begin after all that `stream` was given."""
        self.wait_event(stream.record_event())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[int, int]:
        return self._number, self._stream.ptr

    def __repr__(self) -> str:
        return f"<framework.cuda.Stream device=cuda:{self._number} cuda_stream={self.cuda_stream:#x}>"


@python_effect
def current_stream(device: Any = None) -> Stream:
    """The stream that eager ops are given to."""
    return Stream(device, _stream=arrays.engine().xp.cuda.get_current_stream())


@python_effect
def default_stream(device: Any = None) -> Stream:
    """The stream that eager ops are given to unless another was chosen."""
    return Stream(device, _stream=arrays.engine().xp.cuda.Stream(null=True))


@contextlib.contextmanager
def _given_to(chosen: Stream) -> Any:
    with arrays.there(chosen._number), chosen._stream:
        yield


@python_effect
def stream(stream: Stream | None) -> Any:
    """A context in which eager ops are given to `stream`; None changes nothing."""
    return contextlib.nullcontext() if stream is None else _given_to(stream)


# Memory


@python_effect
def memory_stats(device: Any = None) -> dict[str, int]:
    """Counts of the memory lent to tensors and programs, under PyTorch's names."""
    return _facts(device).allocator.memory_stats()


@python_effect
def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors and programs have now."""
    return _facts(device).allocator.memory_allocated()


@python_effect
def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that they had at once."""
    return _facts(device).allocator.max_memory_allocated()


@python_effect
def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the GPU, those kept for later use included."""
    return _facts(device).allocator.memory_reserved()


@python_effect
def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that were taken at once."""
    return memory_stats(device)["reserved_bytes.all.peak"]


@python_effect
def reset_peak_memory_stats(device: Any = None) -> None:
    """Count peaks from now on."""
    _facts(device).allocator.reset_peak_memory_stats()


@python_effect
def empty_cache() -> None:
    """Give memory that is kept for later use back to the GPU."""
    if is_initialized():
        for number in range(device_count()):
            with arrays.there(number):
                _facts(number).allocator.empty_cache()


@python_effect
def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes free, and in all, on a GPU."""
    with arrays.there(_number(device)):
        return _facts(device).memory()


# Random numbers


def manual_seed(seed: int) -> None:
    """Seed the default generator."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator, which all GPUs draw from."""
    random.manual_seed(seed)


def seed() -> None:
    """Seed the default generator unpredictably."""
    random.seed()


def initial_seed() -> int:
    """The default generator's seed."""
    return random.initial_seed()


def get_rng_state(device: Any = "cuda") -> Tensor:
    """The default generator's state."""
    return random.get_rng_state()


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Continue the default generator from a state."""
    random.set_rng_state(new_state)
