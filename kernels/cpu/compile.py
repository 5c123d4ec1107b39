"""A source file to object code for this host. Imported only when the cache has no object: it loads Numba.

Knows nothing of specs: Python over the words of `kernels.cpu.vocabulary` goes in, machine code comes out.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm

from kernels.cpu.frontend import Module

# Kernels are vectors in loops already: LLVM's own pipeline makes them no faster and takes four times as long.
_PASSES = (
    "always_inliner", "sroa", "simplify_cfg", "instruction_combine", "loop_rotate",
    "instruction_combine", "new_gvn", "dead_code_elimination", "simplify_cfg",
)  # fmt: skip


def compile_source(path: Path, function: str) -> tuple[str, bytes]:
    """Compile `function` of the module file `path`, with what it calls there; all take 64-bit integers.

    A function annotated `-> int` returns one too. Gives the symbol to call, which is the file's name, and the
    object file that defines it.
    """
    return path.stem, _host()[0].emit_object(_optimised(path, function))


def assembly(path: Path, function: str) -> str:
    """What `compile_source` compiles, as assembly."""
    return _host()[0].emit_assembly(_optimised(path, function))


def intermediate(path: Path, function: str) -> str:
    """What `compile_source` compiles, in LLVM's language after its passes."""
    return str(_optimised(path, function))


def _optimised(path: Path, function: str) -> Any:
    """The module of LLVM that machine code is made of."""
    name = path.stem
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None, f"{path} is not a Python file"
    python = importlib.util.module_from_spec(found)
    sys.modules[name] = python  # Numba looks a function's module up by name
    found.loader.exec_module(python)
    module = Module(name)
    _add(module, getattr(python, function), name)
    return _passed(module)


def _add(module: Module, function: FunctionType, symbol: str | None = None) -> None:
    """Add a function after those of its file that it calls."""
    for name in function.__code__.co_names:
        used = function.__globals__.get(name)
        if not isinstance(used, FunctionType) or used.__module__ != function.__module__:
            continue
        if used not in module.functions:
            _add(module, used)
    module.add(function, function.__annotations__.get("return") in (int, "int"), symbol)


@cache
def _host() -> tuple[Any, Any, str, str]:
    """Target machine, pass builder, data layout and triple of the host."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    triple = llvm.get_process_triple()
    reloc = "static" if triple.startswith("x86") else "default"
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, reloc=reloc, jit=True)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    return machine, builder, str(machine.target_data), triple


def _passed(module: Module) -> Any:
    _, builder, layout, triple = _host()
    module.ir.triple, module.ir.data_layout = triple, layout
    made = llvm.parse_assembly(str(module.ir))
    made.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(made, builder)
    return made
