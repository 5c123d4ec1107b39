"""The long run by hand: `python -m tests.fuzz --programs 50000 --seed 1 --jobs 2 --kernels 5`.

Programs are run in blocks, each in a process of its own, so that a crash ends one block only. A failure is
printed as shrunk source, with the command that finds it again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz import check
from tests.fuzz.run import CHUNK, run_chunk

BLOCK = 10 * CHUNK
LARGE = 10


def run_here(seed: int, chunks: list[int], kernels: int) -> int:
    """Run chunks in this process, one in `kernels` with machine code; how many failed."""
    failures = 0
    begin = time.perf_counter()
    for chunk in chunks:
        failed = run_chunk(1000 * seed + chunk, groups=LARGE, kernels=chunk % kernels == 0)
        if failed is not None:
            failures += 1
            again = f"python -m tests.fuzz --seed {seed} --chunk {chunk} --kernels {kernels}"
            print(f"{failed}\nreproduce: {again}\n", flush=True)
    rate = check.tally["programs"] / (time.perf_counter() - begin)
    print(f"seed {seed}: {failures} chunks failed, {dict(check.tally)}, {rate:.1f} programs/s", flush=True)
    return failures


def run_block(seed: int, programs: int, kernels: int) -> int:
    """Run one block in a process of its own; 1 if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        trail = Path(folder) / "program.txt"
        options = {"--programs": programs, "--seed": seed, "--kernels": kernels}
        command = [sys.executable, "-m", "tests.fuzz", *(str(x) for pair in options.items() for x in pair)]
        done = subprocess.run([*command, "--trail", str(trail)], stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        if done.returncode not in (0, 1):
            source = trail.read_text() if trail.exists() else "before the first program"
            again = " ".join(["python", *command[1:]])
            print(f"process ended with {done.returncode} in\n{source}\nreproduce: {again}", flush=True)
    return int(done.returncode != 0)


def main() -> int:
    """Run what the command line asks for; 1 when a program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=BLOCK, help=f"how many, in chunks of {CHUNK}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--chunk", type=int, help="only this chunk of the seed")
    parser.add_argument("--kernels", type=int, default=1, help="one chunk in so many runs machine code")
    parser.add_argument("--trail", type=Path, help="keep the source of the running program in this file")
    options = parser.parse_args()
    if options.trail:
        check.trail.append(options.trail)
    if options.chunk is not None:
        return min(run_here(options.seed, [options.chunk], options.kernels), 1)
    if options.jobs == 1 and options.programs <= BLOCK:
        return min(run_here(options.seed, list(range(-(-options.programs // CHUNK))), options.kernels), 1)
    size = min(BLOCK, -(-options.programs // options.jobs))
    seeds = [1000 * options.seed + block for block in range(-(-options.programs // size))]
    with ThreadPoolExecutor(options.jobs) as pool:
        failed = sum(pool.map(run_block, seeds, [size] * len(seeds), [options.kernels] * len(seeds)))
    print(f"{failed} of {len(seeds)} blocks failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
