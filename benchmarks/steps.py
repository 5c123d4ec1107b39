"""`python -m benchmarks.steps NAME... --against torch torch.compile jax`: whole training steps beside peers.

Each framework runs in a process of its own, one after the other, in several rounds, on equal threads. The
first round starts from empty compile caches, the later ones find them filled. `benchmarks.measure` times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
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
from benchmarks.works import WORKS

ROOT = Path(__file__).resolve().parent.parent
OURS = "tracefuse"
# Losses of two frameworks after 20 steps from the same weights; rounding explains far less than this.
SAME_LOSS = 1e-3
Rows = list[dict[str, Any]]


def run_child(
    framework: str, work: str, options: argparse.Namespace, environment: dict[str, str]
) -> dict[str, Any]:
    """What `benchmarks.measure` printed; {"error": its last words} when it failed."""
    python = sys.executable if framework.startswith(OURS) else options.python
    command = [
        python,
        "-m",
        "benchmarks.measure",
        framework,
        work,
        str(options.seconds),
        str(options.threads),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    return json.loads(lines[-1]) if done.returncode == 0 else {"error": lines[-1]}


def run_work(work: str, frameworks: Sequence[str], options: argparse.Namespace) -> dict[str, Rows]:
    """All rounds of one work: a list of measurements for each framework that works here."""
    rows: dict[str, Rows] = {name: [] for name in frameworks}
    with tempfile.TemporaryDirectory() as caches:
        environment = thread_environment(options.threads) | {
            "TRACEFUSE_CACHE": f"{caches}/tracefuse",
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torchinductor",
        }
        for number in range(options.rounds):
            for name in list(rows):
                row = run_child(name, work, options, environment)
                if "error" in row:
                    print(f"{name} is skipped on {work}: {row['error']}", file=sys.stderr)
                    del rows[name]
                    continue
                rows[name].append(row)
            print(f"{work}: round {number + 1} of {options.rounds} done", file=sys.stderr)
    return rows


def summary(rows: dict[str, Rows]) -> dict[str, dict[str, Any]]:
    """For each framework its medians over the rounds, its best step, and its time over ours."""
    ours = rows.get(OURS)
    result: dict[str, dict[str, Any]] = {}
    for name, measured in rows.items():
        cold, warm = measured[0], measured[1:] or measured
        result[name] = {
            "median": statistics.median(r["median"] for r in measured),
            "best": min(r["best"] for r in measured),
            "first_call_cold": cold["first_call"],
            "first_call_warm": statistics.median(r["first_call"] for r in warm),
            "import_to_first_result_cold": cold["import_to_first_result"],
            "import_to_first_result_warm": statistics.median(r["import_to_first_result"] for r in warm),
            "peak_memory": statistics.median(r["peak_memory"] for r in measured),
            "peak_memory_after_import": statistics.median(r["peak_memory_after_import"] for r in measured),
            "losses": cold["losses"],
        }
        if ours is not None:
            pairs = zip(measured, ours, strict=True)
            result[name]["times_ours"] = statistics.median(r["median"] / o["median"] for r, o in pairs)
            result[name]["times_ours_best"] = result[name]["best"] / min(o["best"] for o in ours)
    return result


def table(work: str, results: dict[str, dict[str, Any]]) -> str:
    """The summary as aligned text."""
    columns = (
        ("first call", "cold / warm, s"),
        ("import to loss", "cold / warm, s"),
        ("memory", "peak / +, MiB"),
    )
    lines = [f"{work}, one training step"]
    lines.append(f"{'':16}{'median':>11}{'best':>11}{'x ours':>8}" + "".join(f"{c[0]:>18}" for c in columns))
    lines.append(" " * 46 + "".join(f"{c[1]:>18}" for c in columns))
    for name, r in results.items():
        first = f"{r['first_call_cold']:.2f} / {r['first_call_warm']:.2f}"
        start = f"{r['import_to_first_result_cold']:.2f} / {r['import_to_first_result_warm']:.2f}"
        memory = f"{r['peak_memory'] / 2**20:.0f} / {r['peak_memory_after_import'] / 2**20:.0f}"
        ratio = f"{r['times_ours']:.2f}" if "times_ours" in r else ""
        times = f"{microseconds(r['median']):>11}{microseconds(r['best']):>11}"
        lines.append(f"{name:16}{times}{ratio:>8}{first:>18}{start:>18}{memory:>18}")
    return "\n".join(lines)


def microseconds(seconds: float) -> str:
    """A step's time as text."""
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"


def disagreements(results: dict[str, dict[str, Any]]) -> list[str]:
    """Frameworks whose losses are not ours: they would be doing other work."""
    if OURS not in results:
        return []
    ours = results[OURS]["losses"]
    return [
        f"{name} has losses {r['losses']} where {OURS} has {ours}: not the same work"
        for name, r in results.items()
        if any(abs(a - b) > SAME_LOSS * abs(b) for a, b in zip(r["losses"], ours, strict=True))
    ]


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, save; 1 when a framework did other work than ours or ours failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    peers = [name for name in FRAMEWORKS if name != OURS]
    parser.add_argument("names", nargs="+", choices=WORKS, metavar="NAME", help=" ".join(WORKS))
    parser.add_argument(
        "--against", nargs="*", choices=peers, default=[], metavar="PEER", help=" ".join(peers)
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each process repeats the step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--json", type=Path, help="file to save everything in")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {
        "machine": describe(),
        "date": date.today().isoformat(),
        "threads": options.threads,
        "versions": versions(options.python),
        "works": {},
    }
    print(f"{report['machine']}; {options.threads} threads; {report['versions']}")
    failed = False
    for work in options.names:
        rows = run_work(work, [OURS, *options.against], options)
        results = summary(rows)
        report["works"][work] = {"summary": results, "rounds": rows}
        wrong = disagreements(results)
        failed |= bool(wrong) or OURS not in results
        print("", table(work, results), *wrong, sep="\n")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + os.linesep)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
