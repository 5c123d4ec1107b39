"""The `@compile` decorator: find the variant for a call, record a new one, or drive it and say why.

A call is first recorded on IR values, which changes nothing; then its program runs. What cannot be recorded
is driven: its Python runs, and the tensor work between reads of values is compiled.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from compiler.binding import KernelView
from compiler.debugging import RECORDINGS, ladder, tell
from compiler.errors import CompilerError, LoweringError, TraceError, latest
from compiler.pictures import Picture
from compiler.where import user_line_of
from framework.capture.book import Book
from framework.capture.driver import Driver
from framework.capture.dynamic import Shapes
from framework.capture.explain import Explanation
from framework.capture.guards import Guard, name_guards, reached, structure_guard
from framework.capture.lifting import Lifting, Substitution, handles_errors, require_blind
from framework.capture.machines import Sizes
from framework.capture.numbers import Numbers, RefusedError
from framework.capture.observe import EffectError, FilledError, Observer
from framework.capture.recording import Draft
from framework.capture.snapshots import SIMPLE
from framework.capture.tracer import Tracer
from framework.capture.tree import flatten
from framework.capture.variant import BAD_INPUT, Variant
from framework.nn.module import Module
from framework.state import ambient, switches, unusual
from framework.tensor import Tensor
from kernels.gpu import arrays

if TYPE_CHECKING:
    from framework.inspect.comparing import Comparison
    from framework.inspect.minifying import Minified

P = ParamSpec("P")
R = TypeVar("R")
# Variants kept for one function, and kinds of arguments looked at; calls that need more just run.
MOST_VARIANTS, MOST_KINDS = 16, 64
# Recordings that may fail for one reason before other kinds of arguments are not tried.
MOST_ALIKE = 3
# Recordings of one kind of arguments that may raise before it is left to be driven.
MOST_ERRORS = 3


_LATER = {
    inspect.CO_GENERATOR: "a generator function",
    inspect.CO_COROUTINE: "a coroutine function",
    inspect.CO_ASYNC_GENERATOR: "an asynchronous generator function",
}


class CompileError(CompilerError, RuntimeError):
    """A function compiled with strict=True cannot be replayed; the message names the line.

    Example::

        >>> @fw.compile(strict=True)
        ... def step(x):
        ...     print("a replay runs no Python")
        ...     return x + 1
        >>> step(fw.ones(2))
        Traceback (most recent call last):
            ...
        framework.capture.compile.CompileError: step cannot be replayed: ...
    """


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
    driven: str = ""
    errors: int = 0
    lifting: Lifting = field(default_factory=Lifting)

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
        self.sizes = Sizes()
        self.book = Book()
        self.runs_later = _runs_later(function)
        self.warned = False
        # Whether a recording met tensors on a GPU: what cannot be recorded there runs op by op.
        self.on_gpu = False
        self.lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if unusual.threads and (switches.disabled or ambient.detour is not None) and self._turns_off():
            return self._turned_off(args, kwargs)
        key, leaves = call_key(args, kwargs)
        entry = self.entries.get(key)
        if entry is None:
            entry = self._enter(key, leaves)
            if entry is None:
                self.refused += 1
                return self._drive(args, kwargs) if self._fails_alike() else self.function(*args, **kwargs)
        for variant in entry.variants:
            if variant.holds(leaves):
                return self._replay(variant, args, kwargs, leaves)
        if entry.driven:
            return self._drive(args, kwargs)
        return self._record(entry, key, args, kwargs, leaves)

    def _turns_off(self) -> bool:
        """Whether a call is not to be looked up: with compilation disabled, in another call, or watched."""
        return switches.disabled or ambient.tracer is not None or ambient.watch.announces(self)

    def _turned_off(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer = ambient.tracer
        if tracer is None and not switches.disabled:
            return ambient.watch.call(self, args, kwargs)
        if tracer is None or not tracer.drives or tracer.function is self:
            return self.function(*args, **kwargs)  # recorded as part of the outer call
        with tracer.paused():
            return self(*args, **kwargs)

    def _enter(self, key: Any, leaves: list[Any]) -> Entry | None:
        """The entry of a key met for the first time; None when there are too many, or all fail alike."""
        with self.lock:
            entry = self.entries.setdefault(key, Entry())
            if entry.variants or self.shapes.find(self.entries, key, leaves):
                return entry
            kinds = sum(e.is_kind for e in self.entries.values())
            if kinds > MOST_KINDS or len(self.variants) >= MOST_VARIANTS or self._fails_alike():
                del self.entries[key]
                if not self._fails_alike():
                    self._warn("the arguments are of another kind each time")
                return None
            return entry

    def _fails_alike(self) -> bool:
        """Whether the last recordings failed for one reason, whatever the arguments."""
        reasons = [record.reason for record in self.history[-MOST_ALIKE:]]
        return len(reasons) == MOST_ALIKE and not self.variants and len(set(reasons)) == 1

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or isinstance(self.function, staticmethod):
            return self
        return functools.partial(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # What was compiled holds the tensors of the original; functions are never copied.
        if isinstance(self.function, types.FunctionType):
            return self
        return memo.setdefault(id(self), CompiledFunction(copy.deepcopy(self.function, memo), self.strict))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A decorated function is found by its name, as any function.
        module = sys.modules.get(getattr(self.function, "__module__", ""))
        name = getattr(self.function, "__qualname__", "")
        if getattr(module, name, None) is self:
            return name
        return CompiledFunction, (self.function, self.strict)

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
            why = self._why_again(entry, leaves)
            if len(self.variants) >= MOST_VARIANTS:
                entry.driven = f"{MOST_VARIANTS} variants exist already; the older ones keep serving"
                self._warn(why)
                return self._drive(args, kwargs)
            draft = self.shapes.draft(key, leaves)
            variant, reason, raised = self._capture_lifted(entry, args, kwargs, leaves, draft)
            if draft is not None and variant is None:
                variant, reason, raised = self._capture_lifted(entry, args, kwargs, leaves)
            elif draft is not None and not entry.variants:
                why = draft.words
            self.history.append(Record(reason or why, time.perf_counter() - begin, variant))
            if ladder.level >= RECORDINGS:
                self._tell(why, reason)
            if variant is None:
                if self.strict and not raised:
                    raise CompileError(
                        f"{_called(self.function)} cannot be replayed: {reason}. Move that out of the "
                        "function, or compile it without strict=True: its Python then runs at every call"
                    )
                # What raised may work next time, in another state; what cannot be recorded never will.
                entry.errors += 1
                if not raised or entry.errors >= MOST_ERRORS:
                    entry.driven = reason
            elif variant.recheck() is None:
                self.shapes.recorded(key, leaves, draft, variant)
                self.shapes.enter(self.entries, key, variant)
        if variant is None or variant not in entry.variants:
            return self._drive(args, kwargs)
        result = BAD_INPUT if variant.overlaps(leaves) else variant.replay(leaves)
        if result is not BAD_INPUT:
            return result
        # The call will not get as far as making the optimizer state that the recording made.
        entry.variants.remove(variant)
        self.shapes.forget(key, leaves, variant)
        for undo in reversed(variant.undo):
            undo()
        return self.function(*args, **kwargs)

    def _tell(self, why: str, refused: str) -> None:
        """Say what was recorded, and what came of it."""
        record, name = self.history[-1], getattr(self.function, "__qualname__", repr(self.function))
        kernels = "" if record.variant is None else f", {len(record.variant.executable.plan.kernels)} kernels"
        outcome = f"; driven, its Python runs at every call: {refused}" if refused else kernels
        number, time_taken = len(self.history) - 1, f"{record.seconds * 1e3:.0f} ms"
        tell(f"recording {number} of {name}: {why} ({time_taken}){outcome}")

    def _replay(
        self, variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]
    ) -> Any:
        """The program's result; the function's own where memory overlaps as it did not, or input is bad."""
        if not variant.overlaps(leaves):
            result = variant.replay(leaves)
            if result is not BAD_INPUT:
                return result
        return self.function(*args, **kwargs)

    def _drive(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function's Python, with the tensor work between reads of values compiled."""
        one_by_one = unusual.threads and ambient.watch is not None and ambient.watch.runs_op_by_op
        if self.runs_later or self.on_gpu or one_by_one:
            return self.function(*args, **kwargs)
        if self.book.full:
            self.book = Book()
        driver = Driver(self.book, self)
        ambient.tracer = driver
        try:
            return self.function(*args, **kwargs)
        finally:
            ambient.tracer = None
            driver.finish()

    def _warn(self, why: str) -> None:
        """Say once that there are too many variants."""
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.function!r} was recorded {len(self.history)} times and is not recorded again: {why}; "
                "the programs made keep serving, other calls run their Python. explain() lists every reason",
                stacklevel=5,
            )

    def _why_again(self, entry: Entry, leaves: list[Any]) -> str:
        if not entry.variants:
            return "first call with these arguments"
        last = entry.variants[-1]
        numbers = None if last.lifted is None else last.lifted.change(leaves)
        return numbers or last.recheck() or last.first_change() or "another thread changed what is guarded"

    def _capture_lifted(
        self,
        entry: Entry,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        draft: Draft | None = None,
    ) -> tuple[Variant | None, str, bool]:
        """As `_capture`, with the numbers lifted that vary, unless only floats themselves will do."""
        lifted = Substitution(entry.lifting.choose(leaves)).liftable((args, kwargs))
        found = self._capture(args, kwargs, leaves, draft, lifted)
        if found[0] is None and lifted and draft is None:
            found = self._capture(args, kwargs, leaves)
            entry.lifting.refused = found[0] is not None
        return found

    def _capture(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
        draft: Draft | None = None,
        lifted: frozenset[int] = frozenset(),
    ) -> tuple[Variant | None, str, bool]:
        """The program of one call, or None, the reason it must be driven, and whether that was an error.

        With a draft what it names is symbolic. Nothing real is changed either way.
        """
        if any(map(arrays.is_array, leaves)):
            return (
                None,
                "an argument is a NumPy or CuPy array, whose elements may change: pass a tensor",
                False,
            )
        if self.runs_later:
            return None, f"{self.runs_later}, whose body runs after the call: compile what it calls", False
        tracer, observer = Tracer() if draft is None else draft.tracer, Observer()
        tracer.sizes = self.sizes
        grad_mode = ambient.grad_enabled
        function = self.function.__call__ if isinstance(self.function, Module) else self.function
        numbers = Numbers(tracer, leaves, lifted) if any(type(x) is float for x in leaves) else None
        ambient.tracer = tracer
        try:
            if draft is not None:
                args, kwargs, leaves = draft.arguments(args, kwargs)
            else:
                for x in leaves:
                    if isinstance(x, Tensor):
                        tracer.adopt(x)
            if numbers is not None and lifted:
                args, kwargs = Substitution(lifted).replaced((args, kwargs), numbers)
            latest.error = None
            result = observer.run(function, args, kwargs)
            if latest.error is not None:  # and caught by the function, which would not have met it
                raise latest.error
            if numbers is not None and lifted:
                require_blind(numbers, observer, result, leaves)
            if tracer.items:
                _require_handed_on(Numbers(tracer, leaves, frozenset()), observer, result, leaves)
            if draft is not None and handles_errors(observer.codes):
                raise TraceError("an error is handled, which may be one of a symbolic size")
            if ambient.grad_enabled is not grad_mode:
                raise TraceError("the call leaves gradients switched on or off: use a with block")
            tracer.require_same_history()

            def guards() -> tuple[list[Guard], list[Guard]]:
                structures = [structure_guard(thing) for thing in tracer.touched.values()]
                return name_guards(observer), structures

            def observed(record: Callable[[], Any]) -> Any:
                return observer.run(record, (), {})

            elsewhere = reached(observer, tracer.touched.values())
            if draft is not None:
                return draft.settle(result, leaves, guards, elsewhere, numbers), "", False
            return Variant(tracer, result, leaves, guards, observed, elsewhere, numbers), "", False
        except (TraceError, LoweringError) as error:
            tracer.roll_back()
            return None, f"{user_line_of(error)}{error}", False
        except (EffectError, RefusedError) as error:
            tracer.roll_back()
            return None, str(error), isinstance(error, FilledError)
        except Exception as error:  # noqa: BLE001 -- the eager run will raise it from clean state
            tracer.roll_back()
            return None, observer.reason or f"{type(error).__name__}: {error}", not observer.reason
        except BaseException:
            tracer.roll_back()
            raise
        finally:
            self.on_gpu |= tracer.where is not None and tracer.where.type == "cuda"
            ambient.tracer = None
            latest.error = None  # its traceback keeps what was recorded, gradient graphs of leaves too
            ambient.grad_enabled = grad_mode

    # Inspection

    def variant_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Variant | None, list[Any], bool]:
        """The program that serves a call, its arguments' leaves, and whether it was recorded for this only.

        None where the call is driven. Does not count as a call.
        """
        key, leaves = call_key(args, kwargs)
        entry = self.entries.get(key) or Entry()
        known = next((v for v in entry.variants if v.holds(leaves)), None)
        if known is not None or entry.driven:
            return known, leaves, False
        variant, _, _ = self._capture_lifted(entry, args, kwargs, leaves)
        usable = variant is not None and variant.recheck() is None
        return variant if usable else None, leaves, usable

    def compare(self, *args: P.args, **kwargs: P.kwargs) -> Comparison:
        """Compare a call with eager: every pass, every kernel on its own, and the call as a whole.

        The result names the first node that differs but for rounding, its user line and its values. Tensors,
        gradients and generators are afterwards what they were.
        """
        from framework.inspect.comparing import compare_call

        return compare_call(self, args, kwargs)

    def minify(self, *args: P.args, **kwargs: P.kwargs) -> Minified:
        """Shrink a call that `compare` finds wrong to a few lines of code that show it. Print the result."""
        from framework.inspect.minifying import minify_call

        return minify_call(self, args, kwargs)

    @property
    def variants(self) -> list[Variant]:
        """Every program recorded so far; of those with symbolic sizes one instance."""
        every = [v for entry in self.entries.values() for v in entry.variants]
        return list({id(v if v.recording is None else v.recording): v for v in every}.values())

    @property
    def kernels(self) -> Sequence[KernelView]:
        """Kernels of the newest program; raises RuntimeError before there is one."""
        return self._newest().executable.kernels

    def _newest(self) -> Variant:
        variants = [r.variant for r in self.history if r.variant is not None]
        if not variants:
            reasons = "; ".join(r.reason for r in self.history) or "it was not called yet"
            raise RuntimeError(f"there is no program: {reasons}")
        return variants[-1]

    @property
    def graph(self) -> Picture:
        """The graph of the newest program after the passes, with its kernels: printable, and a picture."""
        return self._newest().executable.picture

    def explain(self, measure: bool = False) -> Explanation:
        """What became of this function: printable, with the facts as attributes; `save` makes a page of it.

        With `measure` each kernel is timed beside the machine's roofline, which takes some seconds to measure
        the first time.
        """
        return Explanation(
            getattr(self.function, "__name__", type(self.function).__name__),
            list(self.history),
            [e.driven for e in self.entries.values() if e.driven],
            self.book.stretches(),
            self.book.interpreted,
            self.refused,
            measure,
            self.function,
        )

    def __dir__(self) -> list[str]:
        names = {"function", "history", "strict", *dir(type(self)), *dir(self.function)}
        return sorted(name for name in names if name[0] != "_" or name.startswith("__"))

    def __repr__(self) -> str:
        return f"<compiled {self.function!r}: {len(self.variants)} variants>"


def _require_handed_on(numbers: Numbers, observer: Observer, result: Any, leaves: list[Any]) -> None:
    """Refuse a recording whose code could tell what `.item()` gave it from a number."""
    try:
        require_blind(numbers, observer, result, leaves)
    except RefusedError as error:
        raise TraceError(f"the value of a tensor is read, and {error}") from None


def _runs_later(function: Any) -> str:
    """The kind of function, with its line, whose body does not run when it is called; empty for others."""
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    for flag, kind in _LATER.items():
        if code is not None and code.co_flags & flag:
            return f"{Path(code.co_filename).name}:{code.co_firstlineno}: {code.co_name} is {kind}"
    return ""


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
            if type(data) is not np.ndarray:
                break
            kinds.append((data.shape, data.dtype.char, data.strides, x._requires_grad))
    if len(kinds) < len(args) or kwargs:
        leaves = []
        shape = flatten((args, kwargs), leaves)
        kinds = [_leaf_key(x) for x in leaves]
    pattern: Any = None
    if len(leaves) > 1 and len({*map(id, leaves)}) < len(leaves):
        ids = [id(x) for x in leaves if isinstance(x, Tensor)]
        pattern = tuple(map(ids.index, ids)) if len(set(ids)) < len(ids) else None
    recorded = not unusual.threads or ambient.grad_enabled
    return (shape, tuple(kinds), pattern, recorded, ambient.default_dtype), leaves


def _leaf_key(x: Any) -> Any:
    if isinstance(x, Tensor):
        data = x._data
        assert data is not None, "a tensor of a finished capture has no memory"
        # A non-leaf argument has history outside the program.
        kind = data.shape, data.dtype.char, data.strides, x.requires_grad, type(x), x._node is None
        return (*kind, data.device.id) if arrays.is_device(data) else kind
    if type(x) is float:
        return float  # a variant says which values it stands for
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
    `@compile(...)` and `compile(f)`. A function that cannot be replayed is driven (its Python runs at every
    call); with `strict=True` it raises CompileError instead::

        @fw.compile
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    `explain()` says what became of it, `kernels[i].source` is what runs, `graph` draws it.

    Example::

        >>> @fw.compile
        ... def scaled(x):
        ...     return x * 2 + 1
        >>> scaled(fw.tensor([1.0, 2.0]))
        tensor([3., 5.])
        >>> scaled.explain().mode, len(scaled.kernels)
        ('replay', 1)
    """
    if function is None:
        return functools.partial(compile, strict=strict)
    if not callable(function):
        raise TypeError(f"compile expects a function, a method or a Module, got {type(function).__name__}")
    return CompiledFunction(function, strict)


__all__: Sequence[str] = ("CompileError", "CompiledFunction", "compile")


def _called(function: Any) -> str:
    """What a function is called in a message; a module is shown."""
    return getattr(function, "__qualname__", None) or repr(function)
