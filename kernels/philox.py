"""Philox4x32-10 in NumPy: the counter-based generator every back end reproduces bit for bit.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Knows streams, not distributions.

Element `i` of stream (seed, offset) is word `i % 4` of the block with key (seed low, seed high) and counter
(i // 4 low, i // 4 high, offset low, offset high). One eager call draws one stream, then the offset moves on
by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def random_bits(seed: Any, offset: Any, i: Any) -> Any:
    """32 random bits of each element `i` (int64 array) of stream (seed, offset), as int64 in [0, 2**32)."""
    i = np.asarray(i, np.int64)
    block, word = i >> 2, i & 3
    words = _block(_unsigned(seed), _unsigned(offset), block.astype(np.uint64))
    shape = np.broadcast_shapes(np.shape(seed), np.shape(offset), np.shape(block))
    words = tuple(np.broadcast_to(w, shape) for w in words)
    return np.choose(word, words).astype(np.int64)


def stream(seed: Any, offset: Any, count: int, xp: Any = np) -> Any:
    """The first `count` elements of stream (seed, offset): `random_bits` of arange(count), each block
    computed once. With `xp` CuPy seed and offset are its arrays, and so is the result.
    """
    if xp is np:
        return _numbered(int(seed), int(offset), count)
    blocks = xp.arange((count + 3) // 4, dtype=np.uint64)
    words = _block(seed.astype(np.uint64), offset.astype(np.uint64), blocks)
    return xp.stack(words, axis=-1).reshape(-1)[:count].astype(np.int64)


# Blocks at a time: their words stay in the core's cache.
_AT_A_TIME = 1 << 11
# As arrays, which a number would be made at each use.
_MASK, _SHIFT = np.array(_LOW), np.array(_HALF)


def _numbered(seed: int, offset: int, count: int) -> Any:
    """`stream` in NumPy: words 0 and 2 of blocks are one array, and words 1 and 3, which halves the calls."""
    blocks = (count + 3) // 4
    out = np.empty((blocks, 4), np.uint64)
    for start in range(0, blocks, _AT_A_TIME):
        stop = min(start + _AT_A_TIME, blocks)
        keys, (first, second) = _constants(seed, stop - start)
        even, odd, product = np.empty((3, 2, stop - start), np.uint64)
        number = np.arange(start, stop, dtype=np.uint64)
        np.bitwise_and(number, _MASK, even[0])
        np.right_shift(number, _SHIFT, odd[0])
        even[1], odd[1] = offset & 0xFFFFFFFF, offset >> 32 & 0xFFFFFFFF
        for key in keys:
            np.multiply(even[0], first, product[1])
            np.multiply(even[1], second, product[0])
            np.right_shift(product, _SHIFT, even)
            np.bitwise_xor(np.bitwise_xor(even, odd, even), key, even)
            np.bitwise_and(product, _MASK, odd)
        out[start:stop, ::2] = even.T
        out[start:stop, 1::2] = odd.T
    return out.reshape(-1)[:count].view(np.int64)


@lru_cache(16)
def _constants(seed: int, width: int) -> tuple[Any, Any]:
    """The keys of every round, and the factors. For few blocks they are written out: to broadcast takes NumPy
    three times as long to begin."""
    key = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    rounds = [[(k + r * w) & 0xFFFFFFFF for k, w in zip(key, WEYL, strict=True)] for r in range(ROUNDS)]
    keys, factors = np.array(rounds, np.uint64)[:, :, None], np.array(MULTIPLIERS, np.uint64)[:, None]
    return (np.repeat(keys, width, 2), np.repeat(factors, width, 1)) if width < 256 else (keys, factors)


def device_bits(seed: Any, offset: Any, i: Any, xp: Any) -> Any:
    """As `random_bits`, where some operands are arrays of CuPy, which is `xp`."""
    seed, offset, block = (x.astype(np.uint64) for x in (seed, offset, i >> 2))
    word, words = i & 3, _block(seed, offset, block)
    first, last = xp.where(word == 0, words[0], words[1]), xp.where(word == 2, words[2], words[3])
    return xp.where(word < 2, first, last).astype(np.int64)


def _unsigned(x: Any) -> Any:
    return np.asarray(x, np.int64).astype(np.uint64)


def _block(seed: Any, offset: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    c0, c1, c2, c3 = block & _LOW, block >> _HALF, offset & _LOW, offset >> _HALF
    k0, k1 = seed & _LOW, seed >> _HALF
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(WEYL[0])) & _LOW, (k1 + np.uint64(WEYL[1])) & _LOW
    return c0, c1, c2, c3
