"""Functions that run on the device, where one expression does not say a word of the vocabulary.

Never called here: their text goes into the sources of kernels that use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import triton.language as tl
    from triton.language.extra import libdevice


def integer_floor_div(x, y):
    # A divisor of 0 was found before the kernel, or is outside the mask; min // -1 is min, as integers wrap.
    safe = tl.where((y == 0) | (y == -1), 1, y)
    quotient = tl.where(y == -1, -x, x // safe)
    remainder = x - quotient * y
    return tl.where((remainder != 0) & ((remainder ^ y) < 0), quotient - 1, quotient)


def integer_remainder(x, y):
    remainder = x % tl.where((y == 0) | (y == -1), 1, y)
    return tl.where((remainder != 0) & ((remainder ^ y) < 0), remainder + y, remainder)


def integer_fmod(x, y):
    return x % tl.where((y == 0) | (y == -1), 1, y)


def unsigned_floor_div(x, y):
    return x // tl.where(y == 0, 1, y)


def unsigned_remainder(x, y):
    return x % tl.where(y == 0, 1, y)


def integer_pow(x, y, bits: tl.constexpr):
    power = x * 0 + 1
    for _ in range(bits):
        power = tl.where((y & 1) != 0, power * x, power)
        x = x * x
        y = y >> 1
    return power


def float_floor_div(x, y):
    remainder = libdevice.fmod(x, y)
    quotient = divide(x - remainder, y)
    quotient = tl.where((remainder != 0) & ((remainder < 0) ^ (y < 0)), quotient - 1, quotient)
    floored = tl.floor(quotient)
    floored = tl.where(quotient - floored > 0.5, floored + 1, floored)
    exact = divide(x, y)
    # A zero takes the sign of the exact quotient, which is finite there.
    return tl.where(y == 0, exact, tl.where(quotient == 0, exact * 0, floored))


def float_remainder(x, y):
    remainder = libdevice.fmod(x, y)
    return tl.where((remainder != 0) & ((remainder < 0) ^ (y < 0)), remainder + y, remainder)


def divide(x, y):
    return tl.div_rn(x, y) if x.dtype == tl.float32 else x / y


def shift_left(x, y, bits: tl.constexpr):
    inside = (y >= 0) & (y < bits)
    return tl.where(inside, x << tl.where(inside, y, 0), 0)


def shift_right(x, y, bits: tl.constexpr):
    # An amount outside the width leaves nothing but the sign.
    return x >> tl.where((y >= 0) & (y < bits), y, bits - 1)


def unsigned_shift_right(x, y, bits: tl.constexpr):
    inside = (y >= 0) & (y < bits)
    return tl.where(inside, x >> tl.where(inside, y, 0), 0)


def philox(seed, offset, block):
    # Philox4x32-10: the four words of the block with key `seed` and counter (block, offset).
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c2, c3 = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


def random_bits(seed, offset, i):
    c0, c1, c2, c3 = philox(seed, offset, i >> 2)
    word = i & 3
    even = tl.where(word == 0, c0, c2)
    odd = tl.where(word == 1, c1, c3)
    return tl.where((word & 1) == 0, even, odd).to(tl.int64)


def random_quads(seed, offset, first):
    # Those of elements first to first + 3, as two more axes of two: a quarter of the work.
    c0, c1, c2, c3 = philox(seed, offset, first >> 2)
    return tl.join(tl.join(c0, c2), tl.join(c1, c3)).to(tl.int64)


def combine_add(x, y):
    return x + y


def combine_mul(x, y):
    return x * y


def combine_max(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


def combine_min(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


def recurrence(x, factor, y):
    return tl.where(x == 0, y, factor * x + y)


def combine_recurrence(factor, x, another, y):
    return factor * another, recurrence(x, another, y)


def combine_or(x, y):
    return x | y


def combine_and(x, y):
    return x & y
