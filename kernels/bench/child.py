"""Measure in a process whose libraries all have the same number of threads: the child of the command line.

Reads one request as JSON from standard input, and writes a JSON line for each measurement or remark.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernels import machine
from kernels.bench.measuring import compare
from kernels.bench.result import Measurement, from_json
from kernels.roofline import Roofline
from kernels.roofline import from_json as roofline_from_json


@dataclass(frozen=True)
class Request:
    """What to measure on `threads` threads: (kernel, sizes or None, dtype) each, beside libraries."""

    cases: tuple[tuple[str, tuple[int, ...] | None, str], ...]
    threads: int
    seconds: float
    against: tuple[str, ...]
    roof: Roofline


def measurements(request: Request) -> Iterator[Measurement | str]:
    """The measurements and remarks of a child process, as they come. Raises RuntimeError if it fails."""
    environment = machine.thread_environment(request.threads)
    command = [sys.executable, "-m", "kernels.bench.child"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        json.dump(asdict(request), child.stdin)
        child.stdin.close()
        for line in child.stdout:
            content = json.loads(line)
            yield content["say"] if "say" in content else from_json(content)
    if child.returncode:
        raise RuntimeError(f"the measuring process ended with exit code {child.returncode}")


def serve(request: dict[str, Any]) -> None:
    """Measure what a request says."""
    threads, said = request["threads"], set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            print(json.dumps({"say": text}), flush=True)

    machine.pin(threads)
    roof = roofline_from_json(request["roof"])
    for kernel, sizes, dtype in request["cases"]:
        for found in compare(
            kernel,
            sizes,
            dtype,
            threads=threads,
            seconds=request["seconds"],
            against=request["against"],
            roof=roof,
            say=say,
        ):
            print(json.dumps(found.as_json()), flush=True)


if __name__ == "__main__":
    serve(json.load(sys.stdin))
