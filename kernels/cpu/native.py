"""The native side of running a program: walk its launches, share parallel ones with the worker threads.

Compiled once and kept as object code; `kernels/cpu/runner.py` lays out the memory both functions read.

A program is a list of launches, a launch a list of independent tasks. The caller posts a parallel launch as
a range of tasks for each thread, under a new generation. A thread takes a quarter of what is left of its own
range from the front, or of another's from the back, by compare-and-swap, so a worker that wakes late finds
nothing to do and is never waited for. Neighbouring tasks thus meet the cache of one core: they share panels,
and what the launch before left there. Which thread runs a task changes nothing: tasks are cut by shape alone.
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
from kernels.cpu.intrinsics import quotient

# Word offsets in the pool, in bytes; the words that threads write lie on cache lines of their own.
GENERATION, DONE, POSTED, BUSY, SLEEPERS, STOP = 0, 64, 192, 320, 384, 448
FUNCTIONS, MUTEX, CONDITION, SPINS, THREADS = 512, 576, 640, 704, 712
# Only the thread that holds BUSY touches these: launches met while workers slept, launches still to be run
# alone, and how many that will be the next time.
COLD, ALONE, PENALTY = 768, 776, 784
# A line for each thread with what is left of its range: generation (32 bits), first task, end.
RANGES, LINE = 832, 64
# Most tasks that are posted at once.
MOST = 0xFFFF
# How a launch is shared (a column of its row).
SMALL, LARGE = 1, 2
# One small launch in this many (a power of two) wakes sleeping workers: waking costs 5 to 50 us, and they
# stay awake if more follows soon.
WAKE_EVERY = 64
# Looks at an unfinished small launch (some 100 us) after which its worker must have lost its core to another
# program.
PATIENCE = 4096
FEWEST_ALONE, MOST_ALONE = 64, 4096
# Where a NumPy array object keeps the address of its data: after its reference count and its type.
DATA_FIELD = 16


def run_tasks(tasks: int, first: int, end: int, scratch: int) -> None:
    """Run rows of a task list: kernel, table, start, stop, part. Those of one kernel that follow one another
    are one call, as long as they belong to the same part.
    """
    row, last = tasks + first * 40, tasks + end * 40
    while row < last:
        table, start = read(row, 1), read(row, 2)
        stop, part = read(row, 3), read(row, 4)
        after = row + 40
        while after < last and read(after, 1) == table and read(after, 2) == stop and read(after, 4) == part:
            stop = read(after, 3)
            after += 40
        call_kernel(read(row, 0), table, start, stop, part, scratch)
        row = after


def take(pool: int, thread: int) -> int:
    """Take and run posted tasks of thread `thread`, or of the next one that has any left; 1 if there were."""
    threads = read(pool + THREADS, 0)
    for number in range(threads):
        owner = thread + number
        if owner >= threads:
            owner -= threads
        place = pool + RANGES + owner * LINE
        left = atomic_load(place)
        first, end = (left >> 16) & MOST, left & MOST
        while first < end:
            # Smaller and smaller portions: threads end together whatever tasks take.
            some = (end - first + 3) >> 2
            # A successful swap proves that the generation is still the current one, and keeps it so.
            if number == 0 and compare_swap(place, left, left + (some << 16)):
                run_posted(pool, thread, first, first + some)
                return 1
            if number > 0 and compare_swap(place, left, left - some):
                run_posted(pool, thread, end - some, end)
                return 1
            left = atomic_load(place)
            first, end = (left >> 16) & MOST, left & MOST
    return 0


def run_posted(pool: int, thread: int, first: int, end: int) -> None:
    """Run tasks that were taken."""
    posted = pool + POSTED
    run_tasks(read(posted, 0), first, end, read(posted, 1) + thread * read(posted, 2))
    atomic_add(pool + DONE, end - first)


def share(pool: int, tasks: int, count: int, scratch: int, scratch_bytes: int) -> int:
    """Run tasks together with the workers; looks that it took until the last task was done."""
    generation = (atomic_load(pool + GENERATION) + 1) & 0x7FFFFFFF
    atomic_store(pool + DONE, 0)
    atomic_store(pool + POSTED, tasks)
    atomic_store(pool + POSTED + 8, scratch)
    atomic_store(pool + POSTED + 16, scratch_bytes)
    threads = read(pool + THREADS, 0)
    first = 0
    for thread in range(threads):
        end = quotient(count * (thread + 1), threads)
        atomic_store(pool + RANGES + thread * LINE, (generation << 32) | (first << 16) | end)
        first = end
    atomic_store(pool + GENERATION, generation)
    if atomic_load(pool + SLEEPERS) > 0:
        wake(pool)
    while take(pool, 0) != 0:
        pass
    waited = 0
    while atomic_load(pool + DONE) < count:
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
    seen = -1
    while atomic_load(pool + STOP) == 0:
        generation = atomic_load(pool + GENERATION)
        # Nothing is added to a generation: one that was found empty stays so.
        if generation != seen:
            while take(pool, thread) != 0:
                spins = 0
            seen = generation
            continue
        spins += 1
        pause()
        if spins < read(pool + SPINS, 0):
            continue
        spins = 0
        call_pthread(read(pool + FUNCTIONS, 0), pool + MUTEX, 0)
        atomic_add(pool + SLEEPERS, 1)
        if atomic_load(pool + GENERATION) == seen and atomic_load(pool + STOP) == 0:
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
            while first < end:
                count = end - first if end - first < MOST else MOST
                share(pool, tasks + first * 40, count, scratch, scratch_bytes)
                first += count
        elif owner and size == SMALL and end - first <= MOST and pays(pool):
            remember(pool, share(pool, tasks + first * 40, end - first, scratch, scratch_bytes))
        else:
            run_tasks(tasks, first, end, scratch)
        flag = read(row, 3)
        if flag != 0 and read_byte(flag) != 0:
            failed = number + 1
            break
    if owner:
        atomic_store(pool + BUSY, 0)
    return failed
