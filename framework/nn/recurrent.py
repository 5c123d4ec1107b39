"""Recurrent layers: RNN, LSTM and GRU over whole sequences, and a cell of each for one step."""

from __future__ import annotations

import math
import warnings
from typing import Any

from framework.creation import empty
from framework.nn import functional as F
from framework.nn import init
from framework.nn.functional import recurrent
from framework.nn.functional.recurrent import State, Step, Weights, unroll
from framework.nn.module import Module
from framework.nn.parameter import Parameter
from framework.state import guarded, runtime_scalar
from framework.tensor import Tensor
from framework.views import cat, stack
from kernels.dtypes import DType

_STEPS: dict[str, Step] = {
    "RNN_TANH": recurrent.rnn_tanh,
    "RNN_RELU": recurrent.rnn_relu,
    "LSTM": recurrent.lstm,
    "GRU": recurrent.gru,
}
# Gates of each kind, stacked in the rows of its weights.
_GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


class RNNBase(Module):
    """What RNN, LSTM and GRU share: parameters by layer and direction, and the walk through them.

    All start uniform in ±1/sqrt(hidden_size).
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        _check_settings(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        if mode not in _STEPS:
            raise ValueError(f"Unrecognized RNN mode: {mode}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout acts between recurrent layers, after all but the last, so that it does nothing with "
                f"dropout={dropout} and num_layers=1",
                stacklevel=3,
            )
        self.mode, self.input_size, self.hidden_size, self.num_layers = (
            mode,
            input_size,
            hidden_size,
            num_layers,
        )
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        rows, output = _GATES[mode] * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else output * self._directions
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, output)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            for suffix in self._suffixes(layer):
                for name, shape in shapes.items():
                    made = Parameter(empty(*shape, device=device, dtype=dtype))
                    self.register_parameter(f"{name}_l{suffix}", made)
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> tuple[str, ...]:
        return (f"{layer}", f"{layer}_reverse")[: self._directions]

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing: the weights are used where they are."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [
            [w for w in self._weights(suffix) if isinstance(w, Parameter)]
            for layer in range(self.num_layers)
            for suffix in self._suffixes(layer)
        ]

    def _weights(self, suffix: str) -> Weights:
        return Weights(
            getattr(self, f"weight_ih_l{suffix}"),
            getattr(self, f"weight_hh_l{suffix}"),
            getattr(self, f"bias_ih_l{suffix}") if self.bias else None,
            getattr(self, f"bias_hh_l{suffix}") if self.bias else None,
            getattr(self, f"weight_hr_l{suffix}") if self.proj_size else None,
        )

    def _state_sizes(self) -> tuple[int, ...]:
        """Features of each part of the state."""
        return (self.hidden_size,)

    def _run(self, input: Tensor, hx: State | None) -> tuple[Tensor, State]:
        """Output and last state; `hx` is the initial state, zeros when None."""
        batched = self._check_input(input, hx)
        if not batched:
            input = input.unsqueeze(1)
            hx = None if hx is None else tuple(h.unsqueeze(1) for h in hx)
        elif self.batch_first:
            input = input.transpose(0, 1)
        state = self._initial(input, hx)
        output, last = self._layers(input, state)
        if not batched:
            return output.squeeze(1), tuple(h.squeeze(1) for h in last)
        return (output.transpose(0, 1) if self.batch_first else output), last

    def _layers(self, input: Tensor, state: State) -> tuple[Tensor, State]:
        finals: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                input = self._dropped(input)
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                first = tuple(part[layer * self._directions + direction] for part in state)
                weights = self._weights(suffix)
                output, final = unroll(_STEPS[self.mode], input, first, weights, direction == 1)
                outputs.append(output)
                finals.append(final)
            input = cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return input, tuple(stack(parts) for parts in zip(*finals, strict=True))

    def _dropped(self, input: Tensor) -> Tensor:
        if not self.training or guarded(lambda: self.dropout == 0):
            return input
        return F.dropout(input, runtime_scalar(lambda: self.dropout), True)

    def _initial(self, input: Tensor, hx: State | None) -> State:
        """The state before the first of (T, N, features), checked. Raises RuntimeError for another shape."""
        layers, batch = self.num_layers * self._directions, input.shape[1]
        shapes = [(layers, batch, size) for size in self._state_sizes()]
        if hx is None:
            return tuple(input.new_zeros(shape) for shape in shapes)
        for number, (part, shape) in enumerate(zip(hx, shapes, strict=True)):
            if tuple(part.shape) != shape:
                which = f"[{number}]" if len(shapes) > 1 else ""
                raise RuntimeError(f"Expected hidden{which} size {shape}, got {list(part.shape)}")
        return hx

    def _check_input(self, input: Tensor, hx: State | None) -> bool:
        """Whether the input has a batch dimension. Raises what PyTorch raises."""
        if input.dim() not in (2, 3):
            name = self.mode.partition("_")[0]
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        batched = input.dim() == 3
        if hx is not None and any(h.dim() != input.dim() for h in hx):
            kind = "batched 3-D" if batched else "unbatched 2-D"
            names = "hx and cx" if len(hx) > 1 else "hx"
            dims = [f"{h.dim()}-D" for h in hx]
            got = f"({', '.join(dims)}) tensors" if len(dims) > 1 else f"{dims[0]} tensor"
            raise RuntimeError(
                f"For {kind} input, {names} should also be {3 if batched else 2}-D but got {got}"
            )
        dtype = self._weights("0").ih.dtype
        if input.dtype is not dtype:
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({dtype}). Convert input: "
                f"input.to({dtype}), or convert model: model.to({input.dtype})"
            )
        if input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got "
                f"{input.shape[-1]}"
            )
        if input.shape[1 if batched and self.batch_first else 0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        return batched

    def extra_repr(self) -> str:
        """Sizes, and the settings that are not the default."""
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0,
            "bidirectional": False,
        }
        changed = [f"{n}={getattr(self, n)}" for n, usual in defaults.items() if getattr(self, n) != usual]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *changed])


class RNN(RNNBase):
    """Elman's recurrent network with tanh or relu over (T, N, input_size), (N, T, …) with `batch_first`, or
    (T, input_size).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: DType | None = None,
        **options: Any,
    ) -> None:
        _refuse_projection("RNN", options)
        mode = _mode(nonlinearity)
        sizes = (input_size, hidden_size, num_layers)
        super().__init__(mode, *sizes, bias, batch_first, dropout, bidirectional, 0, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs of the last layer at every step, and the last state of every layer and direction."""
        output, (hidden,) = self._run(input, None if hx is None else (hx,))
        return output, hidden


class GRU(RNNBase):
    """Gated recurrent units over (T, N, input_size), (N, T, …) with `batch_first`, or (T, input_size)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: DType | None = None,
        **options: Any,
    ) -> None:
        _refuse_projection("GRU", options)
        sizes = (input_size, hidden_size, num_layers)
        super().__init__("GRU", *sizes, bias, batch_first, dropout, bidirectional, 0, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs of the last layer at every step, and the last state of every layer and direction."""
        output, (hidden,) = self._run(input, None if hx is None else (hx,))
        return output, hidden


class LSTM(RNNBase):
    """Long short-term memory over (T, N, input_size), (N, T, …) with `batch_first`, or (T, input_size).

    With `proj_size` the output of every step is projected to that size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        sizes = (input_size, hidden_size, num_layers)
        super().__init__("LSTM", *sizes, bias, batch_first, dropout, bidirectional, proj_size, device, dtype)

    def _state_sizes(self) -> tuple[int, ...]:
        return (self.proj_size or self.hidden_size, self.hidden_size)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs of the last layer at every step, and the last (h, c) of every layer and direction."""
        output, (hidden, cell) = self._run(input, None if hx is None else tuple(hx))
        return output, (hidden, cell)


class RNNCellBase(Module):
    """What the cells share: weights (gates * hidden_size, ...) that start uniform in ±1/sqrt(hidden_size)."""

    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            made = Parameter(empty(rows, device=device, dtype=dtype)) if bias else None
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        _reset(self, self.hidden_size)

    def _step(self, step: Step, input: Tensor, hx: State | None, parts: int = 1) -> State:
        """The state after `input`, from `hx` (zeros when None)."""
        self._check_dimensions(input, hx)
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if hx is None:
            state = (x.new_zeros((x.shape[0], self.hidden_size)),) * parts
        else:
            state = hx if batched else tuple(h.unsqueeze(0) for h in hx)
        self._check_sizes(x, state)
        weights = Weights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        after = step(F.linear(x, weights.ih, weights.bias_ih), state, weights)
        return after if batched else tuple(h.squeeze(0) for h in after)

    def _check_dimensions(self, input: Tensor, hx: State | None) -> None:
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for number, part in enumerate(hx or ()):
            if part.dim() not in (1, 2):
                which = f"hx[{number}]" if len(hx or ()) > 1 else "hidden"
                raise ValueError(f"{name}: Expected {which} to be 1D or 2D, got {part.dim()}D instead")

    def _check_sizes(self, input: Tensor, state: State) -> None:
        if input.shape[1] != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.shape[1]} expected {self.input_size}"
            )
        for number, part in enumerate(state):
            if part.dim() != 2 or part.shape[0] != input.shape[0]:
                raise RuntimeError(
                    f"Input batch size {input.shape[0]} doesn't match hidden{number} batch size "
                    f"{part.shape[0]}"
                )
            if part.shape[1] != self.hidden_size:
                raise RuntimeError(
                    f"hidden{number} has inconsistent hidden_size: got {part.shape[1]}, expected "
                    f"{self.hidden_size}"
                )

    def extra_repr(self) -> str:
        """Sizes, and the settings that are not the default."""
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias is True else f", bias={self.bias}")


class RNNCell(RNNCellBase):
    """One step of Elman's network: h' = tanh(W x + b + W' h + b'), or with relu."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next hidden state, of (N, hidden_size) or (hidden_size,)."""
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        step = recurrent.rnn_tanh if self.nonlinearity == "tanh" else recurrent.rnn_relu
        return self._step(step, input, None if hx is None else (hx,))[0]

    def extra_repr(self) -> str:
        """Sizes, and the settings that are not the default."""
        shown = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return super().extra_repr() + shown


class GRUCell(RNNCellBase):
    """One step of gated recurrent units."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next hidden state, of (N, hidden_size) or (hidden_size,)."""
        return self._step(recurrent.gru, input, None if hx is None else (hx,))[0]


class LSTMCell(RNNCellBase):
    """One step of long short-term memory."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next (h, c), each of (N, hidden_size) or (hidden_size,)."""
        hidden, cell = self._step(recurrent.lstm, input, None if hx is None else tuple(hx), 2)
        return hidden, cell


def _reset(module: Module, hidden_size: int) -> None:
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0.0
    for p in module.parameters():
        init.uniform_(p, -bound, bound)


def _mode(nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity {nonlinearity!r}. Select from 'tanh' or 'relu'.")
    return f"RNN_{nonlinearity.upper()}"


def _refuse_projection(name: str, options: dict[str, Any]) -> None:
    if "proj_size" in options:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
    if options:
        raise TypeError(f"{name}.__init__() got an unexpected keyword argument {next(iter(options))!r}")


def _check_settings(
    input_size: Any,
    hidden_size: Any,
    num_layers: int,
    bias: Any,
    batch_first: Any,
    dropout: Any,
    proj_size: int,
) -> None:
    """Raise ValueError or TypeError, as PyTorch, for settings that make no layer."""
    number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if not number or not 0 <= dropout <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element being "
            "zeroed"
        )
    for name, flag in (("bias", bias), ("batch_first", batch_first)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if not isinstance(size, int):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if proj_size >= hidden_size:
        raise ValueError("proj_size has to be smaller than hidden_size")
