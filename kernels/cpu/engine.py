"""Object code to callable addresses: the memory cache, the disk cache and, when both miss, the compiler.

Loads llvmlite alone for a kernel that is on disk (2 ms); Numba only to compile a new one (0.1 s each, 1 s once).
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernels import cache as disk
from kernels.cpu.target import fingerprint
from kernels.errors import BuildError

_lock = threading.RLock()
_loaded: dict[str, Machine] = {}


@dataclass(frozen=True)
class Machine:
    """One native function: its address, the source it came from, whether the disk had it, and seconds to get it."""

    address: int
    source: str
    path: str
    symbol: str
    cached: bool
    seconds: float


def load(name: str, source: str, function: str, arity: int) -> Machine:
    """Machine code of `function` in module text `source`; compiled once per host, then read from disk."""
    digest = hashlib.sha256(f"{source}\n{function} {fingerprint()}".encode()).hexdigest()[:24]
    with _lock:
        if digest not in _loaded:
            _loaded[digest] = _load(f"{name}_{digest}", source, function, arity)
        return _loaded[digest]


def _load(name: str, source: str, function: str, arity: int) -> Machine:
    begin = time.perf_counter()
    stored = disk.read(f"{name}.o")
    if stored is None:
        # Numba takes 0.4 s to import and 0.6 s to start: only a kernel never seen before pays.
        from kernels.cpu.compile import compile_source

        path = disk.write(f"{name}.py", source.encode())
        symbol, code = compile_source(path, function, arity)
        disk.write(f"{name}.o", symbol.encode() + b"\n" + code)
    else:
        line, code = stored.split(b"\n", 1)
        symbol = line.decode()
    address = _link(symbol, code)
    path = str(disk.folder() / f"{name}.py")
    return Machine(address, source, path, symbol, stored is not None, time.perf_counter() - begin)


@cache
def _engine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The C library's fmod and friends; LLVM looks in libraries it was told of.
    llvm.load_library_permanently("libm.dylib" if sys.platform == "darwin" else "libm.so.6")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _link(symbol: str, code: bytes) -> int:
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise BuildError(f"object code has no symbol {symbol}: clear the cache folder {disk.folder()}")
    return address
