"""The `@compile` decorator: find the variant for a call, record a new one, or run eagerly and say why.

A call is first recorded on IR values, which changes nothing; then its program runs. What cannot be recorded
runs as ordinary Python.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from compiler.errors import CompilerError, LoweringError, TraceError
from compiler.program import KernelView
from framework.capture.dynamic import Shapes
from framework.capture.explain import Explanation
from framework.capture.guards import name_guards, reached, structure_guard
from framework.capture.observe import SIMPLE, EffectError, Observer
from framework.capture.recording import Draft
from framework.capture.tracer import Tracer
from framework.capture.tree import flatten
from framework.capture.variant import BAD_INPUT, Variant
from framework.nn.module import Module
from framework.state import ambient
from framework.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
# Variants kept for one function, and kinds of arguments looked at; calls that need more run eagerly.
MOST_VARIANTS, MOST_KINDS = 16, 64
# Recordings of one kind of arguments that may raise before it is left to run eagerly.
MOST_ERRORS = 3


class CompileError(CompilerError, RuntimeError):
    """A function compiled with strict=True cannot be replayed; the message names the line."""


@dataclass
class Record:
    """One compilation of a function, for `explain`."""

    reason: str
    seconds: float
    variant: Variant | None


@dataclass
class Entry:
    """Everything known for one kind of arguments: programs, or why there can be none."""

    variants: list[Variant] = field(default_factory=list)
    eager: str = ""
    errors: int = 0

    @property
    def is_kind(self) -> bool:
        """Whether it holds more than instances of recordings that serve many sizes."""
        return not self.variants or any(v.recording is None for v in self.variants)


class CompiledFunction(Generic[P, R]):
    """A function that replays its recorded program. Call it as the function.

    `explain()` tells mode, variants, guards and kernels; `kernels[i].source` is a kernel's generated source.
    """

    def __init__(self, function: Callable[P, R], strict: bool = False) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.strict = strict
        self.entries: dict[Any, Entry] = {}
        self.history: list[Record] = []
        self.refused = 0
        self.shapes = Shapes()
        self.lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if ambient.tracer is not None:
            return self.function(*args, **kwargs)  # recorded as part of the outer call
        key, leaves = call_key(args, kwargs)
        entry = self.entries.get(key)
        if entry is None:
            entry = self._enter(key, leaves)
            if entry is None:
                return self.function(*args, **kwargs)
        for variant in entry.variants:
            if variant.holds(leaves):
                return self._replay(variant, args, kwargs, leaves)
        if entry.eager:
            return self.function(*args, **kwargs)
        return self._record(entry, key, args, kwargs, leaves)

    def _enter(self, key: Any, leaves: list[Any]) -> Entry | None:
        """The entry of a key met for the first time; None when there are too many."""
        with self.lock:
            entry = self.entries.setdefault(key, Entry())
            if entry.variants or self.shapes.find(self.entries, key, leaves):
                return entry
            kinds = sum(e.is_kind for e in self.entries.values())
            if kinds > MOST_KINDS or len(self.variants) >= MOST_VARIANTS:
                self.refused += 1
                del self.entries[key]
                return None
            return entry

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        # A compiled module still has its parameters, its mode and its state.
        if name == "function":
            raise AttributeError(name)
        return getattr(self.function, name)

    def _record(
        self, entry: Entry, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        with self.lock:
            begin = time.perf_counter()
            # Another thread may have recorded this call while this one waited.
            known = next((v for v in entry.variants if v.holds(leaves)), None)
            if known is None and self.shapes.find(self.entries, key, leaves):
                known = entry.variants[-1]
            if known is not None:
                return self._replay(known, args, kwargs, leaves)
            why = self._why_again(entry)
            if len(self.variants) >= MOST_VARIANTS:
                entry.eager = f"{MOST_VARIANTS} variants exist already; the older ones keep serving"
                return self.function(*args, **kwargs)
            draft = self.shapes.draft(key, leaves)
            variant, reason, raised = self._capture(args, kwargs, leaves, draft)
            if draft is not None and variant is None:
                variant, reason, raised = self._capture(args, kwargs, leaves)
            elif draft is not None and not entry.variants:
                why = draft.words
            self.history.append(Record(reason or why, time.perf_counter() - begin, variant))
            if variant is None:
                if self.strict and not raised:
                    raise CompileError(f"{self.function!r} cannot be replayed: {reason}")
                # What raised may work next time, in another state; what cannot be recorded never will.
                entry.errors += 1
                if not raised or entry.errors >= MOST_ERRORS:
                    entry.eager = reason
            elif variant.recheck() is None:
                self.shapes.recorded(key, leaves, draft, variant)
                self.shapes.enter(self.entries, key, variant)
        if variant is None or variant not in entry.variants:
            return self.function(*args, **kwargs)
        result = BAD_INPUT if variant.overlaps(leaves) else variant.replay(leaves)
        if result is not BAD_INPUT:
            return result
        # The call will not get as far as making the optimizer state that the recording made.
        entry.variants.remove(variant)
        self.shapes.forget(key, leaves, variant)
        for undo in reversed(variant.undo):
            undo()
        return self.function(*args, **kwargs)

    def _replay(
        self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """The program's result; the function's own where memory overlaps as it did not, or input is bad."""
        if not variant.overlaps(leaves):
            result = variant.replay(leaves)
            if result is not BAD_INPUT:
                return result
        return self.function(*args, **kwargs)

    def _why_again(self, entry: Entry) -> str:
        if not entry.variants:
            return "first call with these arguments"
        last = entry.variants[-1]
        return last.recheck() or last.first_change() or "another thread changed what is guarded"

    def _capture(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], draft: Draft | None = None
    ) -> tuple[Variant | None, str, bool]:
        """The program of one call, or None, the reason it must run eagerly, and whether that was an error.

        With a draft what it names is symbolic. Nothing real is changed either way.
        """
        if any(isinstance(x, np.ndarray) for x in leaves):
            return None, "an argument is a NumPy array, whose elements may change: pass a tensor", False
        tracer, observer = Tracer() if draft is None else draft.tracer, Observer()
        grad_mode = ambient.grad_enabled
        if draft is None:
            for x in leaves:
                if isinstance(x, Tensor):
                    tracer.adopt(x)
        function = self.function.__call__ if isinstance(self.function, Module) else self.function
        ambient.tracer = tracer
        try:
            if draft is not None:
                args, kwargs, leaves = draft.arguments(args, kwargs)
            result = observer.run(function, args, kwargs)
            if ambient.grad_enabled is not grad_mode:
                raise TraceError("the call leaves gradients switched on or off: use a with block")
            tracer.require_same_history()
            structures = [structure_guard(thing) for thing in tracer.touched.values()]
            make = Variant if draft is None else draft.settle
            elsewhere = reached(observer, tracer.touched.values())
            return make(tracer, result, leaves, name_guards(observer), structures, elsewhere), "", False
        except (TraceError, LoweringError) as error:
            tracer.roll_back()
            return None, str(error), False
        except EffectError as error:
            tracer.roll_back()
            return None, str(error), False
        except Exception as error:  # noqa: BLE001 -- the eager run will raise it from clean state
            tracer.roll_back()
            return None, observer.reason or f"{type(error).__name__}: {error}", not observer.reason
        except BaseException:
            tracer.roll_back()
            raise
        finally:
            ambient.tracer = None
            ambient.grad_enabled = grad_mode

    # Inspection

    @property
    def variants(self) -> list[Variant]:
        """Every program recorded so far; of those with symbolic sizes one instance."""
        every = [v for entry in self.entries.values() for v in entry.variants]
        return list({id(v if v.recording is None else v.recording): v for v in every}.values())

    @property
    def kernels(self) -> list[KernelView]:
        """Kernels of the newest program; raises RuntimeError before there is one."""
        variants = [r.variant for r in self.history if r.variant is not None]
        if not variants:
            reasons = "; ".join(r.reason for r in self.history) or "it was not called yet"
            raise RuntimeError(f"there are no kernels: {reasons}")
        return variants[-1].executable.kernels

    def explain(self) -> Explanation:
        """What became of this function: printable, with the facts as attributes."""
        return Explanation(
            getattr(self.function, "__name__", type(self.function).__name__),
            list(self.history),
            [e.eager for e in self.entries.values() if e.eager],
        )

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}: {len(self.variants)} variants>"


def call_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """What kind of call this is, as a hashable key, and the leaves of its arguments."""
    leaves: list[Any] = list(args)
    shape: Any = len(args)
    kinds: list[Any] = []
    if not kwargs:
        for x in args:
            # Tensors without history, the common case, inline.
            if type(x) is not Tensor or x._node is not None or x._base is not None:
                break
            data: Any = x._data
            kinds.append((data.shape, data.dtype.char, data.strides, x._requires_grad))
    if len(kinds) < len(args) or kwargs:
        leaves = []
        shape = flatten((args, kwargs), leaves)
        kinds = [_leaf_key(x) for x in leaves]
    pattern: Any = None
    if len(leaves) > 1:
        ids = [id(x) for x in leaves if isinstance(x, Tensor)]
        if len(set(ids)) < len(ids):
            pattern = tuple(ids.index(i) for i in ids)
    return (shape, tuple(kinds), pattern, ambient.grad_enabled, ambient.default_dtype), leaves


def _leaf_key(x: Any) -> Any:
    if isinstance(x, Tensor):
        data = x._data
        assert data is not None, "a tensor of a finished capture has no memory"
        # A non-leaf argument has history outside the program.
        return data.shape, data.dtype.char, data.strides, x.requires_grad, type(x), x._node is None
    if isinstance(x, SIMPLE):
        return type(x), repr(x) if isinstance(x, float | complex) else x
    return type(x), Identity(x)


class Identity:
    """A key that is equal only for the very same object, which it keeps alive."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.thing is other.thing


@overload
def compile(function: Callable[P, R], *, strict: bool = False) -> CompiledFunction[P, R]: ...
@overload
def compile(
    function: None = None, *, strict: bool = False
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(function: Any = None, *, strict: bool = False) -> Any:
    """Compile a function, method or module: same results, state and errors as eager, in one fused native
    program.

    Whole training steps included: forward, `backward()` and `optimizer.step()`. Works as `@compile`,
    `@compile(...)` and `compile(f)`. A function that cannot be replayed runs eagerly; with `strict=True` it
    raises CompileError instead.

        @fw.compile
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    """
    if function is None:
        return functools.partial(compile, strict=strict)
    if not callable(function):
        raise TypeError(f"compile expects a function, a method or a Module, got {type(function).__name__}")
    return CompiledFunction(function, strict)


__all__: Sequence[str] = ("CompileError", "CompiledFunction", "compile")
