"""What recorded Python reads and does besides tensor work: names to guard, and effects that forbid a replay.

A profile hook sees every Python frame before it runs and every C call before it happens; an effect stops the
capture there, so that nothing has happened when the function then runs eagerly. What cannot be judged counts
as an effect.
"""

from __future__ import annotations

import dis
import gc
import sys
import sysconfig
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_ROOT = Path(__file__).parents[2]
_OWN = tuple(str(_ROOT / package) for package in ("framework", "compiler", "kernels"))
_STANDARD = (
    sysconfig.get_path("stdlib"),
    "<frozen",
    str(Path(np.__file__).parent),
    str(Path(ml_dtypes.__file__).parent),
)
# Standard modules whose Python code only serves its caller: context managers, partials, containers.
_HARMLESS = {
    sys.modules[name].__file__
    for name in (
        "contextlib",
        "functools",
        "collections",
        "typing",
        "abc",
        "enum",
        "types",
        "operator",
        "dataclasses",
    )
    if name in sys.modules and getattr(sys.modules[name], "__file__", None)
}
_HARMLESS_MODULES = {
    "math",
    "cmath",
    "operator",
    "functools",
    "itertools",
    "typing",
    "dataclasses",
    "collections",
    "contextlib",
    "numpy",
    "builtins",
}
_IMPURE_MODULES = {
    "time",
    "random",
    "_random",
    "posix",
    "nt",
    "_io",
    "os",
    "numpy.random",
    "numpy.random.mtrand",
    "secrets",
    "sys",
}
_IMPURE_BUILTINS = {
    "print",
    "input",
    "open",
    "exec",
    "eval",
    "setattr",
    "delattr",
    "__import__",
    "breakpoint",
    "globals",
    "vars",
    "next",
}
_MUTATING = {
    "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault", "popitem", "add",
    "discard", "write", "appendleft", "popleft", "extendleft", "rotate", "send", "throw", "__setitem__", "__delitem__",
    "difference_update", "intersection_update", "symmetric_difference_update", "__setattr__", "__next__",
}  # fmt: skip
# Attributes of tensors whose assignment a capture records.
_RECORDED = {"grad", "requires_grad", "data"}
_EFFECTS = {
    "STORE_GLOBAL",
    "DELETE_GLOBAL",
    "STORE_ATTR",
    "DELETE_ATTR",
    "STORE_SUBSCR",
    "DELETE_SUBSCR",
    "IMPORT_NAME",
}

SIMPLE = (int, float, complex, str, bytes, bool, type(None))


class EffectError(BaseException):
    """Recorded code is about to do something a replay would leave out. Not an Exception: user code must not
    catch it.
    """


def _serves_us(frame: types.FrameType) -> bool:
    """Whether a frame of the standard library or NumPy was entered from this project's code and not from the
    user's.
    """
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_STANDARD):
        caller = caller.f_back
    return caller is not None and _is_ours(caller)


def _is_ours(frame: types.FrameType) -> bool:
    """Whether a frame runs this project's code, or a method that `dataclass` wrote (it fills a new object
    only).
    """
    code = frame.f_code
    if code.co_filename == "<string>":
        return code.co_qualname.startswith("__create_fn__") or _is_own_name(
            frame.f_globals.get("__name__", "")
        )
    return code.co_filename.startswith(_OWN)


@cache
def _effect_of(code: types.CodeType) -> str | None:
    """The first instruction of a code object that may change something outside it, as text with its line."""
    line = code.co_firstlineno
    # A cell of this function's own is created anew in each call.
    own = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno or line if instruction.positions else line
        name, what = instruction.opname, instruction.argval
        where = f"{Path(code.co_filename).name}:{line}"
        if name in _EFFECTS and not (name == "STORE_ATTR" and what in _RECORDED):
            words = {
                "STORE_SUBSCR": "an item is assigned", "DELETE_SUBSCR": "an item is deleted", "IMPORT_NAME": f"{what} is imported",
            }  # fmt: skip
            return f"{where}: {words.get(name) or f'{what} is assigned or deleted'}"
        if name in ("STORE_DEREF", "DELETE_DEREF") and what not in own:
            return f"{where}: the enclosing function's {what} is assigned"
        if name == "LOAD_ATTR" and what == "random":
            return f"{where}: `.random` is used"
    return None


class Observer:
    """Watches one capture: `run(function, args, kwargs)`, then `names` to guard. Raises EffectError at an
    effect.
    """

    def __init__(self) -> None:
        # (namespace, name, value): what a name meant; replays need the same meaning.
        self.names: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self.cells: dict[int, tuple[Any, Any]] = {}
        self.attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.codes: set[types.CodeType] = set()
        self.functions: dict[int, tuple[Any, Any, Any]] = {}
        self.old: set[int] = set()
        self.reason = ""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `function` under observation."""
        self.old = {
            id(x) for x in gc.get_objects() if issubclass(type(x), list | dict | set | types.GeneratorType)
        }
        self.see_function(function)
        previous = sys.getprofile()
        sys.setprofile(self.profile)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(previous)

    def stop(self, reason: str) -> None:
        """End the capture before the effect `reason` happens."""
        self.reason = self.reason or reason
        raise EffectError(reason)

    def profile(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """The profile hook."""
        file = frame.f_code.co_filename
        if _is_ours(frame) or file in _HARMLESS or (file.startswith(_STANDARD) and _serves_us(frame)):
            return
        if event == "call":
            self.see_frame(frame)
        elif event == "c_call":
            self.see_builtin(frame, arg)

    def see_builtin(self, frame: types.FrameType, function: Any) -> None:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if name in _MUTATING and isinstance(owner, list | dict | set | types.GeneratorType):
            if id(owner) in self.old:
                self.stop(f"{where}: a {type(owner).__name__} made before the call is changed by {name}")
            return
        module = getattr(function, "__module__", None) or type(owner).__module__
        if module in _IMPURE_MODULES or type(owner).__module__ in _IMPURE_MODULES or name in _IMPURE_BUILTINS:
            self.stop(f"{where}: {name} is called")
        if name in _MUTATING and not isinstance(owner, types.ModuleType):
            self.stop(f"{where}: {name} of a {type(owner).__name__} is called")

    def see_frame(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code in self.codes:
            return
        effect = _effect_of(code)
        if effect is not None:
            self.stop(effect)
        self.codes.add(code)
        scope = frame.f_globals
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval in scope:
                self.see_name(scope, instruction.argval, code)
        for name in code.co_freevars:
            if name in frame.f_locals:
                self.see_object(frame.f_locals[name], code)
        for name in code.co_varnames[: code.co_argcount]:
            if name in frame.f_locals:
                self.see_object(frame.f_locals[name], code)

    def see_name(self, scope: dict[str, Any], name: str, code: types.CodeType) -> None:
        value = scope[name]
        if isinstance(value, types.ModuleType):
            top = value.__name__.split(".")[0]
            if top not in _HARMLESS_MODULES and not (getattr(value, "__file__", None) or "").startswith(_OWN):
                self.stop(
                    f"{Path(code.co_filename).name}:{code.co_firstlineno}: module {value.__name__} is used"
                )
        self.names[id(scope), name] = (scope, name, snapshot(value))
        self.see_object(value, code)

    def see_object(self, value: Any, code: types.CodeType) -> None:
        """Note every attribute the code names that this object, or its class, has; and what a function closes
        over.
        """
        if isinstance(value, types.FunctionType | types.MethodType):
            self.see_function(value)
            return
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, types.ModuleType) or kind.__module__ in ("builtins", "numpy") or _is_own(kind):
            self.see_class(kind, code)
            return
        for name in code.co_names:
            held = getattr(value, "__dict__", {})
            if name in held:
                self.attributes[id(value), name] = (value, name, snapshot(held[name]))
        self.see_class(kind, code)

    def see_class(self, kind: type, code: types.CodeType) -> None:
        for base in kind.__mro__:
            if base.__module__ == "builtins" or _is_own(base):
                continue
            for name in code.co_names:
                if name in base.__dict__:
                    self.attributes[id(base), name] = (base, name, snapshot(base.__dict__[name]))

    def see_function(self, function: Any) -> None:
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or id(function) in self.functions:
            return
        if function.__code__.co_filename.startswith(_OWN):
            return
        self.functions[id(function)] = (
            function,
            function.__code__,
            snapshot((function.__defaults__, function.__kwdefaults__)),
        )
        for cell in function.__closure__ or ():
            try:
                self.cells[id(cell)] = (cell, snapshot(cell.cell_contents))
            except ValueError:  # a name bound later
                continue


def _is_own(kind: type) -> bool:
    return _is_own_name(kind.__module__)


def _is_own_name(module: str) -> bool:
    return module.split(".")[0] in ("framework", "compiler", "kernels")


class Shallow:
    """What a container held: its type and its items, two levels deep."""

    __slots__ = ("items", "kind")

    def __init__(self, value: Any) -> None:
        self.kind = type(value)
        self.items = tuple(value.items()) if isinstance(value, dict) else tuple(value)


def snapshot(value: Any) -> Any:
    """A value as `same` can compare it later: containers are copied, everything else is itself."""
    return Shallow(value) if isinstance(value, list | dict | set | tuple) else value


def same(now: Any, seen: Any) -> bool:
    """Whether a value still is what its snapshot was: equal for plain values, identical for other objects."""
    if now is seen:
        return True
    if isinstance(seen, Shallow):
        if type(now) is not seen.kind or len(now) != len(seen.items):
            return False
        items = now.items() if isinstance(now, dict) else now
        return all(_same_item(x, y) for x, y in zip(items, seen.items, strict=True))
    # 0.0 and -0.0 are equal and differ; nan differs from itself and may be the same.
    return type(now) is type(seen) and isinstance(now, SIMPLE) and repr(now) == repr(seen)


def _same_item(now: Any, seen: Any) -> bool:
    if isinstance(seen, tuple) and isinstance(now, tuple):
        return len(now) == len(seen) and all(_same_item(x, y) for x, y in zip(now, seen, strict=True))
    return same(now, seen)
