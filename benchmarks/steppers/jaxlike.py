"""The step of JAX: one pure function of parameters, moments and batch under jit, its old state donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.works import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY, Work


def _loss(layers: list[tuple[Any, Any]], x: Any, y: Any) -> Any:
    for number, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if number < len(layers) - 1:
            x = jax.nn.gelu(x, approximate=False)
    return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1).mean()


def _update(p: Any, m: Any, v: Any, g: Any, count: Any) -> tuple[Any, Any, Any]:
    beta1, beta2 = BETAS
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mean, square = m / (1 - beta1**count), v / (1 - beta2**count)
    return p * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE * mean / (jnp.sqrt(square) + EPS), m, v


def _step(state: tuple[Any, ...], x: Any, y: Any) -> tuple[tuple[Any, ...], Any]:
    layers, means, squares, count = state
    loss, gradients = jax.value_and_grad(_loss)(layers, x, y)
    count = count + 1
    new = jax.tree.map(lambda *leaf: _update(*leaf, count), layers, means, squares, gradients)
    layers, means, squares = jax.tree.transpose(
        jax.tree.structure(layers), jax.tree.structure((0, 0, 0)), new
    )
    return (layers, means, squares, count), loss


def make(work: Work) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """The jitted step; it waits for the loss, as a loop that looks at it does."""
    jitted = jax.jit(_step, donate_argnums=0)
    layers = [(jnp.asarray(w), jnp.asarray(b)) for w, b in work.weights()]
    state: Any = (
        layers,
        jax.tree.map(jnp.zeros_like, layers),
        jax.tree.map(jnp.zeros_like, layers),
        jnp.float32(0),
    )

    def step(x: Any, y: Any) -> Any:
        nonlocal state
        state, loss = jitted(state, x, y)
        return loss.block_until_ready()

    return step, [(jnp.asarray(x), jnp.asarray(y, jnp.int32)) for x, y in work.batches()]
