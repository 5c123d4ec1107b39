"""What machine code is made of: registers, spills, shared memory, widths of memory accesses, tensor cores.

Reads the cubin's ELF notes and the assembly that came with it, in milliseconds and without another process.
Knows nothing of specs.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernels.gpu.code import Code

# The most bytes of shared memory that a block of these may have; of others, what every GPU since 2020 has.
SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
LEAST_SHARED = 65536
# Attributes in the ELF notes of a cubin.
_REGISTERS, _FRAME = 0x2F, 0x11

_PTX_ACCESS = re.compile(
    r"(?:@!?%p\d+ )?(?P<kind>ld|st|atom|red)\.global(?P<options>[.\w:]*?)"
    r"(?:\.v(?P<count>\d))?\.(?P<type>[bsuf]\d+|f16x2|bf16x2?) +(?P<rest>.*)"
)
_PTX_COPY = re.compile(
    r"cp\.async\.c[ag]\.shared\.global[.\w:]* \[.*?\], \[(?P<address>[^]]*)\], (?P<size>\w+)"
)
_PTX_TENSOR = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[.\w:]*")
_PTX_WIDE = re.compile(r"\.f64\b")
_PTX_LINE = re.compile(
    r"(?:@!?%p\d+ )?(?P<name>[a-z][\w.:]*)\s+(?P<out>\{[^}]*\}|[^,;{]+)(?:,(?P<rest>.*))?;"
)
_PTX_PARAMETER = re.compile(r"\s*\[\w*_param_(\d+)")
_PTX_REGISTER = re.compile(r"%[a-z]+\d+|%tid\.x")
_AMD_ACCESS = re.compile(r"\b(?P<kind>global|buffer|flat)_(?P<what>load|store|atomic)_(?P<type>\w+)")
_AMD_TENSOR = re.compile(r"\bv_(?:s?mfmac?|wmma)_\w+")
_AMD_WIDE = re.compile(r"\bv_\w+_f64\w*")
_AMD_BITS = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32, "b128": 128, "b64": 64, "b32": 32}


@dataclass(frozen=True)
class Access:
    """Instructions of one kind (load, store, copy to shared memory, atomic) and width that access memory.

    `parameter` is the number of the kernel's pointer, -1 where that is not known. `uniform`: all threads
    access one address, as for a number that is the same everywhere.
    """

    kind: str
    parameter: int
    bits: int
    uniform: bool
    count: int


@dataclass(frozen=True)
class Inspection:
    """What one kernel's machine code is made of. `spilled`: bytes of a thread's registers put into memory;
    `memory`: bytes of shared memory of a block; `tensor`: instructions of tensor cores; `wide`: number of
    float64 instructions.
    """

    architecture: str
    registers: int
    spilled: int
    memory: int
    threads: int
    accesses: tuple[Access, ...]
    tensor: dict[str, int]
    wide: int

    @property
    def widths(self) -> dict[str, int]:
        """Number of accesses of each kind and width where threads have addresses of their own."""
        found: Counter[str] = Counter()
        for access in self.accesses:
            if not access.uniform:
                found[f"{access.kind} {access.bits}"] += access.count
        return dict(sorted(found.items()))

    def of(self, parameter: int) -> tuple[Access, ...]:
        """The accesses to one pointer at addresses that differ between threads."""
        return tuple(a for a in self.accesses if a.parameter == parameter and not a.uniform)

    def as_json(self) -> dict[str, Any]:
        """Everything, for a report."""
        return asdict(self) | {"widths": self.widths}


def inspect(code: Code) -> Inspection:
    """Look at machine code for any architecture."""
    return _nvidia(code) if code.architecture.startswith("sm_") else _amd(code)


# NVIDIA -------------------------------------------------------------------------------------------


def _nvidia(code: Code) -> Inspection:
    notes = dict(_notes(code.binary))
    return Inspection(
        code.architecture,
        notes.get(_REGISTERS, 0),
        notes.get(_FRAME, 0),
        code.shared,
        code.threads,
        _ptx_accesses(code.assembly),
        dict(sorted(Counter(_PTX_TENSOR.findall(code.assembly)).items())),
        len(_PTX_WIDE.findall(code.assembly)),
    )


def _notes(cubin: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, number) of a cubin's notes: the ELF section `.nv.info` is a list of records, each of a byte
    of form, a byte of attribute and a size; form 4 is followed by that many bytes, a symbol and a number.
    """
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    for name, _, _, _, start, length in sections:
        at = sections[names][4] + name
        if cubin[at : cubin.index(b"\0", at)] != b".nv.info":
            continue
        place = start
        while place < start + length:
            form, attribute, extent = struct.unpack_from("<BBH", cubin, place)
            place += 4
            if form == 4:
                if extent == 8:
                    yield attribute, struct.unpack_from("<II", cubin, place)[1]
                place += extent


def _ptx_accesses(assembly: str) -> tuple[Access, ...]:
    lines = [line.strip() for line in assembly.splitlines()]
    origin = _origins(lines)
    found: Counter[tuple[str, int, int, bool]] = Counter()
    for line in lines:
        if match := _PTX_COPY.search(line):
            kind, bits, address = "copy", 8 * int(match["size"], 0), match["address"]
        elif match := _PTX_ACCESS.search(line):
            kind = {"ld": "load", "st": "store"}.get(match["kind"], "atomic")
            bits = int(re.sub(r"\D", "", match["type"][:4].rstrip("x"))) * int(match["count"] or 1)
            inside = re.search(r"\[([^]]*)\]", match["rest"])
            address = inside[1] if inside else ""
        else:
            continue
        sources = frozenset().union(*(origin.get(r, frozenset()) for r in _PTX_REGISTER.findall(address)))
        pointers = [s for s in sources if s >= 0]
        found[kind, min(pointers, default=-1), bits, _THREAD not in sources] += 1
    return tuple(Access(k, p, b, s, n) for (k, p, b, s), n in sorted(found.items()))


# Where the value of a register comes from: numbers of pointer parameters, and this for the thread's number.
_THREAD = -2


def _origins(lines: list[str]) -> dict[str, frozenset[int]]:
    """What each PTX register is computed from, not counting what was loaded from memory and predicates."""
    pointers: set[int] = set()
    edges: dict[str, set[str]] = {}
    origin: dict[str, frozenset[int]] = {"%tid.x": frozenset({_THREAD})}
    for line in lines:
        if match := re.match(r"\.param \.u64 \.ptr .*_param_(\d+)", line):
            pointers.add(int(match[1]))
        match = _PTX_LINE.match(line)
        if match is None or match["rest"] is None or match["name"].startswith(("st", "red", "bra", "bar")):
            continue
        outs, name = _PTX_REGISTER.findall(match["out"]), match["name"]
        if name.startswith("ld.param") and (parameter := _PTX_PARAMETER.match(match["rest"])):
            origin |= dict.fromkeys(outs, frozenset({int(parameter[1])} & pointers))
        elif name.startswith(("ld.global", "atom")):
            # An address that was read, or computed from what was read, belongs to each thread.
            origin |= dict.fromkeys(outs, frozenset({_THREAD}))
        else:
            for out in outs:
                edges.setdefault(out, set()).update(_PTX_REGISTER.findall(match["rest"]))
    changed = True
    while changed:
        changed = False
        for out, inputs in edges.items():
            before = origin.get(out, frozenset())
            after = before.union(*(origin.get(i, frozenset()) for i in inputs))
            if after != before:
                origin[out], changed = after, True
    return origin


# AMD ----------------------------------------------------------------------------------------------


def _amd(code: Code) -> Inspection:
    def number(key: str) -> int:
        match = re.search(rf"\.{key}:\s+(\d+)", code.assembly)
        return int(match[1]) if match else 0

    found: Counter[tuple[str, int]] = Counter()
    for match in _AMD_ACCESS.finditer(code.assembly):
        kind, bits = match["what"], match["type"]
        width = next((n for name, n in _AMD_BITS.items() if name in bits), 16 if "short" in bits else 8)
        found[kind, width] += 1
    # Scalar registers are spilled into vector registers, not into memory.
    spilled = 4 * number("vgpr_spill_count")
    return Inspection(
        code.architecture,
        number("vgpr_count"),
        max(spilled, number("private_segment_fixed_size")),
        code.shared,
        code.threads,
        tuple(Access(kind, -1, bits, False, n) for (kind, bits), n in sorted(found.items())),
        dict(sorted(Counter(_AMD_TENSOR.findall(code.assembly)).items())),
        len(_AMD_WIDE.findall(code.assembly)),
    )
