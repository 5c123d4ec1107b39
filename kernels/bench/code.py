"""What a spec compiles to: how long that takes, how many bytes it is, how wide its vectors are.

Compiles anew, whatever the cache holds.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from kernels.cpu.compile import assembly, compile_source
from kernels.cpu.runner import source_of
from kernels.dtypes import float32
from kernels.library import LIBRARY
from kernels.spec import LoopSpec, MatmulSpec

# Registers by their name in assembly, widest first, with their bits.
_REGISTERS = ((r"%zmm\d", 512), (r"%ymm\d", 256), (r"%xmm\d", 128), (r"\bv\d+\.\d", 128))


@dataclass(frozen=True)
class Code:
    """Machine code of a kernel: seconds from source to object, Numba loaded; bytes of instructions; bits of
    the widest vector in its assembly, 0 where there is none.
    """

    seconds: float
    size: int
    bits: int


def code(spec: LoopSpec | MatmulSpec) -> Code:
    """Compile a spec and look at the result."""
    _warm()
    return _code(source_of(spec), spec.digest)


@cache
def _code(source: str, digest: str) -> Code:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kernel_{digest}.py"
        path.write_text(source)
        begin = time.perf_counter()
        _, content = compile_source(path, "kernel")
        seconds = time.perf_counter() - begin
        text = assembly(path, "kernel")
    sections = llvm.ObjectFileRef.from_data(content).sections()
    return Code(seconds, sum(s.size() for s in sections if s.is_text()), vector_bits(text))


def vector_bits(text: str) -> int:
    """The widest vector register that assembly names, in bits."""
    return next((bits for register, bits in _REGISTERS if re.search(register, text)), 0)


@cache
def _warm() -> None:
    """Numba's and LLVM's first compilation, which sets them up, is nobody's."""
    spec = LIBRARY["copy"].make(float32, (1,)).work.spec
    _code(source_of(spec), "warm")
