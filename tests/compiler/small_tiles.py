"""Chains of kernels in small programs: thresholds for tests."""

from __future__ import annotations

import pytest

from compiler import chains


def allow_small_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 rows, and chains however little they save."""
    for name in ("LEAST", "SHORTEST"):
        monkeypatch.setattr(chains, name, 0)
    for name, value in (("TILE_BYTES", 1), ("FEWEST_ROWS", 16), ("FEWEST_UNITS", 1)):
        monkeypatch.setattr(chains, name, value)
    monkeypatch.setattr(chains._Finder, "pays", lambda self, chain, saved: True)
