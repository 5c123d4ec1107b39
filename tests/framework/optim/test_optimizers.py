"""Update rules against values read off PyTorch 2.13, and how states, steps and numbers behave under a
capture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn, optim
from framework.state import ambient

GRADIENTS = (1.0, -2.0, 0.5)

# The parameter after each of three steps from 1 with the gradients above, lr = .1 unless given.
CASES = [
    (optim.Adam, {}, [0.9, 0.9366104, 0.9502795]),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True}, [0.9, 0.9310642, 0.9376421]),
    (optim.Adam, {"maximize": True, "betas": (0.5, 0.7), "eps": 0.1}, [1.0909091, 1.0341793, 1.0237623]),
    (optim.AdamW, {"weight_decay": 0.1}, [0.89, 0.9177104, 0.9222024]),
    (optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}, [0.89, 0.9177104, 0.9222024]),
    (optim.SGD, {}, [0.9, 1.1, 1.0500001]),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, [0.791, 1.066871, 1.0270034]),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.3}, [0.9, 0.95, 0.96]),
    (optim.SGD, {"momentum": 0.9, "maximize": True, "weight_decay": 0.1}, [1.09, 0.9601001, 0.883589]),
    (optim.RMSprop, {}, [1e-07, 0.895323, 0.6758496]),
    (
        optim.RMSprop,
        {"centered": True, "momentum": 0.9, "weight_decay": 0.1},
        [-0.0050378, -0.0315841, -0.2694186],
    ),
    (optim.RMSprop, {"alpha": 0.5, "momentum": 0.9}, [0.8585786, 0.8646327, 0.8253601]),
    (optim.Adagrad, {}, [0.9, 0.9894427, 0.9676209]),
    (
        optim.Adagrad,
        {"lr_decay": 0.5, "initial_accumulator_value": 0.3, "weight_decay": 0.1},
        [0.9104832, 0.9665399, 0.9538309],
    ),
    (
        optim.Adadelta,
        {"lr": 0.5, "weight_decay": 0.1, "rho": 0.8, "eps": 1e-3},
        [0.9647175, 1.0090653, 0.9896594],
    ),
]
KINDS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad, optim.Adadelta]


def make(kind: Any, p: Any, **options: Any) -> Any:
    return kind([p] if isinstance(p, fw.Tensor) else p, **{"lr": 0.1, **options})


def step(optimizer: Any, p: Any, gradient: float) -> float:
    p.grad = fw.full((1,), gradient)
    optimizer.step()
    return p.item()


class Tracer:
    """Stands for an active capture; notes how to undo the state that is made while it is."""

    drives = False

    def __init__(self) -> None:
        self.undos: list[Any] = []

    def created(self, undo: Any) -> None:
        self.undos.append(undo)


@pytest.mark.parametrize(("kind", "options", "expected"), CASES)
def test_values(kind: Any, options: dict[str, Any], expected: list[float]) -> None:
    p = nn.Parameter(fw.ones(1))
    optimizer = make(kind, p, **options)
    np.testing.assert_allclose([step(optimizer, p, g) for g in GRADIENTS], expected, atol=1e-6)


@pytest.mark.parametrize(("kind", "options", "expected"), CASES)
def test_numbers_as_tensors_give_the_same_bits(
    kind: Any, options: dict[str, Any], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = nn.Parameter(fw.ones(1)), nn.Parameter(fw.ones(1))
    plain, traced = make(kind, p, **options), make(kind, q, **options)
    wanted = [step(plain, p, g) for g in GRADIENTS]

    # Under a capture every option arrives as a 0-d float64 tensor.
    def as_tensor(read: Any) -> Any:
        return fw.tensor(read(), dtype=fw.float64)

    for module in ("optimizer", "adam"):
        monkeypatch.setattr(f"framework.optim.{module}.runtime_scalar", as_tensor)
    assert [step(traced, q, g) for g in GRADIENTS] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_continues_the_run(kind: Any) -> None:
    options = {"momentum": 0.9, "dampening": 0.5} if kind is optim.SGD else {}
    p = nn.Parameter(fw.ones(1))
    first = make(kind, p, **options)
    step(first, p, 1.0)
    q = nn.Parameter(p.detach().clone())
    second = make(kind, q, **options)
    second.load_state_dict(first.state_dict())
    assert [step(first, p, g) for g in (-2.0, 0.5)] == [step(second, q, g) for g in (-2.0, 0.5)]


def test_state_dict_layout_is_pytorchs() -> None:
    a, b = nn.Parameter(fw.ones(2)), nn.Parameter(fw.ones(1))
    optimizer = optim.Adam([{"params": [a]}, {"params": [b], "lr": 0.5}])
    a.grad, b.grad = fw.ones(2), fw.ones(1)
    optimizer.step()
    state = optimizer.state_dict()
    assert [g["params"] for g in state["param_groups"]] == [[0], [1]]
    assert [g["lr"] for g in state["param_groups"]] == [1e-3, 0.5]
    assert list(state["state"][0]) == ["step", "exp_avg", "exp_avg_sq"]
    assert state["state"][0]["step"].dtype is fw.float32 and state["state"][0]["step"].shape == ()
    assert state["state"][0]["step"].item() == 1.0


def test_load_state_dict_checks_first_and_copies() -> None:
    a, b = nn.Parameter(fw.ones(1)), nn.Parameter(fw.ones(1))
    optimizer = make(optim.Adam, [a, b])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        optimizer.load_state_dict(make(optim.Adam, a).state_dict())
    a.grad, b.grad = fw.ones(1), fw.ones(1)
    optimizer.step()
    saved = optimizer.state_dict()
    other = optim.Adam([nn.Parameter(fw.ones(1, dtype=fw.float64)) for _ in range(2)], lr=9.0)
    other.load_state_dict(saved)
    state = other.state[other.param_groups[0]["params"][0]]
    assert other.param_groups[0]["lr"] == 0.1
    assert state["exp_avg"].dtype is fw.float64 and state["step"].dtype is fw.float32
    optimizer.step()
    assert state["step"].item() == 1.0, "a loaded state is a copy"


def test_sgd_state_of_pytorch_has_no_step() -> None:
    p = nn.Parameter(fw.ones(1))
    optimizer = make(optim.SGD, p, momentum=0.9, dampening=0.3)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: {"momentum_buffer": fw.ones(1)}}, "param_groups": groups})
    assert step(optimizer, p, -2.0) == pytest.approx(0.95 + 0.1)


def test_steps_are_shared_until_they_part() -> None:
    a, b, c = (nn.Parameter(fw.ones(1)) for _ in range(3))
    optimizer = make(optim.Adam, [a, b, c])
    a.grad, b.grad = fw.ones(1), fw.ones(1)
    optimizer.step()
    assert optimizer.state[a]["step"] is optimizer.state[b]["step"] and c not in optimizer.state
    b.grad = None
    optimizer.step()
    assert optimizer.state[a]["step"].item() == 2.0 and optimizer.state[b]["step"].item() == 1.0
    b.grad = fw.ones(1)
    optimizer.step()
    assert optimizer.state[a]["step"].item() == 3.0 and optimizer.state[b]["step"].item() == 2.0
    optimizer.state[b]["step"].fill_(3.0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[a]["step"] is optimizer.state[b]["step"]


def test_parting_gives_the_values_of_separate_optimizers() -> None:
    a, b = nn.Parameter(fw.ones(1)), nn.Parameter(fw.ones(1))
    alone = nn.Parameter(fw.ones(1))
    both, single = make(optim.Adam, [a, b]), make(optim.Adam, alone)
    for g, present in ((1.0, True), (-2.0, False), (0.5, True)):
        a.grad, b.grad = fw.full((1,), g), fw.full((1,), g) if present else None
        both.step()
        if present:
            step(single, alone, g)
    assert b.item() == alone.item()


def test_state_made_under_a_capture_can_be_undone() -> None:
    p = nn.Parameter(fw.ones(1))
    optimizer = make(optim.Adam, p)
    tracer = Tracer()
    ambient.tracer = tracer
    try:
        optimizer._create([p], optimizer.param_groups[0])
        assert ambient.tracer is tracer
    finally:
        ambient.tracer = None
    assert "exp_avg" in optimizer.state[p] and len(tracer.undos) == 1
    tracer.undos[0]()
    assert p not in optimizer.state


def test_groups_and_their_errors() -> None:
    a, b = nn.Parameter(fw.ones(1)), nn.Parameter(fw.ones(1))
    optimizer = make(optim.SGD, a)
    optimizer.add_param_group({"params": b, "lr": 0.5})
    assert optimizer.param_groups[1]["lr"] == 0.5 and optimizer.param_groups[1]["momentum"] == 0
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [a]})
    with pytest.raises(TypeError, match="one of the params is float"):
        optimizer.add_param_group({"params": [1.0]})
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer.add_param_group({"params": [a * 2]})
    assert len(optimizer.param_groups) == 2
    with pytest.raises(ValueError, match="empty parameter list"):
        make(optim.SGD, [])
    with pytest.raises(TypeError, match="should be an iterable of Tensors or dicts"):
        optim.SGD(a, lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ordered collections"):
        optim.SGD([{"params": {a}}], lr=0.1)
    named = optim.SGD(nn.Linear(1, 1).named_parameters(), lr=0.1)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]
    assert repr(make(optim.SGD, a)).startswith("SGD (\nParameter Group 0\n    dampening: 0\n")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.SGD, {"lr": -1}),
        (optim.SGD, {"momentum": -1}),
        (optim.SGD, {"nesterov": True}),
        (optim.Adam, {"betas": (1.0, 0.9)}),
        (optim.AdamW, {"eps": -1.0}),
        (optim.RMSprop, {"alpha": -1}),
        (optim.Adagrad, {"lr_decay": -1}),
        (optim.Adadelta, {"rho": 1.5}),
    ],
)
def test_invalid_options(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Invalid|Nesterov"):
        kind([nn.Parameter(fw.ones(1))], **options)


def test_zero_grad_closure_and_hooks() -> None:
    p = nn.Parameter(fw.ones(1))
    optimizer = make(optim.SGD, p)
    calls: list[str] = []
    remove = optimizer.register_step_pre_hook(lambda *a: calls.append("before"))
    optimizer.register_step_post_hook(lambda *a: calls.append("after"))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (p * 3).sum()
        loss.backward()
        return loss

    with fw.no_grad():
        assert optimizer.step(closure).item() == 3.0
    assert p.item() == pytest.approx(0.7) and calls == ["before", "after"]
    remove()
    grad = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is grad and grad.item() == 0.0
    optimizer.step()
    assert calls == ["before", "after", "after"]
    optimizer.zero_grad()
    assert p.grad is None


def test_learning_rate_may_be_a_tensor() -> None:
    p = nn.Parameter(fw.ones(1))
    optimizer = make(optim.SGD, p, lr=fw.tensor(0.5))
    assert step(optimizer, p, 1.0) == 0.5
    optimizer.param_groups[0]["lr"].fill_(0.25)
    assert step(optimizer, p, 1.0) == 0.25


def test_custom_optimizer_defines_its_step() -> None:
    class Sign(optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @fw.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.sign() * group["lr"])

    p = nn.Parameter(fw.ones(1))
    assert step(Sign([p], 0.25), p, 7.0) == 0.75
    with pytest.raises(NotImplementedError, match="defines neither"):
        step(optim.Optimizer([p], {}), p, 1.0)


@pytest.mark.parametrize("beta1", [0.0, 0.3])
def test_a_small_first_beta_forgets_exactly(beta1: float) -> None:
    # Counted from the far end, (g - m) + m is 0 for m = 1e8, g = 1.
    p = nn.Parameter(fw.zeros(1))
    optimizer = fw.optim.Adam([p], betas=(beta1, 0.9))
    for g in (1e8, 1.0):
        p.grad = fw.tensor([g])
        optimizer.step()
    expected = beta1 * (1 - beta1) * 1e8 + (1 - beta1) * 1.0
    assert optimizer.state[p]["exp_avg"].item() == pytest.approx(expected, rel=1e-6)
