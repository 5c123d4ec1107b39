"""Dispatch, numbers, and the table itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import ops
from compiler.ir import Apply, Const, Input
from compiler.ops.op import Elementwise, typed_number
from compiler.ops.quiet import run_quietly
from compiler.types import TensorType
from kernels import dtypes


def test_an_op_is_defined_once() -> None:
    with pytest.raises(ValueError, match="'add' is defined twice"):
        ops.Op("add", np.add, lambda *types: types[0])


def test_dispatch_follows_the_operands() -> None:
    class Hooked:
        @staticmethod
        def __apply_op__(op: ops.Op, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> str:
            return f"{op.name} {len(inputs)}"

    value = Input(TensorType((2,), dtypes.float32))
    assert ops.add(value, Hooked()) == "add 2"
    assert isinstance(ops.add(value, np.zeros(2, np.float32)), Apply)
    assert isinstance(ops.add(np.zeros(2), np.zeros(2)), np.ndarray)


def test_numbers_are_weak() -> None:
    for dtype in (np.uint8, np.float16, np.float32):
        assert ops.mul(np.ones(2, dtype), 3).dtype == dtype
    traced = ops.sub(1.0, Input(TensorType((2,), dtypes.float16)))
    literal = traced.inputs[0]
    assert isinstance(literal, Const)
    assert literal.type == TensorType((), dtypes.float16)


def test_numbers_wrap_at_the_width() -> None:
    assert typed_number(-1, dtypes.uint8).item() == 255
    assert typed_number(2**63, dtypes.int64).item() == -(2**63)
    assert typed_number(1e39, dtypes.float32).item() == np.inf


def test_a_result_without_axes_is_an_array() -> None:
    out = ops.add(np.asarray(1.0), 2.0)
    assert isinstance(out, np.ndarray)
    assert out.shape == ()


def test_an_identity_body_copies() -> None:
    x = np.array([0.5])
    assert not np.shares_memory(ops.unit_interval(x), x)


def test_units_change_nothing() -> None:
    x = np.array([-0.0, 0.0, 1.5, -np.inf, np.nan])
    for op in ops.TABLE.values():
        if isinstance(op, Elementwise) and op.unit is not None:
            y = np.array([0, 3, -5]) if dtypes.FLOATING not in op.categories else x
            out = op(y, op.unit)
            np.testing.assert_array_equal(out, y, err_msg=op.name)
            np.testing.assert_array_equal(np.signbit(out), np.signbit(y), err_msg=op.name)


def test_numbers_become_arrays_of_their_own_sign_and_type() -> None:
    assert np.signbit(typed_number(-0.0, dtypes.float32)) and not np.signbit(
        typed_number(0.0, dtypes.float32)
    )
    assert typed_number(True, dtypes.float32).dtype == np.float32
    assert typed_number(300, dtypes.uint8) == 44 and typed_number(-1, dtypes.uint8) == 255
    with pytest.raises(ValueError, match="read-only"):
        typed_number(7.0, dtypes.float32)[...] = 1


def test_quiet_code_may_compute_again() -> None:
    def inner() -> np.ndarray:
        return run_quietly(np.log, np.zeros(1))

    with np.errstate(all="raise"):
        assert run_quietly(inner)[0] == -np.inf
        assert ops.log(np.zeros(1))[0] == -np.inf
        with pytest.raises(FloatingPointError):
            np.log(np.zeros(1))
