"""A kernel in a file: its spec as text, its sizes and its memory, as JSON that people can read and change.

    {"form": "tracefuse kernel 1", "spec": ["loop add(row0) vector rows", "  p0: float32[1]", ...],
     "extents": [1000], "strides": [[1], [1], [1]], "index_strides": [0, 0, 0], "parts": 0, "serial": false,
     "memory": [0, 1, 2], "offsets": [0, 0, 0], "sizes": [1000, 1000, 1000]}

Knows nothing of graphs, and runs nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.blocks import AnyWork
from kernels.dtypes import DType
from kernels.errors import SpecError
from kernels.spec import Index, Load, MatmulSpec, Reduce, Store
from kernels.text import parse
from kernels.work import Work

FORM = "tracefuse kernel 1"


@dataclass(frozen=True)
class Placed:
    """A kernel and the memory it runs on, in elements.

    Operand i starts at `offsets[i]` in memory number `memory[i]`, which has `sizes[memory[i]]` elements;
    operands may share memory. An operand that is only counted with (`Index`) has memory -1.
    """

    work: Work
    memory: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Element type of each memory."""
        found = {m: o.dtype for m, o in zip(self.memory, self.work.spec.operands, strict=True)}
        return tuple(found[number] for number in range(len(self.sizes)))


def placed(work: Work) -> Placed:
    """`work` with memory of its own for each operand, just large enough.

    Raises SpecError where an index decides how large that is: such a `Placed` is made by hand.
    """
    counted = {s.operand for s in work.spec.steps if isinstance(s, Index)}
    indexed = {s.operand for s in work.spec.steps if isinstance(s, Load | Store) and s.index is not None}
    if indexed:
        raise SpecError(f"{work.spec.name} indexes operands {sorted(indexed)}: say how large they are")
    memory, offsets, sizes = [], [], []
    for number in range(len(work.spec.operands)):
        low, high = reach(work, number)
        memory.append(-1 if number in counted else len(sizes))
        offsets.append(0 if number in counted else -low)
        if number not in counted:
            sizes.append(high - low + 1)
    return Placed(work, tuple(memory), tuple(offsets), tuple(sizes))


def walked(work: AnyWork, operand: int) -> tuple[int, ...]:
    """The extents that an operand's strides go with: a factor of a product has not all of them."""
    spec, extents = work.spec, work.extents
    if not isinstance(spec, MatmulSpec):
        return extents
    batch, (m, n, *k) = extents[: spec.batch], extents[spec.batch :]
    return (*batch, *((m, *k), (*k, n), (m, n))[min(operand, 2)])


def reach(work: AnyWork, operand: int) -> tuple[int, int]:
    """The lowest and the highest element of an operand that the loop's indices lead to."""
    steps = [s * (n - 1) for s, n in zip(work.strides[operand], walked(work, operand), strict=True) if n]
    if any(isinstance(s, Reduce) and s.operand == operand for s in work.spec.steps):
        steps.append(work.index_strides[operand] * (max(work.parts, 1) - 1))
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)


def save(kernel: Work | Placed, path: str | Path) -> None:
    """Write a kernel to a file."""
    kernel = placed(kernel) if isinstance(kernel, Work) else kernel
    work = kernel.work
    content = {
        "form": FORM,
        "spec": str(work.spec).splitlines(),
        "extents": work.extents,
        "strides": work.strides,
        "index_strides": work.index_strides,
        "parts": work.parts,
        "serial": work.serial,
        "memory": kernel.memory,
        "offsets": kernel.offsets,
        "sizes": kernel.sizes,
    }
    lines = [f"  {json.dumps(name)}: {_value(value)}" for name, value in content.items()]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _value(value: Any) -> str:
    """JSON on one line, but a list of texts with a line for each."""
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"    {json.dumps(line)}" for line in value) + "\n  ]"
    return json.dumps(value)


def load(path: str | Path) -> Placed:
    """The kernel that `save` wrote. Raises SpecError when the file is none, or would leave its memory."""
    try:
        content = json.loads(Path(path).read_text())
        if content["form"] != FORM:
            raise SpecError(f"{path} has the form {content['form']!r}, not {FORM!r}")
        work = Work(
            parse("\n".join(content["spec"])),
            tuple(content["extents"]),
            tuple(tuple(s) for s in content["strides"]),
            tuple(content["index_strides"]),
            content["parts"],
            content["serial"],
        )
        memory, offsets, sizes = (tuple(content[name]) for name in ("memory", "offsets", "sizes"))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise SpecError(f"{path} is no kernel: {error!r}") from error
    kernel = Placed(work, memory, offsets, sizes)
    _check(kernel)
    return kernel


def _check(kernel: Placed) -> None:
    """What the spec's structure says of sizes and strides holds, and no operand leaves its memory."""
    work = kernel.work
    spec, name = work.spec, work.spec.name
    count = len(spec.operands)
    if len(work.extents) != spec.axes or min(work.extents, default=0) < 0:
        raise SpecError(f"{name} has {spec.axes} axes, not the extents {list(work.extents)}")
    if {len(x) for x in (work.strides, work.index_strides, kernel.memory, kernel.offsets)} != {count}:
        raise SpecError(f"{name} has {count} operands: strides, memory and offsets need one entry for each")
    for number, operand in enumerate(spec.operands):
        given = work.strides[number]
        fits = len(given) == len(operand.strides) and all(
            isinstance(s, str) or s == g for s, g in zip(operand.strides, given, strict=True)
        )
        if not fits:
            raise SpecError(f"{name}: strides {list(given)} of p{number} do not fit {operand}")
        if kernel.memory[number] < 0 or 0 in work.extents:
            continue
        low, high = (kernel.offsets[number] + x for x in reach(work, number))
        if low < 0 or high >= kernel.sizes[kernel.memory[number]]:
            raise SpecError(f"{name}: p{number} leaves its memory: elements {low} to {high}")
