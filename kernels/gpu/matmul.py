"""A matrix product with sizes as a Triton launch: `tl.dot` over tiles, then the epilogue on each of them.

Pure text, like the loops' module; needs no Triton. A program makes one tile of C. Batch axes that only one
factor has are walked with that factor's rows or columns, so that small products fill tiles: a convolution's
rows are the positions of all images. Each element is summed in the order of k whatever the cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernels import dtypes
from kernels.errors import SpecError
from kernels.files import reach
from kernels.gpu import product_tiles, vocabulary
from kernels.gpu.launch import MOST, Launch, Parameter, facts
from kernels.gpu.product_tiles import EXACT, GROUP, LONG, TF32, Tile, coarse, ranked
from kernels.gpu.steps import Steps
from kernels.gpu.writing import lane_of
from kernels.source import Source
from kernels.spec import BLOCKS, PRODUCT, RUNTIME, Call, Index, Literal, Load, MatmulSpec, Step, Store
from kernels.work import Work

# Up to so many rows (columns) of a product's own, those of the batch are walked with them.
NARROW = 128
# The share of a step along the innermost axis that may be padding before all axes are walked as one.
PADDING = 1 / 4
# Words that a function takes for itself while it computes one element.
INSIDE = {"random_bits": 6}
LARGEST = 2**31 - 1
# Slices of a depth, at most; the least elements of one along a single axis, and what divides them, so that
# accesses of 16-bit floats stay 16 bytes wide.
MOST_SLICES, SHORTEST, EVEN = 256, 128, 8


def render(
    work: Work,
    alignment: Sequence[int] | None = None,
    flags: int = 0,
    tf32: bool = False,
    cut: Tile | None = None,
) -> Launch:
    """The launch of a product. `alignment`: bytes that each operand's address is a multiple of, 16 if not
    given; `tf32`: round float32 factors to ten bits and use tensor cores; `cut`: another tile than the first
    of `cuts`.
    """
    return _Product(work, alignment, flags, TF32 if tf32 else EXACT, cut).launch()


def cuts(work: Work, tf32: bool = False) -> list[Tile]:
    """The tiles that a product may be cut into, the likeliest to be fast first."""
    return _Product(work, None, 0, TF32 if tf32 else EXACT, None).cuts


def slices(work: Work, tf32: bool = False) -> int:
    """Into how many parts of equal length a product's outermost summed axis is worth cutting; 1 for none."""
    product = _Product(work, None, 0, TF32 if tf32 else EXACT, None)
    if product.k < LONG or not work.elements:
        return 1
    outer = work.extents[product.depth[0]]
    counts = (c for c in range(2, MOST_SLICES + 1) if outer % c == 0)
    if len(product.depth) == 1:
        counts = (c for c in counts if outer // c >= SHORTEST and outer // c % EVEN == 0)
    sizes = product.m, product.n, product.k, math.prod(work.extents[x] for x in product.batch)
    return product_tiles.slices(*sizes, product.factor, product.precision, product.live_words(), counts)


def reads(work: Work, launch: Launch) -> tuple[int, int]:
    """How often the programs of a product's launch read each element of A and of B."""
    product, sizes = _Product(work, None, 0, EXACT, None), dict(launch.constants)
    times = [-(-product.n // sizes["COLUMNS"]), -(-product.m // sizes["ROWS"])]
    for operand in (0, 1):
        shared = (work.extents[x] for x in product.batch if product.stride(operand, x) == "0")
        times[operand] *= math.prod(shared)
    return times[0], times[1]


def _renamed(spec: MatmulSpec) -> MatmulSpec:
    """The same product with values of names that the kernel has for nothing else; one register block for all,
    which is the CPU's affair.
    """
    names = {PRODUCT: PRODUCT}
    steps: list[Step] = []
    for step in spec.steps:
        if isinstance(step, Store):
            steps.append(replace(step, value=names[step.value]))
            continue
        if isinstance(step, Call):
            step = replace(step, inputs=tuple(names[x] for x in step.inputs))
        name = names.setdefault(step.out, f"v{len(names)}")
        steps.append(replace(step, out=name))
    return replace(spec, steps=tuple(steps), rows=0, vectors=0, walk=BLOCKS)


class _Product:
    def __init__(
        self, work: Work, alignment: Sequence[int] | None, flags: int, precision: str, cut: Tile | None
    ) -> None:
        spec = work.spec
        if not isinstance(spec, MatmulSpec):
            raise SpecError(f"{spec.name} is no product")
        self.work, self.spec, self.flags = work, _renamed(spec), flags
        self.varies = bool(work.varying)
        self.alignment = [facts(a, self.varies) for a in alignment or [MOST] * len(spec.operands)]
        self.out = Source()
        self.indices = {s.operand for s in spec.steps if isinstance(s, Index)}
        self.group_axes()
        a, b = (o.dtype for o in spec.operands[:2])
        # 16-bit factors are multiplied as they are; all others in the product's type.
        self.factor = a if a is b and a.compute is spec.dtype else spec.dtype
        self.precision = precision if self.factor is dtypes.float32 else EXACT
        self.m, self.n = (math.prod(work.extents[x] for x in axes) for axes in (self.rows, self.columns))
        self.k = math.prod(work.extents[x] for x in self.depth)
        batch = math.prod(work.extents[x] for x in self.batch)
        # Of sizes that vary only the magnitude decides.
        axes = self.rows, self.columns, self.depth, self.batch
        m, n, k, count = (
            coarse(size) if work.varying.intersection(own) else size
            for size, own in zip((self.m, self.n, self.k, batch), axes, strict=True)
        )
        self.cuts = ranked(m, n, k, count, self.factor, self.precision, self.live_words())
        self.cut = cut or self.cuts[0]
        self.programs = batch * -(-self.m // self.cut.rows) * -(-self.n // self.cut.columns)
        inner = work.extents[self.depth[-1]]
        padded = -(-inner // self.cut.depth) * self.cut.depth
        # Steps run along the innermost axis; where it fills them badly, along all axes in a row.
        self.mixed = len(self.depth) > 1 and padded - inner > PADDING * padded
        summed = (self.k if self.mixed else inner) % self.cut.depth
        self.even = summed == 0 and work.varying.isdisjoint(self.depth)
        self.wide = self.largest_offset() > LARGEST

    def group_axes(self) -> None:
        """Which axes a tile's rows and columns run along, and which are a program's own."""
        spec, extents = self.spec, self.work.extents
        m, n = spec.batch, spec.batch + 1
        a, b = (o.strides for o in spec.operands[:2])
        of_rows = [x for x in range(m) if b[x] == 0 and extents[m] < NARROW]
        of_columns = [x for x in range(m) if a[x] == 0 and b[x] != 0 and extents[n] < NARROW]
        self.rows, self.columns = [*of_rows, m], [*of_columns, n]
        self.batch = [x for x in range(m) if x not in of_rows and x not in of_columns]
        self.depth = list(range(n + 1, n + 1 + spec.depth))

    def live_words(self) -> int:
        """The most 4-byte words that the epilogue holds at once of each element of the tile."""
        whole = {PRODUCT: self.spec.dtype.itemsize // 4}
        for step in self.spec.steps:
            match step:
                case Load(out, operand) | Index(out, operand):
                    varies = all(self.terms(operand, axes) for axes in (self.rows, self.columns))
                    dtype = self.spec.operands[operand].dtype
                case Call(out, _, inputs, dtype):
                    varies = any(x in whole for x in inputs)
                case _:
                    continue
            if varies:
                whole[out] = max(dtype.itemsize // 4, 1)
        last = {PRODUCT: 0}
        for number, step in enumerate(self.spec.steps):
            used = step.inputs if isinstance(step, Call) else (step.value,) if isinstance(step, Store) else ()
            last |= dict.fromkeys(used, number)
        live, most = {PRODUCT}, whole[PRODUCT]
        for number, step in enumerate(self.spec.steps):
            if not isinstance(step, Store):
                live.add(step.out)
            inside = INSIDE.get(step.function, 0) if isinstance(step, Call) else 0
            most = max(most, inside + sum(whole.get(name, 0) for name in live))
            live -= {name for name in live if last.get(name, -1) <= number}
        return most

    def largest_offset(self) -> int:
        """The farthest that any operand's element, or a padded row or column, is from its start."""
        ends = (abs(end) for o in range(len(self.spec.operands)) for end in reach(self.work, o))
        return max(*ends, self.m + self.cut.rows, self.n + self.cut.columns, self.k + self.cut.depth)

    # Names and parameters

    def stride(self, operand: int, axis: int) -> str:
        """The text of an operand's stride along a loop axis: a parameter, "1", or "0" where it has none."""
        m, n = self.spec.batch, self.spec.batch + 1
        position: int | None = axis
        if operand == 0 and axis >= n:
            position = None if axis == n else axis - 1
        elif operand == 1 and axis >= m:
            position = None if axis == m else m + self.spec.depth if axis == n else axis - 2
        elif operand > 1 and axis > n:
            position = None
        if position is None:
            return "0"
        stride = self.spec.operands[operand].strides[position]
        return f"s{operand}_{position}" if stride == RUNTIME else str(stride)

    def terms(self, operand: int, axes: Sequence[int], index: str = "i{}") -> str:
        """The offset of an operand along axes whose indices are called `index`; "" where there is none."""
        strides = ((index.format(axis), self.stride(operand, axis)) for axis in axes)
        return " + ".join(i if s == "1" else f"{i} * {s}" for i, s in strides if s != "0")

    def parameters(self) -> tuple[tuple[Parameter, ...], tuple[int, ...]]:
        """The kernel's parameters, and the values of those that are sizes and strides."""
        spec, work = self.spec, self.work
        found = [
            Parameter(f"p{i}", "i64", 1)
            if i in self.indices
            else Parameter(f"p{i}", vocabulary.pointer(operand.dtype), self.alignment[i])
            for i, operand in enumerate(spec.operands)
        ]
        found += [Parameter(f"flag{i}", vocabulary.pointer(dtypes.bool_), 1) for i in range(self.flags)]
        numbers = {f"n{axis}": extent for axis, extent in enumerate(work.extents)}
        numbers |= {f"s{o}_{axis}": work.strides[o][axis] for o, axis in spec.stride_slots}
        kind = "i64" if self.wide else "i32"
        found += [
            Parameter(name, kind, facts(value, self.varies, lane_of(spec))) for name, value in numbers.items()
        ]
        return tuple(found), tuple(numbers.values())

    # The kernel

    def launch(self) -> Launch:
        cut = self.cut
        parameters, arguments = self.parameters()
        constants = (("ROWS", cut.rows), ("COLUMNS", cut.columns), ("DEPTH", cut.depth), ("GROUP", GROUP))
        names = [p.name for p in parameters] + [f"{name}: tl.constexpr" for name, _ in constants]
        with self.out.block(f"def kernel({', '.join(names)}):"):
            self.stop_on_flags()
            self.place()
            self.multiply()
            self.epilogue()
        grid = (self.programs, 1, 1)
        source = vocabulary.module(self.spec, str(self.out))
        return Launch(self.spec.name, source, parameters, constants, grid, cut.warps, cut.stages, arguments)

    def stop_on_flags(self) -> None:
        for number in range(self.flags):
            with self.out.block(f"if tl.load(flag{number}):"):
                self.out.line("return")

    def place(self) -> None:
        """Rows and columns of the program's tile, and the index on every axis but those summed over."""
        line = self.out.line
        line("program = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        for name, axes in (("rows", self.rows), ("columns", self.columns)):
            line(f"{name} = " + " * ".join(f"n{axis}" for axis in axes))
        line("down = (rows + ROWS - 1) // ROWS")
        line("across = (columns + COLUMNS - 1) // COLUMNS")
        if self.batch:
            line("batch = program // (down * across)")
            line("program = program % (down * across)")
            self.split("batch", self.batch)
        line("strip = GROUP * across")
        line("first = program // strip * GROUP")
        line("height = tl.minimum(down - first, GROUP)")
        line("row = (first + program % strip % height) * ROWS + tl.arange(0, ROWS)")
        line("column = program % strip // height * COLUMNS + tl.arange(0, COLUMNS)")
        line("inside_row = (row < rows)[:, None]")
        line("inside_column = (column < columns)[None, :]")
        self.split("row", self.rows, "[:, None]")
        self.split("column", self.columns, "[None, :]")

    def split(self, name: str, axes: Sequence[int], form: str = "", index: str = "i{}") -> None:
        """Write the index on each of some axes, of which `name` walks all, the last one fastest."""
        rest = name
        for number, axis in reversed(list(enumerate(axes))):
            text = f"{rest} % n{axis}" if number else rest
            rest = f"{rest} // n{axis}"
            text = f"({text}){form}" if form and not text.isidentifier() else text + form
            self.out.line(f"{index.format(axis)} = {text}")

    def multiply(self) -> None:
        line, depth = self.out.line, self.depth
        line(f"{PRODUCT} = tl.zeros((ROWS, COLUMNS), dtype={vocabulary.triton(self.spec.dtype)})")
        left = self.terms(0, self.batch + self.rows) or "tl.zeros((ROWS, 1), dtype=tl.int32)"
        right = self.terms(1, self.batch + self.columns) or "tl.zeros((1, COLUMNS), dtype=tl.int32)"
        line(f"left_start = {left}")
        line(f"right_start = {right}")
        line("k = tl.arange(0, DEPTH)")
        *outer, inner = depth
        if self.mixed:
            total = " * ".join(f"n{axis}" for axis in depth)
            with self.out.block(f"for start in range(0, {total}, DEPTH):"):
                self.split("(start + k)", depth, index="k{}")
                self.step([self.terms(o, depth, "k{}") for o in (0, 1)], ["", ""], total)
            return
        if outer:
            line(f"blocks = (n{inner} + DEPTH - 1) // DEPTH")
            steps = " * ".join([*(f"n{axis}" for axis in outer), "blocks"])
            self.out.open(f"for block in range(0, {steps}):")
            line("start = block % blocks * DEPTH")
            self.split("(block // blocks)", outer, index="k{}")
        else:
            self.out.open(f"for start in range(0, n{inner}, DEPTH):")
        offsets = [self.terms(o, [inner], "k") for o in (0, 1)]
        before = [(self.terms(o, outer, "k{}"), self.terms(o, [inner], "start")) for o in (0, 1)]
        self.step(offsets, [" + ".join(filter(None, terms)) for terms in before], f"n{inner}")
        self.out.close()

    def step(self, offsets: Sequence[str], starts: Sequence[str], total: str) -> None:
        """One step of the sum. Of both factors: offsets along k, and from where these count."""
        line = self.out.line
        masks = ["inside_row", "inside_column"]
        if not self.even:
            line(f"inside = k < {total} - start")
            masks = ["inside_row & inside[None, :]", "inside_column & inside[:, None]"]
        for number, (side, form) in enumerate((("left", "[None, :]"), ("right", "[:, None]"))):
            offset = offsets[number] or "k * 0"
            along = f"({offset}){form}" if not offset.isidentifier() else offset + form
            start = f"p{number} + ({starts[number]})" if starts[number] else f"p{number}"
            source = self.spec.operands[number].dtype
            cast = "" if source is self.factor else f".to({vocabulary.triton(self.factor)})"
            line(f"{side} = tl.load({start} + ({side}_start + {along}), mask={masks[number]}, other=0){cast}")
        options = f'input_precision="{self.precision}", out_dtype={vocabulary.triton(self.spec.dtype)}'
        line(f"{PRODUCT} = tl.dot(left, right, {PRODUCT}, {options})")

    def epilogue(self) -> None:
        """The steps on the finished tile; what they load and store lies along its rows and columns."""
        axes = self.spec.batch + 2
        dimension = dict.fromkeys(self.rows, 0) | dict.fromkeys(self.columns, 1)
        index = {axis: f"i{axis}" for axis in range(axes)}
        masks = {0: "inside_row", 1: "inside_column"}
        steps = Steps(self.spec.epilogue, index, dimension, masks, self.out)
        steps.varies[PRODUCT], steps.dtype[PRODUCT] = frozenset((0, 1)), self.spec.dtype
        for step in self.spec.steps:
            match step:
                case Load(index=None) | Literal() | Index() | Call():
                    steps.compute(step)
                case Store(value, operand, None):
                    # Where a stride is 0 there is one row (column), and the mask leaves one value.
                    place, stored = (
                        f"tl.broadcast_to({x}, (ROWS, COLUMNS))" for x in (steps.address(operand), value)
                    )
                    dtype = self.spec.operands[operand].dtype
                    self.out.line(vocabulary.store(place, stored, dtype, "inside_row & inside_column"))
                case _:
                    raise SpecError(f"{self.spec.name}: an epilogue cannot have {step}")
