"""How the results of a call are made again: from a program's outputs, from memory that existed, from numbers.

Knows tensors and the sources of a recording; the memory of a call is its caller's business.
"""

from __future__ import annotations

from compiler.errors import TraceError
from framework.apply import apply_op
from framework.capture.leaving import Leaving, is_detached, is_plain_view
from framework.capture.tracer import Chain, Source
from framework.state import set_grad_enabled
from framework.tensor import TRACKED, Tensor, edge_of


class Result:
    """How to make one returned tensor: from output `number`, then the movements of `chain`.

    An `apart` one is another tensor of the same memory, outside its history; a `tracked` one is a view that
    writes go through. The history is the output's own, or that of what is apart: `freed` is the name of one
    that the call has used up, `root` the position among the results that can still be differentiated. Not a
    dataclass: those are containers to a tree of results.
    """

    def __init__(self, number: int, chain: Chain, leaving: Leaving, root: int) -> None:
        self.number, self.chain, self.root = number, chain, root
        self.apart, self.tracked = leaving.apart, leaving.tracked
        self.requires_grad, self.freed = leaving.requires_grad, leaving.freed


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
    owner = source.owner
    if x is not owner and x._data is not None:  # a view that existed too
        return Given(-1, -1, x, (), False, False, False)
    detached = is_detached(x, owner)
    has_history = bool(chain) and x.grad_fn is not None
    tracked = bool(chain) and x._view_kind == TRACKED
    plain = not has_history or (not source.writes and not detached and is_plain_view(x, owner))
    bare = tracked and not has_history and not detached and edge_of(owner) is not None
    if bare or not plain or (x is not owner and x._storage is not owner._storage):
        raise TraceError(
            "a view of a tensor that requires grad is returned after a write, with a hook, or as `.data`: "
            "return it outside @compile"
        )
    leaf = x is not owner and x._requires_grad and not has_history
    return Given(where, number, None, chain, tracked, detached, leaf)


def follow(t: Tensor, chain: Chain, tracked: bool = False) -> Tensor:
    """The view of `t` at the end of a chain of movements; as made with gradients if it is `tracked`."""
    if chain:
        with set_grad_enabled(tracked):
            for op, attrs in chain:
                t = apply_op(op, (t,), attrs)
    return t
