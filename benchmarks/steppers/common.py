"""The steps of PyTorch and of Tracefuse, whose programs differ only in the module they import.

`lib` is that module, whose tensors are on `device`. `part` is put around a forward and around an optimizer's
step, `whole` around it all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.steppers.models import build
from benchmarks.steppers.timed import Timed
from benchmarks.works.kernels import AdamW, BlackScholes, CrossEntropy, GeluChain, LayerNorm, Softmax
from benchmarks.works.training import Training
from benchmarks.works.work import BETAS, EPS, LEARNING_RATE, Array, Work

Step = Callable[..., Any]
Wrap = Callable[[Step], Step]


def unchanged(function: Step) -> Step:
    """The wrap of eager execution."""
    return function


def timed(
    lib: Any, work: Work, part: Wrap = unchanged, whole: Wrap = unchanged, device: str = "cpu"
) -> Timed:
    """The step of a work."""
    weights = {name: lib.from_numpy(array).to(device) for name, array in work.weights().items()}
    batches = [tuple(lib.from_numpy(array).to(device) for array in batch) for batch in work.batches()]
    look = _look
    match work:
        case Training():
            step = _training(lib, work, weights, part)
        case AdamW():
            step = _adamw(lib, work, weights, part)
            look = lambda _: _look(tuple(weights.values()))  # noqa: E731
        case LayerNorm():
            step = _layer_norm(lib, weights, part)
            for x, _ in batches:
                x.requires_grad_()
        case CrossEntropy():
            step = _cross_entropy(lib, part)
            for x, _ in batches:
                x.requires_grad_()
        case _:
            step = part(_forward(lib, work))
    return Timed(whole(step), batches, look)


def _look(result: Any) -> list[Array]:
    return [t.detach().cpu().numpy() for t in (result if isinstance(result, tuple) else (result,))]


def _optimizer(lib: Any, parameters: Any, weight_decay: float, part: Wrap) -> tuple[Any, Step]:
    """An optimizer, and its step."""
    optimizer = lib.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPS, weight_decay)

    def update() -> None:
        optimizer.step()

    return optimizer, part(update)


def _training(lib: Any, work: Training, weights: dict[str, Any], part: Wrap) -> Step:
    model = build(lib, work).to(next(iter(weights.values())).device)
    model.load_state_dict(weights)
    loss_function = getattr(lib.nn.functional, work.loss)
    optimizer, update = _optimizer(lib, model.parameters(), work.weight_decay, part)

    def forward(x: Any, y: Any) -> Any:
        return loss_function(model(x), y)

    loss_of = part(forward)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        update()
        return loss

    return step


def _adamw(lib: Any, work: AdamW, weights: dict[str, Any], part: Wrap) -> Step:
    for name, gradient in work.gradients().items():
        weight = weights[name].requires_grad_()
        weight.grad = lib.from_numpy(gradient).to(weight.device)
    return _optimizer(lib, list(weights.values()), work.weight_decay, part)[1]


def _layer_norm(lib: Any, weights: dict[str, Any], part: Wrap) -> Step:
    weight, bias = (t.requires_grad_() for t in weights.values())
    layer_norm, grad = lib.nn.functional.layer_norm, lib.autograd.grad

    def forward(x: Any) -> Any:
        return layer_norm(x, weight.shape, weight, bias)

    result_of = part(forward)

    def step(x: Any, g: Any) -> Any:
        y = result_of(x)
        return y, *grad(y, (x, weight, bias), g)

    return step


def _cross_entropy(lib: Any, part: Wrap) -> Step:
    grad = lib.autograd.grad
    loss_of = part(lib.nn.functional.cross_entropy)

    def step(x: Any, y: Any) -> Any:
        loss = loss_of(x, y)
        return loss, *grad(loss, x)

    return step


def _forward(lib: Any, work: Work) -> Step:
    """The function of a work without gradients."""
    F = lib.nn.functional  # noqa: N806

    def softmax(x: Any) -> Any:
        return F.softmax(x, 1)

    def gelu_chain(x: Any, y: Any) -> Any:
        return F.gelu(x * y + x) * lib.sigmoid(y)

    rate, volatility = BlackScholes.rate, BlackScholes.volatility

    def normal(d: Any) -> Any:
        return 0.5 + 0.5 * lib.erf(d / 2**0.5)

    def black_scholes(spot: Any, strike: Any, years: Any) -> Any:
        deviation = volatility * lib.sqrt(years)
        above = (lib.log(spot / strike) + (rate + 0.5 * volatility**2) * years) / deviation
        discounted = strike * lib.exp(-rate * years)
        call = spot * normal(above) - discounted * normal(above - deviation)
        return call, call - spot + discounted

    return {Softmax: softmax, GeluChain: gelu_chain, BlackScholes: black_scholes}[type(work)]
