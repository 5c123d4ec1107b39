"""Ambient state of the framework: the active capture, grad mode, default dtype, and the structure counter.

Knows nothing of tensors; everything above reads it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from kernels import dtypes
from kernels.dtypes import DType

F = TypeVar("F", bound=Callable[..., Any])


class Unusual:
    """How many threads capture, are watched, or do not record gradients. While none does, no op asks for the
    modes of its thread, which would take as long as adding some hundred elements.
    """

    threads: int = 0


class Switches:
    """What holds for all threads: `disabled` runs compiled functions as they were written."""

    disabled: bool = os.environ.get("TRACEFUSE_DISABLE", "0") not in ("", "0")


switches = Switches()
unusual = Unusual()
unusual.threads += switches.disabled
_counting = threading.RLock()
_set = threading.local.__setattr__


class Ambient(threading.local):
    """Per-thread state: `tracer` is the active capture or None, `watch` what looks at eager ops (a profiler,
    a search for NaN) or None, `grad_enabled` whether operations are recorded.

    `detour` is what ops go through in place of being computed at once: the tracer, else the watch, else None.
    """

    tracer: Any = None
    watch: Any = None
    detour: Any = None
    grad_enabled: bool = True
    default_dtype: DType = dtypes.float32
    _counted: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        _set(self, name, value)
        if name != "grad_enabled":
            _set(self, "detour", self.watch if self.tracer is None else self.tracer)
        counts = self.detour is not None or not self.grad_enabled
        if counts is not self._counted:
            with _counting:
                _set(self, "_counted", counts)
                unusual.threads += 1 if counts else -1


ambient = Ambient()


def set_disabled(disabled: bool) -> None:
    """Let compiled functions of all threads run as they were written, or be compiled again."""
    with _counting:
        unusual.threads += bool(disabled) - switches.disabled
        switches.disabled = bool(disabled)


def _after_fork() -> None:
    """Only one thread of the parent goes on."""
    global _counting
    _counting = threading.RLock()
    unusual.threads = int(ambient._counted) + switches.disabled


os.register_at_fork(after_in_child=_after_fork)


class Structure:
    """Counts changes, made outside any program, to what compiled programs guard."""

    version: int = 0
    # Assignments of `.grad`, apart from the rest: programs that never read a gradient need not look again.
    gradients: int = 0


structure = Structure()


# Code of functions that change Python state a program does not carry out: a capture stops before one runs.
# By identity: the hash of a code object takes longer than all else a capture asks of a call.
python_effects: dict[int, CodeType] = {}


def python_effect(function: F) -> F:
    """Mark a function that changes Python state: a call under capture makes the whole function run
    eagerly."""
    python_effects[id(function.__code__)] = function.__code__
    return function


@python_effect
def structure_changed() -> None:
    """Note that a module, optimizer, `.grad`, `.data` or `requires_grad` changed: compiled programs check
    again."""
    structure.version += 1


def is_recording() -> bool:
    """Whether ops are being recorded for a replay, which runs no Python."""
    return bool(unusual.threads) and ambient.tracer is not None and not ambient.tracer.drives


def runtime_scalar(read: Callable[[], float]) -> Any:
    """`read()`; under capture a 0-d float64 Tensor that each replay reads anew, so a change never
    recompiles."""
    return read() if ambient.tracer is None else ambient.tracer.scalar(read)


def guarded(read: Callable[[], Any]) -> Any:
    """`read()`; under capture a replay also requires the same value. For numbers that Python branches on."""
    return read() if ambient.tracer is None else ambient.tracer.guard(read)


def composite(function: F) -> F:
    """Mark a function of several ops that depends on its arguments' types and plain values alone, and only
    computes: a driven call need not run its Python again.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        tracer = ambient.tracer
        return function(*args, **kwargs) if tracer is None else tracer.call(function, args, kwargs)

    return called  # type: ignore[return-value]


def computing(function: F) -> F:
    """Mark a function that only computes with tensors, and calls nothing of a user's: a recording need not
    watch what its Python does.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        tracer = ambient.tracer
        if tracer is None or tracer.drives:
            return function(*args, **kwargs)
        return tracer.call(function, args, kwargs)

    return called  # type: ignore[return-value]


@contextlib.contextmanager
def concrete(undo: Callable[[], Any]) -> Iterator[None]:
    """Compute real values inside, capture or not: for state made on first use. A capture that fails calls
    `undo`."""
    tracer = ambient.tracer
    if tracer is not None and tracer.drives:
        tracer.flush()  # what is looked at inside may wait to be written
    ambient.tracer = None
    try:
        yield
    finally:
        ambient.tracer = tracer
        if tracer is not None:
            tracer.created(undo)


class Precision:
    """How exact products of float32 are in programs on a GPU: "highest", "high" or "medium"."""

    float32: str = "highest"


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` set; "highest" at first."""
    return guarded(lambda: Precision.float32)


@python_effect
def set_float32_matmul_precision(precision: str) -> None:
    """Let compiled programs on a GPU multiply float32 as it is ("highest"), or with factors of ten bits on
    tensor cores ("high", "medium"); sums are float32. Eager products and the CPU's are always exact."""
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f"precision must be 'highest', 'high' or 'medium', got {precision!r}")
    Precision.float32 = precision


def get_default_dtype() -> DType:
    """The floating dtype that Python floats become."""
    return ambient.default_dtype


def set_default_dtype(dtype: DType) -> None:
    """Make `dtype` what Python floats become. Raises TypeError unless it is floating."""
    if not dtype.is_floating_point:
        raise TypeError(
            f"only floating-point types are supported as the default type, got {dtype}; pass e.g. float64"
        )
    ambient.default_dtype = dtype
    structure_changed()


def is_grad_enabled() -> bool:
    """Whether operations on this thread are recorded for backward."""
    return ambient.grad_enabled


class GradMode:
    """A grad mode as context manager and as decorator."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode
        self.previous: list[bool] = []

    def __enter__(self) -> None:
        self.previous.append(ambient.grad_enabled)
        ambient.grad_enabled = self.mode

    def __exit__(self, *exception: object) -> None:
        ambient.grad_enabled = self.previous.pop()

    def __call__(self, function: F) -> F:
        mode = self.mode

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with GradMode(mode):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class _FixedGradMode(GradMode):
    """A mode that also decorates without being called first: `@no_grad` is `@no_grad()`."""

    fixed: bool

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(self.fixed)


class no_grad(_FixedGradMode):  # noqa: N801 -- PyTorch's name
    """Operations inside are not recorded. A context manager, and a decorator with or without parentheses."""

    fixed = False


class enable_grad(_FixedGradMode):  # noqa: N801
    """Operations inside are recorded, also within `no_grad`."""

    fixed = True


class inference_mode(GradMode):  # noqa: N801
    """As `no_grad` (`mode=False`: as `enable_grad`); version counters stay on."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)


class set_grad_enabled(GradMode):  # noqa: N801
    """Set the grad mode at once; as a context manager also restore it at the end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self.outer = ambient.grad_enabled
        ambient.grad_enabled = self.mode

    def __enter__(self) -> None:
        self.previous.append(self.outer)
        ambient.grad_enabled = self.mode

    def __call__(self, function: F) -> F:
        # Decorating must not leave the mode set by __init__ behind.
        ambient.grad_enabled = self.outer
        return super().__call__(function)
