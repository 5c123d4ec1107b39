"""Chunks of programs: what one seed stands for, run and, when one fails, shrunk.

How many chunks, and in which processes, is the caller's.
"""

from __future__ import annotations

import contextlib

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.check import MismatchError, check
from tests.fuzz.interpreted import interpreting
from tests.fuzz.program import Program, programs

# Programs of one chunk. Hypothesis varies what it has drawn; a new seed starts afresh.
CHUNK = 100


def run_chunk(
    number: int, count: int = CHUNK, groups: int = 4, shrink: bool = True, kernels: bool = True
) -> MismatchError | None:
    """Run the programs that seed `number` stands for; what the smallest that fails does, or None.

    Without kernels they are interpreted node by node after the passes: machine code takes most of the time.
    """

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(programs(groups=groups))
    def run(program: Program) -> None:
        check(program)

    try:
        with contextlib.nullcontext() if kernels else interpreting():
            run()
    except MismatchError as mismatch:
        return mismatch
    return None
