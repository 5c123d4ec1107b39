"""From the text of a loop's kernel to its launch: parameters with what divides them, and their values.

Knows a loop's sizes and strides by the names that its text has for them; writes no steps.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from kernels.blocks import AnyWork, BlockSpec
from kernels.gpu import vocabulary
from kernels.gpu.launch import MOST, Launch, Parameter, facts
from kernels.source import Source
from kernels.spec import Index, LoopSpec, MatmulSpec

# Offsets of so many elements, and more, have 64 bits: half as many as 32 hold, since the ends of tiles and of
# parts lie beyond them.
WIDE = 2**30


def is_wide(work: AnyWork) -> bool:
    """Whether offsets or sizes of a loop pass 32 bits."""
    reach = [sum(abs(s) * n for s, n in zip(own, work.extents, strict=True)) for own in work.strides]
    jumps = [abs(s) * max(work.parts, 1) for s in work.index_strides]
    return max(map(sum, zip(reach, jumps, strict=True)), default=0) + work.elements >= WIDE


def lane_of(spec: LoopSpec | MatmulSpec | BlockSpec) -> int:
    """Elements of the narrowest floats of a kernel that fill 128 bits."""
    return 128 // min((8 * o.dtype.itemsize for o in spec.operands if o.dtype.is_floating_point), default=32)


def leave_where_set(out: Source, flags: int) -> None:
    """Write the return that is taken where one of so many flags is set."""
    if flags:
        with out.block("if " + " | ".join(f"tl.load(flag{i})" for i in range(flags)) + ":"):
            out.line("return")


def launch(
    work: AnyWork,
    lines: Sequence[str],
    used: Iterable[str],
    constants: Mapping[str, int],
    programs: int,
    warps: int,
    alignment: Sequence[int] | None,
    flags: int,
    more: Mapping[str, int],
) -> Launch:
    """The launch of a kernel whose body is `lines`.

    It names what is `used` of sizes and strides, and of `more`, numbers of its own.
    """
    spec = work.spec
    counted = {s.operand for s in spec.steps if isinstance(s, Index)}
    varies = bool(work.varying)
    known = [facts(a, varies) for a in alignment or [MOST] * len(spec.operands)]
    pointers = [
        Parameter(f"p{i}", *(("i64", 1) if i in counted else (vocabulary.pointer(o.dtype), fact)))
        for i, (o, fact) in enumerate(zip(spec.operands, known, strict=True))
    ]
    pointers += [Parameter(f"flag{i}", "*i1") for i in range(flags)]
    values = {**{f"n{axis}": size for axis, size in enumerate(work.extents)}, **more}
    for number, strides in enumerate(work.strides):
        values |= {f"s{number}_{axis}": stride for axis, stride in enumerate(strides)}
        values[f"s{number}_i"] = work.index_strides[number]
    arguments = {name: values[name] for name in sorted(used)}
    kind = "i64" if is_wide(work) else "i32"
    lane = lane_of(spec)
    integers = [Parameter(name, kind, facts(value, varies, lane)) for name, value in arguments.items()]
    parameters = (*pointers, *integers)
    head = _head([p.name for p in parameters], constants)
    text = "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"
    return Launch(
        spec.name,
        vocabulary.module(spec, text),
        parameters,
        tuple(constants.items()),
        (programs, 1, 1),
        warps,
        1,
        tuple(arguments.values()),
    )


def _head(parameters: Sequence[str], constants: Iterable[str]) -> str:
    """The line, or lines, that begin the function."""
    signature = ", ".join([*parameters, *(f"{name}: tl.constexpr" for name in constants)])
    head = f"def kernel({signature}):"
    if len(head) > 100:
        # A name stays with its annotation.
        wrapped = "\n    ".join(textwrap.wrap(signature.replace(": ", ":\xa0"), 96)).replace("\xa0", " ")
        head = f"def kernel(\n    {wrapped}\n):"
    return head
