"""What measurements say: medians, ratios, disagreements, and tables of 110 columns. Measures nothing."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.works import Work

OURS, COMPILED_PEER = "tracefuse", "torch.compile"
# What ours is compared with over all works.
PEERS = ("best peer", COMPILED_PEER)
# Results of two frameworks from the same weights after 20 steps; rounding explains far less than this.
SAME_RESULT = 1e-3
COLUMNS = 110
# For each framework its measurements, one per round; {"error": its last words} as the last one if it failed.
Rounds = dict[str, list[dict[str, Any]]]
Summary = dict[str, dict[str, Any]]


def floor(work: Work, peaks: dict[str, float]) -> dict[str, Any]:
    """The time that a work takes at the machine's peaks, and which of them bounds it."""
    times = {
        "FLOPs": work.flops / peaks["flops_per_second"],
        "bytes": work.bytes / peaks["bytes_per_second"],
    }
    bound = max(times, key=lambda name: times[name])
    return {"seconds": times[bound], "bound": bound, "flops": work.flops, "bytes": work.bytes}


def summary(rounds: Rounds, least: float) -> Summary:
    """For each framework its medians over the rounds, its best step, and its time over ours and the floor."""
    ours = rounds.get(OURS, [])
    result: Summary = {}
    for name, measured in rounds.items():
        if "error" in measured[-1]:
            result[name] = measured[-1]
            continue
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
            "results": cold["results"],
        }
        result[name]["times_floor"] = result[name]["best"] / least
        if ours and "error" not in ours[-1]:
            pairs = zip(measured, ours, strict=True)
            result[name]["times_ours"] = statistics.median(r["median"] / o["median"] for r, o in pairs)
            result[name]["times_ours_best"] = result[name]["best"] / min(o["best"] for o in ours)
    return result


def disagreements(results: Summary) -> dict[str, str]:
    """What is to say of each framework whose results are not those of the first one that ran."""
    ran = {name: r["results"] for name, r in results.items() if "error" not in r}
    if not ran:
        return {}
    first, wanted = next(iter(ran.items()))
    wrong: dict[str, str] = {}
    for name, got in ran.items():
        if [len(numbers) for numbers in got] != [len(numbers) for numbers in wanted]:
            wrong[name] = f"ERROR: {name} has results of other sizes than {first}: not the same work"
            continue
        off = np.max(list(map(_relative, got, wanted)))
        # Written so that a NaN is wrong.
        if not off <= SAME_RESULT:
            wrong[name] = f"ERROR: results of {name} are off {first}'s by {off:.1e}: not the same work"
    return wrong


def _relative(got: list[float], wanted: list[float]) -> float:
    """The largest difference over the largest number."""
    difference = np.abs(np.subtract(got, wanted)).max()
    return float(difference / max(np.abs(wanted).max(), np.finfo(np.float64).tiny))


def table(work: str, least: dict[str, Any], results: Summary) -> str:
    """The summary of one work as aligned text; what is wrong with it first."""
    lines = [f"{work}: floor {_time(least['seconds'])} ({least['bound']})", *disagreements(results).values()]
    columns = (
        ("first call", "cold / warm, s"),
        ("import to result", "cold / warm, s"),
        ("memory", "peak / +, MiB"),
    )
    times = f"{'':16}{'median':>11}{'best':>11}{'x ours':>8}{'x floor':>9}"
    lines.append(times + "".join(f"{c[0]:>18}" for c in columns))
    lines.append(" " * 55 + "".join(f"{c[1]:>18}" for c in columns))
    lines += [_row(name, r) for name, r in results.items()]
    return "\n".join(lines)


def _row(name: str, r: dict[str, Any]) -> str:
    if "error" in r:
        return f"{name:16}  failed: {r['error']}"[:COLUMNS]
    first = f"{r['first_call_cold']:.2f} / {r['first_call_warm']:.2f}"
    start = f"{r['import_to_first_result_cold']:.2f} / {r['import_to_first_result_warm']:.2f}"
    memory = f"{r['peak_memory'] / 2**20:.0f} / {r['peak_memory_after_import'] / 2**20:.0f}"
    ratio = f"{r['times_ours']:.2f}" if "times_ours" in r else ""
    times = f"{_time(r['median']):>11}{_time(r['best']):>11}{ratio:>8}{r['times_floor']:>9.2f}"
    return f"{name:16}{times}{first:>18}{start:>18}{memory:>18}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"


def ratios(results: Summary, column: str) -> dict[str, float]:
    """`column` of the best peer and of torch.compile, of those that did the same work as ours."""
    wrong = disagreements(results)
    peers = {n: r[column] for n, r in results.items() if column in r and not n.startswith(OURS)}
    peers = {name: ratio for name, ratio in peers.items() if name not in wrong}
    if peers:
        peers[PEERS[0]] = min(peers.values())
    return {name: peers[name] for name in PEERS if name in peers}


def means(works: dict[str, Summary], column: str) -> dict[str, tuple[float, int]]:
    """Geometric mean of each of the ratios over the works that have it, and how many have."""
    found: dict[str, list[float]] = {}
    for results in works.values():
        for name, ratio in ratios(results, column).items():
            found.setdefault(name, []).append(ratio)
    return {name: (statistics.geometric_mean(r), len(r)) for name, r in found.items()}


def overview(works: dict[str, Summary], floors: dict[str, dict[str, Any]]) -> str:
    """Best steps of all works and frameworks, ratios to ours, and their geometric means, as aligned text."""
    names = list(next(iter(works.values())))
    widths = {name: max(11, len(name) + 2) for name in names}
    head = "".join(f"{name:>{width}}" for name, width in widths.items())
    lines = [f"{'best steps':14}{'floor':>10}{head}{'peer/ours':>10}{'t.c./ours':>10}"]
    for work, results in works.items():
        found = ratios(results, "times_ours_best")
        times = {n: _time(results[n]["best"]) if "best" in results[n] else "failed" for n in names}
        lines.append(
            f"{work:14}{_time(floors[work]['seconds']):>10}"
            + "".join(f"{times[n]:>{width}}" for n, width in widths.items())
            + "".join(f"{found[p]:>10.2f}" if p in found else f"{'':10}" for p in PEERS)
        )
    for column, what in (("times_ours_best", "best steps"), ("times_ours", "medians")):
        each = (f"{name} / ours {mean:.2f} ({n} rows)" for name, (mean, n) in means(works, column).items())
        lines.append(f"geometric means of {what}: " + ", ".join(each))
    return "\n".join(lines)
