"""Recurrent layers as functions: one step of each kind, and the loop of steps over a sequence.

The inputs of all steps are projected in one product; a step adds what it makes of the state before. Knows no
modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from framework.nn.functional.linear import linear
from framework.nn.functional.shape import unstacked
from framework.state import computing
from framework.tensor import Tensor
from framework.views import stack

State = tuple[Tensor, ...]


class Weights(NamedTuple):
    """What one direction of one layer learns; biases and the projection `hr` of LSTM may be None."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None


# From the input of one step, projected, and the state before it to the state after; its first is the output.
Step = Callable[[Tensor, State, Weights], State]


def _gates(rows: Tensor, count: int) -> tuple[Tensor, ...]:
    """The `count` gates whose features lie one after the other."""
    *outer, features = tuple(rows.shape)
    return unstacked(rows.reshape(*outer, count, features // count), -2)


@computing
def rnn_tanh(projected: Tensor, state: State, weights: Weights) -> State:
    """h' = tanh(W x + b + W' h + b'). Elman, "Finding structure in time", 1990."""
    return ((projected + linear(state[0], weights.hh, weights.bias_hh)).tanh(),)


@computing
def rnn_relu(projected: Tensor, state: State, weights: Weights) -> State:
    """h' = max(W x + b + W' h + b', 0)."""
    return ((projected + linear(state[0], weights.hh, weights.bias_hh)).relu(),)


@computing
def lstm(projected: Tensor, state: State, weights: Weights) -> State:
    """Input, forget, cell and output gates in this order; `hr` projects the output. Hochreiter & Schmidhuber,
    1997; Sak et al., 2014.
    """
    hidden, cell = state
    gates = projected + linear(hidden, weights.hh, weights.bias_hh)
    taken, kept, new, shown = _gates(gates, 4)
    cell = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    hidden = shown.sigmoid() * cell.tanh()
    return (hidden if weights.hr is None else linear(hidden, weights.hr)), cell


@computing
def gru(projected: Tensor, state: State, weights: Weights) -> State:
    """Reset, update and new gates in this order; the reset gate acts after the product. Cho et al., 2014."""
    (hidden,) = state
    reset_x, update_x, new_x = _gates(projected, 3)
    reset_h, update_h, new_h = _gates(linear(hidden, weights.hh, weights.bias_hh), 3)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return (new + (update_x + update_h).sigmoid() * (hidden - new),)


def unroll(
    step: Step, input: Tensor, state: State, weights: Weights, backwards: bool
) -> tuple[Tensor, State]:
    """Outputs of all steps over (T, N, features), in the order of time, and the last state."""
    # Over all steps at once the product is one, and the gradient of its bias one sum.
    projected = unstacked(linear(input, weights.ih, weights.bias_ih), 0)
    outputs: list[Tensor] = []
    for x in reversed(projected) if backwards else projected:
        state = step(x, state, weights)
        outputs.append(state[0])
    return stack(outputs[::-1] if backwards else outputs), state
