"""What a tensor that leaves a call is to the memory it views: whose history it has, and what writes reach.

Knows tensors and their graph; how results are made again is another matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from compiler.errors import TraceError
from compiler.ops.op import Movement
from framework.graph import Node, OpNode
from framework.tensor import DETACHED, TRACKED, Tensor, edge_of


class Leaving:
    """A result of memory that a call made, which `owner` owns.

    `holder` has its history: the owner, which it leads to by movements, or, `apart`, itself. `tracked` says
    that writes to it go through to the owner's history, `is_root` that it can be differentiated, and `freed`
    is the name of a history that the call has used up.
    """

    def __init__(self, x: Tensor, owner: Tensor) -> None:
        self.detached, self.apart = is_detached(x, owner), is_apart(x, owner)
        self.tracked = x._view_kind == TRACKED
        self.holder = x if self.apart else owner
        edge, node = edge_of(self.holder), self.holder._node
        self.requires_grad = edge is not None
        self.freed = node.name() if node is not None and is_freed(node) else ""
        self.is_root = node is not None and not self.freed


def require_one_history(leaving: Iterable[tuple[int, Leaving]]) -> None:
    """Refuse results, each with the id of its memory, of which one misses writes to another."""
    apart: dict[int, list[bool]] = {}
    for memory, x in leaving:
        if not x.detached:
            apart.setdefault(memory, []).append(x.apart)
    if any(any(views) and len(views) > 1 for views in apart.values()):
        raise TraceError("tensors of one memory with two histories are returned: return a clone()")


def is_detached(x: Tensor, owner: Tensor) -> bool:
    """Whether `x`, which views the memory of `owner`, is outside its history."""
    while x is not owner:
        if x._view_kind == DETACHED:
            return True
        assert x._base is not None, "the memory is the owner's"
        x = x._base
    return False


def is_apart(x: Tensor, owner: Tensor) -> bool:
    """Whether a result has a history of its own, not that of the memory it views.

    Raises TraceError where writes to such a one would be refused.
    """
    if is_detached(x, owner):
        return True
    if edge_of(x) is None:
        return x._view_kind == TRACKED and edge_of(owner) is not None
    if x is owner or is_plain_view(x, owner):
        return False
    if x._view_kind != TRACKED:
        raise TraceError("a view that a custom function made of its input is returned: return a clone()")
    return True


def is_freed(node: Node) -> bool:
    """Whether a backward pass has used up the history of `node`."""
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        if isinstance(current, OpNode) and current.saved is None:
            return True
        for below in current.below:
            if below not in seen:
                seen.add(below)
                stack.append(below)
    return False


def is_plain_view(x: Tensor, owner: Tensor) -> bool:
    """Whether nothing but movements leads from `owner` to `x`."""
    end, edge = edge_of(owner), edge_of(x)
    while edge is not None and (end is None or edge[0] is not end[0] or edge[1] != end[1]):
        node = edge[0]
        if not isinstance(node, OpNode) or not isinstance(node.op, Movement) or node.hooks or node.retained:
            return False
        edge = node.edges[0]
    return edge is not None
