"""What a gradient needs of a large product, computed again from the small factors instead of kept.

Scores of an attention and what is made of them fill memory between the forward pass and the backward one.
Computed in both they are in two groups of kernels, each of which can run tile by tile. Knows products,
pointwise ops, movements and reductions by their classes; knows no kernels.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeGuard

from compiler.ir import Apply, Const, Graph, Value
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


def recompute(graph: Graph) -> Graph:
    """What is made of a large product and read again after what was made of it -> computed again there."""
    if sum(x.type.nbytes for node in graph.nodes if _is_large(node) for x in _Parts(graph, node).kept) < KEPT:
        return graph
    done: set[Value] = set()
    # What comes after a change is new.
    while (node := next((n for n in graph.nodes if n not in done and _is_large(n)), None)) is not None:
        done.add(node)
        graph = _again(graph, node)
    return graph


def _is_large(node: Value) -> TypeGuard[Apply]:
    if not isinstance(node, Apply) or node.op is not matmul or node.type.nbytes < LEAST:
        return False
    return SMALLER * sum(x.type.size for x in node.inputs) <= node.type.size


def _again(graph: Graph, product: Apply) -> Graph:
    """The graph with a second product for what needs one late, if that pays."""
    parts = _Parts(graph, product)
    if not parts.kept:
        return graph
    again = _Again(graph, product, parts.made)
    changed = parts.late | {u for u in parts.beyond if any(_is_counted(x) for x in u.inputs)}
    return substitute(graph, {u: u.with_inputs(tuple([again.copy(x) for x in u.inputs])) for u in changed})


class _Again:
    """Copies of what is made of a product."""

    def __init__(self, graph: Graph, product: Apply, made: Collection[Value]) -> None:
        self.product = product
        self.large = {x for x in made if x.type.size == product.type.size}.difference(graph.outputs)
        self.copies: dict[Value, Value] = {}

    def copy(self, x: Value) -> Value:
        """A value made of the product once more; what is small is kept, unless a loop has it for nothing."""
        if not isinstance(x, Apply) or (x not in self.large and not _is_counted(x)):
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


def _is_counted(x: Value) -> bool:
    """Whether a value is pointwise work on the indices of a loop alone: a causal mask."""
    if not isinstance(x, Apply) or not isinstance(x.op, Elementwise) or x.op.expensive:
        return False
    return all(is_free(unmoved(y)) or _is_number(y) or _is_counted(y) for y in x.inputs)


def _is_number(x: Value) -> bool:
    return isinstance(x, Const) and not x.ndim


class _Parts:
    """What follows of a product: `made` by pointwise work, movements and reductions, `beyond` in any other
    way, or later; `late` is what reads the first again. `kept` are the values of its size that this takes,
    none where they are better kept.
    """

    def __init__(self, graph: Graph, product: Apply) -> None:
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
        pays = summed <= SUMMED_A_BYTE * sum(x.dtype.itemsize for x in kept)
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
