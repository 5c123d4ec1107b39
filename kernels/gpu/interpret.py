"""Run a launch in Triton's interpreter, on host memory, with every access checked.

Needs no GPU, and gives what a GPU would: but that functions have NumPy's rounding, sums another order, and
products of float32 are never TF32. Knows launches; knows neither specs nor programs of several kernels.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from kernels.gpu import repairs
from kernels.gpu.checked import Memory
from kernels.gpu.launch import Launch, functions

_depth = 0
_INTEGERS = {"i32": np.int32, "i64": np.int64}


def run(launch: Launch, pointers: Sequence[int], memory: Memory) -> None:
    """Run every program of a launch on operands and flags at `pointers`, all of them in arrays of `memory`.

    Raises OutOfBoundsError for an access outside all arrays, and HazardError where the order of programs or
    threads would matter.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    kernel = _kernel(launch.source)
    width, height, depth = launch.grid
    with interpreting(), np.errstate(all="ignore"):
        values = zip(launch.parameters, launch.values(pointers), strict=True)
        arguments = [_argument(p.type, value) for p, value in values]
        builder.memory = memory  # type: ignore[attr-defined]
        builder.set_grid_dim(*launch.grid)
        memory.begin(math.prod(launch.grid))
        for place in itertools.product(range(width), range(height), range(depth)):
            builder.set_grid_idx(*place)
            memory.next_program()
            kernel(*arguments, **dict(launch.constants))


@contextmanager
def interpreting() -> Iterator[None]:
    """Inside, Triton's language runs on NumPy arrays and nothing compiles; nests.

    Entering takes some milliseconds: hold it open over many launches.
    """
    global _depth
    with ExitStack() as undo:
        if _depth == 0:
            _enter(undo)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1


def _enter(undo: ExitStack) -> None:
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    for owner in [*_language(), tl.tensor]:
        for name, value in list(vars(owner).items()):
            if isinstance(value, JITFunction):
                _put(undo, owner, name, _interpreted(value.fn))
    for owner, name, value in repairs.replacements():
        _put(undo, owner, name, value)
    # The language is made NumPy's here once, for a function that sees it, and not for each that is called.
    seen = {"tl": tl, "core": tl.core}
    undo.callback(interpreter._patch_lang(FunctionType(_put.__code__, seen)).restore)
    _put(undo, interpreter, "_patch_lang", lambda function: None)


def _language() -> list[ModuleType]:
    return [m for name, m in list(sys.modules.items()) if name.startswith("triton.language")]


def _put(undo: ExitStack, owner: Any, name: str, value: object) -> None:
    """Set an attribute until `undo` ends."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


@cache
def _interpreted(function: Any) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function)


@cache
def _kernel(source: str) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return functions(source, lambda f: InterpretedFunction(f).rewrite())["kernel"]


def _argument(kind: str, value: int) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype: Any = tl.str_to_ty(kind, None)
    data = np.array([value], np.uint64 if dtype.is_ptr() else _INTEGERS[kind])
    return tl.tensor(TensorHandle(data, dtype), dtype)
