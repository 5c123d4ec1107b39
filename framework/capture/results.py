"""How the results of a call are made again: from a program's outputs, from memory that existed, from numbers.

Knows tensors and the sources of a recording; the memory of a call is its caller's business.
"""

from __future__ import annotations

from compiler.errors import TraceError
from compiler.ops.op import Movement
from framework.apply import apply_op
from framework.capture.tracer import Chain, Source
from framework.graph import OpNode
from framework.state import set_grad_enabled
from framework.tensor import DETACHED, Tensor, edge_of


class Result:
    """How to make one returned tensor: from output `number`, then the movements of `chain`; an `alias` is
    another tensor of the same memory.

    `freed` is the name of a history that the call has used up; `root` the position among the results that can
    still be differentiated. Not a dataclass: those are containers to a tree of results.
    """

    def __init__(
        self, number: int, chain: Chain, alias: bool, requires_grad: bool, freed: str, root: int
    ) -> None:
        self.number, self.chain, self.alias = number, chain, alias
        self.requires_grad, self.freed, self.root = requires_grad, freed, root


class Given:
    """A returned tensor that is, or views, memory that existed: argument `position`, `tensor` itself, or else
    what the call reads as input `number` (a gradient may be another tensor each time).

    `tracked`: the view has the history of its movements; `detached`: it is none of the tensor's history, and
    a leaf of its own if `requires_grad`.
    """

    def __init__(
        self,
        position: int,
        number: int,
        tensor: Tensor | None,
        chain: Chain,
        tracked: bool,
        detached: bool,
        requires_grad: bool,
    ) -> None:
        self.position, self.number, self.tensor = position, number, tensor
        self.chain, self.tracked = chain, tracked
        self.detached, self.requires_grad = detached, requires_grad


class Computed:
    """A returned float that a replay computes: the value in `slot` of the call's numbers."""

    def __init__(self, slot: int) -> None:
        self.slot = slot


class Read:
    """A returned number: the one element of output `number`."""

    def __init__(self, number: int) -> None:
        self.number = number


def given(x: Tensor, source: Source, chain: Chain, where: int, number: int) -> Given:
    """How to make a returned tensor of memory that existed: argument `where`, or input `number`."""
    owner, detached, tracked = source.owner, False, bool(chain) and x.grad_fn is not None
    if x is not owner and x._data is not None:  # a view that existed too
        return Given(-1, -1, x, (), False, False, False)
    t = x
    while t is not owner:
        detached = detached or t._view_kind == DETACHED
        assert t._base is not None, "the memory is the owner's"
        t = t._base
    plain = not tracked or (not source.writes and not detached and _is_plain_view(x, owner))
    if not plain or (x is not owner and x._storage is not owner._storage):
        raise TraceError(
            "a view of a tensor that requires grad is returned after a write, with a hook, or as `.data`: "
            "return it outside @compile"
        )
    leaf = x is not owner and x._requires_grad and not tracked
    return Given(where, number, None, chain, tracked, detached, leaf)


def _is_plain_view(x: Tensor, owner: Tensor) -> bool:
    """Whether nothing but movements leads from `owner` to `x`."""
    end, edge = edge_of(owner), edge_of(x)
    while edge is not None and (end is None or edge[0] is not end[0] or edge[1] != end[1]):
        node = edge[0]
        if not isinstance(node, OpNode) or not isinstance(node.op, Movement) or node.hooks or node.retained:
            return False
        edge = node.edges[0]
    return edge is not None


def follow(t: Tensor, chain: Chain, tracked: bool = False) -> Tensor:
    """The view of `t` at the end of a chain of movements; with its history if it is `tracked`."""
    if chain:
        with set_grad_enabled(tracked):
            for op, attrs in chain:
                t = apply_op(op, (t,), attrs)
    return t
