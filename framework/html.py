"""Tensors and modules as HTML, for notebooks: facts on top, then values as a table or layers as a tree.

Colours and fonts are the notebook's own, so that dark themes stay dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from framework.printing import contents, get_printoptions, text
from framework.tensor import Tensor, concrete

if TYPE_CHECKING:
    from framework.nn.module import Module

_CELL = "padding:1px 8px;text-align:right;font-family:monospace"
_HEAD = "opacity:.75;font-size:90%"


def tensor(t: Tensor) -> str:
    """A tensor: dtype, shape, bytes and place in the gradient graph, and its elements."""
    if t._data is None:
        return f"<pre>{_escaped(text(t))}</pre>"
    facts = [str(t.dtype), str(list(t.shape)), f"{t.nbytes:,} bytes"]
    if t.grad_fn is not None:
        facts.append(f"grad_fn {t.grad_fn.name()}")
    elif t.requires_grad:
        facts.append("requires grad" if t.grad is None else "requires grad, has a gradient")
    values = concrete(t)
    shown = f"<pre>{_escaped(contents(t))}</pre>"
    if 1 <= values.ndim <= 2 and values.size:
        shown = _table(np.atleast_2d(values))
    return f'<div><div style="{_HEAD}">{_escaped(" · ".join(facts))}</div>{shown}</div>'


def _table(values: np.ndarray[Any, Any]) -> str:
    """Two dimensions as rows; of many the first and the last few."""
    edge = get_printoptions()["edgeitems"] + 2
    rows, columns = (_shown(n, edge) for n in values.shape)
    lines = []
    for i in rows:
        cells = ["…" if i is None or j is None else _number(values[i, j]) for j in columns]
        lines.append("".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _shown(size: int, edge: int) -> list[int | None]:
    if size <= 2 * edge + 1:
        return list(range(size))
    return [*range(edge), None, *range(size - edge, size)]


def _number(value: Any) -> str:
    if value.dtype.kind in "biu":
        return str(value)
    return f"{float(value):.{get_printoptions()['precision']}g}"


def module(m: Module) -> str:
    """A module: a tree of its layers with their parameters, which opens and closes."""
    total = sum(p.numel() for p in m.parameters())
    return f'<div><div style="{_HEAD}">{total:,} parameters</div>{_tree("", m, _layer_text)}</div>'


def _layer_text(m: Module) -> str:
    own = {name: tuple(p.shape) for name, p in m.named_parameters(recurse=False)}
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in own.items())
    extra = m.extra_repr()
    words = _escaped(f"{type(m).__name__}({extra})")
    return f'{words} <span style="{_HEAD}">{_escaped(shapes)}</span>' if shapes else words


def _tree(name: str, m: Module, words: Callable[[Module], str]) -> str:
    children: Sequence[tuple[str, Module]] = list(m.named_children())
    label = f"<b>{_escaped(name)}</b> {words(m)}" if name else words(m)
    if not children:
        return f'<div style="margin-left:1.2em;font-family:monospace">{label}</div>'
    inside = "".join(_tree(key, child, words) for key, child in children)
    return (
        f'<details open style="margin-left:1.2em;font-family:monospace"><summary>{label}</summary>'
        f"{inside}</details>"
    )


def _escaped(words: str) -> str:
    # The module `html` of the standard library would take 1.5 ms of `import framework`.
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
