"""Creation ops follow the kind of the value they are made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.ir import Apply, Input
from compiler.types import TensorType
from kernels import dtypes


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-0.0, dtypes.float32),
        (np.inf, dtypes.float16),
        (1e-45, dtypes.float32),
        (2**63, dtypes.int64),
        (True, dtypes.bool_),
    ],
)
def test_full_keeps_the_value(value: Any, dtype: dtypes.DType) -> None:
    out = ops.full(shape=(2,), value=value, dtype=dtype)
    expected = -(2**63) if value == 2**63 else np.asarray(value).astype(dtype.numpy)
    assert out[0] == expected
    assert out.dtype == dtype.numpy
    if dtype.is_floating_point:
        assert np.signbit(out[1]) == np.signbit(value)


def test_iota_counts_along_its_axis() -> None:
    assert ops.iota(shape=(2, 3), axis=1, dtype=dtypes.int64).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert ops.iota(shape=(2, 3), axis=0, dtype=dtypes.float32).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_zeros_are_of_the_kind_of_their_model() -> None:
    class Hooked:
        dtype = dtypes.float32

        @staticmethod
        def __apply_op__(op: ops.Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
            return op, inputs, attrs

    value = ops.zeros(Input(TensorType((2,), dtypes.int64)), (3,))
    assert isinstance(value, Apply)
    assert value.type == TensorType((3,), dtypes.int64)
    np.testing.assert_array_equal(ops.zeros(np.ones(2), (3,)), np.zeros(3))
    assert ops.zeros(Hooked(), (3,)) == (ops.full, (), {"shape": (3,), "value": 0, "dtype": dtypes.float32})
