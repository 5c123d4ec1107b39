"""The native side of a chain: its kernels one after the other for each tile, on the thread's own memory.

Compiled once and kept as object code; `kernels/cpu/chains.py` lays out the memory that it reads. To the
runner it is a kernel as any other: a range of units, each a tile, or the tiles of one set of rows in order.
"""

from __future__ import annotations

from kernels.cpu.atomics import call_kernel, read, write
from kernels.cpu.intrinsics import quotient

# Words of a chain's table, before the sizes of its outer axes.
HEAD = 7
# Words of one link.
LINK = 10


def chain(table: int, start: int, stop: int, part: int, scratch: int) -> None:
    """Run units `start` to `stop`. `table`: links, outer axes, blocks of rows, rows of a block, rows, whether
    a unit is all blocks, address of the links. The scratch memory begins with that of the kernels.
    """
    prepare(table, scratch)
    blocks, all_blocks = read(table, 2), read(table, 5)
    for unit in range(start, stop):
        outer = unit if all_blocks else quotient(unit, blocks)
        first = 0 if all_blocks else unit - outer * blocks
        last = blocks if all_blocks else first + 1
        for block in range(first, last):
            tile(table, outer, block, scratch)


def prepare(table: int, scratch: int) -> None:
    """Copy the tables of all kernels to the thread's memory."""
    links = read(table, 6)
    for number in range(read(table, 0)):
        link = links + number * (8 * LINK)
        source, copy = read(link, 2), scratch + read(link, 4)
        for word in range(read(link, 3)):
            write(copy, word, read(source, word))


def tile(table: int, outer: int, block: int, scratch: int) -> None:
    """All kernels on one tile. A link: kernel, kernel for later blocks, table, its words, where its copy is,
    where in it the rows are (or -1), stop of a whole block, of the last one, operands, their address.
    """
    links, axes, step = read(table, 6), read(table, 1), read(table, 3)
    row = block * step
    left = read(table, 4) - row
    for number in range(read(table, 0)):
        link = links + number * (8 * LINK)
        copy, operands = scratch + read(link, 4), read(link, 9)
        for operand in range(read(link, 8)):
            moves = operands + operand * 8 * (axes + 2)
            place = start_of(table, read(read(link, 2), operand), moves, axes, outer, row, scratch)
            write(copy, operand, place)
        if read(link, 5) >= 0:
            write(copy, read(link, 5), step if left > step else left)
        kernel = read(link, 0) if block == 0 else read(link, 1)
        end = read(link, 6) if left >= step else read(link, 7)
        call_kernel(kernel, copy, 0, end, 0, scratch)


def start_of(table: int, base: int, moves: int, axes: int, outer: int, row: int, scratch: int) -> int:
    """Where an operand of a tile begins: private memory, or so far from its own start. `moves`: where in the
    scratch memory it is (or -1), bytes along each outer axis, and from row to row.
    """
    place = base + row * read(moves, axes + 1)
    rest = outer
    for back in range(axes):
        axis = axes - 1 - back
        size = read(table, HEAD + axis)
        above = quotient(rest, size)
        place += (rest - above * size) * read(moves, 1 + axis)
        rest = above
    return place if read(moves, 0) < 0 else scratch + read(moves, 0)
