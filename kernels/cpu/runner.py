"""A program in memory: tables, tasks and launches laid out for the native runner, and the call that runs it.

Knows kernels as specs with extents, strides and addresses; knows nothing of graphs.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from kernels.cpu import edits, engine, loop, matmul, pool, tasks
from kernels.cpu.chains import Layout, cuts, later_spec, nanoseconds
from kernels.cpu.chains import address as chain_address
from kernels.cpu.engine import Machine
from kernels.cpu.target import lanes
from kernels.errors import BuildError
from kernels.spec import LoopSpec, MatmulSpec
from kernels.work import Chain, Work

# A launch this long is worth waking workers for. How kernels/cpu/native.py shares launches below and above
# it.
_LARGE = 100_000.0
SMALL, LARGE = 1, 2
# Where the native runner finds the address of an ndarray's data (kernels/cpu/native.py).
DATA_FIELD = 16

_sources: dict[str, str] = {}


def source_of(spec: LoopSpec | MatmulSpec) -> str:
    """Generated source of a spec; specs that differ only in name share it."""
    if spec.digest not in _sources:
        render = matmul.render if isinstance(spec, MatmulSpec) else loop.render
        _sources[spec.digest] = render(spec, lanes())  # type: ignore[arg-type]
    return _sources[spec.digest]


def build(specs: Sequence[LoopSpec | MatmulSpec]) -> list[Machine]:
    """Machine code of specs: of their edited files, where there are such."""
    # Kernels of a loop over time are a few, many times over.
    digests = [s.digest for s in specs]
    distinct = dict(zip(digests, specs, strict=True))
    found = engine.load_many([engine.Request("kernel", source_of(s), "kernel") for s in distinct.values()])
    by_digest = dict(zip(distinct, found, strict=True))
    machines = [by_digest[digest] for digest in digests]
    if edits.active():
        machines = [edits.machine(s, lambda m=m: m) for s, m in zip(specs, machines, strict=True)]
    return machines


@cache
def native_run() -> Any:
    """The native `run` as a Python callable."""
    machine = engine.load(engine.Request("native", pool.source(), "run"))
    probe = np.zeros(1)
    if ctypes.c_int64.from_address(id(probe) + DATA_FIELD).value != probe.ctypes.data:
        raise BuildError(
            f"NumPy {np.__version__} keeps an array's address elsewhere than {DATA_FIELD} bytes into it"
        )
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(machine.address)


class Program:
    """Work in launches, ready to run; the caller fills in pointers.

    `table` holds every kernel's table end to end; `pointer_slot(work, operand)` is where an operand's address
    goes. A launch of `levels` is shared among threads when that pays. `checks` are (level, address of a flag
    byte). Work in one of the `chains` runs in it alone.
    """

    def __init__(
        self,
        works: Sequence[Work],
        levels: Sequence[int],
        checks: Sequence[tuple[int, int]] = (),
        chains: Sequence[Chain] = (),
    ) -> None:
        self.works = tuple(works)
        self.chains = tuple(chains)
        self.machines = build([w.spec for w in works])
        sizes = [w.spec.table_size for w in works]
        self.starts = [0, *itertools.accumulate(sizes)][:-1]
        parts = {link.number: link.work for chain in chains for link in chain.links}
        entries = [0] * max(sum(sizes), 1)
        for number, start in enumerate(self.starts):
            _fill(entries, parts.get(number, works[number]), start)
        self.table = np.array(entries, np.int64)
        base = self.table.ctypes.data
        self.layouts = [
            Layout(c, [base + 8 * self.starts[link.number] for link in c.links], self._addresses(c))
            for c in chains
        ]
        shares = [(w.spec.digest, w.extents, w.parts, w.serial) for w in works]
        alike = {share: works[n] for n, share in enumerate(shares) if n not in parts}
        divided = {share: list(enumerate(tasks.cuts(work))) for share, work in alike.items()}
        costs = {share: tasks.nanoseconds(work) for share, work in alike.items()}
        rows: list[tuple[int, ...]] = []
        launches: list[tuple[int, ...]] = []
        flags = dict(checks)
        together: dict[int, list[int]] = {level: [] for level in sorted({*levels, *flags})}
        for number, level in enumerate(levels):
            if number not in parts:
                together[level].append(number)
        chained: dict[int, list[Layout]] = {}
        for layout in self.layouts:
            chained.setdefault(levels[layout.chain.links[0].number], []).append(layout)
        for level, numbers in together.items():
            first, cost = len(rows), 0.0
            for layout in chained.get(level, ()):
                found = cuts(layout.chain, works)
                rows += [(chain_address(), layout.table.ctypes.data, a, b, 0) for a, b in found]
                cost += nanoseconds(layout.chain, works)
            for number in numbers:
                share, address = shares[number], self.machines[number].address
                table = base + 8 * self.starts[number]
                # Tasks of one part may be one call.
                parted = bool(works[number].parts)
                rows += [(address, table, a, b, i * parted) for i, (a, b) in divided[share]]
                cost += costs[share]
            shared = len(rows) - first > 1 and cost >= 2 * tasks.TASK
            size = 0 if not shared else SMALL if cost < _LARGE else LARGE
            launches.append((first, len(rows), size, flags.get(level, 0)))
        self.tasks = np.array(rows or [(0,) * 5], np.int64)
        self.launches = np.array(launches or [(0,) * 4], np.int64)
        self.parallel = any(row[2] for row in launches)
        alone = map(tasks.scratch_bytes, alike.values())
        most = max([*alone, *(layout.scratch_bytes for layout in self.layouts)], default=0)
        self.scratch_bytes = -(-most // 64) * 64 + 64
        head = (
            len(launches),
            self.launches.ctypes.data,
            self.tasks.ctypes.data,
            0,
            self.scratch_bytes,
            0,
            0,
            0,
            0,
        )
        self.head = np.array(head, np.int64)
        self.address = self.head.ctypes.data
        self.threads = 0
        self.fit(pool.get_num_threads())

    def fit(self, threads: int) -> None:
        """Give each of `threads` threads its scratch memory."""
        self.threads = threads
        self.scratch = np.empty(self.scratch_bytes * (threads if self.parallel else 1) + 64, np.uint8)
        self.head[3] = -(-self.scratch.ctypes.data // 64) * 64

    def renew(self) -> None:
        """Take the machine code that its kernels have now, where files that stand for them changed."""
        machines = build([w.spec for w in self.works])
        for number, (new, old) in enumerate(zip(machines, self.machines, strict=True)):
            if new is not old:
                table = self.table.ctypes.data + 8 * self.starts[number]
                self.tasks[self.tasks[:, 1] == table, 0] = new.address
        self.machines = machines
        for layout in self.layouts:
            layout.renew(self._addresses(layout.chain))

    def _addresses(self, chain: Chain) -> list[tuple[int, int]]:
        """Machine code of a chain's kernels, and what runs in its place for all blocks but the first."""
        later = build([later_spec(link.work.spec) if link.sums else link.work.spec for link in chain.links])
        own = (self.machines[link.number] for link in chain.links)
        return [
            (machine.address, after.address if link.sums else machine.address)
            for link, machine, after in zip(chain.links, own, later, strict=True)
        ]

    def connect(self, patches: np.ndarray, objects: np.ndarray) -> None:
        """Fill table slots at every run: a row of `patches` is (slot, number of an array in `objects`, byte
        offset).

        `objects` holds addresses of ndarray objects (`id`), so that the caller need not ask each for its
        data.
        """
        self.connected = patches, objects
        self.head[5:] = (patches.ctypes.data, len(patches), objects.ctypes.data, self.table.ctypes.data)

    def failed(self) -> int:
        """What the last run returned: 0, or 1 + the number of the launch whose check found bad input."""
        for number, address in enumerate(self.launches[:, 3].tolist()):
            if address and ctypes.c_uint8.from_address(address).value:
                return number + 1
        return 0

    def pointer_slot(self, work: int, operand: int) -> int:
        """Index in `table` of an operand's address."""
        return self.starts[work] + operand


def _fill(entries: list[int], work: Work, start: int) -> None:
    """Put the sizes and strides of a kernel into its table, which begins at `start`."""
    spec, operands = work.spec, len(work.spec.operands)
    entries[start + operands : start + operands + len(work.extents)] = work.extents
    for (operand, axis), slot in spec.stride_slots.items():
        stride = work.index_strides[operand] if axis < 0 else work.strides[operand][axis]
        entries[start + slot] = stride
