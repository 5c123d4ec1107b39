"""Module: registration, traversal, conversion, hooks, state dicts, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn
from framework.state import structure


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 2, bias=False)
        self.scale = nn.Parameter(fw.ones(2))
        self.register_buffer("count", fw.zeros(1))
        self.register_buffer("cache", fw.zeros(1), persistent=False)

    def forward(self, x: Any, shift: float = 0.0) -> Any:
        return self.second(self.act(self.first(x))) * self.scale + shift


def test_attributes_register_parameters_buffers_and_modules() -> None:
    m = Block()
    assert [n for n, _ in m.named_parameters()] == ["scale", "first.weight", "first.bias", "second.weight"]
    assert [n for n, _ in m.named_buffers()] == ["count", "cache"]
    assert [n for n, _ in m.named_modules()] == ["", "first", "act", "second"]
    assert [n for n, _ in m.named_children()] == ["first", "act", "second"]
    assert "scale" in dir(m) and "first" in dir(m)


def test_assignment_over_a_registered_name() -> None:
    m = Block()
    m.scale = nn.Parameter(fw.zeros(2))
    assert [n for n, _ in m.named_parameters(recurse=False)] == ["scale"]
    with pytest.raises(TypeError, match="cannot assign 'Tensor' object to parameter 'scale'"):
        m.scale = fw.ones(2)
    with pytest.raises(TypeError, match="cannot assign 'int' object to buffer 'count'"):
        m.count = 3
    with pytest.raises(TypeError, match="child module 'first'"):
        m.first = 1
    m.scale = None
    assert m.scale is None and [n for n, _ in m.named_parameters(recurse=False)] == []
    del m.first
    assert not hasattr(m, "first")
    m.act = nn.Parameter(fw.ones(1))
    assert "act" not in dict(m.named_modules())


def test_registration_errors() -> None:
    class NoInit(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(fw.ones(1))

    with pytest.raises(AttributeError, match=r"before Module.__init__\(\) call"):
        NoInit()
    m = Block()
    with pytest.raises(KeyError, match="already exists"):
        m.register_buffer("training", fw.zeros(1))
    with pytest.raises(KeyError, match="contain"):
        m.add_module("a.b", nn.ReLU())
    with pytest.raises(TypeError, match="not a Module subclass"):
        m.add_module("x", fw.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="non-leaf"):
        doubled = nn.Parameter(fw.ones(1))
        doubled._node = (m.scale * 2)._node
        m.register_parameter("doubled", doubled)
    with pytest.raises(AttributeError, match="'Block' object has no attribute 'missing'"):
        _ = m.missing
    with pytest.raises(NotImplementedError, match=r"Module \[Module\]"):
        nn.Module()(1)


def test_shared_members_appear_once() -> None:
    m = nn.Module()
    m.a = nn.Linear(2, 2)
    m.b = m.a
    m.c = m.a.weight
    assert len(list(m.parameters())) == 2
    assert len(list(m.modules())) == 2
    assert len(list(m.named_parameters(remove_duplicate=False))) == 5


def test_get_by_path() -> None:
    m = nn.Sequential(Block())
    assert m.get_submodule("0.first") is m[0].first
    assert m.get_parameter("0.first.weight") is m[0].first.weight
    assert m.get_buffer("0.count") is m[0].count
    with pytest.raises(AttributeError, match="no sub-module 'x'"):
        m.get_submodule("0.x")


def test_mode_apply_and_gradients() -> None:
    m = Block()
    assert m.eval() is m and not m.first.training
    m.train()
    assert m.second.training
    with pytest.raises(ValueError, match="boolean"):
        m.train(1)  # type: ignore[arg-type]
    seen: list[str] = []
    m.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "ReLU", "Linear", "Block"]
    m(fw.ones(1, 3)).sum().backward()
    m.zero_grad(set_to_none=False)
    assert all(float(p.grad.abs().sum()) == 0 for p in m.parameters())
    m.zero_grad()
    assert all(p.grad is None for p in m.parameters())
    m.requires_grad_(False)
    assert not any(p.requires_grad for p in m.parameters())


def test_conversion_keeps_parameters_and_gradients() -> None:
    m = Block()
    m.register_buffer("index", fw.arange(3))
    m(fw.ones(1, 3)).sum().backward()
    weight = m.first.weight
    assert m.double() is m and m.first.weight is weight
    assert weight.dtype is fw.float64 and weight.grad.dtype is fw.float64 and m.count.dtype is fw.float64
    assert m.index.dtype is fw.int64
    assert m.to(fw.float16).first.weight.dtype is fw.float16
    assert m.to(fw.ones(1)).first.weight.dtype is fw.float32
    assert m.to("cpu", fw.bfloat16).scale.dtype is fw.bfloat16
    assert m.float().to("cpu").scale.dtype is fw.float32
    with pytest.raises(TypeError, match="only accepts floating point"):
        m.to(fw.int32)


def test_changes_are_counted() -> None:
    m = Block()

    def bumps(change: Any) -> bool:
        before = structure.version
        change()
        return structure.version > before

    assert bumps(lambda: m.eval())
    assert bumps(lambda: setattr(m, "width", 3))
    assert bumps(lambda: setattr(m, "scale", nn.Parameter(fw.ones(2))))
    assert bumps(lambda: m.register_buffer("other", None))
    handle = m.register_forward_hook(lambda *a: None)
    assert bumps(handle.remove)
    assert not bumps(handle.remove)
    assert not bumps(lambda: m(fw.ones(1, 3)))


def test_forward_hooks_in_order_and_removal() -> None:
    m = Block().eval()
    x = fw.ones(1, 3)
    plain = m(x).detach()
    calls: list[str] = []
    m.register_forward_pre_hook(lambda module, args: calls.append("pre"))
    m.register_forward_pre_hook(lambda module, args: calls.append("first"), prepend=True)
    doubled = m.register_forward_hook(lambda module, args, out: out * 2)
    np.testing.assert_allclose(m(x).detach().numpy(), plain.numpy() * 2)
    assert calls == ["first", "pre"]
    doubled.remove()
    with m.register_forward_pre_hook(lambda module, args, kwargs: (args, {"shift": 1.0}), with_kwargs=True):
        np.testing.assert_allclose(m(x, shift=5.0).detach().numpy(), plain.numpy() + 1, rtol=1e-6)
    seen: list[Any] = []
    m.register_forward_hook(lambda module, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    m(x, shift=2.0)
    assert seen == [{"shift": 2.0}]
    m.register_forward_pre_hook(lambda module, args: args[0] * 0)
    assert float(m.first(x * 0).detach().sum()) == float(m.first.bias.detach().sum())


def test_backward_hooks_see_and_replace_gradients() -> None:
    m = nn.Linear(2, 1, bias=False)
    seen: list[Any] = []
    m.register_full_backward_hook(lambda module, gin, gout: seen.append((gin, gout)))
    x = fw.ones(1, 2).requires_grad_()
    m(x).sum().backward()
    (gin, gout), weight = seen[0], m.weight.detach().numpy()
    np.testing.assert_allclose(gin[0].numpy(), weight)
    assert gout[0].numpy().tolist() == [[1.0]]
    m.register_full_backward_hook(lambda module, gin, gout: None if gin[0] is None else (gin[0] * 2,))
    m.register_full_backward_pre_hook(lambda module, gout: (gout[0] * 3,))
    x.grad = None
    m(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), weight * 6, rtol=1e-6)
    m(fw.ones(1, 2)).sum().backward()
    assert seen[-1][0] == (None,)


def test_state_dict_round_trip() -> None:
    a, b = Block(), Block()
    state = a.state_dict()
    assert list(state) == ["scale", "count", "first.weight", "first.bias", "second.weight"]
    assert not state["scale"].requires_grad
    state["count"].fill_(4)
    assert float(a.count) == 4.0, "the state dict shares memory"
    assert repr(b.load_state_dict(state)) == "<All keys matched successfully>"
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
    assert next(iter(nn.Sequential(a).state_dict(prefix="m."))) == "m.0.scale"
    assert a.state_dict(keep_vars=True)["scale"] is a.scale


def test_load_state_dict_reports_everything_and_writes_nothing() -> None:
    m = Block()
    before = m.scale.detach().clone()
    state = m.state_dict()
    state = {**state, "scale": fw.zeros(2), "second.weight": fw.zeros(3, 3), "extra": fw.zeros(1)}
    del state["count"]
    with pytest.raises(RuntimeError) as error:
        m.load_state_dict(state)
    text = str(error.value)
    assert text.startswith("Error(s) in loading state_dict for Block:\n\t")
    assert 'Missing key(s) in state_dict: "count". ' in text
    assert 'Unexpected key(s) in state_dict: "extra". ' in text
    assert "size mismatch for second.weight: copying a param with shape [3, 3] from checkpoint" in text
    np.testing.assert_array_equal(m.scale.detach().numpy(), before.numpy())
    del state["second.weight"]
    result = m.load_state_dict(state, strict=False)
    assert result.missing_keys == ["count", "second.weight"] and result.unexpected_keys == ["extra"]
    assert float(m.scale.detach().sum()) == 0.0
    with pytest.raises(TypeError, match="dict-like"):
        m.load_state_dict([])  # type: ignore[arg-type]


def test_load_state_dict_assign_takes_the_tensors() -> None:
    m = Block()
    given = fw.full((2,), 5.0)
    m.load_state_dict({**m.state_dict(), "scale": given}, assign=True)
    assert isinstance(m.scale, nn.Parameter) and m.scale.data_ptr() == given.data_ptr()


def test_repr_is_a_tree() -> None:
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): Sequential(\n    (0): "
        "ReLU()\n  )\n)"
    )
    assert repr(nn.Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"


def test_deepcopy_and_pickle_are_independent() -> None:
    m = Block()
    m(fw.ones(1, 3)).sum().backward()
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert isinstance(other.scale, nn.Parameter) and other.scale.requires_grad
        np.testing.assert_array_equal(other.first.weight.detach().numpy(), m.first.weight.detach().numpy())
        with fw.no_grad():
            other.scale.fill_(9)
        assert float(m.scale.detach().sum()) == 2.0
    assert copy.deepcopy(m).scale.grad is None


def test_deepcopy_keeps_sharing() -> None:
    m = nn.Module()
    m.a, m.b = nn.Linear(2, 2), nn.Linear(2, 2)
    m.b.weight = m.a.weight
    other = copy.deepcopy(m)
    assert other.a.weight is other.b.weight and other.a.weight is not m.a.weight


def test_parameter() -> None:
    p = nn.Parameter(fw.ones(2))
    assert p.requires_grad and p.is_leaf and isinstance(p * 1, fw.Tensor)
    assert not isinstance(p * 1, nn.Parameter)
    assert repr(p).startswith("Parameter containing:\n")
    assert not nn.Parameter(fw.ones(2), requires_grad=False).requires_grad
    with pytest.raises(TypeError, match="needs a Tensor"):
        nn.Parameter([1.0])  # type: ignore[arg-type]


def doubled(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    return output * 2


def shifted(module: nn.Module, args: tuple[Any, ...]) -> Any:
    return args[0] + 1


def test_pickle_keeps_forward_hooks() -> None:
    m = nn.Linear(2, 2)
    m.register_forward_hook(doubled)
    m.register_forward_pre_hook(shifted)
    x = fw.ones(1, 2)
    assert pickle.loads(pickle.dumps(m))(x).equal(m(x))
