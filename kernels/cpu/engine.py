"""Object code to callable addresses: the memory cache, the disk cache and, when both miss, the compiler.

Loads llvmlite alone for kernels that are on disk; Numba only to compile a new one.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernels import cache as disk
from kernels.cpu.target import fingerprint
from kernels.errors import BuildError

_lock = threading.RLock()
_loaded: dict[str, Machine] = {}


@dataclass(frozen=True)
class Machine:
    """A native function: its address, its source, whether the disk had it, and the seconds it took to get."""

    address: int
    source: str
    path: str
    symbol: str
    cached: bool
    seconds: float


@dataclass(frozen=True)
class Request:
    """`function` of module text `source`, kept on disk under `name` and a digest."""

    name: str
    source: str
    function: str

    @property
    def key(self) -> str:
        """Name of the object file: everything that decides its content."""
        text = f"{self.source}\n{self.function} {fingerprint()} {compiler_digest()}"
        return f"{self.name}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def load(request: Request) -> Machine:
    """Machine code of a function; compiled once per host, then read from disk."""
    return load_many([request])[0]


def load_many(requests: Sequence[Request]) -> list[Machine]:
    """Machine code of functions, linked in one go: that takes 2 ms an object otherwise."""
    keys = [r.key for r in requests]
    with _lock:
        missing = {k: r for k, r in zip(keys, requests, strict=True) if k not in _loaded}
        _loaded.update(_load(missing))
        return [_loaded[k] for k in keys]


def _load(missing: dict[str, Request]) -> dict[str, Machine]:
    found: dict[str, tuple[str, bytes, bool, float]] = {}
    for key, request in missing.items():
        begin = time.perf_counter()
        stored = disk.read(f"{key}.o")
        if stored is None:
            symbol, code = _compile(key, request)
        else:
            line, code = stored.split(b"\n", 1)
            symbol = line.decode()
        found[key] = symbol, code, stored is not None, time.perf_counter() - begin
    begin = time.perf_counter()
    addresses = _link([(symbol, code) for symbol, code, _, _ in found.values()])
    each = (time.perf_counter() - begin) / max(len(found), 1)
    folder = disk.folder()
    return {
        key: Machine(address, missing[key].source, str(folder / f"{key}.py"), symbol, cached, seconds + each)
        for (key, (symbol, _, cached, seconds)), address in zip(found.items(), addresses, strict=True)
    }


def _compile(key: str, request: Request) -> tuple[str, bytes]:
    # Numba takes 0.4 s to import: only a kernel never seen before pays.
    from kernels.cpu.compile import compile_source

    path = disk.write(f"{key}.py", request.source.encode())
    symbol, code = compile_source(path, request.function)
    disk.write(f"{key}.o", symbol.encode() + b"\n" + code)
    return symbol, code


@cache
def compiler_digest() -> str:
    """Digest of the back end's own sources: an object compiled by others is not this one's."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _engine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The C library's fmod and friends; LLVM looks in libraries it was told of.
    llvm.load_library_permanently("libm.dylib" if sys.platform == "darwin" else "libm.so.6")
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _link(objects: Sequence[tuple[str, bytes]]) -> list[int]:
    """Addresses of a symbol of each object."""
    import llvmlite.binding as llvm

    engine = _engine()
    for _, code in objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = [engine.get_function_address(symbol) for symbol, _ in objects]
    for (symbol, _), address in zip(objects, addresses, strict=True):
        if not address:
            raise BuildError(f"object code has no symbol {symbol}: clear the cache folder {disk.folder()}")
    return addresses
