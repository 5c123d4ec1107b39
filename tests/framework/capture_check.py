"""Run a function eagerly and compiled, each on state of its own, and compare everything a caller can see.

`make()` builds one world: the function, and `look()`, which gives whatever state is compared after each call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import framework as fw
from framework.capture.compile import CompiledFunction

Look = Callable[[], Any]
World = tuple[Callable[..., Any], Look]


class Cube(fw.autograd.Function):
    """x³, with a gradient that is twice too large, so that it cannot be another's."""

    @staticmethod
    def forward(ctx: Any, x: fw.Tensor) -> fw.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: fw.Tensor) -> fw.Tensor:
        (x,) = ctx.saved_tensors
        return g * 6 * x * x


def nothing() -> Any:
    """State of a function that has none."""
    return None


def grad_of(t: fw.Tensor) -> fw.Tensor:
    """The gradient of a tensor that has one.

    For functions that are compiled: an assert that pytest has rewritten, as in test modules, is an effect.
    """
    assert t.grad is not None
    return t.grad


def same(got: Any, wanted: Any, rtol: float = 1e-5, where: str = "result") -> None:
    """Equal types, containers, dtypes, shapes, grad flags; values within `rtol` of the largest."""
    assert type(got) is type(wanted), f"{where}: {got!r} for {wanted!r}"
    if isinstance(wanted, fw.Tensor):
        same_tensor(got, wanted, rtol, where)
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), where
        for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
            same(a, b, rtol, f"{where}[{number}]")
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), where
        for key, b in wanted.items():
            same(got[key], b, rtol, f"{where}[{key!r}]")
    elif dataclasses.is_dataclass(wanted):
        for f in dataclasses.fields(wanted):
            same(getattr(got, f.name), getattr(wanted, f.name), rtol, f"{where}.{f.name}")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(got, wanted, rtol=rtol, err_msg=where)
    else:
        assert got == wanted, f"{where}: {got!r} for {wanted!r}"


def same_tensor(got: fw.Tensor, wanted: fw.Tensor, rtol: float, where: str) -> None:
    """Two tensors a caller could not tell apart."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), where
    assert got.requires_grad == wanted.requires_grad, f"{where}: requires_grad is {got.requires_grad}"
    assert got.is_leaf == wanted.is_leaf, f"{where}: is_leaf is {got.is_leaf}"
    a, b = got.detach().numpy(), wanted.detach().numpy()
    if a.dtype.kind not in "biu":
        a, b = a.astype(np.float64), b.astype(np.float64)
        largest = np.abs(b[np.isfinite(b)]).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * largest, err_msg=where)
    else:
        np.testing.assert_array_equal(a, b, err_msg=where)
    if wanted.is_leaf and wanted.requires_grad:
        same(got.grad, wanted.grad, rtol, f"{where}.grad")


def expect_mode(function: CompiledFunction, mode: str) -> None:
    """`function` ran as "replay" or "driven" says."""
    explanation = function.explain()
    assert explanation.mode == mode, str(explanation)


@dataclass
class Twins:
    """One world run eagerly and one compiled, from equal beginnings."""

    make: Callable[[], World]
    rtol: float = 1e-5

    def __post_init__(self) -> None:
        fw.manual_seed(0)
        self.eager, self.eager_look = self.make()
        fw.manual_seed(0)
        function, self.look = self.make()
        self.compiled = CompiledFunction(function)
        self.calls = 0

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call both with copies of the arguments; results, arguments, state and random numbers stay equal."""
        self.calls += 1
        fw.manual_seed(self.calls)
        eager_args, eager_kwargs = copied((args, kwargs))
        wanted = self.eager(*eager_args, **eager_kwargs)
        state = fw.get_rng_state()
        fw.manual_seed(self.calls)
        compiled_args, compiled_kwargs = copied((args, kwargs))
        got = self.compiled(*compiled_args, **compiled_kwargs)
        words = f"call {self.calls}"
        same(got, wanted, self.rtol, f"{words}: result")
        same(compiled_args, eager_args, self.rtol, f"{words}: arguments")
        same(self.look(), self.eager_look(), self.rtol, f"{words}: state")
        np.testing.assert_array_equal(fw.get_rng_state().numpy(), state.numpy(), f"{words}: generator")
        return got

    def change(self, action: Callable[[Any], Any], eager: Any, compiled: Any) -> None:
        """Do the same to an object of each world."""
        action(eager)
        action(compiled)

    def expect(self, mode: str, variants: int | None = None) -> None:
        """How the compiled function ran: "replay" or "driven", and how many programs it has."""
        explanation = self.compiled.explain()
        assert explanation.mode == mode, str(explanation)
        if variants is not None:
            assert len(self.compiled.variants) == variants, str(explanation)


def copied(x: Any) -> Any:
    """The same containers with tensors of memory of their own."""
    if isinstance(x, fw.Tensor):
        return x.detach().clone().requires_grad_(x.requires_grad)
    if isinstance(x, list | tuple):
        return type(x)(copied(item) for item in x)
    if isinstance(x, dict):
        return {key: copied(item) for key, item in x.items()}
    return x


def check(
    function: Callable[..., Any], *calls: Sequence[Any], mode: str = "replay", variants: int | None = None
) -> Twins:
    """`function`, without state, gives compiled what it gives eagerly, for each call's arguments, twice."""
    twins = Twins(lambda: (function, nothing))
    for _ in range(2):
        for args in calls:
            twins.call(*args)
    twins.expect(mode, variants)
    return twins
