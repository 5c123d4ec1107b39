"""Philox against the known answers of its authors' Random123 library."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.philox import _block, random_bits, stream


@pytest.mark.parametrize(
    ("seed", "offset", "block", "expected"),
    [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(seed: int, offset: int, block: int, expected: str) -> None:
    words = _block(*(np.array([x], np.uint64) for x in (seed, offset, block)))
    assert " ".join(f"{word[0]:08x}" for word in words) == expected


def test_elements_are_the_streams() -> None:
    for seed, offset in ((0, 0), (2**40 + 5, 7), (-3, 2**33)):
        np.testing.assert_array_equal(random_bits(seed, offset, np.arange(11)), stream(seed, offset, 11))


@pytest.mark.parametrize("count", [4 * 300, 4 * 5000 + 3])
def test_long_streams_are_made_in_pieces(count: int) -> None:
    np.testing.assert_array_equal(random_bits(-7, 2**33, np.arange(count)), stream(-7, 2**33, count))


def test_streams_differ() -> None:
    drawn = {tuple(stream(seed, offset, 8)) for seed in (0, 1, 2**32) for offset in (0, 1, 2**32)}
    assert len(drawn) == 9


def test_operands_broadcast() -> None:
    out = random_bits(np.array([[1], [2]]), 0, np.arange(3))
    np.testing.assert_array_equal(out, [stream(1, 0, 3), stream(2, 0, 3)])
