"""Full backward hooks: identity functions around a module's inputs and outputs report the gradients that
pass.

Knows the tape only through `autograd.Function`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework.autograd import Function
from framework.state import is_grad_enabled
from framework.tensor import Tensor

Gradients = tuple[Any, ...]


class _Reported(Function):
    """Identity of several tensors whose gradients pass through `report` on the way back."""

    @staticmethod
    def forward(ctx: Any, report: Callable[[Gradients], Gradients], *tensors: Tensor) -> Any:
        ctx.report = report
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Gradients:
        return (None, *ctx.report(grads))


def call_with_backward_hooks(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args, **kwargs)` with the module's backward hooks called when its gradients are
    known.
    """
    if not is_grad_enabled():
        return module.forward(*args, **kwargs)
    grad_outputs: list[Gradients] = []
    needs_input = any(isinstance(x, Tensor) and x.requires_grad for x in args)

    def inputs_known(grads: Gradients) -> Gradients:
        return _run(module, grads, grad_outputs.pop()) if grad_outputs else grads

    def outputs_known(grads: Gradients) -> Gradients:
        for hook in list(module._backward_pre_hooks.values()):
            grads = _replaced(hook(module, grads), grads)
        if needs_input:
            grad_outputs.append(grads)
        else:
            _run(module, tuple(None for x in args if isinstance(x, Tensor)), grads)
        return grads

    if needs_input:
        args = _passed(args, inputs_known)
    result = module.forward(*args, **kwargs)
    if isinstance(result, Tensor):
        return _passed((result,), outputs_known)[0]
    return _passed(result, outputs_known) if isinstance(result, tuple) else result


def _passed(values: tuple[Any, ...], report: Callable[[Gradients], Gradients]) -> tuple[Any, ...]:
    if not any(isinstance(x, Tensor) and x.requires_grad for x in values):
        return values
    through = iter(_Reported.apply(report, *(x for x in values if isinstance(x, Tensor))))
    return tuple(next(through) if isinstance(x, Tensor) else x for x in values)


def _run(module: Any, grad_input: Gradients, grad_output: Gradients) -> Gradients:
    for hook in list(module._backward_hooks.values()):
        grad_input = _replaced(hook(module, grad_input, grad_output), grad_input)
    return grad_input


def _replaced(changed: Any, before: Gradients) -> Gradients:
    if changed is None:
        return before
    changed = changed if isinstance(changed, tuple) else (changed,)
    if len(changed) != len(before):
        raise RuntimeError(
            f"a backward hook returned {len(changed)} gradients where the module has {len(before)}: return "
            "one per tensor"
        )
    return changed
