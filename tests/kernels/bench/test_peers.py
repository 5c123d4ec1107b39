"""Every library that is installed does the same work as the reference; what does not take part says why."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dtypes
from kernels.bench import peers
from kernels.library import ELEMENTWISE, LIBRARY, MATMUL, ROWS, Sizes
from kernels.prepared import Prepared

SIZES: dict[str, Sizes] = {ELEMENTWISE: (1003,), ROWS: (7, 33), MATMUL: (5, 9, 6)}


def installed(name: str) -> bool:
    try:
        peers.load(name)
    except peers.LeftOutError:
        return False
    return True


# Those that write where they are told; the results of PyTorch and JAX are arrays of their own.
IN_PLACE = [name for name in ("numpy", "numexpr", "numba") if installed(name)]


def sizes_of(name: str) -> Sizes:
    kernel = LIBRARY[name]
    return (2, *SIZES[MATMUL]) if len(kernel.default) == 4 else SIZES[kernel.family]


@pytest.mark.parametrize("library", IN_PLACE)
@pytest.mark.parametrize("name", LIBRARY)
def test_same_work(library: str, name: str) -> None:
    if name not in peers.load(library).KERNELS:
        with pytest.raises(peers.LeftOutError, match="not written"):
            peers.make(library, LIBRARY[name], (1,), LIBRARY["copy"].make(dtypes.float32, (1,)), [], 1)
        return
    sizes = sizes_of(name)
    placed = LIBRARY[name].make(dtypes.float32, sizes)
    oracle, other = Prepared(placed), Prepared(placed)
    oracle.reference()
    peers.make(library, LIBRARY[name], sizes, placed, other.arrays, 1)()
    for got, wanted in zip(other.arrays, oracle.arrays, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("library", [name for name in ("torch", "jax") if installed(name)])
@pytest.mark.parametrize("name", LIBRARY)
def test_results_of_their_own(library: str, name: str) -> None:
    sizes = sizes_of(name)
    placed = LIBRARY[name].make(dtypes.float32, sizes)
    oracle, other = Prepared(placed), Prepared(placed)
    oracle.reference()
    result = peers.make(library, LIBRARY[name], sizes, placed, other.arrays, 1)()
    if name != "adamw":
        written = next(iter(placed.work.spec.written))
        wanted = oracle.arrays[placed.memory[written]]
        np.testing.assert_allclose(np.asarray(result).reshape(-1), wanted, rtol=1e-4, atol=1e-5)


def test_left_out() -> None:
    placed = LIBRARY["copy"].make(dtypes.float32, (peers.REFERENCE_MOST + 1,))
    with pytest.raises(peers.LeftOutError, match="elements"):
        peers.make("reference", None, (1,), placed, [], 1)
    with pytest.raises(peers.LeftOutError, match="only the library's"):
        peers.make("numpy", None, (1,), placed, [], 1)
    with pytest.raises(peers.LeftOutError, match="no such library"):
        peers.load("other")
    narrow = Prepared(LIBRARY["copy"].make(dtypes.bfloat16, (8,)))
    with pytest.raises(peers.LeftOutError, match="float32"):
        peers.make("numpy", LIBRARY["copy"], (8,), narrow.kernel, narrow.arrays, 1)


def test_the_reference_does_the_kernels_work() -> None:
    one = Prepared(LIBRARY["exp"].make(dtypes.float64, (9,)))
    peers.make("reference", None, (9,), one.kernel, one.arrays, 1)()
    np.testing.assert_allclose(one.arrays[1], np.exp(one.arrays[0]))
