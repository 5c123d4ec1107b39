"""A launch to machine code for one architecture, kept in the disk cache by content.

Needs Triton only for what the cache does not have: a process that finds its kernels there loads no compiler.
Knows nothing of specs, and of no device: any architecture can be compiled for anywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache as once
from importlib import metadata
from typing import Any

from kernels import cache
from kernels.errors import BuildError
from kernels.gpu.code import Code
from kernels.gpu.inspection import inspect
from kernels.gpu.launch import Launch, functions
from kernels.memory import uncollected

# What reports and tests compile for: Ampere, Hopper and Blackwell of NVIDIA, CDNA 3 of AMD.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942")
# Registers of an NVIDIA processor, of which a thread has at most so many.
REGISTERS, MOST_REGISTERS = 65536, 255
# The function of a launch's source that is the kernel, and the form of cache files.
KERNEL, FORM = "kernel", 2
MISSING = (
    "{name} for {architecture} is not in the kernel cache, and compiling it needs Triton, which is not "
    "installed: pip install 'tracefuse[gpu]' (Linux on x86-64 or ARM)"
)
_NVIDIA, _AMD = re.compile(r"sm_(\d+)"), re.compile(r"gfx(\d+)[0-9a-f]{2}")
# Triton's settings belong to the process: one thread at a time changes them.
_SETTINGS = threading.Lock()


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
    codes = []
    for made in attempts(requests, threads):
        if isinstance(made, BuildError):
            raise made
        codes.append(made)
    return codes


def attempts(requests: Sequence[tuple[Launch, str]], threads: int | None = None) -> list[Code | BuildError]:
    """As `compile_all`, with the error in place of the code of what does not compile."""
    names = [digest(*request) for request in requests]
    found: dict[str, Code | BuildError] = {
        name: code for name in dict.fromkeys(names) if (code := cached(name)) is not None
    }
    wanted = {name: r for name, r in zip(names, requests, strict=True) if name not in found}
    if wanted and triton_version() is None:
        found |= {
            name: BuildError(MISSING.format(name=r[0].name, architecture=r[1])) for name, r in wanted.items()
        }
    elif wanted:
        # Python 3.11 before 3.11.8 may fail to parse where a collection lets another thread parse in between.
        with _own_settings(), uncollected(), ThreadPoolExecutor(threads or os.cpu_count()) as workers:
            made = workers.map(lambda item: _attempt(item[0], *item[1]), wanted.items())
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


def _attempt(name: str, launch: Launch, architecture: str) -> Code | BuildError:
    """Compile one launch and put it into the cache."""
    try:
        code = _compile(launch, architecture)
    # Triton fails with exceptions of many kinds.
    except Exception as error:  # noqa: BLE001
        failed = BuildError(f"{launch.name} does not compile for {architecture}: {error}")
        failed.__cause__ = error
        return failed
    cache.write(name, code.as_bytes())
    return code


def _compile(launch: Launch, architecture: str) -> Code:
    """Compile for any device; where the assembler spills to leave registers to other blocks, once more."""
    target = _target(architecture)
    code = _compiled(launch, architecture, target, {})
    if target.backend == "cuda" and inspect(code).spilled:
        most = min(MOST_REGISTERS, REGISTERS // code.threads)
        other = _compiled(launch, architecture, target, {"maxnreg": most})
        code = min(code, other, key=lambda made: inspect(made).spilled)
    return code


def _compiled(launch: Launch, architecture: str, target: Any, more: dict[str, int]) -> Code:
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
    options = {
        # A launch counts warps of 32 threads: the same tile makes accesses of the same width everywhere.
        "num_warps": max(launch.warps * 32 // target.warp_size, 1),
        "num_stages": launch.stages,
        "enable_fp_fusion": not launch.exact,
        **more,
    }
    made = triton.compile(ASTSource(kernel, signature, constants, facts), target=target, options=options)
    kind, text = ("cubin", "ptx") if target.backend == "cuda" else ("hsaco", "amdgcn")
    known = made.metadata
    return Code(
        architecture=architecture,
        function=known.name,
        binary=made.asm[kind],
        assembly=made.asm[text],
        warps=known.num_warps,
        threads=known.num_warps * target.warp_size,
        shared=known.shared,
        types=tuple(p.type for p in launch.parameters),
        scratch=getattr(known, "global_scratch_size", 0) or 0,
        scratch_alignment=getattr(known, "global_scratch_align", 1) or 1,
        triton=triton_version() or "",
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
