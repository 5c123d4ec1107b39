"""The library's kernels under `jax.jit`, each waited for; the results are new arrays, as JAX has it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kernels.library import BETA1, BETA2, CORRECTION1, CORRECTION2, DECAY, EPSILON, RATE

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
jax.config.update("jax_enable_x64", True)
Call = Callable[[], Any]


def use(threads: int) -> None:
    """JAX was given its threads when it was loaded."""


def _jitted(function: Callable[..., Any], outputs: int = 1) -> Callable[..., Call]:
    """A call of `function` on copies of the operands but for the last `outputs`."""
    compiled = jax.jit(function)

    def make(*operands: Any) -> Call:
        arrays = [jnp.asarray(x) for x in operands[: len(operands) - outputs]]
        return lambda: jax.block_until_ready(compiled(*arrays))

    return make


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Call:
    def step(p: Any, g: Any, m: Any, v: Any) -> Any:
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        size = jnp.sqrt(v) * CORRECTION2**-0.5 + EPSILON
        return p * (1 - RATE * DECAY) - m * (RATE / CORRECTION1) / size, m, v

    # Parameter and moments are replaced, in their own memory.
    compiled = jax.jit(step, donate_argnums=(0, 2, 3))
    gradient, state = jnp.array(g), [jnp.array(x) for x in (p, m, v)]

    def call() -> None:
        state[:] = jax.block_until_ready(compiled(state[0], gradient, state[1], state[2]))

    return call


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(1, keepdims=True) + 1e-5)
    return centred * scale * weight + bias


def _cross_entropy(x: Any, target: Any) -> Any:
    return jax.nn.logsumexp(x, 1) - jnp.take_along_axis(x, target[:, None], 1)[:, 0]


KERNELS: dict[str, Callable[..., Call]] = {
    # An identity would be given back as it is.
    "copy": _jitted(jnp.copy),
    "add": _jitted(jnp.add),
    "triad": _jitted(lambda x, y: x + 3 * y),
    "relu": _jitted(lambda x: jnp.maximum(x, 0)),
    "exp": _jitted(jnp.exp),
    "log": _jitted(jnp.log),
    "tanh": _jitted(jnp.tanh),
    "erf": _jitted(jax.scipy.special.erf),
    "sin": _jitted(jnp.sin),
    "sigmoid": _jitted(jax.nn.sigmoid),
    "silu": _jitted(jax.nn.silu),
    "gelu": _jitted(lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu_tanh": _jitted(lambda x: jax.nn.gelu(x, approximate=True)),
    "adamw": _adamw,
    "softmax": _jitted(lambda x: jax.nn.softmax(x, 1)),
    "log_softmax": _jitted(lambda x: jax.nn.log_softmax(x, 1)),
    "layer_norm": _jitted(_layer_norm),
    "rms_norm": _jitted(lambda x, w: x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-5) * w),
    "cross_entropy": _jitted(_cross_entropy, outputs=2),
    "row_sum": _jitted(lambda x: x.sum(1)),
    "row_max": _jitted(lambda x: x.max(1)),
    "column_sum": _jitted(lambda x: x.sum(0)),
    "matmul": _jitted(jnp.matmul),
    "matmul_nt": _jitted(lambda a, b: a @ b.T),
    "matmul_tn": _jitted(lambda a, b: a.T @ b),
    "matmul_tt": _jitted(lambda a, b: a.T @ b.T),
    "batched_matmul": _jitted(jnp.matmul),
}
