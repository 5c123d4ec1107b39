"""save and load: what survives, what is shared, and what a file may build."""

from __future__ import annotations

import collections
import io
import pickle
from pathlib import Path
from typing import Any

import pytest

import framework as fw
from framework import nn


def returned(obj: Any, **options: Any) -> Any:
    """`obj` saved to memory and loaded again."""
    stream = io.BytesIO()
    fw.save(obj, stream)
    stream.seek(0)
    return fw.load(stream, **options)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_a_state_dict_survives_the_safe_mode(tmp_path: Path) -> None:
    source, target = model(), model()
    fw.save(source.state_dict(), tmp_path / "weights")
    loaded = fw.load(tmp_path / "weights")
    assert list(loaded) == list(source.state_dict())
    target.load_state_dict(loaded)
    x = fw.randn(5, 3)
    assert target.eval()(x).equal(source.eval()(x))


def test_parameters_survive_the_safe_mode() -> None:
    p = returned({"p": nn.Parameter(fw.ones(2, 2)), "fixed": nn.Parameter(fw.ones(1), requires_grad=False)})
    assert type(p["p"]) is nn.Parameter and p["p"].requires_grad and p["p"].is_leaf
    assert type(p["fixed"]) is nn.Parameter and not p["fixed"].requires_grad
    assert {type(v) for v in returned(nn.Linear(2, 2).state_dict(keep_vars=True)).values()} == {nn.Parameter}


@pytest.mark.parametrize(
    "dtype", [fw.bool, fw.uint8, fw.int64, fw.float16, fw.bfloat16, fw.float32, fw.float64]
)
def test_every_dtype_survives(dtype: Any) -> None:
    x = fw.tensor([0, 1, 3]).to(dtype)
    y = returned(x)
    assert y.dtype is dtype and y.equal(x)


def test_a_checkpoint_survives() -> None:
    m = model()
    optimizer = fw.optim.AdamW(m.parameters(), lr=0.5)
    m(fw.randn(5, 3)).sum().backward()
    optimizer.step()
    saved = {
        "model": m.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": fw.get_rng_state(),
        "history": [(1, 2.5), None, "text", {"dtype": fw.float32, "shape": fw.Size((1, 2))}],
    }
    loaded = returned(saved)
    assert loaded["history"] == saved["history"]
    assert loaded["optimizer"]["param_groups"] == saved["optimizer"]["param_groups"]
    other = fw.optim.AdamW(m.parameters())
    other.load_state_dict(loaded["optimizer"])
    first = next(iter(m.parameters()))
    assert other.state[first]["exp_avg"].equal(optimizer.state[first]["exp_avg"])


def test_a_model_needs_trust() -> None:
    m = model().eval()
    with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
        returned(m)
    x = fw.randn(5, 3)
    assert returned(m, weights_only=False)(x).equal(m(x))


def test_files_round_trip(tmp_path: Path) -> None:
    base = fw.arange(6.0).view(2, 3)
    state = collections.OrderedDict(
        base=base,
        row=base[1],
        turned=base.t(),
        half=fw.ones(2, dtype=fw.bfloat16),
        flag=fw.tensor(True),
        empty=fw.zeros(0, 2),
        leaf=fw.ones(1, requires_grad=True),
        plain=[1, (2.5, None), {"k": "v"}, fw.float16],
    )
    fw.save(state, tmp_path / "file.pt")
    back = fw.load(tmp_path / "file.pt")
    assert isinstance(back, collections.OrderedDict) and back["plain"] == state["plain"]
    for key in ("base", "row", "turned", "half", "flag", "empty", "leaf"):
        assert back[key].equal(state[key]) and back[key].dtype is state[key].dtype
    assert back["leaf"].requires_grad and back["turned"].stride() == base.t().stride()
    back["row"].zero_()
    assert back["base"][1].tolist() == [0, 0, 0] and back["turned"][0, 1].item() == 0


class Custom:
    pass


def test_load_builds_only_what_is_safe() -> None:
    stream = io.BytesIO()
    fw.save({"x": Custom()}, stream)
    stream.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Custom"):
        fw.load(stream)
    stream.seek(0)
    assert isinstance(fw.load(stream, weights_only=False)["x"], Custom)


def test_other_files_are_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="zip"):
        fw.load(io.BytesIO(b"not a zip"))
    with pytest.raises(RuntimeError, match="detach"):
        fw.save(fw.ones(1, requires_grad=True) * 2, io.BytesIO())
