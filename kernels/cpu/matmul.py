"""A matrix-product spec as Numba source: packing, register blocks, and the epilogue on each finished tile.

Pure text, like `kernels.cpu.loop`; `steps` writes the epilogue and `matmul_words` has the vector
instructions.

A unit of the kernel's range [start, stop) is (batch index, panel of columns, chunk of rows), the chunk
innermost, so that neighbouring units share a packed panel; or, in slices of k, the panel. Each element is one
chain of fused multiply-adds in the order of k (of few rows, a tree of such chains): neither the block, the
packing nor the division into units changes its bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kernels.cpu.steps import Steps
from kernels.source import Source
from kernels.spec import (
    BLOCKS,
    EXPENSIVE,
    KERNEL,
    LINES,
    PACKED,
    PRODUCT,
    RUNTIME,
    SLICES,
    Call,
    MatmulSpec,
    Operand,
    Store,
)

# Rows of one unit. Packing costs as much as 4 rows of products (12 when B comes from afar): 128 keep that
# small even where every unit has a thread of its own.
CHUNK = 128
# With fewer units than this, chunks of an expensive epilogue have so many rows.
FEW_UNITS, SMALL_CHUNK = 4, 32
# Up to so many rows B is better read where it lies: a packed copy pays from the fifth block of 8 rows on. If
# B spans more than this (4 MB of float32), its lines are gone before the second block reads them: 2048 x 1024
# runs at half.
IN_PLACE_ROWS, IN_PLACE_SPAN = 32, 1 << 20
# From so many elements of B on, it is read in place by whole lines if one block has all rows: a quarter of
# the columns a unit, but at least and (bytes of the block) at most so many. 8 x 2048 x 2048 takes 1.5 ms so,
# 3.5 by panels.
SWEEP_FROM, SWEEP_COLUMNS, SWEEP_BYTES = 1 << 16, 256, 1 << 14
# More rows have more factors than registers there are.
SWEEP_ROWS = 8
# From so long a k on, it is done in slices of at most so much: the lines of a strided A, and the rows of a
# chunk, then stay in the cache from one block to the next (with STRIDED_ROWS, 2000 x 2000 x 2000 by a
# transposed A: 181 to 165 ms).
SLICED_FROM, SLICE = 1024, 512
# Most rows of a block whose A is strided: each has a pointer of its own, and more would not fit registers.
# Where A is not, pointers wait in memory: for 26 rows by 32 columns (dx of a convolution) two blocks of 13
# rows take 5 % less than four of 7.
STRIDED_ROWS, MOST_ROWS = 4, 13
# Up to so many rows, and if A's k stride is 1 too, a B whose k stride is 1 is not transposed: dot products
# along k. For a B of 784 x 512 that is 1.5 times as fast at 4 rows and the same at 8.
DOT_ROWS = 6
# A vector load or store that crosses a cache line costs two.
LINE = 64


def render(spec: MatmulSpec, lanes: int) -> str:
    """The source of `spec`'s module for vectors of `lanes` elements."""
    return _Matmul(spec, lanes).module()


def units(spec: MatmulSpec, extents: Sequence[int], lanes: int) -> int:
    """Length of the kernel's range for `extents` (batch.., m, n, k..)."""
    m, n = extents[spec.batch : spec.batch + 2]
    if m == 0 or n == 0:
        return 0
    columns = spec.vectors * lanes
    if spec.walk == LINES:
        columns = min(max(-(-n // 4), SWEEP_COLUMNS), SWEEP_BYTES // (spec.rows * spec.dtype.itemsize))
        columns = -(-columns // lanes) * lanes
    panels = math.prod(extents[: spec.batch]) * -(-n // columns)
    most = SMALL_CHUNK if expensive(spec) and panels < FEW_UNITS else CHUNK
    return panels * -(-m // chunk_rows(spec, m, most))


def chunk_rows(spec: MatmulSpec, m: int, most: int = CHUNK) -> int:
    """Rows of one unit: whole blocks, near `most`."""
    rows = -(-m // max(1, (m + most // 2) // most))
    return -(-rows // spec.rows) * spec.rows


def expensive(spec: MatmulSpec) -> bool:
    """Whether the epilogue takes long: threads should share it even where one could do the product."""
    return any(isinstance(s, Call) and s.function in EXPENSIVE for s in spec.steps)


def scratch_bytes(spec: MatmulSpec, extents: Sequence[int], lanes: int) -> int:
    """Bytes of private scratch memory one thread needs to run `spec`."""
    whole, panel = math.prod(extents[spec.batch + 2 :]), spec.vectors * lanes
    left = max(spec.rows, lanes) * -(-whole // lanes) * lanes if spec.operands[0].dtype.compute else 0
    # A transposed panel is written in whole vectors of k, past the end of each inner axis.
    k = -(-(whole + (lanes if spec.depth > 1 else 0)) // lanes) * lanes
    tiles = chunk_rows(spec, extents[spec.batch]) * panel if spec.walk == SLICES else 0
    return tile_bytes(spec, lanes) + (left + k * panel + tiles) * spec.dtype.itemsize + LINE


def tile_bytes(spec: MatmulSpec, lanes: int) -> int:
    """Bytes of the largest block that waits for the epilogue."""
    columns = spec.vectors * lanes
    if spec.walk == LINES:
        columns = max(SWEEP_BYTES // (spec.rows * spec.dtype.itemsize) + lanes, columns)
    return spec.rows * columns * spec.dtype.itemsize


def walk(
    m: int, n: int, k: Sequence[int], operands: Sequence[Operand], block: tuple[int, int], lanes: int
) -> str:
    """How a product of these sizes, operands (first A and B) and register block is best walked.

    A kernel without the code for reading B in place is compiled in two thirds of the time.
    """
    (rows, vectors), (left, right) = block, operands[:2]
    lines = right.strides[-1] == 1
    usual = len(k) == 1 and left.dtype.compute is None
    if usual and lines and m <= min(rows, SWEEP_ROWS) and n * k[0] >= SWEEP_FROM:
        return LINES
    if m <= IN_PLACE_ROWS or (lines and n == vectors * lanes):
        return BLOCKS
    return SLICES if usual and k[0] >= SLICED_FROM else PACKED


@lru_cache(maxsize=4096)
def block(
    m: int, n: int, lanes: int, float64: bool, many: bool = False, strided: bool = False
) -> tuple[int, int]:
    """The register block (rows, vectors) of an m by n product, one of `many` that threads share: the least
    padded work that fits registers. `strided` says that A's k stride is not 1.
    """
    registers = 32 if lanes == 16 else 16
    size = 2 if float64 else 1  # registers a vector takes
    fitting = [
        (rows, vectors)
        for rows in range(1, 1 + (STRIDED_ROWS if strided and m > IN_PLACE_ROWS else MOST_ROWS))
        for vectors in range(1, 7)
        if (rows * vectors + vectors) * size + 1 <= registers
    ]

    def cost(shape: tuple[int, int]) -> float:
        rows, vectors = shape
        sums = rows * vectors * size
        # Below 8 sums the latency of an addition shows; above 16 a percent is lost to moves; to start a block
        # costs half an instruction a step of k (at 64). Where B is read in place its loads weigh more than
        # A's: 8x2 is 10 % faster than 4x4 on 16 x 512 x 512, and 5 % slower on 256 x 2048 x 2048, packed.
        a, b = (0.03, 0.08) if m <= IN_PLACE_ROWS else (0.05, 0.05)
        step = max(sums, 8) * (1.01 if sums > 16 else 1) + 0.5 + a * rows + b * vectors * size
        panels = -(-max(n, 1) // (vectors * lanes))
        # Threads share panels: a single one keeps all but one of them idle.
        alone = 1.3 if panels == 1 and n >= 2 * lanes and not many else 1.0
        return -(-max(m, 1) // rows) * panels * step * alone

    return min(fitting, key=cost)


@dataclass
class _Matmul:
    spec: MatmulSpec
    lanes: int
    out: Source = field(default_factory=Source)

    def __post_init__(self) -> None:
        spec = self.spec
        self.panel = spec.vectors * self.lanes
        self.sweeps, self.sliced = spec.walk == LINES, spec.walk == SLICES
        # Columns of a unit: a panel, or where B is swept many more.
        self.breadth = "breadth" if self.sweeps else str(self.panel)
        # And of those that are done at once.
        self.reach = "reach" if self.sweeps else self.breadth
        self.left, self.right = spec.factors
        # A and B are loaded by the epilogue's code too: its last two axes are then (m, k) and (k, n).
        self.steps = Steps(spec.epilogue, self.lanes, self.out)
        self.m, self.n = f"n{spec.batch}", f"n{spec.batch + 1}"
        # `k` is the innermost of the axes summed over, `outer` the others.
        *self.outer, self.k = [f"n{spec.batch + 2 + i}" for i in range(spec.depth)]
        self.size = spec.dtype.itemsize
        self.widened = self.left.dtype.compute is not None
        # How many steps of k are done at once.
        self.steps_of_k = "depth" if self.sliced else self.k
        column_stride = self.right.strides[-1]
        self.transposed = self.right.strides[-2] == 1 and column_stride != 1
        blocks = spec.walk == BLOCKS
        self.in_place = blocks and column_stride == 1 and self.right.dtype is spec.dtype
        self.direct = self.stored_as_is()
        self.contiguous = self.left.strides[-2] != 1 if self.widened else self.left.strides[-1] == 1
        # `block` gives no product more rows than it has.
        few = spec.rows <= DOT_ROWS and not self.outer
        self.dots = blocks and self.transposed and self.contiguous and few

    def stored_as_is(self) -> Store | None:
        """The epilogue's only step, when whole tiles can be written where it would store them."""
        match self.spec.steps:
            case (Store(value, operand) as step,) if value == PRODUCT:
                target = self.spec.operands[operand]
                return step if target.dtype is self.spec.dtype and target.strides[-1] == 1 else None
        return None

    # Pieces of text

    def stride(self, operand: int, axis: int) -> str:
        """The stride of A or B along `axis` counted from its end (-2 or -1)."""
        stride = self.spec.epilogue.operands[operand].strides[axis]
        return f"s{operand}_{self.spec.batch + 2 + axis}" if stride == RUNTIME else str(stride)

    def outer_stride(self, operand: int, number: int) -> str:
        """The stride of A or B along an axis outside k."""
        axis = self.spec.batch + number + (1 if operand == 0 else 0)
        stride = self.spec.operands[operand].strides[axis]
        return f"o{operand}_{number}" if stride == RUNTIME else str(stride)

    def stride_name(self, operand: int, axis: int) -> str:
        """The variable of a runtime stride: those of A and B are named as their `factors` have them."""
        first = self.spec.batch + (1 if operand == 0 else 0)
        outer = len(self.outer)
        if operand > 1 or axis < first:
            return f"s{operand}_{axis}"
        return f"o{operand}_{axis - first}" if axis < first + outer else f"s{operand}_{axis - outer}"

    def batch_offset(self, operand: int) -> str:
        strides = self.spec.operands[operand].strides[: self.spec.batch]
        terms = [
            f"i{a} * {f's{operand}_{a}' if s == RUNTIME else s}" for a, s in enumerate(strides) if s != 0
        ]
        return " + ".join(terms) or "0"

    def load_right(self) -> str:
        """A vector of B, along n, in the product's type."""
        source, target = self.right.dtype.arithmetic, self.spec.dtype
        text = self.steps.load(1, None)
        return text if source is target else f"cast_{source.name}_{target.name}({text})"

    # The module

    def module(self) -> str:
        spec = self.spec
        self.kernel()
        body = str(self.out)
        made = {"range", "kernel", "pack_transposed"}
        made |= {f"block_{kind}" for kind in ("packed", "in_place", "swept", "dots")}
        words = sorted(set(re.findall(r"\b([a-z_0-9]+)\(", body)) - made)
        left = "float32" if self.widened else self.left.dtype.name
        shape = f"{spec.rows}, {spec.vectors}, {spec.dtype.name!r}, {left!r}"
        lines = []
        if not self.sweeps:
            onto = f"{spec.depth}, {self.sliced}"
            lines.append(f"block_packed = multiply({shape}, {self.contiguous}, True, {onto})")
        if self.in_place:
            lines.append(f"block_in_place = multiply({shape}, {self.contiguous}, False, {spec.depth})")
        if self.sweeps:
            shape = f"{spec.rows}, {spec.dtype.name!r}, {left!r}"
            lines.append(f"block_swept = sweep({shape}, {self.contiguous})")
        if self.dots:
            lines.append(f"block_dots = dot_panel({shape}, {self.right.dtype.name!r})")
        if self.transposed:
            kinds = f"{spec.dtype.name!r}, {self.right.dtype.name!r}"
            lines.append(f"pack_transposed = transpose_panel({spec.vectors}, {kinds})")
        text = "\n".join(f"#   {line}" for line in str(replace(spec, name="kernel")).splitlines())
        imports = (
            "from math import inf, nan\n\n"
            "from kernels.cpu.matmul_words import dot_panel, multiply, sweep, transpose_panel\n"
            f"from kernels.cpu.vocabulary import {', '.join(words)}\n"
        )
        return f"{imports}\n{text}\n" + "\n".join(lines) + f"\n\n\n{body}"

    def kernel(self) -> None:
        out = self.out
        with out.block("def kernel(table, start, stop, part, scratch):"):
            self.header()
            with out.block(f"for unit in range(start, stop{', span' if self.sweeps else ''}):"):
                self.place_unit()
                if self.sliced:
                    out.open("for number in range(slices):")
                    self.place_slice()
                if not self.sweeps:
                    self.pack()
                self.panels()
                out.close(self.sliced)

    def panels(self) -> None:
        """The unit's rows by one panel."""
        out, spec = self.out, self.spec
        with out.block(f"for top in range(first, end, {spec.rows}):"):
            if self.widened:
                self.widen_left()
            self.prefetch()
            self.multiply()
            conditions = ["number + 1 == slices"] * self.sliced + ["not whole"] * (self.direct is not None)
            if conditions:
                out.open(f"if {' and '.join(conditions)}:")
            self.epilogue()
            out.close(bool(conditions))

    def header(self) -> None:
        out, spec = self.out, self.spec
        for i in range(len(spec.operands)):
            out.line(f"p{i} = entry(table, {i})")
        for axis in range(spec.axes):
            out.line(f"n{axis} = entry(table, {len(spec.operands) + axis})")
        for (operand, axis), slot in spec.stride_slots.items():
            out.line(f"{self.stride_name(operand, axis)} = entry(table, {slot})")
        m, n, rows = self.m, self.n, spec.rows
        most_columns = SWEEP_BYTES // (rows * self.size)
        if self.sweeps:
            out.line(f"breadth = quotient({n} + 3, 4)")
            out.line(f"breadth = breadth if breadth > {SWEEP_COLUMNS} else {SWEEP_COLUMNS}")
            out.line(f"breadth = breadth if breadth < {most_columns} else {most_columns}")
            out.line(f"breadth = quotient(breadth + {self.lanes - 1}, {self.lanes}) * {self.lanes}")
        out.line(f"panels = quotient({n} + {self.breadth} - 1, {self.breadth})")
        many = " * ".join(["panels", *(f"n{axis}" for axis in range(spec.batch))])
        most = str(CHUNK)
        if expensive(spec):
            out.line(f"most = {SMALL_CHUNK} if {many} < {FEW_UNITS} else {CHUNK}")
            most = "most"
        out.line(f"parts = quotient({m} + quotient({most}, 2), {most})")
        out.line("parts = parts if parts > 1 else 1")
        out.line(f"chunk = quotient(quotient({m} + parts - 1, parts) + {rows - 1}, {rows}) * {rows}")
        out.line(f"chunk = chunk if chunk > {rows} else {rows}")
        out.line(f"chunks = quotient({m} + chunk - 1, chunk)")
        if self.sweeps:
            # Neighbouring units are one sweep: longer lines are foreseen better (1 x 1024 x 1024: 58 to 50
            # us).
            alone = " and ".join(["chunks == 1", *(f"n{axis} == 1" for axis in range(spec.batch))])
            out.line(f"span = quotient({most_columns}, breadth) if {alone} else 1")
            out.line("span = span if span > 1 else 1")
        # The tile first: what is as wide as a cache line stays aligned to it.
        out.line(f"tile = (scratch + {LINE - 1}) & {-LINE}")
        out.line(f"packed = tile + {tile_bytes(spec, self.lanes)}")
        whole = " * ".join([*self.outer, self.k])
        out.line(f"padded = quotient({whole} + {self.lanes - 1}, {self.lanes}) * {self.lanes}")
        if self.widened:
            out.line(f"left = packed + padded * {self.panel * self.size}")
        out.line(f"every = mask({self.lanes})")
        out.line("packed_from = 0")
        if self.in_place:
            # `reused`: the unit's panel of B is packed.
            small = f"{whole} * {self.stride(1, -2)} <= {IN_PLACE_SPAN}"
            # Where a panel is all there is of each line, B is packed as it is.
            apart = f"{self.stride(1, -2)} != {self.panel}"
            out.line(f"reused = {m} > {rows} and {apart} and ({m} > {IN_PLACE_ROWS} or not ({small}))")
        elif self.dots:
            out.line(f"reused = {m} > {DOT_ROWS}")
        if self.sliced:
            out.line(f"slices = quotient({self.k} + {SLICE - 1}, {SLICE}) if {self.k} > {SLICE} else 1")
            whole = f"slices * {self.lanes}"
            out.line(f"slice_size = quotient({self.k} + {whole} - 1, {whole}) * {self.lanes}")
            out.line(f"tiles = packed + padded * {self.panel * self.size}")
        for step in spec.steps:
            if not isinstance(step, Store) and spec.epilogue.levels[step.out] == KERNEL:
                self.steps.compute(step)

    def place_slice(self) -> None:
        """First step of k and `depth` of slice `number`, and where A and B begin there."""
        out = self.out
        out.line("slice_start = number * slice_size")
        out.line(f"depth = slice_size if slice_start + slice_size < {self.k} else {self.k} - slice_start")
        left, right = f"slice_start * {self.stride(0, -1)}", f"slice_start * {self.stride(1, -2)}"
        out.line(f"left_slice = left_start + {left} * {self.left.dtype.itemsize}")
        out.line(f"right_slice = right_start + {right} * {self.right.dtype.itemsize}")
        if not self.transposed:
            out.line(f"lines = p1 + {right} * {self.right.dtype.itemsize}")

    def place_unit(self) -> None:
        """Batch indices i0, i1, …, first `column`, and rows `first` to `end` of `unit`."""
        out, spec = self.out, self.spec
        # In slices panels are packed for each unit anyway: neighbours share rows of A.
        inner, outer = ("panels", "chunks") if self.sliced else ("chunks", "panels")
        out.line(f"group = quotient(unit, {inner})")
        out.line(f"flat = quotient(group, {outer})")
        number, place = f"(unit - group * {inner})", f"(group - flat * {outer})"
        panel, part = (number, place) if self.sliced else (place, number)
        out.line(f"column = {panel} * {self.breadth}")
        if self.sweeps:
            out.line("reach = breadth * (span if unit + span < stop else stop - unit)")
        out.line(f"first = {part} * chunk")
        out.line(f"end = first + chunk if first + chunk < {self.m} else {self.m}")
        rest = "flat"
        for axis in reversed(range(1, spec.batch)):
            out.line(f"q{axis} = quotient({rest}, n{axis})")
            out.line(f"i{axis} = {rest} - q{axis} * n{axis}")
            rest = f"q{axis}"
        if spec.batch:
            out.line(f"i0 = {rest}")
        out.line(f"left_start = p0 + ({self.batch_offset(0)}) * {self.left.dtype.itemsize}")
        start = f"{self.batch_offset(1)} + column * {self.stride(1, -1)}"
        out.line(f"right_start = p1 + ({start}) * {self.right.dtype.itemsize}")

    def pack(self) -> None:
        """Copy the unit's panel of B to scratch as [k][columns], unless it is there or read in place."""
        out, spec = self.out, self.spec
        reused = " and reused" if self.in_place or self.dots else ""
        start, lines = ("right_slice", "lines") if self.sliced else ("right_start", "p1")
        with out.block(f"if packed_from != {start}{reused}:"):
            out.line(f"packed_from = {start}")
            if not self.transposed:
                for v in range(spec.vectors):
                    out.line(f"active{v} = mask({self.n} - column - {v * self.lanes})")
            self.pack_axis(0, start if self.transposed else lines, "packed")

    def pack_axis(self, number: int, source: str, target: str) -> None:
        """Pack what lies below an axis outside k, or at the end k itself, from address `source` on."""
        out, spec = self.out, self.spec
        if number < len(self.outer):
            inside = " * ".join([*self.outer[number + 1 :], self.k])
            with out.block(f"for outer{number} in range({self.outer[number]}):"):
                ahead = f"outer{number} * {self.outer_stride(1, number)} * {self.right.dtype.itemsize}"
                out.line(f"source{number} = {source} + {ahead}")
                size = self.panel * self.size
                out.line(f"target{number} = {target} + outer{number} * {inside} * {size}")
                self.pack_axis(number + 1, f"source{number}", f"target{number}")
            return
        if self.transposed:
            columns = f"{self.stride(1, -1)}, {self.n} - column"
            out.line(f"pack_transposed({source}, {columns}, {self.steps_of_k}, {target})")
            return
        with out.block(f"for i{spec.batch} in range({self.steps_of_k}):"):
            for v in range(spec.vectors):
                out.line(f"j = column + {v * self.lanes}")
                out.line(f"active = active{v}")
                place = f"i{spec.batch} * {self.panel} + {v * self.lanes}"
                right = self.load_right().replace("(p1,", f"({source},")
                out.line(f"store_{spec.dtype.name}({target}, {place}, {right}, every)")

    def widen_left(self) -> None:
        """Convert a block of a 16-bit A: to [k][lanes] where its rows are adjacent, else to [rows][k]."""
        out, spec, name = self.out, self.spec, self.left.dtype.name
        if self.left.strides[-2] == 1:
            out.line(f"active = mask({self.m} - top)")
            with out.block(f"for step in range({self.k}):"):
                out.line(f"wide = load_{name}(left_start, top + step * {self.stride(0, -1)}, active)")
                out.line(f"store_float32(left, step * {self.lanes}, wide, every)")
            return
        with out.block(f"for line in range({spec.rows}):"):
            out.line(f"i{spec.batch} = top + line if top + line < {self.m} else {self.m} - 1")
            with out.block(f"for j in range(0, {self.k}, {self.lanes}):"):
                out.line(f"active = mask({self.k} - j)")
                out.line(f"store_float32(left, line * padded + j, {self.steps.load(0, None)}, every)")

    def multiply(self) -> None:
        """The register block: into the tile, or straight to where it belongs."""
        out, spec = self.out, self.spec
        out.line(f"top_end = top + {spec.rows} if top + {spec.rows} < end else end")
        out.line(f"column_end = column + {self.reach} if column + {self.reach} < {self.n} else {self.n}")
        if self.sliced:
            waiting = f"tiles + (top - first) * {self.panel * self.size}"
            out.line(f"block = {waiting}")
        else:
            out.line("block = tile")
        out.line("target = block")
        out.line(f"target_stride = {self.reach}")
        if self.direct:
            operand = self.direct.operand
            out.line(f"whole = top + {spec.rows} == top_end and column + {self.reach} == column_end")
            with out.block("if whole:"):
                out.line(f"i{spec.batch} = top")
                out.line(f"target = p{operand} + ({self.steps.base(operand)} + column) * {self.size}")
                out.line(f"target_stride = {self.stride(operand, -2)}")
        if self.widened:
            left = f"left, 0, {spec.rows - 1}"
            stride, step = ("padded", "1") if self.contiguous else ("1", str(self.lanes))
        else:
            left = f"{'left_slice' if self.sliced else 'left_start'}, top, {self.m} - 1"
            stride, step = self.stride(0, -2), self.stride(0, -1)
        outer = "".join(
            f", {extent}, {self.outer_stride(0, i)}, {self.outer_stride(1, i)}"
            for i, extent in enumerate(self.outer)
        )
        result = f"target, target_stride, {self.steps_of_k}"
        if self.sweeps:
            right = f"right_start, {self.stride(1, -2)}, column_end - column"
            out.line(f"block_swept({left}, {stride}, {step}, {right}, {result})")
            return
        onto = ", number" if self.sliced else ""
        packed = (
            f"block_packed({left}, {stride}, {step}, packed, 0, 0, {self.ahead()}, {result}{onto}{outer})"
        )
        if not self.in_place and not self.dots:
            out.line(packed)
            return
        with out.block("if reused:"):
            out.line(packed)
        with out.block("else:"):
            if self.dots:
                right = f"right_start, {self.stride(1, -1)}, {self.n} - column"
                out.line(f"block_dots({left}, {stride}, {right}, {result})")
            else:
                right = f"right_start, {self.stride(1, -2)}, {self.n} - column, 0, 0"
                out.line(f"block_in_place({left}, {stride}, {step}, {right}, {result}{outer})")

    def ahead(self) -> str:
        """What a block has fetched at every step of k: the address of a line of B's next panel, and the step.

        To pack a panel from the last cache takes as long as 12 rows' products, from the nearest as 4.
        """
        if self.outer:
            return "0, 0"
        out, size = self.out, self.right.dtype.itemsize
        lines = f"quotient(top - first, {self.spec.rows})"
        step = str(LINE) if self.transposed else f"{self.stride(1, -2)} * {size}"
        here = f"{lines} * {LINE}" + (f" * {self.steps_of_k}" if self.transposed else "")
        out.line(f"ahead = right_start + {self.panel} * {self.stride(1, -1)} * {size} + {here}")
        if self.sliced:
            with out.block("if number + 1 < slices:"):
                out.line(f"ahead = right_slice + slice_size * {self.stride(1, -2)} * {size} + {here}")
        out.line(f"ahead_step = {step} if {lines} < {self.panel * size // LINE} else 0")
        return "ahead, ahead_step"

    def prefetch(self) -> None:
        """Fetch what the epilogue reads and writes of this block while the product is computed.

        Segments of a few lines in each row are no pattern that the cores foresee.
        """
        out, spec = self.out, self.spec
        operands = [
            i
            for i, operand in enumerate(spec.operands)
            if i > 1 and operand.strides[-1] == 1 and operand.strides[-2] != 0
        ]
        if self.direct or not operands:
            return
        out.line(f"top_end = top + {spec.rows} if top + {spec.rows} < end else end")
        with out.block(f"for i{spec.batch} in range(top, top_end):"):
            for i in operands:
                word = "prefetch" if i in spec.read else "prefetch_for_write"
                size = spec.operands[i].dtype.itemsize
                for byte in range(0, self.panel * size, LINE):
                    out.line(f"{word}(p{i} + ({self.steps.base(i)} + column) * {size} + {byte})")

    def epilogue(self) -> None:
        """Each valid row of the tile through the spec's steps, a vector of columns at a time."""
        out, spec, steps = self.out, self.spec, self.steps
        row, tile = f"i{spec.batch}", len(spec.operands)
        # The tile is addressed as if it were the whole product.
        out.line(f"s{tile}_{spec.batch} = {self.reach}")
        out.line(f"p{tile} = block - (top * {self.reach} + column) * {self.size}")
        levels = spec.epilogue.levels
        varying = [s for s in spec.steps if not isinstance(s, Store) and levels[s.out] != KERNEL]
        rows, columns = (
            f"for {row} in range(top, top_end):",
            f"for j in range(column, column_end, {self.lanes}):",
        )
        with out.block(rows), out.block(columns):
            # A masked load does not take what was just stored: it would wait for the cache.
            out.line("active = every")
            steps.compute(spec.epilogue.steps[0])
            out.line(f"active = mask({self.n} - j)")
            for step in varying:
                steps.compute(step)
            for step in spec.steps:
                if isinstance(step, Store):
                    out.line(steps.store(step.value, step.operand, step.index))
