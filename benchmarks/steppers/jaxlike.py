"""The steps of JAX: pure functions of weights and batch under jit; a training step donates its old state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.steppers.timed import Timed
from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Cnn, Gpt, Lstm, Mlp, Training
from benchmarks.works.work import BETAS, EPS, LEARNING_RATE, Array, Work

# Arrays under their names.
Weights = dict[str, Any]
Step = Callable[..., Any]


def make(work: Work) -> Timed:
    """The jitted step; it waits for its result, as a loop that looks at it does."""
    weights = {name: jnp.asarray(array) for name, array in work.weights().items()}
    batches = [tuple(map(_array, batch)) for batch in work.batches()]
    if isinstance(work, Training):
        step = _training(work, weights)
    elif isinstance(work, AdamW):
        step = _adamw(work, weights)
    else:
        step = _blocking(jax.jit(_KERNELS[type(work)](weights)))
    return Timed(step, batches, _look)


def _array(array: Array) -> Any:
    """Classes take 32 bits in JAX."""
    return jnp.asarray(array, jnp.int32 if array.dtype.kind == "i" else None)


def _look(result: Any) -> list[Array]:
    return [np.asarray(array) for array in (result if isinstance(result, tuple) else (result,))]


def _blocking(step: Step) -> Step:
    return lambda *batch: jax.block_until_ready(step(*batch))


# Training: one function of parameters, both moments and the count of steps.


def _update(p: Any, m: Any, v: Any, g: Any, count: Any, weight_decay: float) -> tuple[Any, Any, Any]:
    beta1, beta2 = BETAS
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mean, square = m / (1 - beta1**count), v / (1 - beta2**count)
    return p * (1 - LEARNING_RATE * weight_decay) - LEARNING_RATE * mean / (jnp.sqrt(square) + EPS), m, v


def _optimize(state: tuple[Any, ...], gradients: Weights, weight_decay: float) -> tuple[Any, ...]:
    weights, means, squares, count = state
    count = count + 1
    new = {n: _update(weights[n], means[n], squares[n], gradients[n], count, weight_decay) for n in weights}
    return *({name: leaf[i] for name, leaf in new.items()} for i in range(3)), count


def _state(weights: Weights) -> Any:
    means, squares = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
    return weights, means, squares, jnp.float32(0)


def _training(work: Training, weights: Weights) -> Step:
    forward, loss_function = _MODELS[type(work)], _LOSSES[work.loss]

    def loss_of(weights: Weights, x: Any, y: Any) -> Any:
        return loss_function(forward(work, weights, x), y)

    def train(state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(state[0], x, y)
        return _optimize(state, gradients, work.weight_decay), loss

    jitted = jax.jit(train, donate_argnums=0)
    state = _state(weights)

    def step(x: Any, y: Any) -> Any:
        nonlocal state
        state, loss = jitted(state, x, y)
        return loss.block_until_ready()

    return step


def _adamw(work: AdamW, weights: Weights) -> Step:
    gradients = {name: jnp.asarray(gradient) for name, gradient in work.gradients().items()}
    jitted = jax.jit(lambda state, g: _optimize(state, g, work.weight_decay), donate_argnums=0)
    state = _state(weights)

    def step() -> Any:
        nonlocal state
        state = jax.block_until_ready(jitted(state, gradients))
        # In the order of the work: a tree that jit returns is sorted by name.
        return tuple(state[0][name] for name in gradients)

    return step


def _cross_entropy(x: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1).mean()


def _mse_loss(x: Any, y: Any) -> Any:
    return jnp.mean((x - y) ** 2)


_LOSSES = {"cross_entropy": _cross_entropy, "mse_loss": _mse_loss}


# Models: functions of work, weights and inputs.


def _linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normalize(x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _norm(weights: Weights, name: str, x: Any) -> Any:
    return _normalize(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def _mlp(work: Mlp, weights: Weights, x: Any) -> Any:
    last = len(work.widths) - 2
    for number in range(last):
        x = _gelu(_linear(weights, str(2 * number), x))
    return _linear(weights, str(2 * last), x)


def _cnn(work: Cnn, weights: Weights, x: Any) -> Any:
    for name in ("first", "second"):
        x = jax.lax.conv(x, weights[f"{name}.weight"], (1, 1), "VALID")
        x = jax.nn.relu(x + weights[f"{name}.bias"][:, None, None])
    window = (1, 1, 2, 2)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID").reshape(len(x), -1)
    return _linear(weights, "head", jax.nn.relu(_linear(weights, "hidden", x)))


def _attend(work: Gpt, weights: Weights, block: str, x: Any) -> Any:
    q, k, v = (
        part.reshape(*x.shape[:2], work.heads, -1)
        for part in jnp.split(_linear(weights, block + "qkv", x), 3, axis=-1)
    )
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return _linear(weights, block + "projection", mixed.reshape(x.shape))


def _gpt(work: Gpt, weights: Weights, x: Any) -> Any:
    x = weights["tokens.weight"][x] + weights["positions"][: x.shape[1]]
    for number in range(work.layers):
        block = f"blocks.{number}."
        x = x + _attend(work, weights, block, _norm(weights, block + "attention_norm", x))
        wide = _gelu(_linear(weights, block + "widen", _norm(weights, block + "mlp_norm", x)))
        x = x + _linear(weights, block + "narrow", wide)
    return _linear(weights, "head", _norm(weights, "norm", x)).reshape(-1, work.vocabulary)


def _lstm(work: Lstm, weights: Weights, x: Any) -> Any:
    h = c = jnp.zeros(x.shape[1:])
    for now in x:
        gates = _linear(weights, "input", now) + h @ weights["hidden.weight"].T
        i, f, g, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h


_MODELS: dict[type[Training], Step] = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt, Lstm: _lstm}


# Kernels: makers of functions of a batch.


def _softmax(_: Weights) -> Step:
    return lambda x: jax.nn.softmax(x, axis=1)


def _layer_norm(weights: Weights) -> Step:
    def step(x: Any, g: Any) -> Any:
        y, pull = jax.vjp(_normalize, x, *weights.values())
        return y, *pull(g)

    return step


def _cross_entropy_gradient(_: Weights) -> Step:
    return jax.value_and_grad(_cross_entropy)


def _gelu_chain(_: Weights) -> Step:
    return lambda x, y: _gelu(x * y + x) * jax.nn.sigmoid(y)


def _black_scholes(_: Weights) -> Step:
    rate, volatility = BlackScholes.rate, BlackScholes.volatility

    def normal(d: Any) -> Any:
        return 0.5 + 0.5 * jax.scipy.special.erf(d / 2**0.5)

    def step(spot: Any, strike: Any, years: Any) -> Any:
        deviation = volatility * jnp.sqrt(years)
        above = (jnp.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / deviation
        discounted = strike * jnp.exp(-rate * years)
        call = spot * normal(above) - discounted * normal(above - deviation)
        return call, call - spot + discounted

    return step


_KERNELS: dict[type[Work], Callable[[Weights], Step]] = {
    Softmax: _softmax,
    LayerNorm: _layer_norm,
    CrossEntropy: _cross_entropy_gradient,
    GeluChain: _gelu_chain,
    BlackScholes: _black_scholes,
}
