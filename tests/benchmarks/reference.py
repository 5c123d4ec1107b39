"""What each work computes, in NumPy and float64; the gradients of a training step are central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf

from benchmarks.works import Work
from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp, Training
from benchmarks.works.work import BETAS, EPS, LEARNING_RATE

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]
Results = list[list[Array]]
DIFFERENCE = 1e-6


def results(work: Work, steps: int) -> Results:
    """What each of the first `steps` steps returns."""
    batches = [tuple(_wide(array) for array in batch) for batch in work.batches()]
    match work:
        case Training():
            return _training(work, batches[:steps])
        case AdamW():
            return _adamw(work, steps)
    weights = [_wide(array) for array in work.weights().values()]
    return [_KERNELS[type(work)](*batches[step % len(batches)], *weights) for step in range(steps)]


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


# Optimizer: the rule of the paper that gave AdamW its name.


class _Adam:
    def __init__(self, weights: Weights, weight_decay: float) -> None:
        self.weights, self.weight_decay, self.count = weights, weight_decay, 0
        self.means = {name: np.zeros_like(w) for name, w in weights.items()}
        self.squares = {name: np.zeros_like(w) for name, w in weights.items()}

    def step(self, gradients: Weights) -> None:
        (beta1, beta2), self.count = BETAS, self.count + 1
        for name, g in gradients.items():
            mean = self.means[name] = beta1 * self.means[name] + (1 - beta1) * g
            square = self.squares[name] = beta2 * self.squares[name] + (1 - beta2) * g**2
            mean, square = mean / (1 - beta1**self.count), square / (1 - beta2**self.count)
            w = self.weights[name]
            change = mean / (np.sqrt(square) + EPS) + self.weight_decay * w
            self.weights[name] = w - LEARNING_RATE * change


def _adamw(work: AdamW, steps: int) -> Results:
    adam = _Adam({name: _wide(array) for name, array in work.weights().items()}, work.weight_decay)
    gradients = {name: _wide(array) for name, array in work.gradients().items()}
    looks = []
    for _ in range(steps):
        adam.step(gradients)
        looks.append(list(adam.weights.values()))
    return looks


def _training(work: Training, batches: list[tuple[Array, ...]]) -> Results:
    forward, loss_function = _MODELS[type(work)], _LOSSES[work.loss]
    adam = _Adam({name: _wide(array) for name, array in work.weights().items()}, work.weight_decay)
    looks = []
    for x, y in batches:

        def loss(x: Array = x, y: Array = y) -> Any:
            return loss_function(forward(work, adam.weights, x), y)

        looks.append([np.asarray(loss())])
        adam.step({name: _difference(loss, array) for name, array in adam.weights.items()})
    return looks


def _difference(loss: Callable[[], Any], array: Array) -> Array:
    """The gradient of `loss`, which reads `array`."""
    gradient = np.empty_like(array)
    for place in np.ndindex(array.shape):
        kept = array[place]
        array[place] = kept + DIFFERENCE
        above = loss()
        array[place] = kept - DIFFERENCE
        gradient[place] = (above - loss()) / (2 * DIFFERENCE)
        array[place] = kept
    return gradient


# Pieces.


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _normal(x: Array) -> Array:
    """The normal distribution's cumulative function."""
    return (1 + erf(x / np.sqrt(2))) / 2


def _gelu(x: Array) -> Array:
    return x * _normal(x)


def _standard(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _entropy(x: Array, y: Array) -> Any:
    return -np.log(_softmax(x)[np.arange(len(y)), y]).mean()


_LOSSES: dict[str, Callable[[Array, Array], Any]] = {
    "cross_entropy": _entropy,
    "mse_loss": lambda x, y: ((x - y) ** 2).mean(),
}


# Models.


def _linear(weights: Weights, name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, x: Array) -> Array:
    return _standard(x) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _mlp(work: Mlp, weights: Weights, x: Array) -> Array:
    layers = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    for name in layers[:-1]:
        x = _gelu(_linear(weights, name, x))
    return _linear(weights, layers[-1], x)


def _cnn(work: Cnn, weights: Weights, x: Array) -> Array:
    for name in ("first", "second"):
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        x = np.einsum("ncijkl,dckl->ndij", windows, weights[f"{name}.weight"])
        x = np.maximum(x + weights[f"{name}.bias"][:, None, None], 0)
    n, channels, height, width = x.shape
    x = x.reshape(n, channels, height // 2, 2, width // 2, 2).max((3, 5)).reshape(n, -1)
    return _linear(weights, "head", np.maximum(_linear(weights, "hidden", x), 0))


def _gpt(work: Gpt, weights: Weights, x: Array) -> Array:
    x = weights["tokens.weight"][x] + weights["positions"]
    batch, time, width = x.shape
    for number in range(work.layers):
        block = f"blocks.{number}."
        qkv = _linear(weights, block + "qkv", _norm(weights, block + "attention_norm", x))
        q, k, v = qkv.reshape(batch, time, 3, work.heads, -1).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(2, 3) / np.sqrt(width // work.heads)
        scores[..., np.triu(np.ones((time, time), bool), 1)] = -np.inf
        mixed = (_softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + _linear(weights, block + "projection", mixed)
        wide = _gelu(_linear(weights, block + "widen", _norm(weights, block + "mlp_norm", x)))
        x = x + _linear(weights, block + "narrow", wide)
    return _linear(weights, "head", _norm(weights, "norm", x)).reshape(batch * time, -1)


def _lstm(work: Lstm, weights: Weights, x: Array) -> Array:
    h = c = np.zeros(x.shape[1:])
    for now in x:
        gates = _linear(weights, "input", now) + h @ weights["hidden.weight"].T
        i, f, g, o = np.split(gates, 4, axis=1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
    return h


_MODELS: dict[type[Training], Callable[..., Array]] = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt, Lstm: _lstm}


# Kernels.


def _layer_norm(x: Array, g: Array, weight: Array, bias: Array) -> list[Array]:
    standard, scaled = _standard(x), g * weight
    inner = scaled - scaled.mean(-1, keepdims=True)
    inner -= standard * (scaled * standard).mean(-1, keepdims=True)
    gradient = inner / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return [standard * weight + bias, gradient, (g * standard).sum(0), g.sum(0)]


def _cross_entropy(x: Array, y: Array) -> list[Array]:
    gradient = _softmax(x)
    gradient[np.arange(len(y)), y] -= 1
    return [_entropy(x, y), gradient / len(y)]


def _black_scholes(spot: Array, strike: Array, years: Array) -> list[Array]:
    rate, volatility = BlackScholes.rate, BlackScholes.volatility
    deviation = volatility * np.sqrt(years)
    above = (np.log(spot / strike) + (rate + volatility**2 / 2) * years) / deviation
    below, discounted = above - deviation, strike * np.exp(-rate * years)
    call = spot * _normal(above) - discounted * _normal(below)
    return [call, discounted * _normal(-below) - spot * _normal(-above)]


_KERNELS: dict[type[Work], Callable[..., list[Array]]] = {
    Softmax: lambda x: [_softmax(x)],
    LayerNorm: _layer_norm,
    CrossEntropy: _cross_entropy,
    GeluChain: lambda x, y: [_gelu(x * y + x) * _sigmoid(y)],
    BlackScholes: _black_scholes,
}
