"""The same work by other libraries, each optional: `make` gives a call, or says why there is none.

A module `with_NAME` holds a table `KERNELS` from a kernel's name to a function of its operands (arrays shaped
as the library's `shapes` says) that returns a call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kernels.files import Placed
from kernels.library import Named, Sizes
from kernels.prepared import Array, Prepared

NAMES = ("reference", "numpy", "numexpr", "numba", "torch", "jax")
# The reference is slow on purpose.
REFERENCE_MOST = 1 << 20
_DTYPES = ("float32", "float64", "int64")


class LeftOutError(Exception):
    """A library does not take part; the text says why."""


def make(
    name: str, named: Named | None, sizes: Sizes, placed: Placed, arrays: Sequence[Array], threads: int
) -> Callable[[], Any]:
    """A call that does the kernel's work on `arrays` with library `name`. Raises LeftOutError."""
    if name == "reference":
        if placed.work.elements > REFERENCE_MOST:
            raise LeftOutError(f"more than {REFERENCE_MOST} elements take it long")
        return Prepared(placed, arrays=list(arrays)).reference
    if named is None:
        raise LeftOutError("only the library's kernels are written in other libraries too")
    library = load(name)
    if named.name not in library.KERNELS:
        raise LeftOutError("not written in it")
    if any(str(x.dtype) not in _DTYPES for x in arrays):
        raise LeftOutError(f"only {', '.join(_DTYPES)} are written in it")
    operands = zip(placed.memory, named.shapes(sizes), strict=True)
    library.use(threads)
    return library.KERNELS[named.name](*[arrays[m].reshape(shape) for m, shape in operands])


def load(name: str) -> Any:
    """The module of library `name`. Raises LeftOutError where it is not installed."""
    if name not in NAMES:
        raise LeftOutError(f"no such library; there are {', '.join(NAMES)}")
    try:
        return importlib.import_module(f"kernels.bench.peers.with_{name}")
    except ModuleNotFoundError as error:
        raise LeftOutError(f"{error.name} is not installed") from None
