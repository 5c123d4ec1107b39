"""Words of matrix products: a register block, dot products for few rows, a panel copied transposed.

Each is made for one block shape, layout and set of dtypes, when a kernel is built; knows nothing of specs.
Addresses are int64; strides and offsets count elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import types

from kernels.cpu.intrinsics import I1, I32, I64, LANES, LLVM, MEMORY, declare, fetch_line, to_register
from kernels.cpu.words import word

# Lines of B that `sweep` adds to the sums at once, of one row and of several: 1 x 2048 x 2048 takes 0.27 ms
# with 8, 0.31 with 4, and twice as long a block of columns at a time, which the caches do not foresee. More
# factors would not fit registers.
SWEPT_BY_ONE, SWEPT = 8, 4


def multiply(
    rows: int,
    vectors: int,
    dtype: str,
    left: str,
    contiguous: bool,
    packed: bool,
    depth: int = 1,
    sliced: bool = False,
) -> Any:
    """Word for a block of `rows` by `vectors` vectors of A @ B, summed in registers in the order of k.

    A, stored as `left`, is read by scalars: rows past `last` as row `last`; `contiguous` says that its k
    stride is 1. B is a packed panel, or (not `packed`) lines of memory of which `columns` elements may be
    read. Line after line from address `ahead` on is fetched, one at every step of k (what follows a packed
    panel). The block is written to `out`, rows `out_stride` apart; added to what is there, if `sliced` and
    the argument after k says so. Each of the `depth - 1` axes outside k is three more arguments: its extent,
    the stride of A and that of B (packed, the panel is one line after another).
    """
    kind, width = LLVM[dtype], LANES
    vector = ir.VectorType(kind, width)
    stored = MEMORY.get(left) or LLVM[left]

    def emit(builder: ir.IRBuilder, args: Any) -> None:
        a, row, last, row_stride, step, b, b_step, columns, *rest = args
        ahead, ahead_step, out, out_stride, k, *outer = rest
        a = builder.inttoptr(a, stored.as_pointer())
        b = builder.inttoptr(b, kind.as_pointer())
        row_start = [
            builder.gep(a, [builder.mul(_smaller(builder, builder.add(row, _int(i)), last), row_stride)])
            for i in range(rows)
        ]
        left_over = [builder.sub(columns, _int(j * width)) for j in range(vectors)]
        masks = [None if packed else _lane_mask(builder, count) for count in left_over]
        cells = [(i, j) for i in range(rows) for j in range(vectors)]
        zero = ir.Constant(vector, [0.0] * width)
        b_step = _int(vectors * width) if packed else b_step
        distance = _int(max(16, 256 // (rows * vectors)))

        def fetch(index: Any, here: Any, line: Any) -> None:
            """Have what later steps read in the nearest cache."""
            if not contiguous:
                fetch_line(builder, builder.gep(here, [builder.mul(distance, step)]))
            if not packed:
                later = builder.gep(line, [builder.mul(distance, b_step)])
                for j in range(vectors):
                    fetch_line(builder, builder.gep(later, [_int(j * width)]))
            elif depth == 1:
                place = builder.add(ahead, builder.mul(index, ahead_step))
                fetch_line(builder, builder.inttoptr(place, kind.as_pointer()))

        def innermost(starts: Sequence[Any], b: Any, total: dict[Any, Any]) -> dict[Any, Any]:
            with _counted(builder, k, total) as (index, total):
                at = index if contiguous else builder.mul(index, step)
                line = builder.gep(b, [builder.mul(index, b_step)])
                fetch(index, builder.gep(starts[0], [at]), line)
                right = [_read(builder, line, _int(j * width), vector, masks[j]) for j in range(vectors)]
                for i in range(rows):
                    scalar = _widened(builder, left, builder.load(builder.gep(starts[i], [at])), kind)
                    scalar = _splat(builder, scalar, width)
                    for j in range(vectors):
                        total[i, j] = _fma(builder, scalar, right[j], total[i, j])
            return total

        def nest(axes: Sequence[Any], starts: Sequence[Any], b: Any, total: dict[Any, Any]) -> dict[Any, Any]:
            if not axes:
                return innermost(starts, b, total)
            extent, a_stride, b_stride = axes[:3]
            if packed:  # what the axes inside hold
                b_stride = builder.mul(k, b_step)
                for inner in axes[3::3]:
                    b_stride = builder.mul(b_stride, inner)
            with _counted(builder, extent, total) as (index, carried):
                ahead = builder.mul(index, a_stride)
                moved = [builder.gep(start, [ahead]) for start in starts]
                line = builder.gep(b, [builder.mul(index, b_stride)])
                carried.update(nest(axes[3:], moved, line, dict(carried)))
            return carried

        out = builder.inttoptr(out, kind.as_pointer())
        places = [builder.add(builder.mul(out_stride, _int(i)), _int(j * width)) for i, j in cells]
        start = [zero] * len(cells)
        if sliced:
            onto, before = outer.pop(0), builder.block
            with builder.if_then(builder.icmp_signed("!=", onto, _int(0))):
                kept = [_read(builder, out, place, vector, None) for place in places]
                after = builder.block
            start = [_either(builder, vector, (zero, before), (value, after)) for value in kept]
        total = nest(outer, row_start, b, dict(zip(cells, start, strict=True)))
        for cell, place in zip(cells, places, strict=True):
            _write(builder, total[cell], out, place)

    @word
    def block(typing: Any, *arguments: Any) -> Any:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            emit(builder, args)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * (13 + sliced + 3 * (depth - 1))), code

    return block


def sweep(rows: int, dtype: str, left: str, contiguous: bool) -> Any:
    """Word for a block of few rows and any number of columns of A @ B, several lines of B at a time.

    The sums wait in `out`, which has room for whole vectors. Other arguments are `multiply`'s.
    """
    kind, width = LLVM[dtype], LANES
    vector = ir.VectorType(kind, width)
    stored = MEMORY.get(left) or LLVM[left]

    def emit(builder: ir.IRBuilder, args: Any) -> None:
        a, row, last, row_stride, step, b, b_step, columns, out, out_stride, k = args
        a = builder.inttoptr(a, stored.as_pointer())
        b = builder.inttoptr(b, kind.as_pointer())
        out = builder.inttoptr(out, kind.as_pointer())
        places = [_smaller(builder, builder.add(row, _int(i)), last) for i in range(rows)]
        starts = [builder.gep(a, [builder.mul(place, row_stride)]) for place in places]
        targets = [builder.gep(out, [builder.mul(out_stride, _int(i))]) for i in range(rows)]
        groups = builder.udiv(builder.add(columns, _int(width - 1)), _int(width))

        def add(lines: list[Any], scalars: list[list[Any]], column: Any, active: Any) -> None:
            total = [_read(builder, target, column, vector, None) for target in targets]
            for line, factors in zip(lines, scalars, strict=True):
                right = _read(builder, line, column, vector, active)
                total = [_fma(builder, x, right, sum) for x, sum in zip(factors, total, strict=True)]
            for target, value in zip(targets, total, strict=True):
                _write(builder, value, target, column)

        def walk(first: Any, count: int) -> None:
            steps = [builder.add(first, _int(i)) for i in range(count)]
            lines = [builder.gep(b, [builder.mul(i, b_step)]) for i in steps]
            ahead = [i if contiguous else builder.mul(i, step) for i in steps]
            scalars = [[builder.load(builder.gep(start, [at])) for start in starts] for at in ahead]
            factors = [
                [_splat(builder, _widened(builder, left, x, kind), width) for x in xs] for xs in scalars
            ]
            with _counted(builder, groups, {}) as (number, _):
                column = builder.mul(number, _int(width))
                add(lines, factors, column, _lane_mask(builder, builder.sub(columns, column)))

        with _counted(builder, groups, {}) as (number, _):
            for target in targets:
                zero = ir.Constant(vector, [0.0] * width)
                _write(builder, zero, target, builder.mul(number, _int(width)))
        together = SWEPT_BY_ONE if rows == 1 else SWEPT
        rounds = builder.udiv(k, _int(together))
        with _counted(builder, rounds, {}) as (number, _):
            walk(builder.mul(number, _int(together)), together)
        done = builder.mul(rounds, _int(together))
        with _counted(builder, builder.sub(k, done), {}) as (number, _):
            walk(builder.add(done, number), 1)

    @word
    def swept(
        typing: Any, a: Any, row: Any, last: Any, row_stride: Any, step: Any, b: Any, b_step: Any,
        columns: Any, out: Any, out_stride: Any, k: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            emit(builder, args)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 11), code

    return swept


def transpose_panel(vectors: int, dtype: str, right: str) -> Any:
    """Word to pack a panel of a B whose k stride is 1: squares of lanes are transposed in registers.

    `packed` gets k, rounded up to whole vectors, lines of the panel; columns past `columns` repeat the last
    one.
    """
    kind = LLVM[dtype]
    width = LANES * 4 // _bytes(kind)  # squares of whole registers: wider ones spill
    panel = vectors * LANES
    stored = MEMORY.get(right) or LLVM[right]
    stored_vector = ir.VectorType(stored, width)

    def square(builder: ir.IRBuilder, source: Any, stride: Any, first: Any, last: Any, active: Any) -> Any:
        lines = []
        for i in range(width):
            column = _smaller(builder, builder.add(first, _int(i)), last)
            line = _read(builder, source, builder.mul(column, stride), stored_vector, active)
            lines.append(_widened(builder, right, line, kind))
        return _transposed(builder, lines)

    @word
    def pack(typing: Any, source: Any, stride: Any, columns: Any, k: Any, packed: Any) -> Any:
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            source, stride, columns, k, packed = args
            source = builder.inttoptr(source, stored.as_pointer())
            packed = builder.inttoptr(packed, kind.as_pointer())
            last = builder.sub(columns, _int(1))
            blocks = builder.udiv(builder.add(k, _int(width - 1)), _int(width))
            with _counted(builder, blocks, {}) as (number, _):
                first = builder.mul(number, _int(width))
                active = _lane_mask(builder, builder.sub(k, first), width)
                here = builder.gep(source, [first])
                with _counted(builder, _int(panel // width), {}) as (part, _):
                    column = builder.mul(part, _int(width))
                    lines = square(builder, here, stride, column, last, active)
                    start = builder.gep(packed, [builder.add(builder.mul(first, _int(panel)), column)])
                    for i, line in enumerate(lines):
                        _write(builder, line, start, _int(i * panel))
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 5), code

    return pack


def dot_panel(rows: int, vectors: int, dtype: str, left: str, right: str) -> Any:
    """Word for a block of few rows, A and B both with a k stride of 1: dot products along the lanes.

    Nothing is packed: the lanes' sums of a square of columns are transposed and added. Arguments are
    `multiply`'s.
    """
    kind = LLVM[dtype]
    width = LANES * 4 // _bytes(kind)
    vector = ir.VectorType(kind, width)
    kinds = [ir.VectorType(MEMORY.get(name) or LLVM[name], width) for name in (left, right)]
    # At most eight columns, for one or two rows, at a time: their addresses fill the integer registers.
    together, abreast = min(rows, 2), min(width, 8)
    cells = [(i, j) for i in range(together) for j in range(abreast)]

    def emit(builder: ir.IRBuilder, args: Any) -> None:
        a, row, last, row_stride, b, column_stride, columns, out, out_stride, k = args
        a = builder.inttoptr(a, kinds[0].element.as_pointer())
        b = builder.inttoptr(b, kinds[1].element.as_pointer())
        out = builder.inttoptr(out, kind.as_pointer())
        whole = builder.udiv(k, _int(width))
        first = builder.mul(whole, _int(width))
        tail = _lane_mask(builder, builder.sub(k, first), width)
        last_column = builder.sub(columns, _int(1))
        count = _smaller(builder, builder.add(builder.sub(last, row), _int(1)), _int(rows))
        count = builder.udiv(builder.add(count, _int(together - 1)), _int(together))

        def products(lines: Any, starts: Any, at: Any, active: Any, total: Any) -> None:
            values = [_widened(builder, left, _read(builder, x, at, kinds[0], active), kind) for x in lines]
            for j, start in enumerate(starts):
                other = _widened(builder, right, _read(builder, start, at, kinds[1], active), kind)
                for i, value in enumerate(values):
                    total[i, j] = _fma(builder, value, other, total[i, j])

        def sums(lines: list[Any], column: Any) -> list[list[Any]]:
            places = [_smaller(builder, builder.add(column, _int(j)), last_column) for j in range(abreast)]
            starts = [builder.gep(b, [builder.mul(place, column_stride)]) for place in places]
            zero = ir.Constant(vector, [0.0] * width)
            with _counted(builder, whole, dict.fromkeys(cells, zero)) as (number, total):
                products(lines, starts, builder.mul(number, _int(width)), None, total)
            products(lines, starts, first, tail, total)
            return [[total[i, j] for j in range(abreast)] for i in range(together)]

        with _counted(builder, count, {}) as (pair, _):
            places = [builder.add(builder.mul(pair, _int(together)), _int(i)) for i in range(together)]
            # An odd last row is computed twice.
            places = [_smaller(builder, i, _int(rows - 1)) for i in places]
            starts = [_smaller(builder, builder.add(row, i), last) for i in places]
            lines = [builder.gep(a, [builder.mul(i, row_stride)]) for i in starts]
            targets = [builder.gep(out, [builder.mul(i, out_stride)]) for i in places]
            with _counted(builder, _int(vectors * LANES // width), {}) as (number, _):
                column = builder.mul(number, _int(width))
                parts = [sums(lines, builder.add(column, _int(j))) for j in range(0, width, abreast)]
                for i, target in enumerate(targets):
                    square = [x for part in parts for x in part[i]]
                    _write(builder, _sum(builder, _transposed(builder, square)), target, column)

    @word
    def dots(
        typing: Any, a: Any, row: Any, last: Any, row_stride: Any, b: Any, column_stride: Any, columns: Any,
        out: Any, out_stride: Any, k: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            emit(builder, args)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 10), code

    return dots


def _either(builder: ir.IRBuilder, kind: ir.Type, *values: tuple[Any, Any]) -> Any:
    """The value of the block that execution came from, of (value, block) pairs."""
    phi = builder.phi(kind)
    for value, block in values:
        phi.add_incoming(value, block)
    return phi


def _sum(builder: ir.IRBuilder, values: list[Any]) -> Any:
    """The sum of vectors, added as a balanced tree."""
    while len(values) > 1:
        values = [builder.fadd(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _fma(builder: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    kind = x.type
    name = f"llvm.fma.v{kind.count}f{8 * _bytes(kind.element)}"
    return builder.call(declare(builder, name, kind, [kind] * 3), [x, y, z])


def _transposed(builder: ir.IRBuilder, lines: list[Any]) -> list[Any]:
    """The transpose of a square: log2 rounds of interleaving each line with the one half a square below."""
    width = len(lines)
    half = width // 2
    orders = [
        ir.Constant(ir.VectorType(I32, width), [side + i // 2 + (i % 2) * width for i in range(width)])
        for side in (0, half)
    ]
    for _ in range(width.bit_length() - 1):
        pairs = [(lines[i // 2], lines[i // 2 + half], orders[i % 2]) for i in range(width)]
        lines = [builder.shuffle_vector(*pair) for pair in pairs]
    return lines


@contextmanager
def _counted(
    builder: ir.IRBuilder, count: Any, carried: dict[Any, Any]
) -> Iterator[tuple[Any, dict[Any, Any]]]:
    """A loop over 0 … count - 1; the values of the yielded dict are carried round it and out of it."""
    before = builder.block
    head, body, after = (builder.append_basic_block(f"block.{part}") for part in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(_int(0), before)
    phis = {key: builder.phi(value.type) for key, value in carried.items()}
    for key, value in carried.items():
        phis[key].add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, after)
    builder.position_at_end(body)
    state = dict(phis)
    yield index, state
    following = builder.add(index, _int(1), flags=("nuw", "nsw"))  # pyright: ignore[reportCallIssue]
    index.add_incoming(following, builder.block)
    for key, value in state.items():
        phis[key].add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    state.update(phis)


def _int(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _bytes(kind: ir.Type) -> int:
    if isinstance(kind, ir.IntType):
        return kind.width // 8
    return 8 if isinstance(kind, ir.DoubleType) else 4


def _smaller(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _splat(builder: ir.IRBuilder, scalar: Any, width: int) -> Any:
    kind = ir.VectorType(scalar.type, width)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    order = ir.Constant(ir.VectorType(I32, width), [0] * width)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), order)


def _lane_mask(builder: ir.IRBuilder, count: Any, width: int = LANES) -> Any:
    count = builder.trunc(_smaller(builder, count, _int(width)), I32)
    lanes = ir.Constant(ir.VectorType(I32, width), list(range(width)))
    return builder.icmp_signed("<", lanes, _splat(builder, count, width))


def _write(builder: ir.IRBuilder, value: Any, start: Any, offset: Any) -> None:
    place = builder.bitcast(builder.gep(start, [offset]), value.type.as_pointer())
    builder.store(value, place, align=_bytes(value.type.element))


def _read(builder: ir.IRBuilder, start: Any, offset: Any, vector: Any, active: Any) -> Any:
    """Elements from `start` + `offset`; lanes that are not `active` are zero, their memory is not touched."""
    kind = vector.element
    size = _bytes(kind)
    place = builder.bitcast(builder.gep(start, [offset]), vector.as_pointer())
    if active is None:
        return builder.load(place, align=size)
    letter = f"i{8 * size}" if isinstance(kind, ir.IntType) else f"f{8 * size}"
    name = f"llvm.masked.load.v{vector.count}{letter}.p0"
    kinds = [vector.as_pointer(), I32, ir.VectorType(I1, vector.count), vector]
    function = declare(builder, name, vector, kinds)
    zero = ir.Constant(vector, [0 if isinstance(kind, ir.IntType) else 0.0] * vector.count)
    return builder.call(function, [place, ir.Constant(I32, size), active, zero])


def _widened(builder: ir.IRBuilder, stored: str, value: Any, kind: ir.Type) -> Any:
    """A scalar or vector as it lies in memory, converted to the product's type."""
    count = value.type.count if isinstance(value.type, ir.VectorType) else 0
    wanted = ir.VectorType(kind, count) if count else kind
    value = to_register(builder, stored, value)
    return value if value.type == wanted else builder.fpext(value, wanted)
