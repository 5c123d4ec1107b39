"""Helpers around layers: work on all parameters at once, and sequences of different lengths (`rnn`)."""

from framework.examples import attach as _attach
from framework.examples import training as _training
from framework.nn.utils import rnn
from framework.nn.utils.parameters import (
    clear_gradients,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
    parameters_to_vector,
    vector_to_parameters,
)

__all__ = [
    "clear_gradients",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]

_attach(globals(), _training.TABLE, "nn_utils")
