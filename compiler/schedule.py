"""Fusion: decide which nodes share a kernel.

Knows shapes and kinds of ops, from their classes; knows nothing of memory or back ends. Groups grow greedily
along the edges of the graph, from producers to consumers, as long as one loop nest can hold them and no cycle
arises.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.ir import Apply, Graph, Value
from compiler.ops import creation, indexing
from compiler.ops.contraction import Product
from compiler.ops.op import Elementwise, Movement, Reduction, Scan

# A kernel past this size compiles slowly (about 1 ms a node) and runs out of registers anyway.
MAX_NODES = 96
# A whole tensor reduced and used again inside one kernel is a single row, hence a single thread's work.
MAX_SINGLE_ROW = 8192
# So many rows, of so many elements in all, whose columns are summed up are walked row by row, in parts: what
# lies a row apart comes slowly from memory (4096 x 4096: 6.6 ms column by column, 4.0 so).
TALL, SUMMED = 512, 1 << 20
# Pointwise work on a product's tiles reads and writes so many arrays at most. More of them (an optimizer's,
# GELU and what its gradient needs) are better gone through on their own: the product runs at full speed and
# beside others, and storing it costs less (mlp_big 93 ms fused, 84 apart, mlp_mid 3.2 and 2.7).
TILE_ARRAYS = 3
# Reading this many elements twice costs more than a second kernel gains.
SHARED_READ = 1024

# Why two groups stay apart.
WHY_MANY = f"together they have more than {MAX_NODES} ops"
WHY_CYCLE = "a third kernel needs the one and is needed by the other"
WHY_SHAPE = "they go through different shapes"
WHY_REPEATED = "what is costly would be computed again for each repetition"
WHY_NEEDED = "it is needed elsewhere too, in its smaller shape"
WHY_ADDRESSED = "what is read at computed positions must be in memory first"
WHY_REDUCTIONS = "their reductions do not fit one loop over rows"
WHY_TILE_ARRAYS = f"its tiles would read and write more than {TILE_ARRAYS} arrays"
WHY_NO_START = "nothing of it can be done on a product's tiles, or more than the product would be stored"

Shape = tuple[int, ...]
Axes = frozenset[int]
_serial_of = operator.attrgetter("serial")


@dataclass(eq=False)
class Group:
    """Nodes of one kernel, in order, over one `domain`.

    `reductions` are the sets of domain axes reduced; `inner` is the set whose result is used inside the
    group, or along which a scan runs.
    """

    nodes: list[Apply]
    domain: Shape
    kind: str  # "loop", "product" (a matrix product and pointwise work on its tiles) or "single"
    reductions: set[Axes] = field(default_factory=set)
    inner: Axes | None = None

    @property
    def product(self) -> Apply | None:
        """The matrix product whose tile this group finishes."""
        return next((n for n in self.nodes if is_product(n)), None)


_LOOPED = (Elementwise, Reduction, Scan)


def is_loop(node: Value) -> bool:
    """Whether a node is computed inside a loop nest."""
    return isinstance(node, Apply) and (
        isinstance(node.op, _LOOPED) or node.op in (indexing.take, indexing.gather)
    )


def is_product(node: Value) -> bool:
    """Whether a node is a sum of products, with a kernel that finishes it tile by tile."""
    return isinstance(node, Apply) and isinstance(node.op, Product)


def is_free(node: Value) -> bool:
    """Whether a node costs nothing where it is used: a constant, or an index of the loop's own."""
    return isinstance(node, Apply) and node.op in (creation.full, creation.iota)


def addressed(node: Apply) -> tuple[Value, ...]:
    """Values a node reads by address, so that they must be in memory before its kernel starts."""
    if node.op is indexing.take:
        found = node.inputs
    elif node.op is indexing.gather:
        found = node.inputs[:1]
    else:
        return ()
    return tuple(unmoved(x) for x in found)


def unmoved(value: Value) -> Value:
    """The value behind a chain of movements."""
    while isinstance(value, Apply) and isinstance(value.op, Movement):
        value = value.inputs[0]
    return value


def padded(shape: Shape, rank: int) -> Shape:
    """`shape` with leading axes of size 1."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def domain_of(node: Apply) -> Shape:
    """The iteration space of one node alone."""
    return tuple(node.inputs[0].shape if isinstance(node.op, Reduction) else node.shape)


def reduced_axes(node: Apply, domain: Shape) -> Axes:
    """Domain axes, of size other than 1, that a reduction in a group of that domain reduces, or that a scan
    runs along.
    """
    shift = len(domain) - node.ndim
    shape = padded(node.inputs[0].shape, len(domain))
    axes = (node.attrs["axis"],) if isinstance(node.op, Scan) else node.attrs["axes"]
    return frozenset(a + shift for a in axes if shape[a + shift] != 1)


def nontrivial(domain: Shape) -> Axes:
    """Axes of size other than 1."""
    return frozenset(a for a, size in enumerate(domain) if size != 1)


class Scheduler:
    """Groups of a graph while they grow."""

    def __init__(self, graph: Graph, notes: dict[tuple[Value, Value], str] | None = None) -> None:
        self.graph = graph
        # Why a value and a reader of it are in different groups, where anybody asks.
        self.notes = notes
        self.why = ""
        self.outputs = set(graph.outputs)
        self.group: dict[Value, Group] = {}
        self.groups: dict[Group, None] = {}
        # Which groups read a group, and which it reads.
        self.after: dict[Group, set[Group]] = {}
        self.before: dict[Group, set[Group]] = {}
        # Nodes that a merge must look at, each with its domain: what reads by address, reduces, or is costly.
        self.remarkable: dict[Apply, Shape] = {}
        # A number for each group, higher than those of all it reads.
        self.position: dict[Group, int] = {}

    def run(self) -> list[Group]:
        """The groups, each after everything it reads."""
        applies = [n for n in self.graph.nodes if isinstance(n, Apply)]
        for node in applies:
            self.add(node)
        for node in applies:
            if self.group[node].kind == "loop" and node.op not in (indexing.take, indexing.gather):
                for x in dict.fromkeys(node.inputs):
                    self.try_merge(x, node)
        for value in self.graph.nodes:
            if value.type.size >= SHARED_READ:
                self.merge_readers(value)
        for node in applies:
            if is_product(node):
                for user in self.graph.users[node]:
                    if self.try_epilogue(node, user):
                        break
        self.join_scalars()
        return self.ordered()

    def merge_readers(self, value: Value) -> None:
        """Let reductions that read one large value share the pass over it, where no edge joins them."""
        users = self.graph.users[value]
        if len(users) < 2:
            return
        readers = dict.fromkeys([self.group[u] for u in users])
        first: Group | None = None
        for group in readers:
            if padded(value.shape, len(group.domain)) != group.domain or group.kind != "loop":
                continue
            if first is None:
                first = group
                continue
            fits = first.domain == group.domain and (first.reductions or group.reductions)
            if not fits or len(first.nodes) + len(group.nodes) > MAX_NODES:
                continue
            merged = self.shape_of_merge(first, group, first.domain)
            if merged is not None and not self.makes_cycle(first, group):
                self.replace(first, group, merged)
                first = merged

    def join_scalars(self) -> None:
        """Values without axes share kernels even where no edge joins them: each kernel costs more than its
        work.
        """
        scalars = [
            g for g in self.groups if g.kind == "loop" and math.prod(g.domain) == 1 and not g.reductions
        ]
        if len(scalars) < 2:
            return
        depth = self.depths()
        # Only groups that become ready together, so that none waits for another's inputs; those cannot form a
        # cycle.
        joined: dict[int, Group] = {}
        for group in sorted(scalars, key=lambda g: (depth[g], g.nodes[-1].serial)):
            level = depth[group]
            other = joined.get(level)
            if other is not None and len(other.nodes) + len(group.nodes) <= MAX_NODES:
                nodes = sorted([*other.nodes, *group.nodes], key=_serial_of)
                merged = Group(nodes, (1,) * max(len(other.domain), len(group.domain)), "loop")
                self.replace(other, group, merged)
                group = merged
            joined[level] = group

    def add(self, node: Apply) -> None:
        kind = "loop" if is_loop(node) else "product" if is_product(node) else "single"
        group = Group([node], domain_of(node), kind)
        if kind == "loop" and (_expensive(node) or addressed(node)):
            self.remarkable[node] = group.domain
        if isinstance(node.op, Reduction):
            group.reductions.add(reduced_axes(node, group.domain))
            group.inner = _inner_axes(group.domain, group.reductions, set())
        elif isinstance(node.op, Scan):
            group.inner = reduced_axes(node, group.domain)
            group.reductions.add(group.inner)
        self.group[node] = group
        self.groups[group] = None
        self.position[group] = len(self.position)
        self.after[group] = set()
        self.before[group] = {self.group[x] for x in node.inputs if x in self.group}
        for before in self.before[group]:
            self.after[before].add(group)

    # Merging

    def try_merge(self, producer: Value, consumer: Apply) -> None:
        first, second = self.group.get(producer), self.group[consumer]
        if first is None or first is second or first.kind != "loop" or second.kind != "loop":
            return
        assert isinstance(producer, Apply)
        merged = self.merge_of(first, second)
        if merged is not None:
            self.replace(first, second, merged)
        elif self.notes is not None:
            self.notes[producer, consumer] = self.why

    def merge_of(self, first: Group, second: Group) -> Group | None:
        """Both groups as one; None, and `why`, where that cannot be."""
        if len(first.nodes) + len(second.nodes) > MAX_NODES:
            self.why = WHY_MANY
            return None
        domain = self.common_domain(first, second)
        if domain is None:
            return None
        merged = self.shape_of_merge(first, second, domain)
        if merged is not None and self.makes_cycle(first, second):
            self.why = WHY_CYCLE
            return None
        return merged

    def common_domain(self, first: Group, second: Group) -> Shape | None:
        rank = max(len(first.domain), len(second.domain))
        one, two = padded(first.domain, rank), padded(second.domain, rank)
        if one == two:
            return one
        self.why = WHY_SHAPE
        if not one or not two or math.prod(one) == 0 or math.prod(two) == 0:
            return None
        if _broadcasts(one, two):
            # The producer's values would be computed once per repetition.
            scalars = len(first.domain) == 0 or math.prod(one) == 1
            cheap = not first.reductions and not scalars and not any(_expensive(n) for n in first.nodes)
            self.why = WHY_NEEDED if cheap else WHY_REPEATED
            return two if cheap and self.only_used_by(first, second) else None
        if _broadcasts(two, one) and first.reductions:
            return one
        return None

    def only_used_by(self, first: Group, second: Group) -> bool:
        """Whether nothing outside `second` needs a value of `first`, so that none has to be stored."""
        users = {u for n in first.nodes for u in self.graph.users[n]}
        return users <= {*first.nodes, *second.nodes} and not self.outputs & set(first.nodes)

    def shape_of_merge(self, first: Group, second: Group, domain: Shape) -> Group | None:
        """The merged group, None when one loop nest cannot hold it."""
        nodes = sorted([*first.nodes, *second.nodes], key=_serial_of)
        remarkable = [n for n in nodes if n in self.remarkable]
        reductions: set[Axes] = set()
        used: set[Axes] = set()
        if remarkable:
            members = set(nodes)
            if any(x in members for n in remarkable for x in addressed(n)):
                self.why = WHY_ADDRESSED
                return None
            for node in remarkable:
                if not isinstance(node.op, Reduction | Scan):
                    continue
                axes = reduced_axes(node, domain)
                reductions.add(axes)
                if isinstance(node.op, Scan) or any(user in members for user in self.graph.users[node]):
                    used.add(axes)
        inner = _inner_axes(domain, reductions, used)
        if inner is None:
            self.why = WHY_REDUCTIONS
            return None
        row = tuple([1 if a in inner else size for a, size in enumerate(domain)]) if inner else domain
        for node in remarkable:
            # A value smaller than a row is computed again in every row: not worth it for a reduction or a
            # costly one.
            own = self.remarkable[node]
            if own != domain and padded(own, len(domain)) not in (domain, row) and _expensive(node):
                self.why = WHY_REPEATED
                return None
        return Group(nodes, domain, "loop", reductions, inner if reductions else None)

    def try_epilogue(self, product: Apply, user: Apply) -> bool:
        """Let a pointwise group that reads a product, or a group's pointwise start, finish its tiles."""
        first, second = self.group[product], self.group[user]
        if second.kind != "loop" or second.product is not None:
            return False
        start: list[Apply] = []
        if padded(product.shape, len(second.domain)) != second.domain:
            self.why = WHY_SHAPE
        elif self.makes_cycle(first, second):
            self.why = WHY_CYCLE
        else:
            start = self.pointwise_start(product, second) if second.reductions else second.nodes
            self.why = WHY_TILE_ARRAYS if start else WHY_NO_START
        if not start or self.arrays(product, start) > TILE_ARRAYS:
            if self.notes is not None:
                self.notes[product, user] = self.why
            return False
        if second.reductions:
            second = self.split(second, start)
        nodes = sorted([*first.nodes, *second.nodes], key=_serial_of)
        self.replace(first, second, Group(nodes, second.domain, "product"))
        return True

    def arrays(self, product: Apply, nodes: Sequence[Apply]) -> int:
        """How many arrays of a product's size the pointwise work on its tiles reads and writes."""
        members = {product, *nodes}
        read = {x for n in nodes for x in n.inputs if x not in members and x.type.size == product.type.size}
        written = [n for n in nodes if n in self.outputs or not members.issuperset(self.graph.users[n])]
        return len(read) + len(written)

    def pointwise_start(self, product: Apply, group: Group) -> list[Apply]:
        """What of a group can be done on a product's tiles before anything is reduced; nothing where more
        would have to be stored than the product itself.
        """
        members, early, led = set(group.nodes), set[Value](), {product}
        for node in group.nodes:
            pointwise = (
                isinstance(node.op, Elementwise) and padded(node.shape, len(group.domain)) == group.domain
            )
            if pointwise and all(x in early for x in node.inputs if x in members):
                early.add(node)
                if not led.isdisjoint(node.inputs):
                    led.add(node)
        needed = set(led)
        for node in reversed(group.nodes):
            if node in needed:
                needed |= early.intersection(node.inputs)
        start = [n for n in group.nodes if n in needed]
        leaving = {x for n in group.nodes if n not in needed for x in n.inputs if x in needed}
        stored = {x for x in leaving if x not in self.outputs and members.issuperset(self.graph.users[x])}
        outside = product in self.outputs or not needed.issuperset(self.graph.users[product])
        return [] if outside or len(stored) > 1 else start

    def split(self, group: Group, start: list[Apply]) -> Group:
        """Cut a group in two, and return the first: the nodes `start`, which need nothing of the others."""
        rest = [n for n in group.nodes if n not in start]
        parts = (
            Group(start, group.domain, "loop"),
            Group(rest, group.domain, "loop", group.reductions, group.inner),
        )
        around = self.before.pop(group) | self.after.pop(group)
        del self.groups[group]
        for part in parts:
            self.groups[part] = None
            self.group |= dict.fromkeys(part.nodes, part)
        for part in parts:
            self.before[part] = {self.group[x] for n in part.nodes for x in n.inputs if x in self.group} - {
                part
            }
            self.after[part] = {self.group[u] for n in part.nodes for u in self.graph.users[n]} - {part}
        for other in around:
            for part in parts:
                if other in self.before[part]:
                    self.after[other] = (self.after[other] - {group}) | {part}
                if other in self.after[part]:
                    self.before[other] = (self.before[other] - {group}) | {part}
        order = by_depth(self.by_serial(), self.before)  # the parts have no position yet
        self.position = {g: number for number, g in enumerate(order)}
        return parts[0]

    def replace(self, first: Group, second: Group, merged: Group) -> None:
        """Put `merged` in place of two groups that no third one lies between."""
        start, end = sorted((first, second), key=self.position.__getitem__)
        if not self.near(start, end, self.after):  # nothing between needs the first
            self.position[merged] = self.position[end]
        elif not self.near(end, start, self.before):  # the second needs nothing between
            self.position[merged] = self.position[start]
        else:
            later, earlier = self.between(start, end, self.after), self.between(end, start, self.before)
            assert earlier is not None and later is not None, "no third group lies between"
            places = sorted(self.position[g] for g in (start, end, *earlier, *later))
            order = [sorted(groups, key=self.position.__getitem__) for groups in (earlier, later)]
            # One place is left over, somewhere in between.
            self.position.update(zip([*order[0], merged], places, strict=False))
            self.position.update(zip(reversed(order[1]), reversed(places), strict=False))
        del self.groups[first], self.groups[second]
        self.groups[merged] = None
        for node in merged.nodes:
            self.group[node] = merged
        both = {first, second}
        self.after[merged] = (self.after.pop(first) | self.after.pop(second)) - both
        self.before[merged] = (self.before.pop(first) | self.before.pop(second)) - both
        # In place: what many groups read has as many to go through.
        for near, far in ((self.before[merged], self.after), (self.after[merged], self.before)):
            for other in near:
                around = far[other]
                around -= both
                around.add(merged)

    # Order

    def makes_cycle(self, one: Group, two: Group) -> bool:
        """Whether one group depends on the other through a third."""
        first, second = sorted((one, two), key=self.position.__getitem__)
        if not self.near(second, first, self.before):
            return False
        return self.between(first, second, self.after) is None

    def near(self, start: Group, end: Group, step: Mapping[Group, set[Group]]) -> list[Group]:
        """The groups a step from `start` that lie, in the order kept, between it and `end`."""
        low, high = sorted((self.position[start], self.position[end]))
        position = self.position
        return [g for g in step[start] if low < position[g] < high]

    def between(self, start: Group, end: Group, step: Mapping[Group, set[Group]]) -> set[Group] | None:
        """What `start` leads to by steps from group to group that lies, in the order kept, before `end`; None
        where one of them leads to `end`.

        The order is kept as groups merge, so that only what lies between two groups is searched for a way
        from one to the other (Pearce and Kelly, A dynamic topological sort algorithm, 2006).
        """
        position = self.position
        low, high = sorted((position[start], position[end]))
        found: set[Group] = set()
        waiting = self.near(start, end, step)
        while waiting:
            group = waiting.pop()
            if group not in found:
                found.add(group)
                following = step[group]
                if end in following:
                    return None
                waiting += [g for g in following if low < position[g] < high and g not in found]
        return found

    def depths(self) -> dict[Group, int]:
        """How many groups must run before each, one after the other."""
        depth: dict[Group, int] = {}
        for group in sorted(self.groups, key=self.position.__getitem__):
            depth[group] = 1 + max(map(depth.__getitem__, self.before[group]), default=-1)
        return depth

    def ordered(self) -> list[Group]:
        return sorted(self.by_serial(), key=self.depths().__getitem__)

    def by_serial(self) -> list[Group]:
        return sorted(self.groups, key=lambda g: g.nodes[-1].serial)


def by_depth(groups: Sequence[Group], waits: Mapping[Group, Collection[Group]]) -> list[Group]:
    """The groups with each after all it waits for, those of equal depth together and in their order."""
    depth: dict[Group, int] = {}
    users: dict[Group, list[Group]] = {g: [] for g in groups}
    missing = {g: len(waits[g]) for g in groups}
    for group in groups:
        for before in waits[group]:
            users[before].append(group)
    ready = [g for g in groups if not missing[g]]
    while ready:
        group = ready.pop()
        depth[group] = 1 + max(map(depth.__getitem__, waits[group]), default=-1)
        for user in users[group]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    assert len(depth) == len(groups), "groups form a cycle"
    return sorted(groups, key=depth.__getitem__)


def _is_tall(domain: Shape, reduced: Axes) -> bool:
    """Whether a sum over rows, one for each column, is better walked row by row."""
    return math.prod(domain) >= SUMMED and math.prod(domain[a] for a in reduced) >= TALL


def _broadcasts(small: Shape, large: Shape) -> bool:
    return all(a in (1, b) for a, b in zip(small, large, strict=True))


def _expensive(node: Apply) -> bool:
    return not isinstance(node.op, Elementwise) or node.op.expensive


def _inner_axes(domain: Shape, reductions: set[Axes], used: set[Axes]) -> Axes | None:
    """The axes walked inside a row; None when these reductions do not fit one loop nest."""
    every = nontrivial(domain)
    if not reductions:
        return frozenset()
    if len(used) > 1 or len(reductions) > 2:
        return None
    if len(reductions) == 2:
        one, two = reductions
        if one | two != every or one & two:
            return None
    inner = next(iter(used), None)
    if inner is None:
        last = max(every, default=0)
        inner = next((a for a in reductions if last in a), None)
        if inner is None:
            (inner,) = reductions  # two of which none has the last axis do not fit
            if _is_tall(domain, inner):
                inner = every - inner
    if len(reductions) == 2 and max(every) not in inner:
        return None
    if inner == every and used and math.prod(domain) > MAX_SINGLE_ROW:
        return None
    return inner


def schedule(graph: Graph) -> list[Group]:
    """Group a graph's applications into kernels, in an order in which they can run."""
    return Scheduler(graph).run()
