"""Recurrent layers and cells against NumPy loops in float64, their gradients, errors, and captures."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest

import framework as fw
from framework import nn, optim
from tests.framework.capture_check import Twins, World, nothing
from tests.framework.finite_differences import check_gradients

RNG = np.random.default_rng(5)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def rnn_step(x: Any, state: Any, w: Any) -> Any:
    return (np.tanh(x @ w["weight_ih"].T + w["bias_ih"] + state[0] @ w["weight_hh"].T + w["bias_hh"]),)


def relu_step(x: Any, state: Any, w: Any) -> Any:
    total = x @ w["weight_ih"].T + w["bias_ih"] + state[0] @ w["weight_hh"].T + w["bias_hh"]
    return (np.maximum(total, 0),)


def lstm_step(x: Any, state: Any, w: Any) -> Any:
    h, c = state
    gates = x @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"]
    i, f, g, o = np.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (h @ w["weight_hr"].T if "weight_hr" in w else h), c


def gru_step(x: Any, state: Any, w: Any) -> Any:
    (h,) = state
    rx, zx, nx = np.split(x @ w["weight_ih"].T + w["bias_ih"], 3, -1)
    rh, zh, nh = np.split(h @ w["weight_hh"].T + w["bias_hh"], 3, -1)
    z = sigmoid(zx + zh)
    return ((1 - z) * np.tanh(nx + sigmoid(rx + rh) * nh) + z * h,)


STEPS = {"RNN_TANH": rnn_step, "RNN_RELU": relu_step, "LSTM": lstm_step, "GRU": gru_step}


def weights(m: nn.Module, suffix: str) -> dict[str, Any]:
    named = {name: p.detach().numpy() for name, p in m.named_parameters()}
    ends = [name for name in named if name.endswith(suffix)]
    found = {name.removesuffix(suffix): named[name] for name in ends}
    rows = found["weight_ih"].shape[0]
    return {"bias_ih": np.zeros(rows), "bias_hh": np.zeros(rows), **found}


def expected(m: Any, x: Any, state: Any) -> tuple[Any, Any]:
    """Output and last state of layer `m` for (T, N, features) and a tuple of (layers * directions, N, …)."""
    finals, directions = [], 2 if m.bidirectional else 1
    for layer in range(m.num_layers):
        outputs = []
        for d, end in enumerate(("", "_reverse")[:directions]):
            now = tuple(part[layer * directions + d] for part in state)
            seen = []
            for t in reversed(range(len(x))) if d else range(len(x)):
                now = STEPS[m.mode](x[t], now, weights(m, f"_l{layer}{end}"))
                seen.append(now[0])
            outputs.append(np.stack(seen[::-1] if d else seen))
            finals.append(now)
        x = np.concatenate(outputs, -1)
    return x, tuple(np.stack(parts) for parts in zip(*finals, strict=True))


def flat(result: Any) -> tuple[Any, tuple[Any, ...]]:
    """(output, state) with the state as a tuple, of arrays."""
    output, state = result
    state = state if isinstance(state, tuple) else (state,)
    return output.detach().numpy(), tuple(part.detach().numpy() for part in state)


KINDS = ["RNN", "LSTM", "GRU"]
OPTIONS = [
    {},
    {"bias": False},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "relu", "projected"])
def test_layers(kind: str, options: dict[str, Any], given: bool) -> None:
    extra: dict[str, Any] = {"relu": {"nonlinearity": "relu"}, "projected": {"proj_size": 2}}.get(kind, {})
    name = {"relu": "RNN", "projected": "LSTM"}.get(kind, kind)
    m = getattr(nn, name)(3, 4, **options, **extra).double()
    layers = m.num_layers * (2 if m.bidirectional else 1)
    sizes = [extra.get("proj_size", 4)] + [4] * (name == "LSTM")
    state = tuple((RNG.standard_normal if given else np.zeros)((layers, 2, n)) for n in sizes)
    x = RNG.standard_normal((5, 2, 3))
    wanted_output, wanted_state = expected(m, x, state)
    given_x = fw.tensor(x.transpose(1, 0, 2) if m.batch_first else x)
    parts = tuple(fw.tensor(part) for part in state)
    hx = (parts if name == "LSTM" else parts[0]) if given else None
    output, last = flat(m(given_x, hx))
    np.testing.assert_allclose(
        output.transpose(1, 0, 2) if m.batch_first else output, wanted_output, rtol=1e-9
    )
    for got, want in zip(last, wanted_state, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    # One sequence alone: the same without its batch dimension, batch_first or not.
    alone = None if hx is None else tuple(part[:, 0] for part in parts)
    output, last = flat(m(fw.tensor(x[:, 0]), alone if name == "LSTM" or alone is None else alone[0]))
    np.testing.assert_allclose(output, wanted_output[:, 0], rtol=1e-9)
    np.testing.assert_allclose(last[0], wanted_state[0][:, 0], rtol=1e-9)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_cells(kind: str, bias: bool, given: bool) -> None:
    m = getattr(nn, f"{kind}Cell")(3, 4, bias=bias).double()
    step = STEPS["RNN_TANH" if kind == "RNN" else kind]
    state = tuple((RNG.standard_normal if given else np.zeros)((2, 4)) for _ in range(1 + (kind == "LSTM")))
    x = RNG.standard_normal((2, 3))
    wanted = step(x, state, weights(m, ""))
    parts = tuple(fw.tensor(part) for part in state)
    for pick in (slice(None), 0):
        chosen = tuple(part[pick] for part in parts)
        hx = (chosen if kind == "LSTM" else chosen[0]) if given else None
        made = m(fw.tensor(x)[pick], hx)
        for got, want in zip(made if kind == "LSTM" else (made,), wanted, strict=True):
            np.testing.assert_allclose(got.detach().numpy(), want[pick], rtol=1e-9)


def test_relu_cell() -> None:
    m = nn.RNNCell(3, 4, nonlinearity="relu").double()
    x = RNG.standard_normal((2, 3))
    wanted = relu_step(x, (np.zeros((2, 4)),), weights(m, ""))[0]
    np.testing.assert_allclose(m(fw.tensor(x)).detach().numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str) -> None:
    m = getattr(nn, kind)(2, 3, num_layers=2, bidirectional=True).double().requires_grad_(False)
    names = [name for name, _ in m.named_parameters() if name.endswith("l1")]

    def run(x: fw.Tensor, h: fw.Tensor, *values: fw.Tensor) -> fw.Tensor:
        for name, value in zip(names, values, strict=True):
            del m._parameters[name]
            object.__setattr__(m, name, value)
        output, last = m(x, (h, h * 2) if kind == "LSTM" else h)
        for name in names:
            m.__dict__.pop(name)
            m._parameters[name] = kept[name]
        last = last if isinstance(last, tuple) else (last,)
        return fw.cat([output.reshape(-1), *(part.reshape(-1) for part in last)])

    kept = dict(m.named_parameters())
    start = [kept[name].detach().numpy() for name in names]
    x, h = RNG.standard_normal((3, 2, 2)), RNG.standard_normal((4, 2, 3))
    check_gradients(run, x, h, *start, tolerance=1e-5)


def test_parameters_are_those_of_pytorch() -> None:
    m = nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)
    shapes = {
        "weight_ih_l0": (16, 3),
        "weight_hh_l0": (16, 2),
        "bias_ih_l0": (16,),
        "bias_hh_l0": (16,),
        "weight_hr_l0": (2, 4),
    }
    every = {f"{name}{end}": shape for end in ("", "_reverse") for name, shape in shapes.items()}
    upper = {name.replace("l0", "l1"): shape for name, shape in every.items()}
    upper |= {name: (16, 4) for name in upper if name.startswith("weight_ih")}
    assert {k: tuple(v.shape) for k, v in m.state_dict().items()} == every | upper
    assert list(m.state_dict()) == [*every, *upper]
    assert [len(ws) for ws in m.all_weights] == [5] * 4 and m.all_weights[0][0] is m.weight_ih_l0
    assert list(nn.GRU(3, 4, bias=False).state_dict()) == ["weight_ih_l0", "weight_hh_l0"]
    assert list(nn.GRUCell(3, 4).state_dict()) == ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    assert nn.LSTMCell(3, 4, bias=False).bias_ih is None


@pytest.mark.parametrize("m", [nn.GRU(2, 400), nn.LSTMCell(2, 400)], ids=["layer", "cell"])
def test_parameters_start_uniform(m: nn.Module) -> None:
    for p in m.parameters():
        values = p.detach().numpy()
        assert np.abs(values).max() <= 0.05 and np.abs(values).max() > 0.04
        assert abs(values.std() - 0.05 / math.sqrt(3)) < 0.005


def test_repr() -> None:
    assert repr(nn.RNN(3, 4)) == "RNN(3, 4)"
    assert (
        repr(nn.GRU(3, 4, 2, bias=False, dropout=0.2)) == "GRU(3, 4, num_layers=2, bias=False, dropout=0.2)"
    )
    wanted = "LSTM(3, 4, proj_size=2, batch_first=True, bidirectional=True)"
    assert repr(nn.LSTM(3, 4, batch_first=True, bidirectional=True, proj_size=2)) == wanted
    assert (
        repr(nn.RNNCell(3, 4, bias=False, nonlinearity="relu"))
        == "RNNCell(3, 4, bias=False, nonlinearity=relu)"
    )
    assert repr(nn.LSTMCell(3, 4)) == "LSTMCell(3, 4)"


def test_dropout_acts_between_layers_in_training() -> None:
    with pytest.warns(UserWarning, match="num_layers=1"):
        nn.GRU(2, 3, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m = nn.RNN(2, 3, num_layers=2, dropout=1.0).double()
    x = fw.tensor(RNG.standard_normal((4, 1, 2)))
    # Nothing comes through: the second layer sees zeros.
    second = nn.RNN(3, 3).double()
    second.load_state_dict(
        {name.replace("l1", "l0"): p for name, p in m.state_dict().items() if "l1" in name}
    )
    wanted = second(fw.zeros(4, 1, 3).double())[0]
    np.testing.assert_allclose(m(x)[0].detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
    m.eval()
    wanted_output, _ = expected(m, x.numpy(), (np.zeros((2, 1, 3)),))
    np.testing.assert_allclose(m(x)[0].detach().numpy(), wanted_output, rtol=1e-9)


def test_nan_stays_in_its_sequence() -> None:
    x = np.zeros((3, 2, 2), np.float32)
    x[1, 0] = np.nan
    output = nn.LSTM(2, 3)(fw.tensor(x))[0].detach().numpy()
    assert np.isnan(output[1:, 0]).all() and np.isfinite(output[:, 1]).all() and np.isfinite(output[0]).all()


def test_empty_batch_and_empty_sequence() -> None:
    output, state = nn.GRU(3, 4)(fw.ones(2, 0, 3))
    assert output.shape == (2, 0, 4) and state.shape == (1, 0, 4)
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        nn.GRU(3, 4)(fw.ones(0, 2, 3))


WRONG_INPUT: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
    (nn.LSTM(3, 4), (fw.ones(1, 1, 1, 3),), ValueError, "LSTM: Expected input to be 2D or 3D, got 4D"),
    (nn.GRU(3, 4), (fw.ones(5, 2, 2),), RuntimeError, "Expected 3, got 2"),
    (nn.GRU(3, 4), (fw.ones(5, 2, 3).double(),), ValueError, "does not match weight dtype"),
    (nn.GRU(3, 4), (fw.ones(5, 2, 3), fw.ones(1, 4)), RuntimeError, "hx should also be 3-D but got 2-D"),
    (nn.GRU(3, 4), (fw.ones(5, 3), fw.ones(1, 1, 4)), RuntimeError, "hx should also be 2-D but got 3-D"),
    (
        nn.GRU(3, 4),
        (fw.ones(5, 2, 3), fw.ones(1, 3, 4)),
        RuntimeError,
        r"hidden size \(1, 2, 4\), got \[1, 3, 4",
    ),
    (
        nn.LSTM(3, 4),
        (fw.ones(5, 2, 3), (fw.ones(1, 2, 4), fw.ones(1, 3, 4))),
        RuntimeError,
        r"hidden\[1\] size \(1, 2, 4\), got \[1, 3, 4\]",
    ),
    (
        nn.LSTM(3, 4),
        (fw.ones(5, 2, 3), (fw.ones(1, 4), fw.ones(1, 4))),
        RuntimeError,
        r"hx and cx should also be 3-D but got \(2-D, 2-D\) tensors",
    ),
    (nn.RNNCell(3, 4), (fw.ones(1, 1, 3),), ValueError, "RNNCell: Expected input to be 1D or 2D, got 3D"),
    (nn.GRUCell(3, 4), (fw.ones(1, 3), fw.ones(1, 1, 4)), ValueError, "Expected hidden to be 1D or 2D"),
    (nn.RNNCell(3, 4), (fw.ones(1, 2),), RuntimeError, "inconsistent input_size: got 2 expected 3"),
    (nn.RNNCell(3, 4), (fw.ones(2, 3), fw.ones(1, 4)), RuntimeError, "batch size 2 doesn't match hidden0"),
    (
        nn.LSTMCell(3, 4),
        (fw.ones(2, 3), (fw.ones(2, 4), fw.ones(2, 3))),
        RuntimeError,
        "hidden1 has inconsistent",
    ),
]


@pytest.mark.parametrize(("m", "args", "error", "message"), WRONG_INPUT)
def test_wrong_input(m: Any, args: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        m(*args)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: nn.RNN(3, 4, nonlinearity="sin"), ValueError, "Unknown nonlinearity 'sin'"),
        (lambda: nn.GRU(3, 4, proj_size=2), ValueError, "only supported for LSTM"),
        (lambda: nn.RNN(3, 4, size=2), TypeError, "unexpected keyword argument 'size'"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ValueError, "smaller than hidden_size"),
        (lambda: nn.LSTM(3, 4, proj_size=-1), ValueError, "positive integer or zero"),
        (lambda: nn.RNN(3, 4, dropout=2), ValueError, "dropout should be a number"),
        (lambda: nn.RNN(3, 4, dropout=True), ValueError, "dropout should be a number"),
        (lambda: nn.RNN(3, 4, bias=1), TypeError, "bias should be of type bool, got: int"),
        (lambda: nn.RNN(3, 0), ValueError, "hidden_size must be greater than zero"),
        (lambda: nn.RNN(3, 4.0), TypeError, "hidden_size should be of type int, got: float"),
        (lambda: nn.RNNBase("LSTN", 3, 4), ValueError, "Unrecognized RNN mode: LSTN"),
        (lambda: nn.RNNCell(3, 4, nonlinearity="sin")(fw.ones(1, 3)), RuntimeError, "nonlinearity: sin"),
    ],
)
def test_wrong_settings(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(("kind", "layers"), list(itertools.product(KINDS, (1, 2))))
def test_training_replays(kind: str, layers: int) -> None:
    def make() -> World:
        model = getattr(nn, kind)(
            3, 4, num_layers=layers, bidirectional=layers == 2, dropout=0.3 * (layers - 1)
        )
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        def step(x: fw.Tensor) -> fw.Tensor:
            output, _ = model(x)
            loss = (output * output).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, lambda: [p.detach() for p in model.parameters()]

    twins = Twins(make)
    for batch in (2, 2, 3, 5):
        twins.call(fw.randn(4, batch, 3))
    twins.expect("replay")


def test_cell_in_a_loop_replays() -> None:
    cell = nn.LSTMCell(3, 4)

    def run(x: fw.Tensor) -> fw.Tensor:
        state = cell(x[0])
        for row in x[1:]:
            state = cell(row, state)
        return state[0]

    twins = Twins(lambda: (run, nothing))
    for _ in range(2):
        twins.call(fw.randn(4, 2, 3))
    twins.expect("replay")
