"""Every op on device arrays gives what it gives on the host: on a stand-in for CuPy's arrays.

Bit for bit, but for running sums and products of floats, which a device takes in another order. What the op
table supplies for the laws of eager values is run here on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from compiler.ops.creation import create
from compiler.ops.op import Movement, Op, Sample
from kernels.dtypes import DType
from kernels.gpu import arrays
from tests import cupy_standin
from tests.test_op_laws import Array, cases, inputs_of


@pytest.fixture(autouse=True, scope="module")
def devices() -> Iterator[None]:
    with cupy_standin.installed():
        yield


# In steps that double, on a device.
REORDERED = ("cumsum", "cumprod", "recurrence")


def same_bits(there: Any, here: Array) -> None:
    """A device array has the type and the bits of a host array."""
    assert isinstance(there, cupy_standin.ndarray)
    assert there.shape == here.shape and there.dtype == here.dtype
    assert there.get().tobytes() == np.asarray(here, order="C").tobytes()


def same_value(op: Op, there: Any, here: Array) -> None:
    """As `same_bits`, within rounding where the op's order is the device's own."""
    if op.name in REORDERED and here.dtype.kind == "f":
        assert isinstance(there, cupy_standin.ndarray) and there.dtype == here.dtype
        eps = np.finfo(here.dtype).eps
        np.testing.assert_allclose(there.get(), here, rtol=64 * eps, atol=64 * eps)
    else:
        same_bits(there, here)


def value(op: Op, operands: list[Any], attrs: dict[str, Any], number: int) -> Any:
    """The op's value on a GPU."""
    return op(*operands, **attrs) if operands else create(op, attrs, number)


@pytest.mark.parametrize("case", cases())
def test_an_op_gives_on_a_gpu_what_it_gives_on_the_host(case: tuple[Op, Sample, DType]) -> None:
    op, sample, dtype = case
    inputs = inputs_of(op, sample, dtype)
    expected = op(*inputs, **sample.attrs)
    on_device = [arrays.put(x, 1) for x in inputs]
    out = value(op, on_device, sample.attrs, 1)
    same_value(op, out, expected)
    assert out.device.id == 1
    # In another layout, for movements and kernels alike.
    turned = [np.array(x, order="F") for x in inputs]
    moved = [arrays.put(x.T, 1).transpose() for x in turned]
    same_value(op, value(op, moved, sample.attrs, 1), op(*turned, **sample.attrs))
    if isinstance(op, Movement):
        assert arrays.share(out, on_device[0]) == np.may_share_memory(expected, inputs[0])
    elif inputs:
        assert out.flags.c_contiguous and not any(arrays.share(out, x) for x in on_device)
        # The first operand there, the others on the host: they follow it.
        same_value(op, op(arrays.put(inputs[0], 1), *inputs[1:], **sample.attrs), expected)
    for x, before in zip(on_device, inputs, strict=True):
        same_bits(x, before)
