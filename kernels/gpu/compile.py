"""A launch to machine code for one architecture, kept in the disk cache by content.

Needs Triton only for what the cache does not have: a process that finds its kernels there loads no compiler.
Knows nothing of specs, and of no device: any architecture can be compiled for anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache as once
from importlib import metadata
from typing import Any

from kernels import cache
from kernels.errors import BuildError
from kernels.gpu.launch import Launch, functions

# What reports and tests compile for: Ampere, Hopper and Blackwell of NVIDIA, CDNA 3 of AMD.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
# The function of a launch's source that is the kernel, and the form of cache files.
KERNEL, FORM = "kernel", 1
MISSING = (
    "{name} for {architecture} is not in the kernel cache, and compiling it needs Triton, which is not "
    "installed: pip install 'tracefuse[gpu]' (Linux on x86-64 or ARM)"
)
_NVIDIA, _AMD = re.compile(r"sm_(\d+)"), re.compile(r"gfx(\d+)[0-9a-f]{2}")
# Triton's settings belong to the process: one thread at a time changes them.
_SETTINGS = threading.Lock()


@dataclass(frozen=True)
class Code:
    """Machine code of one kernel, and what its launcher must know.

    The launcher passes what `types` lists in that order, then the addresses of `scratch` bytes a program and
    of nothing (0). `threads` is the size of a block. `assembly` is PTX or AMD's, `triton` the compiler.
    """

    architecture: str
    function: str
    binary: bytes
    assembly: str
    warps: int
    threads: int
    shared: int
    types: tuple[str, ...]
    scratch: int
    scratch_alignment: int
    triton: str

    def as_bytes(self) -> bytes:
        """A line of JSON, the packed assembly, the binary."""
        head = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("binary", "assembly")}
        packed = zlib.compress(self.assembly.encode(), 6)
        return json.dumps(head | {"packed": len(packed)}).encode() + b"\n" + packed + self.binary

    @classmethod
    def from_bytes(cls, content: bytes) -> Code:
        """What `as_bytes` gave."""
        line, _, rest = content.partition(b"\n")
        head = json.loads(line)
        packed = head.pop("packed")
        head["types"] = tuple(head["types"])
        return cls(binary=rest[packed:], assembly=zlib.decompress(rest[:packed]).decode(), **head)


def digest(launch: Launch, architecture: str) -> str:
    """Name of the machine code in the cache: launches that differ only in sizes or in name share it."""
    content = repr((FORM, architecture, launch.code))
    return "gpu_" + hashlib.sha256(content.encode()).hexdigest()[:32]


def compiled(launch: Launch, architecture: str) -> Code:
    """The machine code of a launch. Raises BuildError where it must be compiled and cannot be."""
    return compile_all([(launch, architecture)])[0]


def compile_all(requests: Sequence[tuple[Launch, str]], threads: int | None = None) -> list[Code]:
    """The machine code of several launches, what the cache lacks compiled on `threads` threads (all cores).

    Raises BuildError for the first that fails.
    """
    names = [digest(*request) for request in requests]
    found = {name: code for name in dict.fromkeys(names) if (code := cached(name)) is not None}
    wanted = {name: r for name, r in zip(names, requests, strict=True) if name not in found}
    if wanted:
        launch, architecture = next(iter(wanted.values()))
        if triton_version() is None:
            raise BuildError(MISSING.format(name=launch.name, architecture=architecture))
        with _own_settings(), ThreadPoolExecutor(threads or os.cpu_count()) as workers:
            made = workers.map(lambda item: _build(item[0], *item[1]), wanted.items())
            found |= dict(zip(wanted, made, strict=True))
    return [found[name] for name in names]


def cached(name: str) -> Code | None:
    """Machine code that the cache has under a digest, unless another version of Triton than here made it."""
    content = cache.read(name)
    if content is None:
        return None
    code = Code.from_bytes(content)
    return code if triton_version() in (None, code.triton) else None


@once
def triton_version() -> str | None:
    """The version of Triton that is installed; None where there is none."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def _build(name: str, launch: Launch, architecture: str) -> Code:
    """Compile one launch and put it into the cache."""
    try:
        code = _compile(launch, architecture)
    except Exception as error:  # Triton fails with exceptions of many kinds
        raise BuildError(f"{launch.name} does not compile for {architecture}: {error}") from error
    cache.write(name, code.as_bytes())
    return code


def _compile(launch: Launch, architecture: str) -> Code:
    import triton
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    kernel = functions(launch.source, JITFunction)[KERNEL]
    constants = dict(launch.constants)
    signature = {p.name: p.type for p in launch.parameters} | dict.fromkeys(constants, "constexpr")
    facts = {
        (number,): [["tt.divisibility", p.divisibility]]
        for number, p in enumerate(launch.parameters)
        if p.divisibility > 1
    }
    target = _target(architecture)
    options = {
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "enable_fp_fusion": not launch.exact,
    }
    made = triton.compile(ASTSource(kernel, signature, constants, facts), target=target, options=options)
    kind, text = ("cubin", "ptx") if target.backend == "cuda" else ("hsaco", "amdgcn")
    facts = made.metadata
    return Code(
        architecture,
        facts.name,
        made.asm[kind],
        made.asm[text],
        facts.num_warps,
        facts.num_warps * target.warp_size,
        facts.shared,
        tuple(p.type for p in launch.parameters),
        getattr(facts, "global_scratch_size", 0) or 0,
        getattr(facts, "global_scratch_align", 1) or 1,
        triton.__version__,
    )


def _target(architecture: str) -> Any:
    """Triton's name of an architecture; AMD's have 64 threads a warp up to gfx9, 32 from gfx10 on."""
    from triton.backends.compiler import GPUTarget

    if match := _NVIDIA.fullmatch(architecture):
        return GPUTarget("cuda", int(match[1]), 32)
    if match := _AMD.fullmatch(architecture):
        return GPUTarget("hip", architecture, 64 if int(match[1]) < 10 else 32)
    raise BuildError(f"an architecture is called sm_90 or gfx942, not {architecture!r}")


@contextmanager
def _own_settings() -> Iterator[None]:
    """Triton with a disk cache that is thrown away, since ours keeps what it makes, and without line numbers,
    which are most of a small kernel's file.
    """
    from triton import knobs

    scopes = knobs.cache.scope(), knobs.compilation.scope()
    with _SETTINGS, tempfile.TemporaryDirectory() as folder, scopes[0], scopes[1]:
        knobs.cache.dir, knobs.compilation.disable_line_info = folder, True
        yield
