"""Many small products as one large one, which keeps registers and caches full.

What a loop over time leaves behind: products of slices with one matrix, which need not wait for each other,
and sums of products, the gradient of that matrix. Neither the order of terms nor their rounding is a promise
of a product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from compiler.ir import Apply, Graph, Value
from compiler.ops import arithmetic, contraction, movement, reduction
from compiler.passes.rewrite import substitute
from kernels import dtypes

# From this many rows on a product is as fast alone: 32 x 512 x 128 runs at 86 GFLOP/s, 1024 rows at 102.
_FEW_ROWS = 128
# What sums of this many elements each add up is read once more when they are joined, which costs less than a
# kernel each.
_MANY = 8
_WIDE = (dtypes.float32, dtypes.float64)


def join_products(graph: Graph) -> Graph:
    """Join products and sums of products. Valid graph in, valid graph out."""
    return joined_factors(joined_sums(graph))


# Products with one right factor


def joined_factors(graph: Graph) -> Graph:
    """a @ w, b @ w -> slices of stack(a, b) @ w, where neither waits for the other"""
    tried: set[Value] = set()
    while found := _independent(graph, tried):
        right, products = found[0].inputs[1], sorted(found, key=lambda p: _place(p.inputs[0]))
        stacked, axis = stack([p.inputs[0] for p in products])
        wide = contraction.matmul.trace(stacked, right)
        pieces: dict[Value, Value] = {
            p: movement.reshape.trace(_slice(wide, axis, number), shape=p.shape)
            for number, p in enumerate(products)
        }
        graph = substitute(graph, pieces)
    return graph


def _independent(graph: Graph, tried: set[Value]) -> list[Apply]:
    """Products with one right factor that is not in `tried`, none of which needs another's result."""
    products: dict[Value, list[Apply]] = {}
    for node in graph.nodes:
        if _is_plain(node) and node.shape[0] < _FEW_ROWS:
            left, right = node.inputs
            if right not in tried and not _is_turned(left):
                products.setdefault(right, []).append(node)
    for right, found in products.items():
        tried.add(right)
        alike = [p for p in found if p.shape == found[0].shape]
        if len(alike) > 1:
            needing = _needing(graph, alike)
            free = [p for p in alike if p.inputs[0] not in needing]
            if len(free) > 1:
                return free
    return []


def _is_plain(node: Value) -> TypeGuard[Apply]:
    return isinstance(node, Apply) and node.op is contraction.matmul and node.inputs[1].ndim == node.ndim == 2


def _needing(graph: Graph, values: Iterable[Value]) -> set[Value]:
    """Everything computed from any of `values`, themselves included."""
    found = set(values)
    for node in graph.nodes:
        if isinstance(node, Apply) and not found.isdisjoint(node.inputs):
            found.add(node)
    return found


# Sums of products


def joined_sums(graph: Graph) -> Graph:
    """a @ b + c @ d -> a product of stacks, summed over both axes; sum(a) + sum(b) -> sum(stack(a, b))"""
    returned = set(graph.outputs)
    found: dict[Apply, tuple[list[Value], list[list[Apply]]]] = {}
    inside: set[Value] = set()

    def alone(x: Value) -> bool:
        return graph.reads[x] == 1 and x not in returned

    for root in reversed(graph.nodes):
        if root not in inside and isinstance(root, Apply) and root.op is arithmetic.add:
            terms, additions = _terms(root, alone)
            inside |= additions
            groups = _groups(terms, alone)
            if groups:
                gone = {x for group in groups for x in group}
                found[root] = [x for x in terms if x not in gone], groups
    orders = _orders([group for _, groups in found.values() for group in groups])
    totals: dict[Value, Value] = {}
    for root, (rest, groups) in found.items():
        total, *others = [*rest, *(_joined(group, orders) for group in groups)]
        for x in others:
            total = arithmetic.add.trace(total, x)
        totals[root] = total
    return substitute(graph, totals)


def _orders(groups: Iterable[Sequence[Apply]]) -> dict[frozenset[Value], list[Value]]:
    """Per set of first factors, or of what is summed, the order in which they are stacked, in all groups.

    Slices of one tensor, the second factors of some group perhaps, come in the order they have there.
    """
    orders: dict[frozenset[Value], list[Value]] = {}
    for group in sorted(groups, key=lambda group: _as_slice(group[0].inputs[-1]) is None):
        ordered = [_first(x) for x in sorted(group, key=lambda x: _place(x.inputs[-1]))]
        orders.setdefault(frozenset(ordered), ordered)
    return orders


def _first(term: Apply) -> Value:
    """What a sum sums, or the first factor of a product, as it is stored."""
    x = term.inputs[0]
    return x.inputs[0] if isinstance(x, Apply) and _is_turned(x) and _is_plain(term) else x


def _terms(root: Apply, alone: Callable[[Value], bool]) -> tuple[list[Value], set[Value]]:
    """What a tree of additions adds up, and the additions inside it, which nothing else reads."""
    terms: list[Value] = []
    inside: set[Value] = set()
    waiting = [*reversed(root.inputs)]
    while waiting:
        x = waiting.pop()
        if isinstance(x, Apply) and x.op is arithmetic.add and x.shape == root.shape and alone(x):
            inside.add(x)
            waiting += reversed(x.inputs)
        else:
            terms.append(x)
    return terms, inside


def _groups(terms: Sequence[Value], alone: Callable[[Value], bool]) -> list[list[Apply]]:
    """The terms that can be joined, with those they can be joined with."""
    kinds: dict[object, list[Apply]] = {}
    for x in terms:
        if isinstance(x, Apply) and alone(x) and (kind := _kind(x)) is not None:
            kinds.setdefault(kind, []).append(x)
    return [group for group in kinds.values() if len({_first(x) for x in group}) == len(group) > 1]


def _kind(x: Apply) -> object:
    """What terms have in common that can be joined; None for a term that is better alone."""
    shapes = tuple(v.shape for v in x.inputs)
    if _is_plain(x) and x.dtype in _WIDE:
        (m, k), n = shapes[0], x.shape[1]
        # Factors may have to be copied side by side; what is saved is writing and reading each product.
        return ("product", _is_turned(x.inputs[0]), shapes) if k * (m + n) <= m * n else None
    if x.op is reduction.sum and x.inputs[0].type.size >= _MANY * x.type.size:
        return "sum", x.attrs["axes"], shapes
    return None


def _joined(terms: Sequence[Apply], orders: dict[frozenset[Value], list[Value]]) -> Value:
    """The sum of terms of one kind."""
    by_first = {_first(x): x for x in terms}
    first = orders[frozenset(by_first)]
    terms = [by_first[x] for x in first]
    stacked, axis = stack(first)
    if terms[0].op is reduction.sum:
        axes = (axis, *(a + (a >= axis) for a in terms[0].attrs["axes"]))
        total = reduction.sum.trace(stacked, axes=tuple(sorted(axes)))
        return movement.reshape.trace(total, shape=terms[0].shape)
    rows, columns = (a for a in range(3) if a != axis)
    turned = _is_turned(terms[0].inputs[0])
    left = movement.permute.trace(stacked, axes=(columns, axis, rows) if turned else (rows, axis, columns))
    stacked, axis = stack([x.inputs[1] for x in terms])
    right = movement.permute.trace(stacked, axes=(axis, *(a for a in range(3) if a != axis)))
    return contraction.contract.trace(left, right, depth=2)


def _is_turned(x: Value) -> bool:
    return isinstance(x, Apply) and x.op is movement.permute


# Side by side


@dataclass(frozen=True)
class _Slice:
    """One index `at` of the `axis` of `base`, everything of the others, that axis dropped."""

    base: Value
    axis: int
    at: int


def _as_slice(x: Value) -> _Slice | None:
    part = x.inputs[0] if isinstance(x, Apply) and x.op is movement.reshape else None
    if not isinstance(part, Apply) or part.op is not movement.slice:
        return None
    base = part.inputs[0]
    for axis, at in enumerate(part.attrs["starts"]):
        if (*base.shape[:axis], *base.shape[axis + 1 :]) == x.shape and part.shape[axis] == 1:
            return _Slice(base, axis, at)
    return None


def _place(x: Value) -> tuple[int, int]:
    """A key that brings slices of one tensor into their order."""
    found = _as_slice(x)
    return (x.serial, 0) if found is None else (found.base.serial, found.at)


def stack(values: Sequence[Value]) -> tuple[Value, int]:
    """Values of one shape side by side along a new axis, and that axis.

    Neighbouring slices of one tensor are that tensor, anything else a concatenation.
    """
    slices = [_as_slice(x) for x in values]
    first = slices[0]
    if first is not None and slices == [
        _Slice(first.base, first.axis, first.at + i) for i in range(len(values))
    ]:
        return _slice(first.base, first.axis, first.at, len(values)), first.axis
    shape = (1, *values[0].shape)
    return movement.concatenate.trace(*(movement.reshape.trace(x, shape=shape) for x in values), axis=0), 0


def _slice(x: Value, axis: int, start: int, size: int = 1) -> Value:
    """`size` indices of an axis from `start` on."""
    starts = tuple(start if a == axis else 0 for a in range(x.ndim))
    stops = tuple(start + size if a == axis else n for a, n in enumerate(x.shape))
    if stops == x.shape and not start:
        return x
    return movement.slice.trace(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
