"""Text of tensors, against what PyTorch prints (dtype names apart)."""

from __future__ import annotations

import pytest

import framework as fw
from compiler.errors import TraceError
from framework.capture.tracer import Tracer
from framework.state import ambient

nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (fw.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (fw.tensor([[1.0, 2.5], [3.0, 4.0]]), "tensor([[1.0000, 2.5000],\n        [3.0000, 4.0000]])"),
        (fw.tensor(5), "tensor(5)"),
        (fw.tensor(-0.5), "tensor(-0.5000)"),
        (fw.tensor([True, False]), "tensor([ True, False])"),
        (fw.tensor([1, -20]), "tensor([  1, -20])"),
        (fw.tensor([1e10, 1.0]), "tensor([1.0000e+10, 1.0000e+00])"),
        (fw.tensor([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
        (fw.tensor([1.5, nan, inf, -inf]), "tensor([1.5000,    nan,    inf,   -inf])"),
        (fw.tensor([nan]), "tensor([nan])"),
        (fw.zeros(2), "tensor([0., 0.])"),
        (fw.zeros(0), "tensor([])"),
        (fw.zeros(0, 3), "tensor([], size=(0, 3))"),
        (fw.zeros(2, dtype=fw.float64), "tensor([0., 0.], dtype=framework.float64)"),
        (fw.zeros(1, dtype=fw.int32), "tensor([0], dtype=framework.int32)"),
        (fw.ones(2, 2, 1), "tensor([[[1.],\n         [1.]],\n\n        [[1.],\n         [1.]]])"),
        (fw.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
        (fw.ones(1, requires_grad=True) + 1, "tensor([2.], grad_fn=<AddBackward0>)"),
        (fw.ones(2, requires_grad=True)[0], "tensor(1., grad_fn=<SelectBackward0>)"),
        (fw.ones(2, dtype=fw.bfloat16), "tensor([1., 1.], dtype=framework.bfloat16)"),
        (
            fw.arange(2000),
            "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])",
        ),
        (
            fw.arange(20.0) / 7,
            "tensor([0.0000, 0.1429, 0.2857, 0.4286, 0.5714, 0.7143, 0.8571, 1.0000, 1.1429,\n"
            "        1.2857, 1.4286, 1.5714, 1.7143, 1.8571, 2.0000, 2.1429, 2.2857, 2.4286,\n"
            "        2.5714, 2.7143])",
        ),
    ],
)
def test_repr(made: fw.Tensor, text: str) -> None:
    assert repr(made) == str(made) == text


def test_options() -> None:
    x = fw.tensor([1.23456, 1000.0])
    try:
        fw.set_printoptions(precision=2)
        assert repr(x) == "tensor([   1.23, 1000.00])"
        fw.set_printoptions(sci_mode=True)
        assert repr(x) == "tensor([1.23e+00, 1.00e+03])"
        fw.set_printoptions(threshold=3, edgeitems=1, profile="default")
        assert repr(fw.arange(10)) == "tensor([0,  ..., 9])"
    finally:
        fw.set_printoptions(profile="default")
    assert fw.get_printoptions()["precision"] == 4


def test_format() -> None:
    assert f"{fw.tensor(3.14159):.2f} {fw.tensor([1])}" == "3.14 tensor([1])"


def test_extremum_prints_its_fields() -> None:
    assert (
        repr(fw.tensor([1, 2]).max(0)) == "framework.return_types.max(\nvalues=tensor(2),\nindices=tensor(1))"
    )


def test_a_tensor_of_a_finished_capture_prints_and_says_why_it_has_no_value() -> None:
    tracer = Tracer()
    ambient.tracer = tracer
    try:
        x = fw.ones(64, 10) * 2
        total = x.sum()
    finally:
        ambient.tracer = None
    assert repr(x) == "tensor(<float32[64, 10] of a finished capture>)"
    assert f"{total}" == "tensor(<float32[] of a finished capture>)"
    assert x.shape == (64, 10) and total.dtype is fw.float32
    for use in (lambda: x + 1, lambda: x.numpy(), lambda: fw.ones(1) * total):
        with pytest.raises(TraceError, match="return it from the compiled function"):
            use()
