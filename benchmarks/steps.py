"""`python -m benchmarks.steps NAME...|all --against torch torch.compile jax`: whole steps beside peers.

Each framework runs in a process of its own, one after the other, in several rounds, on equal threads. The
first round starts from empty compile caches, the later ones find them filled. `benchmarks.measure` times,
`benchmarks.report` compares; floors stand on this machine's measured peaks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, thread_environment
from benchmarks.measure import FRAMEWORKS
from benchmarks.report import OURS, Rounds, Summary, disagreements, floor, means, overview, summary, table
from benchmarks.works import WORKS

ROOT = Path(__file__).resolve().parent.parent
ALL = "all"


def run_child(
    framework: str, work: str, options: argparse.Namespace, environment: dict[str, str]
) -> dict[str, Any]:
    """What `benchmarks.measure` printed; {"error": its last words} when it failed."""
    python = sys.executable if framework.startswith(OURS) else options.python
    arguments = ["benchmarks.measure", framework, work, str(options.seconds), str(options.threads)]
    return ask(python, arguments, environment)


def ask(python: str, arguments: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """The last line that a module printed, read as JSON; {"error": its last words} when it failed."""
    command = [python, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    return json.loads(lines[-1]) if done.returncode == 0 else {"error": lines[-1]}


def run_work(work: str, frameworks: Sequence[str], options: argparse.Namespace) -> Rounds:
    """All rounds of one work; a framework that fails has an error as its last measurement."""
    rounds: Rounds = {name: [] for name in frameworks}
    with tempfile.TemporaryDirectory() as caches:
        environment = thread_environment(options.threads) | {
            "TRACEFUSE_CACHE": f"{caches}/tracefuse",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torchinductor",
        }
        for number in range(options.rounds):
            for name, measured in rounds.items():
                if not measured or "error" not in measured[-1]:
                    measured.append(run_child(name, work, options, environment))
            print(f"{work}: round {number + 1} of {options.rounds} done", file=sys.stderr)
    return rounds


def versions(python: str) -> dict[str, str]:
    """Versions of what is timed, ours and those that `python` finds."""
    code = (
        "import json, importlib.metadata as m\nfound = {}\n"
        "for name in ('torch', 'jax', 'jaxlib'):\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    peers = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return {name: metadata.version(name) for name in ("numpy", "numba", "llvmlite")} | json.loads(peers)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    peers = [name for name in FRAMEWORKS if name != OURS]
    names = [*WORKS, ALL]
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=" ".join(names))
    parser.add_argument(
        "--against", nargs="*", choices=peers, default=[], metavar="PEER", help=" ".join(peers)
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each process repeats the step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--json", type=Path, help="file to save everything in")
    options = parser.parse_args(arguments)
    if ALL in options.names:
        options.names = list(WORKS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, save; 1 when a framework did other work than the first one, or ours failed."""
    options = options_of(arguments)
    environment = thread_environment(options.threads)
    peaks = ask(sys.executable, ["benchmarks.machine", str(options.threads)], environment)
    report: dict[str, Any] = {
        "machine": describe(),
        "date": date.today().isoformat(),
        "threads": options.threads,
        "versions": versions(options.python),
        "peaks": peaks,
        "works": {},
    }
    print(f"{report['machine']}; {options.threads} threads\n{report['versions']}")
    copied, multiplied = peaks["bytes_per_second"] / 1e9, peaks["flops_per_second"] / 1e9
    print(f"copies {copied:.0f} GB/s, BLAS {multiplied:.0f} GFLOP/s")
    summaries: dict[str, Summary] = {}
    for work in options.names:
        rounds = run_work(work, [OURS, *options.against], options)
        least = floor(WORKS[work], peaks)
        results = summaries[work] = summary(rounds, least["seconds"])
        report["works"][work] = {"floor": least, "summary": results, "rounds": rounds}
        print("", table(work, least, results), sep="\n", flush=True)
        save(report, options.json)
    if len(summaries) > 1:
        report["geometric_means"] = {c: means(summaries, c) for c in ("times_ours_best", "times_ours")}
        print("", overview(summaries, {n: w["floor"] for n, w in report["works"].items()}), sep="\n")
        save(report, options.json)
    return int(any(disagreements(r) or "error" in r[OURS] for r in summaries.values()))


def save(report: dict[str, Any], path: Path | None) -> None:
    """Write what is known so far, if a file was named."""
    if path:
        path.write_text(json.dumps(report, indent=1) + os.linesep)


if __name__ == "__main__":
    sys.exit(main())
