"""Containers: order, indexing, names, and what the owner sees."""

from __future__ import annotations

import pytest

import framework as fw
from framework import nn


def layers(count: int) -> list[nn.Linear]:
    return [nn.Linear(2, 2) for _ in range(count)]


def test_sequential_applies_in_order_and_slices() -> None:
    a, b = layers(2)
    m = nn.Sequential(a, nn.ReLU(), b)
    x = fw.ones(1, 2)
    assert m(x).tolist() == b(a(x).relu()).tolist()
    assert m[0] is a and m[-1] is b and len(m) == 3 and list(m)[2] is b
    assert isinstance(m[1:], nn.Sequential) and len(m[1:]) == 2
    named = nn.Sequential({"one": a, "two": b})
    assert named.one is a and next(iter(named.state_dict())) == "one.weight"
    assert [n for n, _ in m[1:].named_children()] == ["1", "2"]


def test_sequential_edits() -> None:
    a, b, c = layers(3)
    m = nn.Sequential(a).append(b)
    m.insert(0, c)
    assert [n for n, _ in m.named_children()] == ["0", "1", "2"] and m[0] is c
    assert m.pop(0) is c and m[0] is a
    m[0] = c
    del m[1]
    assert list(m) == [c]
    with pytest.raises(IndexError, match="index 5 is out of range"):
        m[5]
    assert len(nn.Sequential(a) + nn.Sequential(b, c)) == 3


def test_module_list_registers_parameters() -> None:
    m = nn.ModuleList(layers(2))
    m.extend(layers(1)).append(nn.Linear(2, 3))
    assert len(m) == 4 and len(list(m.parameters())) == 8
    assert isinstance(m[1:3], nn.ModuleList) and m[1:3][0] is m[1]
    with pytest.raises(NotImplementedError):
        m(1)


def test_module_dict() -> None:
    a, b = layers(2)
    m = nn.ModuleDict({"a": a})
    m["b"] = b
    assert list(m) == ["a", "b"] and "a" in m and m["b"] is b and dict(m.items())["a"] is a
    assert m.pop("a") is a and list(m.keys()) == ["b"] and list(m.values()) == [b]
    m.update([("c", a)])
    del m["b"]
    assert len(m) == 1
    m.clear()
    assert len(m) == 0


def test_parameter_list_makes_parameters() -> None:
    m = nn.ParameterList([fw.ones(2), nn.Parameter(fw.zeros(3))])
    m.append(fw.ones(1))
    assert len(m) == 3 and all(isinstance(p, nn.Parameter) for p in m)
    assert repr(m[:1]) == "ParameterList(\n  (0): Parameter containing: [framework.float32 of size 2]\n)"
    assert list(m.state_dict()) == ["0", "1", "2"] and len(list(m.parameters())) == 3
    m[0] = fw.zeros(2)
    assert float(m[0].detach().sum()) == 0.0 and m[-1].shape == (1,)
    with pytest.raises(IndexError, match="index 7"):
        m[7]
