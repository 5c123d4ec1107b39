"""Machine code of one kernel with what its launcher must know, and its form in a file.

Knows neither how it is made nor how it is launched.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, fields


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
