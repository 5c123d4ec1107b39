"""What recorded Python reads and does besides tensor work: names to guard, and effects that forbid a replay.

A profile hook sees every Python frame before it runs and every C call before it happens; an effect stops the
capture there, so that nothing has happened when the function is then driven. What cannot be judged counts
as an effect.
"""

from __future__ import annotations

import array
import contextvars
import dis
import gc
import inspect
import operator
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from compiler.where import user_line
from framework.capture.age import Age
from framework.capture.copies import CONTAINERS, Copies
from framework.capture.snapshots import MOST_ITEMS, SIMPLE, TooLargeError, snapshot
from framework.conversion import Info
from framework.device import device
from framework.graph import Node
from framework.nn.module import Module
from framework.optim.optimizer import Optimizer
from framework.state import GradMode, ambient, python_effects
from framework.tensor import Tensor
from framework.watch import watch
from kernels.dtypes import DType
from kernels.gpu import arrays

_ROOT = Path(__file__).parents[2]
_OWN = tuple(str(_ROOT / package) for package in ("framework", "compiler", "kernels"))
_LIBRARIES = (
    sysconfig.get_path("stdlib"),
    "<frozen",
    str(Path(np.__file__).parent),
    str(Path(ml_dtypes.__file__).parent),
)
_STANDARD = _LIBRARIES  # with CuPy, once that is used
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
_HARMLESS_MODULES = frozenset(
    "math cmath operator functools itertools typing dataclasses collections contextlib numpy builtins".split()
)
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
    "getattr",
    "hasattr",
    "dir",
    "id",
    "hash",
}
_MUTATING = frozenset(
    "append extend insert pop remove clear sort reverse update setdefault popitem add discard write "
    "appendleft popleft extendleft rotate send throw difference_update intersection_update "
    "symmetric_difference_update __setitem__ __delitem__ __setattr__ __next__".split()
)
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

# Naming one of these reads an optimizer's numbers as Python sees them.
_OPTIONS = {"param_groups", "defaults", "state_dict"}


# What may be something else at the next call without our seeing it, and what reads attributes unnamed.
_UNSEEN: dict[Any, str] = {
    bytearray: "the elements of {0} may change: make it a tensor, or bytes",
    memoryview: "the elements of {0} may change: make it a tensor, or bytes",
    array.array: "the elements of {0} may change: make it a tensor, or a tuple",
    types.MappingProxyType: "what {0} shows may change",
    contextvars.ContextVar: "the context variable {0} is used",
    threading.local: "{0} holds values of a thread",
    type(threading.Lock()): "the lock {0} is used",
    type(threading.RLock()): "the lock {0} is used",
    weakref.ref: "the weak reference {0} is used",
    operator.attrgetter: "{0} reads an attribute that is not named here",
    operator.methodcaller: "{0} calls a method that is not named here",
}
_UNSEEN_KINDS = tuple(_UNSEEN)
_NAMED = {
    "random": "`.random` is used",
    "__dict__": "`.__dict__` is used",
    "__getattribute__": "an attribute is read that is not named here",
    "attrgetter": "an attribute is read that is not named here",
    "methodcaller": "a method is called that is not named here",
}
# Python classes that are what an attribute of theirs holds, and whose methods are not watched.
_WRAPPERS = (ChainMap, UserDict, UserList)

# Objects of this project that are what they are, or are watched elsewhere.
_UNCHANGING = (Tensor, DType, Info, GradMode, Node, device, tuple)

# What changes in a tensor without a change of structure.
_PASSING = {"_version", "is_leaf", "grad_fn"}

# Stands for an attribute that is not there.
GONE = object()


class EffectError(BaseException):
    """Recorded code is about to do something a replay would leave out. Not an Exception: user code must not
    catch it.
    """


class FilledError(EffectError):
    """An object got an attribute, as from a cached property: the next call may find it there."""


def _in_finaliser() -> bool:
    """Whether a `__del__` is running, where an exception has nowhere to go."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _serves_us(frame: types.FrameType) -> bool:
    """Whether a frame of the standard library or NumPy was entered from this project's code and not from the
    user's.
    """
    caller: types.FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(_STANDARD):
        caller = caller.f_back
    return caller is not None and _is_ours(caller)


@cache
def _is_own_file(path: str) -> bool:
    """Whether a file is one of this project's packages."""
    return path.startswith(_OWN)


def _is_ours(frame: types.FrameType) -> bool:
    """Whether a frame runs this project's code, or a method that `dataclass` wrote (it fills a new object
    only).
    """
    code = frame.f_code
    if _is_own_file(code.co_filename):
        return True
    return code.co_filename == "<string>" and (
        code.co_qualname.startswith("__create_fn__") or _is_own_name(frame.f_globals.get("__name__", ""))
    )


@cache
def attributes_of(code: types.CodeType) -> frozenset[str]:
    """The names of attributes that a code object reads."""
    reads = ("LOAD_ATTR", "LOAD_METHOD")
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in reads)


@cache
def _effect_of(code: types.CodeType) -> str | None:
    """The first instruction of a code object that may change something outside it, as text with its line."""
    line = code.co_firstlineno
    # A cell of this function's own is created anew in each call.
    own, before = set(code.co_cellvars), ""
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno or line if instruction.positions else line
        name, what = instruction.opname, instruction.argval
        where = f"{Path(code.co_filename).name}:{line}"
        if name in _EFFECTS and not (name == "STORE_ATTR" and what in _RECORDED):
            words = {
                "STORE_SUBSCR": "an item is assigned",
                "DELETE_SUBSCR": "an item is deleted",
                "IMPORT_NAME": f"{what} is imported",
            }
            return f"{where}: {words.get(name) or f'{what} is assigned or deleted'}"
        if name in ("STORE_DEREF", "DELETE_DEREF") and what not in own:
            return f"{where}: the enclosing function's {what} is assigned"
        if (before == "PUSH_EXC_INFO" and name == "POP_TOP") or what == "BaseException":
            return f"{where}: an except clause would catch the end of a capture"
        before = name
        loads = name in ("LOAD_ATTR", "LOAD_METHOD") or (name == "LOAD_GLOBAL" and what != "random")
        if loads and what in _NAMED:
            return f"{where}: {_NAMED[what]}"
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
        self.optimizers: dict[int, tuple[Optimizer, Any]] = {}
        # Attributes in slots: (descriptor, object, what it held).
        self.slots: dict[tuple[int, str], tuple[Any, Any, Any]] = {}
        self.age = Age()
        self.copies = Copies()
        self.touched: dict[int, Any] = {}
        # Attributes that any of the recorded code reads.
        self.asked: frozenset[str] = frozenset()
        # Tensors among the arguments: what they are is part of the call's key.
        self.given: set[int] = set()
        # The line of the first frame.
        self.start = ""
        # Objects looked at for a code object, kept so that no other takes their identity.
        self.seen: set[tuple[int, types.CodeType | None]] = set()
        self.kept: list[Any] = []
        self.reason = ""
        # Where the C functions come from that recorded code calls.
        self.modules: set[str] = set()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `function` under observation."""
        global _STANDARD
        _STANDARD = (*_LIBRARIES, *arrays.Known.sources())
        previous, collecting = sys.getprofile(), gc.isenabled()
        # Collector callbacks are nobody's effect, and an error raised in one crashes CPython 3.11.
        gc.disable()
        self.age.begin()
        try:
            self.see_function(function)
            self.see_arguments((*args, *kwargs.values()))
            sys.setprofile(self.profile)
            watching = sys.getprofile()
            result = function(*args, **kwargs)
            # An effect whose error was swallowed (a finaliser, a bare except) has also ended the watch.
            if self.reason or sys.getprofile() is not watching:
                raise EffectError(self.reason or "something took the capture's profile hook away")
            watch(previous)
            self.see_the_rest()
            changed = self.copies.put_back()
            if changed:
                raise EffectError(f"{self.start}: {changed}")
            if self.copies.filled:
                raise FilledError(f"{self.start}: {self.copies.filled}")
            return result
        finally:
            watch(previous)
            self.copies.put_back()
            self.age.end()
            if collecting:
                gc.enable()

    def stop(self, reason: str) -> None:
        """End the capture before the effect `reason` happens."""
        self.reason = self.reason or reason
        if not _in_finaliser():
            raise EffectError(reason)

    def profile(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """The profile hook: half of its events are returns, and most calls the project's own."""
        if event == "call":
            if id(frame.f_code) in python_effects:
                self.stop(f"{user_line()}: {frame.f_code.co_qualname} changes Python state")
        elif event != "c_call":
            return
        file = frame.f_code.co_filename
        if _is_own_file(file):
            return
        if _is_ours(frame) or file in _HARMLESS or (file.startswith(_STANDARD) and _serves_us(frame)):
            return
        if event == "call":
            self.see_frame(frame)
        else:
            self.see_builtin(frame, arg)

    def see_builtin(self, frame: types.FrameType, function: Any) -> None:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if name in _MUTATING and isinstance(owner, list | dict | set | types.GeneratorType):
            if gc.is_tracked(owner) and not self.age.is_new(owner):
                self.stop(f"{where}: a {type(owner).__name__} made before the call is changed by {name}")
            return
        module = getattr(function, "__module__", None) or type(owner).__module__
        self.modules.add(module)
        if module in _IMPURE_MODULES or type(owner).__module__ in _IMPURE_MODULES or name in _IMPURE_BUILTINS:
            self.stop(f"{where}: {name} is called")
        if name in _MUTATING and not isinstance(owner, types.ModuleType):
            self.stop(f"{where}: {name} of a {type(owner).__name__} is called")

    def see_frame(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_flags & inspect.CO_GENERATOR and not self.age.is_new_generator(frame):
            self.stop(
                f"{Path(code.co_filename).name}:{frame.f_lineno}: a generator made before the call goes on"
            )
        if code in self.codes:
            return
        self.start = self.start or f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        effect = _effect_of(code)
        if effect is not None:
            self.stop(effect)
        self.codes.add(code)
        scope = frame.f_globals
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval in scope:
                self.see_name(scope, instruction.argval, code)
        for name in (*code.co_freevars, *code.co_varnames[: code.co_argcount]):
            if name in frame.f_locals:
                self.see_object(frame.f_locals[name], code)

    def see_name(self, scope: dict[str, Any], name: str, code: types.CodeType) -> None:
        value = scope[name]
        self.names[id(scope), name] = (scope, name, self.look(value, name, code))
        self.see_object(value, code)

    def look(self, value: Any, name: str, code: types.CodeType) -> Any:
        """The snapshot of a value that recorded code may read; stops at what can change unseen."""
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        self.require_readable(value, name, where)
        try:
            return snapshot(value)
        except TooLargeError:
            self.stop(f"{where}: {name} holds more than {MOST_ITEMS} items")

    def require_readable(self, value: Any, name: str, where: str) -> None:
        """Stop at a value that can change unseen."""
        if isinstance(value, types.ModuleType) and not _is_readable(value):
            self.stop(f"{where}: module {value.__name__} is used")
        if arrays.is_array(value):
            self.stop(
                f"{where}: the NumPy array {name} is read, and its elements may change: make it a tensor"
            )
        bound = isinstance(value, types.BuiltinMethodType | types.MethodType)
        owner = value.__self__ if bound else value
        if type(owner).__module__.startswith(("numpy.random", "random", "_random")):
            self.stop(f"{where}: the random generator {name} is used")
        if hasattr(type(value), "__next__"):
            self.stop(f"{where}: the iterator {name} is used")
        if isinstance(value, _UNSEEN_KINDS):
            words = next(text for kind, text in _UNSEEN.items() if isinstance(value, kind))
            self.stop(f"{where}: {words.format(name)}")

    def see_arguments(self, arguments: Iterable[Any]) -> None:
        """Note the containers that a call is given: their items are part of its key, changes are not."""
        for x in arguments:
            if isinstance(x, Tensor):
                self.given.add(id(x))
            elif isinstance(x, list | tuple | dict):
                if not isinstance(x, tuple):
                    self.copies.note(x)
                self.see_arguments(x.values() if isinstance(x, dict) else x)
            elif isinstance(x, set | deque):
                self.stop(f"an argument is a {type(x).__name__}, whose items may change: pass a tuple")
            elif not isinstance(x, SIMPLE):
                self.require_readable(x, "of an argument", "in the call")

    def see_the_rest(self) -> None:
        """Note the attributes that any code named of every object met, however it came there."""
        if not self.codes:
            return
        names = {name for code in self.codes for name in code.co_names}
        self.asked = frozenset().union(*map(attributes_of, self.codes))
        self.touched = getattr(ambient.tracer, "touched", {})
        at, code = 0, next(iter(self.codes))
        while at < len(self.kept):
            self.see_object(self.kept[at], code, names)
            at += 1

    def see_items(self, value: Any, code: types.CodeType, names: Collection[str] | None) -> None:
        """`see_object` of what a container holds."""
        if isinstance(value, CONTAINERS) and not self.age.is_new(value):
            self.copies.note(value)
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        for item in list(value.values() if isinstance(value, dict) else value):
            if not isinstance(item, (Tensor, *SIMPLE)):
                self.require_readable(item, f"in a {type(value).__name__}", where)
                self.see_object(item, code, names)

    def see_object(self, value: Any, code: types.CodeType, names: Collection[str] | None = None) -> None:
        """Note every attribute the code names that this object, or its class, has; and what a function closes
        over. With `names`, those in place of the code's.
        """
        key = id(value), code if names is None else None
        if key in self.seen or isinstance(value, SIMPLE):
            return
        self.seen.add(key)
        self.kept.append(value)
        if isinstance(value, types.FunctionType | types.MethodType):
            self.see_function(value)
        elif isinstance(value, types.ModuleType):
            self.see_module(value, code)
            return
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            if not isinstance(value.__self__, types.ModuleType):
                self.see_object(value.__self__, code, names)
        elif isinstance(value, partial):
            self.see_items((value.func, *value.args, *value.keywords.values()), code, names)
        elif isinstance(value, (*CONTAINERS, tuple, frozenset)):
            self.see_items(value, code, names)
        named = code.co_names if names is None else names
        self.see_attributes(value, code, list(dict.fromkeys(named)), names)

    def see_module(self, module: types.ModuleType, code: types.CodeType) -> None:
        """Note the names of a module that the code names."""
        if not _is_own_name(module.__name__) and module.__name__ not in _HARMLESS_MODULES:
            for name in code.co_names:
                if name in vars(module) and (id(vars(module)), name) not in self.names:
                    self.see_name(vars(module), name, code)

    def see_attributes(
        self, value: Any, code: types.CodeType, names: list[str], also: Collection[str] | None
    ) -> None:
        kind = value if isinstance(value, type) else type(value)
        if any(type(base.__dict__.get("__del__")) is types.FunctionType for base in kind.__mro__):
            self.stop(f"{Path(code.co_filename).name}:{code.co_firstlineno}: {kind.__name__} has a finaliser")
        if not isinstance(value, type):
            self.see_own(value, code, also)
        if isinstance(value, Optimizer) and not _OPTIONS.isdisjoint(names):
            self.optimizers[id(value)] = (value, options_of(value))
        if not isinstance(value, type) and not is_own_class(kind):
            held = _namespace(value)
            # Modules that were called are guarded whole, by one counter.
            known = also is not None and id(value) in self.touched and isinstance(value, Module)
            if not isinstance(value, Module | Optimizer | Tensor):
                self.copies.note(held, is_namespace=True)
            if isinstance(value, _WRAPPERS):
                names = [*names, *held]
            for name in names:
                # What the class defines and the instance does not hide counts too: an assignment would hide
                # it.
                if not known and (name in held or any(name in base.__dict__ for base in kind.__mro__)):
                    seen = self.look(held.get(name, GONE), name, code)
                    self.attributes[id(value), name] = value, name, seen
                if name in held:
                    self.see_object(held[name], code, also)
        meta: Any = type(value)
        bases = (*kind.__mro__, *meta.__mro__) if isinstance(value, type) else kind.__mro__
        for base in bases:
            if base.__module__ == "builtins" or is_own_class(base):
                continue
            for name in names:
                if name not in base.__dict__:
                    continue
                seen = base.__dict__[name]
                self.attributes[id(base), name] = (base, name, self.look(seen, name, code))
                if isinstance(seen, types.MemberDescriptorType) and isinstance(value, base):
                    now = slot_of(seen, value)
                    self.slots[id(value), name] = seen, value, self.look(now, name, code)
                    seen = now
                self.see_object(seen, code, also)

    def see_own(self, value: Any, code: types.CodeType, also: Collection[str] | None) -> None:
        """See that what code asks of an object of this project is guarded: our own Python is not observed."""
        tracer = ambient.tracer
        asked = attributes_of(code) if also is None else self.asked
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        if isinstance(value, Module):
            for module in value.modules():
                if tracer is not None:
                    tracer.touch(module)
                for name in module.runtime_numbers & asked:
                    held = vars(module).get(name, GONE)
                    self.attributes[id(module), name] = module, name, self.look(held, name, code)
        elif isinstance(value, Tensor) and asked and value._data is not None and id(value) not in self.given:
            if asked & _PASSING:
                self.stop(f"{where}: {min(asked & _PASSING)} of a tensor is read, which may change")
            if tracer is not None:
                tracer.touch(value)
            for name in asked & {name for name in vars(value) if not name.startswith("_")}:
                self.attributes[id(value), name] = value, name, self.look(vars(value)[name], name, code)
        if not is_own_class(type(value)) or isinstance(value, (Module, *_UNCHANGING)):
            return
        asked &= {"state"} if isinstance(value, Optimizer) else set(dir(value))
        if asked or hasattr(type(value), "__getitem__") or hasattr(type(value), "__iter__"):
            words = f"{min(asked)} of a" if asked else "a"
            self.stop(f"{where}: {words} {type(value).__name__} is read, which may change")

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
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.look(default, "a default argument", function.__code__)
            self.see_object(default, function.__code__)
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # a name bound later
                continue
            self.cells[id(cell)] = (cell, self.look(held, "in a closure", function.__code__))
            self.see_object(held, function.__code__)


def options_of(optimizer: Optimizer) -> Any:
    """The options of every parameter group, as a snapshot."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return snapshot(groups)


def slot_of(descriptor: Any, value: Any) -> Any:
    """What an object has in a slot."""
    try:
        return descriptor.__get__(value)
    except AttributeError:
        return GONE


def _namespace(value: Any) -> dict[str, Any]:
    """The attributes of an object, past what its class overrides."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def is_standard(code: types.CodeType) -> bool:
    """Whether code is of the standard library or NumPy."""
    return code.co_filename.startswith(_STANDARD)


def _is_readable(module: types.ModuleType) -> bool:
    """Whether a module's names can be guarded and its calls seen: ours, known ones, and the user's own Python
    files.
    """
    if _is_own_name(module.__name__) or module.__name__ in _HARMLESS_MODULES:
        return True
    file = getattr(module, "__file__", None) or ""
    return file.endswith(".py") and not file.startswith(_STANDARD) and "site-packages" not in file


def is_own_class(kind: type) -> bool:
    """Whether a class is this project's."""
    return _is_own_name(kind.__module__)


def _is_own_name(module: str) -> bool:
    return module.split(".")[0] in ("framework", "compiler", "kernels")
