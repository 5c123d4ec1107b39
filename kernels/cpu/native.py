"""The native side of running a program: walk its launches, share parallel ones with the worker threads.

Compiled once and kept as object code; `kernels/cpu/runner.py` lays out the memory both functions read.

A program is a list of launches, a launch a list of independent tasks. The caller posts a parallel launch as
a new generation of the pool's cursor; it and the workers take tasks from it by compare-and-swap, so a worker
that wakes late finds nothing to do and is never waited for. Which thread runs a task changes nothing: tasks
are cut by shape alone.
"""

from __future__ import annotations

from kernels.cpu.atomics import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_kernel,
    call_pthread,
    compare_swap,
    pause,
    read,
    read_byte,
)

# Word offsets in the pool, in bytes; the words that threads write lie on cache lines of their own.
CURSOR, DONE, POSTED, BUSY, SLEEPERS, STOP = 0, 64, 192, 320, 384, 448
FUNCTIONS, MUTEX, CONDITION, SPINS = 512, 576, 640, 704
# Only the thread that holds BUSY touches these: launches met while workers slept, launches still to be run
# alone, and how many that will be the next time.
COLD, ALONE, PENALTY = 768, 776, 784
LINE = 64
# How a launch is shared (a column of its row).
SMALL, LARGE = 1, 2
# One small launch in this many (a power of two) wakes sleeping workers: waking costs 5 to 50 us, and they
# stay awake if more follows soon.
WAKE_EVERY = 64
# Looks at an unfinished small launch (some 100 us) after which its worker must have lost its core to another
# program.
PATIENCE = 4096
FEWEST_ALONE, MOST_ALONE = 64, 4096
LOW = 0xFFFFFFFF
# Where a NumPy array object keeps the address of its data: after its reference count and its type.
DATA_FIELD = 16


def run_task(tasks: int, index: int, scratch: int) -> None:
    """Run row `index` of a task list: kernel, table, start, stop, part."""
    row = tasks + index * 40
    call_kernel(read(row, 0), read(row, 1), read(row, 2), read(row, 3), read(row, 4), scratch)


def take(pool: int, thread: int) -> int:
    """Take and run one posted task; 1 if there was one, 0 if not, -1 if another thread was faster."""
    cursor = atomic_load(pool + CURSOR)
    index = cursor & LOW
    parity = (cursor >> 32) & 1
    posted = pool + POSTED + parity * LINE
    if index >= atomic_load(posted + 8):
        return 0
    # A successful swap proves that the generation read above is still the current one.
    if not compare_swap(pool + CURSOR, cursor, cursor + 1):
        return -1
    run_task(read(posted, 0), index, read(posted, 2) + thread * read(posted, 3))
    atomic_add(pool + DONE + parity * LINE, 1)
    return 1


def share(pool: int, tasks: int, count: int, scratch: int, scratch_bytes: int) -> int:
    """Post a launch, work on it, return when all of it is done: how often the end was looked for in vain."""
    generation = ((atomic_load(pool + CURSOR) >> 32) + 1) & 0x7FFFFFFF
    parity = generation & 1
    posted = pool + POSTED + parity * LINE
    atomic_store(pool + DONE + parity * LINE, 0)
    atomic_store(posted, tasks)
    atomic_store(posted + 16, scratch)
    atomic_store(posted + 24, scratch_bytes)
    atomic_store(posted + 8, count)
    atomic_store(pool + CURSOR, generation << 32)
    if atomic_load(pool + SLEEPERS) > 0:
        wake(pool)
    while take(pool, 0) != 0:
        pass
    waited = 0
    while atomic_load(pool + DONE + parity * LINE) < count:
        pause()
        waited += 1
    return waited


def wake(pool: int) -> None:
    """Wake the workers that sleep."""
    call_pthread(read(pool + FUNCTIONS, 0), pool + MUTEX, 0)
    call_pthread(read(pool + FUNCTIONS, 3), pool + CONDITION, 0)
    call_pthread(read(pool + FUNCTIONS, 1), pool + MUTEX, 0)


def pays(pool: int) -> int:
    """Whether to share a small launch: not with workers that sleep, nor soon after one lost its core
    meanwhile.
    """
    if atomic_load(pool + SLEEPERS) > 0:
        cold = read(pool + COLD, 0) + 1
        atomic_store(pool + COLD, cold)
        if cold & (WAKE_EVERY - 1) == 0:
            wake(pool)
        return 0
    alone = read(pool + ALONE, 0)
    if alone > 0:
        atomic_store(pool + ALONE, alone - 1)
        return 0
    return 1


def remember(pool: int, waited: int) -> None:
    """After a small launch: go on alone for longer and longer while workers keep losing their core."""
    penalty = read(pool + PENALTY, 0)
    if waited > PATIENCE:
        penalty = 2 * penalty + FEWEST_ALONE
        if penalty > MOST_ALONE:
            penalty = MOST_ALONE
        atomic_store(pool + ALONE, penalty)
        atomic_store(pool + PENALTY, penalty)
    elif penalty > 0:
        atomic_store(pool + PENALTY, penalty - 1)


def work(pool: int, thread: int) -> None:
    """A worker thread's life: take tasks; after many empty looks sleep until a launch is posted."""
    spins = 0
    while atomic_load(pool + STOP) == 0:
        cursor = atomic_load(pool + CURSOR)
        if take(pool, thread) != 0:
            spins = 0
            continue
        spins += 1
        pause()
        if spins < read(pool + SPINS, 0):
            continue
        spins = 0
        call_pthread(read(pool + FUNCTIONS, 0), pool + MUTEX, 0)
        atomic_add(pool + SLEEPERS, 1)
        if atomic_load(pool + CURSOR) == cursor and atomic_load(pool + STOP) == 0:
            call_pthread(read(pool + FUNCTIONS, 2), pool + CONDITION, pool + MUTEX)
        atomic_add(pool + SLEEPERS, -1)
        call_pthread(read(pool + FUNCTIONS, 1), pool + MUTEX, 0)


def connect(program: int) -> None:
    """Put the addresses of this run's arrays into the tables: rows of (slot, array, byte offset)."""
    patches, objects, table = read(program, 5), read(program, 7), read(program, 8)
    for number in range(read(program, 6)):
        row = patches + number * 24
        data = read(read(objects, read(row, 1)) + DATA_FIELD, 0)
        atomic_store(table + read(row, 0) * 8, data + read(row, 2))


def run(program: int, pool: int) -> int:
    """Run a program: 0, or the number (from 1) of the launch whose check found bad input.

    Nothing later has run then. `program`: launch count, launches, tasks, scratch, scratch bytes per thread,
    then what `connect` reads. A launch: first task, end, 0 or SMALL or LARGE to share it, address of its
    check flag or 0.
    """
    launches, tasks = read(program, 1), read(program, 2)
    scratch, scratch_bytes = read(program, 3), read(program, 4)
    connect(program)
    # Two threads may run programs at once: the second finds the pool busy and works alone.
    owner = pool != 0 and compare_swap(pool + BUSY, 0, 1)
    failed = 0
    for number in range(read(program, 0)):
        row = launches + number * 32
        first, end = read(row, 0), read(row, 1)
        size = read(row, 2)
        if owner and size == LARGE:
            share(pool, tasks + first * 40, end - first, scratch, scratch_bytes)
        elif owner and size == SMALL and pays(pool):
            remember(pool, share(pool, tasks + first * 40, end - first, scratch, scratch_bytes))
        else:
            for index in range(first, end):
                run_task(tasks, index, scratch)
        flag = read(row, 3)
        if flag != 0 and read_byte(flag) != 0:
            failed = number + 1
            break
    if owner:
        atomic_store(pool + BUSY, 0)
    return failed
