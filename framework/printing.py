"""Text of a tensor, as PyTorch prints it.

Numbers are formatted from the array alone; the gradient function is only named.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from framework.access import host
from framework.state import ambient
from framework.tensor import Tensor, concrete
from kernels import dtypes

Array = np.ndarray[Any, Any]


class Options:
    """How numbers are printed."""

    def __init__(
        self,
        precision: int = 4,
        threshold: float = 1000,
        edgeitems: int = 3,
        linewidth: int = 80,
        sci_mode: bool | None = None,
    ) -> None:
        self.precision = precision
        self.threshold = threshold
        self.edgeitems = edgeitems
        self.linewidth = linewidth
        self.sci_mode = sci_mode


_PROFILES = {
    "default": Options(),
    "short": Options(precision=2, edgeitems=2),
    "full": Options(threshold=math.inf),
}
_options = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors print; a `profile` ("default", "short", "full") sets all, `sci_mode` None chooses by
    value."""
    global _options
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    base = _options if profile is None else _PROFILES[profile]
    changed = {k: v for k, v in given.items() if v is not None}
    _options = Options(**{**vars(base), **changed, "sci_mode": sci_mode})


def get_printoptions() -> dict[str, Any]:
    """The options in force."""
    return dict(vars(_options))


class _Format:
    """How the numbers of one tensor are printed: all to one width."""

    def __init__(self, values: Array, options: Options) -> None:
        self.options = options
        self.floating = values.dtype.kind not in "biu"
        self.whole = True
        self.scientific = False
        self.width = 1
        values = values.reshape(-1)
        if not self.floating:
            self.width = max([self.width, *(len(str(v)) for v in values.tolist())])
            return
        numbers = values.astype(np.float64)
        finite = numbers[np.isfinite(numbers) & (numbers != 0)]
        if finite.size == 0:
            # Nothing but zeros, inf and nan: as PyTorch, whole numbers without more width.
            self._widen(numbers, finite)
            return
        magnitude = np.abs(finite)
        largest, smallest = float(magnitude.max()), float(magnitude.min())
        self.whole = bool(np.all(finite == np.ceil(finite)))
        ratio_limit, top, bottom = 1000.0, 1.0e8, 1.0e-4
        if self.whole:
            self.scientific = largest / smallest > ratio_limit or largest > top
        else:
            self.scientific = largest / smallest > ratio_limit or largest > top or smallest < bottom
        if options.sci_mode is not None:
            self.scientific = options.sci_mode
        self._widen(numbers, finite)

    def _widen(self, numbers: Array, finite: Array) -> None:
        if finite.size == 0:
            return
        precision = self.options.precision
        if self.scientific:
            texts = [f"{v:.{precision}e}" for v in finite.tolist()]
        elif self.whole:
            texts = [f"{v:.0f}" for v in finite.tolist()]
            self.width = max(self.width, *(len(t) + 1 for t in texts))
            return
        else:
            texts = [f"{v:.{precision}f}" for v in finite.tolist()]
        self.width = max(self.width, *(len(t) for t in texts))

    def text(self, value: Any) -> str:
        """One number, padded to the common width."""
        if not self.floating:
            shown = str(value)
        elif self.scientific:
            shown = f"{value:{self.width}.{self.options.precision}e}"
        elif self.whole:
            shown = f"{value:.0f}"
            if math.isfinite(value):
                shown += "."
        else:
            shown = f"{value:.{self.options.precision}f}"
        return " " * (self.width - len(shown)) + shown


def _vector(values: Array, indent: int, summarize: bool, form: _Format, options: Options) -> str:
    element_length = form.width + 2
    per_line = max(1, (options.linewidth - indent) // element_length)
    shown = values.tolist()
    if summarize and not options.edgeitems:
        words = ["..."]
    elif summarize and len(shown) > 2 * options.edgeitems:
        words = [
            *(form.text(v) for v in shown[: options.edgeitems]),
            " ...",
            *(form.text(v) for v in shown[-options.edgeitems :]),
        ]
    else:
        words = [form.text(v) for v in shown]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(values: Array, indent: int, summarize: bool, form: _Format, options: Options) -> str:
    if values.ndim == 0:
        return form.text(values.tolist())
    if values.ndim == 1:
        return _vector(values, indent, summarize, form, options)
    edge = options.edgeitems
    if summarize and len(values) > 2 * edge:
        rows = [_nested(values[i], indent + 1, summarize, form, options) for i in range(edge)]
        rows.append("...")
        rows += [
            _nested(values[i], indent + 1, summarize, form, options)
            for i in range(len(values) - edge, len(values))
        ]
    else:
        rows = [_nested(row, indent + 1, summarize, form, options) for row in values]
    return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(rows) + "]"


def _summarized(values: Array, edge: int) -> Array:
    """The elements a summary shows, of which the format is chosen."""
    for axis, size in enumerate(values.shape):
        if size > 2 * edge:
            kept = [*range(edge), *range(size - edge, size)]
            values = np.take(values, kept, axis)
    return values


def contents(t: Tensor, indent: int = 0) -> str:
    """The elements as nested brackets."""
    data: Array = host(t)
    if data.size == 0:
        return "[]"
    options = _options
    summarize = data.size > options.threshold
    sample = _summarized(data, options.edgeitems) if summarize else data
    if data.dtype.itemsize == 2 and t.dtype.is_floating_point:
        sample, data = sample.astype(np.float32), data.astype(np.float32)
    return _nested(data, indent, summarize, _Format(sample, options), options)


def _is_dead(t: Tensor) -> bool:
    """Whether `t` was made in a capture that is over, and has no value."""
    return t._data is None and ambient.tracer is None


def text(t: Tensor) -> str:
    """`repr(t)`: elements, then what differs from the defaults."""
    kind = type(t).__name__
    prefix = "tensor(" if kind in ("Tensor", "Parameter") else f"{kind}("
    if _is_dead(t):
        return f"{prefix}<{t._traced} of a finished capture>)"
    concrete(t)  # under capture there are no elements to show, and a text would be frozen
    suffixes = []
    if t.is_cuda:
        suffixes.append(f"device='{t.device}'")
    if t.numel() == 0 and t.ndim != 1:
        suffixes.append(f"size={tuple(t.shape)}")
    inferred = (ambient.default_dtype, dtypes.int64, dtypes.bool_)
    if t.dtype not in inferred or (t.numel() == 0 and t.dtype is not ambient.default_dtype):
        suffixes.append(f"dtype={t.dtype}")
    if t.grad_fn is not None:
        suffixes.append(f"grad_fn=<{t.grad_fn.name()}>")
    elif t.requires_grad:
        suffixes.append("requires_grad=True")
    return _with_suffixes(prefix + contents(t, len(prefix)), suffixes, len(prefix))


def _with_suffixes(body: str, suffixes: list[str], indent: int) -> str:
    words = [body]
    length = len(body) - body.rfind("\n") + 1
    for suffix in suffixes:
        if length + len(suffix) + 2 > _options.linewidth:
            words.append(",\n" + " " * indent + suffix)
            length = indent + len(suffix)
        else:
            words.append(", " + suffix)
            length += len(suffix) + 2
    return "".join(words) + ")"


def formatted(t: Tensor, spec: str) -> str:
    """`format(t, spec)`: the number of a 0-d tensor, else the text."""
    if not _is_dead(t) and t.ndim == 0:
        return format(t.item(), spec)
    return format(text(t), spec)
