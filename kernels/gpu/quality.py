"""What machine code of a kernel has to be like: no spills, wide accesses, tensor cores, no float64 unasked.

Knows kernels with sizes, launches and what their code is made of; compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels import dtypes
from kernels.blocks import AnyWork, BlockSpec, Total
from kernels.files import walked
from kernels.gpu.block_tiles import of_halves
from kernels.gpu.inspection import LEAST_SHARED, SHARED, Inspection
from kernels.gpu.launch import MOST, Launch
from kernels.gpu.product_tiles import TF32
from kernels.spec import Call, Literal, Load, MatmulSpec, Reduce, Scan, Store
from kernels.traffic import touched

WIDEST = 128
# Of very large arguments CUDA's library takes the remainder by pi / 2 with float64's help, in a branch.
REDUCED = frozenset(("sin", "cos"))
# Fewer elements of an operand come from caches (a bias of each column, a number of each row), or are too few
# for every thread to have 16 bytes.
BULK = 1 << 14


def failures(work: AnyWork, launch: Launch, found: Inspection) -> list[str]:
    """What is wrong with a kernel's machine code, in words; nothing if all is well."""
    return [*_of_resources(found), *_of_instructions(work, launch, found), *_of_widths(work, launch, found)]


def _of_resources(found: Inspection) -> Iterator[str]:
    if found.spilled:
        yield f"{found.spilled} bytes spilled"
    most = SHARED.get(found.architecture, LEAST_SHARED)
    if found.memory > most:
        yield f"{found.memory} bytes of shared memory, and there are {most}"


def _of_instructions(work: AnyWork, launch: Launch, found: Inspection) -> Iterator[str]:
    spec = work.spec
    steps = [s.dtype for s in spec.steps if isinstance(s, Call | Literal | Reduce | Scan)]
    known = any(isinstance(s, Call) and s.function in REDUCED for s in spec.steps)
    if found.wide and not known and dtypes.float64 not in [*steps, *(o.dtype for o in spec.operands)]:
        yield f"{found.wide} float64 instructions"
    if isinstance(spec, MatmulSpec | BlockSpec) and not found.tensor:
        matrices = isinstance(spec, MatmulSpec)
        half = all(o.dtype.compute for o in spec.operands[:2]) if matrices else of_halves(spec)
        if half or f'"{TF32}"' in launch.source:
            yield "no tensor cores"


def _of_widths(work: AnyWork, launch: Launch, found: Inspection) -> Iterator[str]:
    spec = work.spec
    bulk = bulk_operands(work, launch)
    if found.architecture.startswith("sm_"):
        for operand in bulk:
            for access in found.of(operand):
                if access.bits < WIDEST and not _turned(work, launch, found, operand):
                    name = f"p{operand} ({spec.operands[operand].dtype.name})"
                    yield f"{access.count} {access.kind}s of {access.bits} bits of {name}"
    elif len(bulk) == len(spec.operands):
        # The code does not tell operands apart here.
        narrow = {w: n for w, n in found.widths.items() if int(w.split()[1]) < WIDEST}
        if isinstance(spec, MatmulSpec | BlockSpec):
            # Of a matrix core's result, each lane has four neighbours to store: 64 bits of halves.
            narrow.pop("store 64", None)
        if narrow:
            yield "accesses of " + ", ".join(f"{width} bits" for width in narrow)


def _turned(work: AnyWork, launch: Launch, found: Inspection, operand: int) -> bool:
    """Whether the tensor cores need a factor turned on its way to shared memory, element by element: Hopper's
    and Blackwell's take float32 from there along k only.
    """
    spec = work.spec
    if f'"{TF32}"' not in launch.source or found.architecture in ("sm_80", "sm_86", "sm_89"):
        return False
    if isinstance(spec, BlockSpec):
        # What lies along the walked axis is summed over it.
        return any(isinstance(s, Total) and s.operand == operand for s in spec.steps)
    if not isinstance(spec, MatmulSpec) or operand > 1:
        return False
    return spec.operands[operand].strides[-1 if operand == 0 else -2] != 1


def bulk_operands(work: AnyWork, launch: Launch) -> list[int]:
    """Operands of float32 and 16-bit floats of many elements, whose every row starts at a multiple of 16
    bytes and is a multiple of 16 bytes long. What is summed over rows comes column by column.
    """
    spec = work.spec
    others = {s.operand for s in spec.steps if isinstance(s, Load | Store) and s.index is not None}
    others |= {s.operand for s in spec.steps if isinstance(s, Reduce)}
    found = []
    for number, operand in enumerate(spec.operands):
        dtype = operand.dtype
        if number in others or not (dtype is dtypes.float32 or dtype.compute) or touched(work, number) < BULK:
            continue
        lane = MOST // dtype.itemsize
        axes = [
            (size, stride)
            for size, stride in zip(walked(work, number), work.strides[number], strict=True)
            if stride and size > 1
        ]
        rows = [size for size, stride in axes if stride == 1]
        apart = [stride for _, stride in axes if stride != 1]
        # A program has whole rows of a factor, several for each of its warps.
        least = lane if isinstance(spec, BlockSpec) else 32 * lane
        whole = len(rows) == 1 and not any(x % lane for x in (*rows, *apart)) and rows[0] >= least
        if whole and launch.parameters[number].divisibility == MOST:
            found.append(number)
    return found
