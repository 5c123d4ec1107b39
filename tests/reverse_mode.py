"""Reverse mode over the IR, for the laws of gradient rules.

Knows only graphs and rules; no tape, no Tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir import Apply, Graph, Value
from compiler.ops import add, sum_to, zeros


def pull_back(output: Value, seed: Value, wanted: Sequence[Value]) -> list[Value]:
    """The gradients, themselves IR values, of `output` weighted with `seed` to each `wanted` value."""
    nodes = [v for v in Graph((), (output,)).nodes if isinstance(v, Apply)]
    moving: set[Value] = set(wanted)
    for node in nodes:
        if moving.intersection(node.inputs):
            moving.add(node)
    gradients = {output: seed}
    for node in reversed(nodes):
        if node not in gradients:
            continue
        for position, x in enumerate(node.inputs):
            rule = node.op.gradient(position)
            if rule is None or x not in moving or not x.dtype.is_floating_point:
                continue
            piece = sum_to(rule(gradients[node], node, *node.inputs, **node.attrs), x.shape)
            gradients[x] = add(gradients[x], piece) if x in gradients else piece
    return [gradients[x] if x in gradients else zeros(x, x.shape) for x in wanted]
