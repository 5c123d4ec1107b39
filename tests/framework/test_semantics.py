"""Every case of semantics_cases.py, eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import framework as fw
from tests.framework.semantics_cases import CASES, Case


def run_case(case: Case, call: Callable[..., Any]) -> None:
    """Check `case`, its function called as `call(fn, *tensors)`."""
    tensors = [fw.tensor(x, requires_grad=case.gradient and x.dtype.kind == "f") for x in case.inputs]
    if case.raises is not None:
        kind, pattern = case.raises
        with pytest.raises(kind, match=pattern):
            call(case.fn, *tensors)
        for t, x in zip(tensors, case.inputs, strict=True):
            _check(t, x, 0.0)
        return
    result = call(case.fn, *tensors)
    if case.gradient:
        result = fw.autograd.grad(result.sum(), [t for t in tensors if t.requires_grad])
    expected = case.expected if isinstance(case.expected, tuple) else (case.expected,)
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(expected)
    for got, wanted in zip(results, expected, strict=True):
        _check(got, wanted, case.rtol)


def _check(got: fw.Tensor, wanted: np.ndarray[Any, Any], rtol: float) -> None:
    array = got.detach().numpy()
    assert array.dtype == wanted.dtype
    assert array.shape == wanted.shape
    np.testing.assert_allclose(array, wanted, rtol=rtol, atol=0)
    if rtol == 0 and wanted.dtype.kind == "f":
        known = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(array)[known], np.signbit(wanted)[known])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eager(case: Case) -> None:
    run_case(case, lambda fn, *tensors: fn(*tensors))


def test_a_wrong_value_is_caught() -> None:
    wrong = Case("wrong", lambda x: x + 1, (np.zeros(1, np.float32),), np.zeros(1, np.float32))
    with pytest.raises(AssertionError):
        run_case(wrong, lambda fn, *tensors: fn(*tensors))


def test_a_wrong_sign_of_zero_is_caught() -> None:
    wrong = Case("wrong", lambda x: x * -1, (np.zeros(1, np.float32),), np.zeros(1, np.float32))
    with pytest.raises(AssertionError):
        run_case(wrong, lambda fn, *tensors: fn(*tensors))
