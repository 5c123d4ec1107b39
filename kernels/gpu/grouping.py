"""One launch for several loops of the same kind: a table on the device tells its programs whose turn it is.

An optimizer's update of many parameters is one launch so, whatever their sizes: full blocks are done without
a mask, so that accesses are as wide as addresses allow. Pure text and numbers: `kernels.gpu.runner` keeps
tables up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.blocks import AnyWork, BlockWork
from kernels.gpu import loop
from kernels.gpu.axes import collapsed
from kernels.gpu.launch import MOST, Launch, Parameter
from kernels.spec import Load, LoopSpec, Reduce, Scan, Store

# Members of one launch, at most: each program looks at the starts of all of them.
MOST_MEMBERS = 512
# A size for which a loop is cut into blocks of the largest kind; one more, and the last of them is not full.
_LARGE = 1 << 20
# Offsets of more elements need 64 bits.
_MOST_ELEMENTS = 2**31 - 1
# The start of a member that there is not.
_NEVER = 2**62
_forms: dict[str, Form] = {}


@dataclass(frozen=True)
class Form:
    """What loops over one axis have in common: `whole` does a full block, `part` one that is not full."""

    whole: Launch
    part: Launch

    @property
    def pointers(self) -> tuple[Parameter, ...]:
        """Parameters that a member has its own values of, beside its size."""
        return self.part.pointers

    @property
    def width(self) -> int:
        """Places of a member's row in the table: its first program, its pointers, its size."""
        return len(self.pointers) + 2

    @property
    def block(self) -> int:
        """Elements of a program."""
        return dict(self.part.constants)["XBLOCK"]


def form(work: AnyWork) -> Form | None:
    """The form of a loop that may be a member: element by element, over memory without gaps; else None."""
    if isinstance(work, BlockWork):
        return None
    spec = work.spec
    if not isinstance(spec, LoopSpec) or work.parts or work.serial or not 0 < work.elements <= _MOST_ELEMENTS:
        return None
    if any(isinstance(s, Reduce | Scan) or (isinstance(s, Load | Store) and s.index) for s in spec.steps):
        return None
    # Members have sizes of their own in any case.
    flat = collapsed(replace(work, varying=frozenset()))
    spec = flat.spec
    if spec.axes != 1 or any(strides not in ((0,), (1,)) for strides in flat.strides):
        return None
    if spec.digest not in _forms:
        whole, part = (loop.render(replace(flat, extents=(n,))) for n in (_LARGE, _LARGE + 1))
        _forms[spec.digest] = Form(whole, part)
    found = _forms[spec.digest]
    return found if [p.name for p in found.part.parameters[len(found.pointers) :]] == ["n0"] else None


@dataclass(frozen=True)
class Group:
    """Members of `sizes`, and the launch that stands for them.

    The table: the first program of each member, then a row for each: that again, pointers, and its size.
    """

    form: Form
    sizes: tuple[int, ...]
    launch: Launch

    @property
    def head(self) -> int:
        """Starts at the head of the table: a power of two."""
        return _power(len(self.sizes))

    @property
    def length(self) -> int:
        """Places of the table."""
        return self.head + len(self.sizes) * self.form.width

    def cell(self, member: int) -> int:
        """Index in the table of a member's first pointer."""
        return self.head + member * self.form.width + 1

    def table(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The table without pointers."""
        table, width = np.zeros(self.length, np.int64), self.form.width
        table[: self.head] = _NEVER
        start = 0
        for number, size in enumerate(self.sizes):
            row = self.head + number * width
            table[number] = table[row] = start
            table[row + width - 1] = size
            start += _programs(size, self.form.block)
        return table


def group(form: Form, sizes: Sequence[int], alignment: Sequence[int], flags: int = 0) -> Group:
    """Members with addresses that are multiples of `alignment` bytes, as one launch that takes `flags`."""
    aligned = form.part.aligned(alignment)
    names = ["table", *(f"flag{i}" for i in range(flags))]
    lines = ["def kernel(" + ", ".join([*names, "XBLOCK: tl.constexpr", "MEMBERS: tl.constexpr"]) + "):"]
    if flags:
        lines += ["    if " + " | ".join(f"tl.load({name})" for name in names[1:]) + ":", "        return"]
    pointers = aligned.parameters[: len(form.pointers)]
    given = ", ".join(p.name for p in pointers)
    lines += [
        "    program = tl.program_id(0)",
        "    begun = tl.load(table + tl.arange(0, MEMBERS)) <= program",
        f"    row = table + MEMBERS + (tl.sum(begun.to(tl.int32)) - 1) * {form.width}",
        "    turn = (program - tl.load(row)).to(tl.int32)",
        *(f"    {p.name} = {_read(place, p)}" for place, p in enumerate(pointers, 1)),
        f"    n0 = tl.load(row + {form.width - 1}).to(tl.int32)",
        "    if (turn + 1) * XBLOCK <= n0:",
        f"        whole(turn, {given}, {'n0, ' * (len(form.whole.arguments))}XBLOCK)",
        "    else:",
        f"        part(turn, {given}, n0, XBLOCK)",
    ]
    part, whole = form.part.source, form.whole.source
    texts = [
        part.replace("def kernel(", "def part(turn, ").replace("tl.program_id(0)", "turn"),
        whole[whole.index("def kernel(") :]
        .replace("def kernel(", "def whole(turn, ")
        .replace("tl.program_id(0)", "turn"),
        "\n".join(lines) + "\n",
    ]
    launch = Launch(
        f"{form.part.name} of {len(sizes)}",
        "\n\n".join(texts),
        (Parameter("table", "*i64", MOST), *(Parameter(name, "*i1") for name in names[1:])),
        (*form.part.constants, ("MEMBERS", _power(len(sizes)))),
        (sum(_programs(n, form.block) for n in sizes), 1, 1),
        form.part.warps,
        form.part.stages,
        (),
        form.part.exact,
    )
    return Group(form, tuple(sizes), launch)


def _read(place: int, parameter: Parameter) -> str:
    """The text that reads an argument from the row."""
    kind = _TYPES[parameter.type.removeprefix("*")]
    value = f"tl.load(row + {place}).to({f'tl.pointer_type({kind})' if parameter.is_pointer else kind})"
    return f"tl.multiple_of({value}, {parameter.divisibility})" if parameter.divisibility > 1 else value


_TYPES = {
    "i1": "tl.int1", "u8": "tl.uint8", "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32",
    "i64": "tl.int64", "fp16": "tl.float16", "bf16": "tl.bfloat16", "fp32": "tl.float32",
    "fp64": "tl.float64",
}  # fmt: skip


def _programs(size: int, block: int) -> int:
    return -(-size // block)


def _power(count: int) -> int:
    return 1 << max(count - 1, 1).bit_length()
