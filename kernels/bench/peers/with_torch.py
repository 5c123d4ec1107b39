"""The library's kernels by eager PyTorch's own functions, on the same memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kernels.library import DECAY, RATE

torch: Any = importlib.import_module("torch")
F: Any = importlib.import_module("torch.nn.functional")
Call = Callable[[], Any]


def use(threads: int) -> None:
    """Share functions among so many threads."""
    torch.set_num_threads(threads)


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Call]:
    """A call of `function` on tensors over the operands' memory."""

    def make(*operands: Any) -> Call:
        tensors = [torch.from_numpy(x) for x in operands]
        return torch.no_grad()(lambda: function(*tensors))

    return make


def _into(function: Any) -> Callable[..., Call]:
    return _of_tensors(lambda *x: function(*x[:-1], out=x[-1]))


def _adamw(p: Any, g: Any, *_: Any) -> Call:
    parameter = torch.nn.Parameter(torch.from_numpy(p))
    parameter.grad = torch.from_numpy(g)
    return torch.optim.AdamW([parameter], lr=RATE, weight_decay=DECAY, fused=True).step


KERNELS: dict[str, Callable[..., Call]] = {
    "copy": _of_tensors(lambda x, y: y.copy_(x)),
    "add": _into(torch.add),
    "triad": _of_tensors(lambda x, y, z: torch.add(x, y, alpha=3, out=z)),
    "relu": _of_tensors(lambda x, y: torch.clamp_min(x, 0, out=y)),
    "exp": _into(torch.exp),
    "log": _into(torch.log),
    "tanh": _into(torch.tanh),
    "erf": _into(torch.erf),
    "sin": _into(torch.sin),
    "sigmoid": _into(torch.sigmoid),
    "silu": _of_tensors(lambda x, y: F.silu(x)),
    "gelu": _of_tensors(lambda x, y: F.gelu(x)),
    "gelu_tanh": _of_tensors(lambda x, y: F.gelu(x, approximate="tanh")),
    "adamw": _adamw,
    "softmax": _of_tensors(lambda x, y: torch.softmax(x, 1, out=y)),
    "log_softmax": _of_tensors(lambda x, y: torch.log_softmax(x, 1, out=y)),
    "layer_norm": _of_tensors(lambda x, w, b, y: F.layer_norm(x, w.shape, w, b)),
    "rms_norm": _of_tensors(lambda x, w, y: F.rms_norm(x, w.shape, w, 1e-5)),
    "cross_entropy": _of_tensors(lambda x, target, _, loss: F.cross_entropy(x, target, reduction="none")),
    "row_sum": _of_tensors(lambda x, y: torch.sum(x, 1, out=y)),
    "row_max": _of_tensors(lambda x, y: torch.amax(x, 1, out=y)),
    "running_sum": _of_tensors(lambda x, y: torch.cumsum(x, 1, out=y)),
    "column_sum": _of_tensors(lambda x, y: torch.sum(x, 0, out=y)),
    "matmul": _into(torch.matmul),
    "matmul_nt": _of_tensors(lambda a, b, c: torch.matmul(a, b.T, out=c)),
    "matmul_tn": _of_tensors(lambda a, b, c: torch.matmul(a.T, b, out=c)),
    "matmul_tt": _of_tensors(lambda a, b, c: torch.matmul(a.T, b.T, out=c)),
    "batched_matmul": _into(torch.matmul),
}
