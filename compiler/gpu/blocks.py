"""Which kernels of a plan become one on a GPU: products over a short axis, loops over the rows they make, and
products that sum those up, if nothing else sees what they hand on.

Attention is such a set, and so is its gradient; so is a softmax over few classes' logits. Knows a plan's
kernels by what they read and write; what a set is as a kernel, `compiler.gpu.assembly` knows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.gpu.assembly import Assembly, UnfitError
from compiler.gpu.slices import sliced
from compiler.levels import (
    ALIGNMENT,
    accesses,
    assign_levels,
    conflicts,
    following,
    makes_cycle,
    ordered,
    pack,
)
from compiler.lower import BlockKernel, Bound, Buffer, Kernel
from compiler.plan import Plan
from kernels.blocks import Dot, Total
from kernels.gpu.block_tiles import LONGEST
from kernels.spec import MatmulSpec

# A program has about so many rows and walks about so many columns at a time.
BLOCK = 64
# Programs that are enough for a set to be one, and steps of each that are few enough if there are fewer.
FEWEST_PROGRAMS, FEW_STEPS = 32, 64


@dataclass(frozen=True)
class BlockPlan:
    """A plan's kernels, some sets of which are one: `kernels` in the order in which they run, with levels;
    `members` are the numbers of the plan's kernels that each is.
    """

    kernels: list[Bound]
    levels: list[int]
    members: list[tuple[int, ...]]
    plan: Plan


def blocked(plan: Plan) -> BlockPlan:
    """A plan with every set of kernels that can be one as one; its arena has no room for what they hand on.

    `BlockPlan.plan` is the plan with that arena, and the levels of the launches that its kernels belong to.
    """
    sets = _Finder(plan).run()
    if not sets:
        return unblocked(plan)
    visible = {*plan.inputs, *plan.outputs}
    after = following([conflicts(k, plan.checks, visible) for k in plan.kernels])
    made = {numbers[0]: kernels for numbers, kernels in sets}
    kernels: list[Bound] = []
    members: list[tuple[int, ...]] = []
    for unit in ordered(after, [numbers for numbers, _ in sets]):
        new: Sequence[Bound] = made.get(unit[0], ()) or [plan.kernels[n] for n in unit]
        kernels += new
        members += [tuple(unit)] * len(new)
    found = [conflicts(k, plan.checks, visible) for k in kernels]
    levels = assign_levels(found)
    arena, size = pack(kernels, levels, plan.checks, {*visible, *plan.constants})
    of_kernel = {n: level for numbers, level in zip(members, levels, strict=True) for n in numbers}
    own = [of_kernel[n] for n in range(len(plan.kernels))]
    return BlockPlan(kernels, levels, members, replace(plan, levels=own, arena=arena, arena_bytes=size))


def unblocked(plan: Plan) -> BlockPlan:
    """A plan as it is."""
    return BlockPlan(list(plan.kernels), plan.levels, [(n,) for n in range(len(plan.kernels))], plan)


def in_slices(found: BlockPlan, tf32: bool = False) -> BlockPlan:
    """The same with each deep product of few tiles as two kernels, in the plan as well."""
    made = sliced(found.kernels, found.levels, tf32)
    if not made.scratch:
        return found
    # Of each kernel: those that it became, which are itself or two.
    rest = iter(made.kernels)
    became = [[k] if (k := next(rest)) is kernel else [k, next(rest)] for kernel in found.kernels]
    two = {
        numbers[0]: kernels
        for numbers, kernels in zip(found.members, became, strict=True)
        if len(kernels) > 1
    }
    whole: list[Kernel] = []
    start: list[int] = []
    for number, kernel in enumerate(found.plan.kernels):
        start.append(len(whole))
        whole += [k for k in two.get(number, [kernel]) if isinstance(k, Kernel)]
    members: list[tuple[int, ...]] = []
    for numbers, kernels in zip(found.members, became, strict=True):
        moved = tuple(start[n] for n in numbers)
        members += [tuple(n + i for n in moved) for i in range(len(kernels))]
    of_kernel = {n: level for numbers, level in zip(members, made.levels, strict=True) for n in numbers}
    plan = found.plan
    end = -(-plan.arena_bytes // ALIGNMENT) * ALIGNMENT
    changed = replace(
        plan,
        kernels=whole,
        levels=[of_kernel[n] for n in range(len(whole))],
        arena=plan.arena | {buffer: end + place for buffer, place in made.scratch.items()},
        arena_bytes=end + made.size,
    )
    return BlockPlan(made.kernels, made.levels, members, changed)


# Elements of memory, and the two axes that lie closest.
Form = tuple[int, tuple[int, ...]]


def _form(buffer: Buffer) -> Form:
    return buffer.type.size, buffer.type.shape[-2:]


class _Finder:
    """Looks for the sets of one plan: pairs of kernels that hand on memory, joined where they can be one."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernels = plan, plan.kernels
        self.visible = {*plan.inputs, *plan.outputs}
        self.users: dict[Buffer, set[int]] = {}
        self.writers: dict[Buffer, set[int]] = {}
        self.parts = {b.root for b in plan.checks}
        for number, kernel in enumerate(self.kernels):
            for place in kernel.places:
                if place.buffer is not None:
                    self.users.setdefault(place.buffer.root, set()).add(number)
                    if place.buffer.whole is not None or place.offset or place.index_stride:
                        self.parts.add(place.buffer.root)
            for buffer in accesses(kernel)[1]:
                self.writers.setdefault(buffer.root, set()).add(number)
        self.set_of: dict[int, tuple[int, ...]] = {}

    def run(self) -> list[tuple[tuple[int, ...], list[BlockKernel]]]:
        """The sets, each with the kernels that it becomes."""
        for buffer, writer, reader in self.pairs():
            one, other = (self.set_of.get(n, (n,)) for n in (writer, reader))
            if one == other:
                continue
            members = tuple(sorted({*one, *other}))
            if self.assembled(members, buffer) is not None and not self.makes_cycle(members):
                self.set_of |= dict.fromkeys(members, members)
        found: list[tuple[tuple[int, ...], list[BlockKernel]]] = []
        for members in dict.fromkeys(self.set_of.values()):
            kernels = self.made(members)
            if kernels and all(map(self.pays, kernels)):
                found.append((members, kernels))
        return found

    def forms(self) -> set[Form]:
        """The forms of memory that products over a short axis make."""
        found: set[Form] = set()
        for kernel in self.kernels:
            short = isinstance(kernel.spec, MatmulSpec) and kernel.spec.depth == 1
            if short and kernel.extents[-1] <= LONGEST:
                found |= {_form(b.root) for b in accesses(kernel)[1]}
        return found

    def pairs(self) -> list[tuple[Buffer, int, int]]:
        """Memory like what a product over a short axis makes, which one kernel writes and another reads, with
        their numbers, in the order in which it is read.
        """
        handed: list[tuple[Buffer, int, int]] = []
        forms = self.forms()
        for buffer, writers in self.writers.items():
            if len(writers) != 1 or buffer in self.parts or _form(buffer) not in forms:
                continue
            if len(buffer.type.shape) < 2 or min(buffer.type.shape[-2:]) < 2 or not buffer.type.size:
                continue
            (writer,) = writers
            readers = sorted(self.users[buffer] - writers)
            if all(map(self.is_plain, (writer, *readers))):
                handed += [(buffer, writer, reader) for reader in readers]
        return sorted(handed, key=lambda pair: (pair[2], pair[1]))

    def is_plain(self, number: int) -> bool:
        """Whether a kernel's rows can be cut anywhere, and it goes to no computed position."""
        kernel = self.kernels[number]
        return not kernel.parts and not kernel.serial and not kernel.indexed

    @cached_property
    def following(self) -> list[set[int]]:
        """Per kernel those that must run after it, directly."""
        return following([conflicts(k, self.plan.checks, self.visible) for k in self.kernels])

    def makes_cycle(self, members: Collection[int]) -> bool:
        """Whether these kernels as one would wait for themselves."""
        return makes_cycle(self.following, members, lambda n: self.set_of.get(n, (n,)))

    # Sets

    def shared(self, members: Sequence[int]) -> list[Buffer]:
        """Memory that some of these kernels hand on to others of them."""
        found: dict[Buffer, None] = {}
        for buffer, writers in self.writers.items():
            inside = self.users[buffer].intersection(members)
            if buffer not in self.parts and not writers.isdisjoint(members) and len(inside) > 1:
                found[buffer] = None
        return list(found)

    def assembled(self, members: Sequence[int], buffer: Buffer) -> Assembly | None:
        """These kernels as one set, of memory like `buffer`; None where they cannot be."""
        large = [b for b in self.shared(members) if _form(b) == _form(buffer)]
        longest = max(large, key=lambda b: len(b.type.shape))
        axes = (*(n for n in longest.type.shape[:-2] if n != 1), *buffer.type.shape[-2:])
        hidden = {b for b in self.users if self.users[b].issubset(members) and b in self.plan.arena}
        hidden -= self.parts
        assembly = Assembly(axes, hidden)
        try:
            for number in members:
                assembly.add(self.kernels[number], set(large))
        except UnfitError:
            return None
        return assembly

    def made(self, members: Sequence[int]) -> list[BlockKernel]:
        """The kernels that a set becomes; none where it is not worth it."""
        shared = [b for b in self.shared(members) if b in self.plan.arena]
        hidden = [b for b in shared if self.users[b].issubset(members)]
        if not hidden:
            return []
        assembly = self.assembled(members, max(hidden, key=lambda b: b.type.size))
        if assembly is None:
            return []
        steps = [step for step, _ in assembly.steps]
        if not all(any(isinstance(s, kind) for s in steps) for kind in (Dot, Total)):
            return []
        try:
            return assembly.kernels("_".join(dict.fromkeys(self.kernels[n].spec.name for n in members))[:48])
        except UnfitError:
            return []

    def pays(self, kernel: BlockKernel) -> bool:
        """Whether there are programs enough."""
        *outer, own, walked = kernel.extents[: kernel.spec.outer + 2]
        programs = math.prod(outer) * -(-own // BLOCK)
        return programs >= FEWEST_PROGRAMS or -(-walked // BLOCK) <= FEW_STEPS
