"""Random programs, compiled as eager: 2,000 of them, the same ones each time.

Longer runs: `python -m tests.fuzz --programs 50000 --seed 1 --jobs 2`.
"""

from __future__ import annotations

import pytest

from tests.fuzz.run import CHUNK, run_chunk


@pytest.mark.parametrize("number", range(2000 // CHUNK))
def test_random_programs(number: int) -> None:
    failed = run_chunk(number)
    assert failed is None, str(failed)
