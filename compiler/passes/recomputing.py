"""What a gradient needs of a large product, computed again from the small factors instead of kept.

Scores of an attention and what is made of them fill memory between the forward pass and the backward one.
Computed in both they are in two groups of kernels, each of which can run tile by tile. Knows products,
pointwise ops, movements and reductions by their classes; knows no kernels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeGuard

from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.ops import movement
from compiler.ops.contraction import matmul
from compiler.ops.op import Elementwise, Movement, Reduction
from compiler.passes.rewrite import substitute
from compiler.schedule import is_free, unmoved

# Bytes of a product from which on it may be computed again, and of all that would be kept of such products
# from which on they are: to keep them is faster, by a sixth of a step (8 heads of 4096 rows of 64).
LEAST, KEPT = 1 << 24, 1 << 30
# So many elements are summed over, at most, for each byte of an element that need not be kept.
SUMMED_A_BYTE = 32
# The factors have so many times fewer elements than the product.
SMALLER = 4


@dataclass(frozen=True)
class Limits:
    """From where on products are computed again: the numbers above; with `drawn`, random numbers are too."""

    least: int
    kept: int
    summed: int
    smaller: int
    drawn: bool = False

    def is_large(self, node: Value) -> TypeGuard[Apply]:
        """Whether a node is a product that is worth it."""
        if not isinstance(node, Apply) or node.op is not matmul or node.type.nbytes < self.least:
            return False
        return self.smaller * sum(x.type.size for x in node.inputs) <= node.type.size

    def is_counted(self, x: Value) -> bool:
        """Whether a value is pointwise work on the indices of a loop alone: a causal mask."""
        if (
            not isinstance(x, Apply)
            or not isinstance(x.op, Elementwise)
            or (x.op.expensive and not self.drawn)
        ):
            return False
        return all(self.is_index(unmoved(y)) or self.is_counted(y) for y in x.inputs)

    def is_index(self, x: Value) -> bool:
        """Whether a value is an index, or a number; random numbers are drawn from numbers in memory."""
        return is_free(x) or _is_number(x) or (self.drawn and isinstance(x, Input) and not x.ndim)


# What a GPU calculates costs less beside what it moves: scores of some hundred rows are not kept, nor is what
# was dropped of them. By the numbers that data sheets have, since none was at hand: 128 multiply-adds of
# float32 take less than writing 4 bytes and reading them twice.
THERE = Limits(1 << 20, 1 << 22, 64, 2, drawn=True)


def recompute(graph: Graph) -> Graph:
    """What is made of a large product and read again after what was made of it -> computed again there."""
    return _recomputed(graph, Limits(LEAST, KEPT, SUMMED_A_BYTE, SMALLER))


def recompute_there(graph: Graph) -> Graph:
    """As `recompute`, for a GPU, where a set of kernels keeps such a product in registers."""
    return _recomputed(graph, THERE)


def _recomputed(graph: Graph, limits: Limits) -> Graph:
    large = (node for node in graph.nodes if limits.is_large(node))
    kept = (x for node in large for x in _Parts(graph, node, limits).kept)
    if sum(x.type.nbytes for x in kept) < limits.kept:
        return graph
    done: set[Value] = set()
    # What comes after a change is new.
    while (node := next((n for n in graph.nodes if n not in done and limits.is_large(n)), None)) is not None:
        done.add(node)
        graph = _again(graph, node, limits)
    return graph


def _again(graph: Graph, product: Apply, limits: Limits) -> Graph:
    """The graph with a second product for what needs one late, if that pays."""
    parts = _Parts(graph, product, limits)
    if not parts.kept:
        return graph
    again = _Again(graph, product, parts.made, limits)
    changed = parts.late | {u for u in parts.beyond if any(limits.is_counted(x) for x in u.inputs)}
    return substitute(graph, {u: u.with_inputs(tuple([again.copy(x) for x in u.inputs])) for u in changed})


class _Again:
    """Copies of what is made of a product."""

    def __init__(self, graph: Graph, product: Apply, made: Collection[Value], limits: Limits) -> None:
        self.product, self.limits = product, limits
        self.large = {x for x in made if x.type.size == product.type.size}.difference(graph.outputs)
        self.copies: dict[Value, Value] = {}

    def copy(self, x: Value) -> Value:
        """A value made of the product once more; what is small is kept, unless a loop has it for nothing."""
        if not isinstance(x, Apply) or (x not in self.large and not self.limits.is_counted(x)):
            return x
        if x not in self.copies:
            inputs = x.inputs if x is self.product else tuple([self.operand(y) for y in x.inputs])
            self.copies[x] = Apply(x.type, where=x.where, op=x.op, inputs=inputs, attrs=x.attrs)
        return self.copies[x]

    def operand(self, x: Value) -> Value:
        """What a copy reads; of what is kept a view, through which no loop joins the copy to the original."""
        found = self.copy(x)
        if found is not x or is_free(x) or _is_number(x):
            return found
        if x not in self.copies:
            self.copies[x] = Apply(
                x.type, where=x.where, op=movement.reshape, inputs=(x,), attrs={"shape": x.shape}
            )
        return self.copies[x]


def _is_number(x: Value) -> bool:
    return isinstance(x, Const) and not x.ndim


class _Parts:
    """What follows of a product: `made` by pointwise work, movements and reductions, `beyond` in any other
    way, or later; `late` is what reads the first again. `kept` are the values of its size that this takes,
    none where they are better kept.
    """

    def __init__(self, graph: Graph, product: Apply, limits: Limits) -> None:
        self.made: set[Value] = {product}
        self.beyond: set[Apply] = set()
        self.late: set[Apply] = set()
        for node in graph.nodes:
            if isinstance(node, Apply) and any(x in self.made or x in self.beyond for x in node.inputs):
                self.follow(node)
        size, summed = product.type.size, product.inputs[0].shape[-1]
        read = (x for x in self.made if x.type.size == size and not self.late.isdisjoint(graph.users[x]))
        kept = {unmoved(x) for x in read}
        # What the caller gets is in memory anyway.
        kept.difference_update(graph.outputs)
        pays = summed <= limits.summed * sum(x.dtype.itemsize for x in kept)
        self.kept = kept if pays else set[Value]()

    def follow(self, node: Apply) -> None:
        """See where a node belongs that reads one of these."""
        after = not self.beyond.isdisjoint(node.inputs)
        if not after and isinstance(node.op, Elementwise | Reduction | Movement):
            self.made.add(node)
            return
        self.beyond.add(node)
        if after and not self.made.isdisjoint(node.inputs):
            self.late.add(node)
