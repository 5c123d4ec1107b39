"""Random programs, compiled as eager: 2,000 of them, the same ones each time.

Longer runs, of longer programs: `python -m tests.fuzz --programs 50000 --seed 1 --jobs 2`.
"""

from __future__ import annotations

import pytest

from framework.capture import book
from tests.fuzz.run import CHUNK, run_chunk


@pytest.mark.parametrize("number", range(2000 // CHUNK))
def test_random_programs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if number % 4:  # machine code takes most of the time: only for stretches that come back
        monkeypatch.setattr(book, "MADE_AT_ONCE", 0)
    failed = run_chunk(number, groups=3)
    assert failed is None, str(failed)
