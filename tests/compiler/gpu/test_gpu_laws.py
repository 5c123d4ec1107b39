"""The laws of compiled code on the interpreter of GPU kernels: the CPU tests, of every op and dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from compiler.gpu.program import DeviceExecutable
from compiler.ops.op import Op, Scan
from compiler.plan import Request
from kernels.dtypes import DType
from kernels.gpu.emulator import Emulator
from kernels.gpu.interpret import interpreting
from tests import test_compiled_laws
from tests.test_compiled_laws import (  # noqa: F401
    allowed_ulps,
    test_alone,
    test_alone_broadcast_or_along_other_axes,
    test_between_neighbours,
    test_casts_to_every_dtype,
    test_elementwise_ops_between_neighbours,
    test_gradients,
    test_random_numbers_have_the_same_bits,
    test_special_values,
)


@pytest.fixture(scope="module", autouse=True)
def held_open() -> Iterator[None]:
    with interpreting():
        yield


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests make programs of the interpreter."""

    def make(request: Request) -> DeviceExecutable:
        return DeviceExecutable(request, Emulator())

    def allowed(op: Op, dtype: DType) -> int:
        """As on the CPU, but running sums, which NumPy's are there, have another order here."""
        running = isinstance(op, Scan) and op.combine in ("add", "mul") and dtype.is_floating_point
        return (64 if dtype.compute is None else 1) if running else allowed_ulps(op, dtype)

    monkeypatch.setattr(test_compiled_laws, "Executable", make)
    monkeypatch.setattr(test_compiled_laws, "allowed_ulps", allowed)
