"""Random streams on a GPU in one launch: Philox4x32-10 (kernels/philox.py) as CUDA text for CuPy.

Where the engine builds no kernels, the steps are done one by one; the bits are the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kernels import philox

# Of element `i`: the word i % 4 of block i / 4. C as well as CUDA, so that any compiler can check it.
BODY = f"""
    unsigned long long block = (unsigned long long)i >> 2;
    unsigned long long key = (unsigned long long)seed[0], counter = (unsigned long long)offset[0];
    unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32);
    unsigned int c2 = (unsigned int)counter, c3 = (unsigned int)(counter >> 32);
    unsigned int k0 = (unsigned int)key, k1 = (unsigned int)(key >> 32);
    for (int round = 0; round < {philox.ROUNDS}; ++round) {{
        unsigned long long p0 = {philox.MULTIPLIERS[0]}ULL * c0, p1 = {philox.MULTIPLIERS[1]}ULL * c2;
        c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
        c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
        c1 = (unsigned int)p1;
        c3 = (unsigned int)p0;
        k0 += {philox.WEYL[0]}U;
        k1 += {philox.WEYL[1]}U;
    }}
    int word = (int)(i & 3);
    out = (long long)(word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3);
"""


@cache
def _kernel(xp: Any) -> Any:
    return xp.ElementwiseKernel("raw int64 seed, raw int64 offset", "int64 out", BODY, "tracefuse_philox")


def stream(seed: Any, offset: Any, count: int, xp: Any) -> Any:
    """As philox.stream, for a seed and an offset that are arrays of `xp`."""
    if not count or not hasattr(xp, "ElementwiseKernel"):
        return philox.stream(seed, offset, count, xp)
    return _kernel(xp)(seed, offset, size=count)
