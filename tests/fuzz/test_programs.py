"""Random programs, compiled as eager: 2,000 of them, the same ones each time.

Four chunks in five are interpreted node by node after the passes; the fifth runs kernels. A chunk that fails
is made smaller by `python -m tests.fuzz --chunk`. Longer runs of longer programs:
`python -m tests.fuzz --programs 50000 --seed 1 --jobs 2 --kernels 5`.
"""

from __future__ import annotations

import pytest

from tests.fuzz.run import CHUNK, run_chunk


@pytest.mark.parametrize("number", range(2000 // CHUNK))
def test_random_programs(number: int) -> None:
    failed = run_chunk(number, groups=3, shrink=False, kernels=number % 5 == 0)
    assert failed is None, str(failed)
