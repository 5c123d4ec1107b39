"""What the tables say about measurements that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measure import samples
from benchmarks.report import COLUMNS, disagreements, floor, means, overview, summary, table
from benchmarks.works import WORKS

PEAKS = {"bytes_per_second": 1e10, "flops_per_second": 1e11}


def measurement(seconds: float, *results: float) -> dict[str, Any]:
    """What a child prints whose steps all take `seconds`."""
    fields = ("median", "best", "import", "first_call", "import_to_first_result")
    memory = {"peak_memory": 2**20, "peak_memory_after_import": 2**19}
    return dict.fromkeys(fields, seconds) | memory | {"steps": 10, "results": [list(results)]}


def summary_of(**seconds: float | None) -> dict[str, dict[str, Any]]:
    """A summary of one round of each framework; None is one that fails."""
    rounds = {
        name.replace("_", "."): [{"error": "ValueError: no"} if s is None else measurement(s, 1.0)]
        for name, s in seconds.items()
    }
    return summary(rounds, 0.5)


def test_times_over_ours_and_over_the_floor() -> None:
    found = summary({"tracefuse": [measurement(2.0, 1.0)] * 2, "jax": [measurement(3.0, 1.0)] * 2}, 0.5)
    assert found["jax"]["times_ours"] == found["jax"]["times_ours_best"] == 1.5
    assert (found["tracefuse"]["times_floor"], found["jax"]["times_floor"]) == (4.0, 6.0)


def test_floor_is_the_larger_of_both_bounds() -> None:
    assert floor(WORKS["mlp_big"], PEAKS)["bound"] == "FLOPs"
    assert floor(WORKS["softmax"], PEAKS) == {
        "seconds": 8 * 4096 * 1024 / 1e10,
        "bound": "bytes",
        "flops": 0,
        "bytes": 8 * 4096 * 1024,
    }


@pytest.mark.parametrize("other", [1.01, float("nan"), float("inf")])
def test_other_results_are_an_error(other: float) -> None:
    found = summary({"tracefuse": [measurement(1.0, 1.0, 0.0)], "jax": [measurement(1.0, other, 0.0)]}, 1.0)
    ((name, wrong),) = disagreements(found).items()
    assert name == "jax"
    assert means({"softmax": found}, "times_ours") == {}
    assert table("softmax", floor(WORKS["softmax"], PEAKS), found).splitlines()[1] == wrong


def test_results_of_another_size_are_an_error() -> None:
    found = summary({"tracefuse": [measurement(1.0, 1.0, 0.0)], "jax": [measurement(1.0, 1.0)]}, 1.0)
    assert len(disagreements(found)) == 1


def test_rounding_is_no_error() -> None:
    found = summary({"tracefuse": [measurement(1.0, 1.0, 0.0)], "jax": [measurement(1.0, 1.0, 1e-6)]}, 1.0)
    assert disagreements(found) == {}


def test_geometric_means_take_the_best_peer_of_each_row() -> None:
    works = {
        "softmax": summary_of(tracefuse=1.0, tracefuse_eager=0.1, torch_compile=8.0, jax=2.0),
        "adamw": summary_of(tracefuse=1.0, tracefuse_eager=0.1, torch_compile=2.0, jax=None),
        "cnn": summary_of(tracefuse=None, tracefuse_eager=None, torch_compile=2.0, jax=1.0),
    }
    assert means(works, "times_ours") == {
        "best peer": (pytest.approx(2.0), 2),
        "torch.compile": (pytest.approx(4.0), 2),
    }


def test_tables_fit_their_columns() -> None:
    results = summary_of(tracefuse=0.01, tracefuse_eager=9.0, torch=9.0, torch_compile=None, jax=0.009)
    results["torch.compile"] = {"error": "ValueError: " + "no" * COLUMNS}
    least = floor(WORKS["black_scholes"], PEAKS)
    lines = table("black_scholes", least, results).splitlines()
    assert lines[-2].startswith("torch.compile     failed: ValueError: nono")
    lines += overview({"black_scholes": results}, {"black_scholes": least}).splitlines()
    assert max(map(len, lines)) <= COLUMNS


def test_samples_are_norm_and_elements() -> None:
    array = WORKS["softmax"].batches()[0][0][:4]
    norm, elements = samples([array])
    assert norm == [pytest.approx(float((array.astype(float) ** 2).sum() ** 0.5))]
    assert elements[0] == array[0, 0]
    assert len(elements) == 16
