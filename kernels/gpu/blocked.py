"""A block spec as a Triton kernel: what several kernels would hand on to each other in memory stays in tiles.

A program has a block of one long axis and walks the other in blocks, once for each of the loops of
`kernels.gpu.walks`; products over short axes are taken anew in each. Nothing is shared by programs, so that
every sum has one order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from kernels import dtypes
from kernels.blocks import BlockStep, BlockWork, Dot, Total
from kernels.dtypes import DType
from kernels.gpu import vocabulary, writing
from kernels.gpu.block_tiles import BlockTile, depth_block, tile_of
from kernels.gpu.launch import Launch
from kernels.gpu.product_tiles import EXACT, TF32
from kernels.gpu.steps import Steps
from kernels.gpu.walks import Running, Walks
from kernels.source import Source
from kernels.spec import COMBINE, Call, Index, LoopSpec, Reduce, Store, identity

OWN, WALKED = "OWN", "WALKED"


def render(
    work: BlockWork,
    alignment: Sequence[int] | None = None,
    flags: int = 0,
    tf32: bool = False,
    cut: BlockTile | None = None,
) -> Launch:
    """The launch of a block spec; see `kernels.gpu.render.launch_of`. `cut`: another tile than the usual."""
    kernel = _Blocks(work, TF32 if tf32 else EXACT, cut)
    kernel.write(flags)
    return kernel.launch(alignment, flags)


def reads(work: BlockWork, launch: Launch) -> list[int]:
    """How often the programs of a launch go to each element of an operand that their text names once."""
    spec = work.spec
    blocks = -(-work.extents[spec.own] // dict(launch.constants)[OWN])
    outer = [(n, [s[a] for s in work.strides]) for a, n in enumerate(work.extents[: spec.outer])]
    found: list[int] = []
    for operand in range(len(spec.operands)):
        shared = math.prod(n for n, strides in outer if not strides[operand])
        found.append(shared * (1 if spec.own in spec.along(operand) else blocks))
    return found


class _Blocks:
    """The text of one kernel, and then its launch."""

    def __init__(self, work: BlockWork, precision: str, cut: BlockTile | None) -> None:
        self.work, self.spec, self.precision = work, work.spec, precision
        self.loops = Walks(self.spec)
        self.cut = cut or tile_of(work, precision == TF32)
        spec, self.out = self.spec, Source()
        self.depths = range(spec.outer + 2, spec.axes)
        self.block = {spec.own: OWN, spec.walked: WALKED} | {a: f"DEPTH{a}" for a in self.depths}
        self.constants = {OWN: self.cut.own, WALKED: self.cut.walked}
        self.constants |= {self.block[a]: depth_block(work, a) for a in self.depths}
        index = {a: f"i{a}" for a in range(spec.axes)}
        # Single steps see a loop over all axes.
        self.all = LoopSpec(spec.name, spec.axes, 0, "rows", spec.operands, ())
        self.main = Steps(self.all, index, {spec.own: 0, spec.walked: 1}, {}, self.out)
        self.ends = {a: self.along(a) for a in self.depths}
        self.factors: dict[tuple[int, int], str] = {}
        self.terms: dict[str, str] = {}

    def along(self, axis: int) -> Steps:
        """Steps on tiles along the program's own axis and a short one."""
        main, dimension = self.main, {self.spec.own: 0, axis: 1}
        return Steps(self.all, main.index, dimension, {}, self.out, main.varies, main.dtype, main.used)

    def launch(self, alignment: Sequence[int] | None, flags: int) -> Launch:
        """What has been written, with its sizes and strides."""
        extents, spec = self.work.extents, self.spec
        programs = math.prod(extents[: spec.outer]) * -(-extents[spec.own] // self.cut.own)
        made = writing.launch(
            self.work,
            self.out.lines,
            self.main.used,
            self.constants,
            programs,
            self.cut.warps,
            alignment,
            flags,
            {},
        )
        return replace(made, stages=self.cut.stages)

    # Where a program is

    def write(self, flags: int) -> None:
        """Write everything below the kernel's head."""
        writing.leave_where_set(self.out, flags)
        self.place()
        for step in self.spec.steps:
            if isinstance(step, Dot):
                self.factor(step.own, step.axis, self.spec.own)
        for before, elements in zip(self.loops.between, [*self.loops.elements, []], strict=True):
            for step in before:
                self.once(step)
            if elements:
                self.walk(elements)

    def place(self) -> None:
        """Write the indices of the program's block, and those of the short axes."""
        spec, line = self.spec, self.out.line
        line("program = tl.program_id(0)" + (".to(tl.int64)" if writing.is_wide(self.work) else ""))
        line(f"blocks = tl.cdiv({self.use(f'n{spec.own}')}, {OWN})")
        line(f"first = program % blocks * {OWN}")
        self.index(spec.own, f"first + tl.arange(0, {OWN})", "[:, None]")
        rest = "program // blocks"
        for axis in reversed(range(spec.outer)):
            if axis:
                line(f"rest = {rest}")
                line(f"i{axis} = rest % {self.use(f'n{axis}')}")
                rest = f"rest // {self.use(f'n{axis}')}"
            else:
                line(f"i{axis} = {rest}")
        for axis in self.depths:
            self.index(axis, f"tl.arange(0, {self.block[axis]})", "[None, :]")

    def index(self, axis: int, numbers: str, form: str) -> None:
        """Write the index along an axis of a tile, and its mask where the tile is not full."""
        self.out.line(f"i{axis} = ({numbers}){form}")
        if self.is_cut(axis):
            self.out.line(f"inside{axis} = i{axis} < {self.use(f'n{axis}')}")
            dimension = 0 if axis == self.spec.own else 1
            for steps in (self.ends[axis],) if axis in self.ends else (self.main, *self.ends.values()):
                if axis != self.spec.walked or steps is self.main:
                    steps.mask[dimension] = f"inside{axis}"

    def is_cut(self, axis: int) -> bool:
        """Whether a block of an axis may lie partly outside."""
        return axis in self.work.varying or self.work.extents[axis] % self.constants[self.block[axis]] != 0

    def use(self, name: str) -> str:
        """The name of a size or a stride, which becomes a parameter."""
        return self.main.use(name)

    # Factors of products

    def factor(self, operand: int, axis: int, along: int) -> str:
        """The name of a factor's tile, a row for each index along the program's axis or the walked one."""
        if (operand, axis) not in self.factors:
            index, inside = (f"{w}{along}" for w in ("i", "inside"))
            if along == self.spec.walked:
                index, inside = "down", "inside_down"
            masks = [inside] if self.is_cut(along) else []
            masks += [f"inside{axis}"] if self.is_cut(axis) else []
            place = Steps(self.all, self.main.index | {along: index}, {}, {}, self.out, used=self.main.used)
            mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
            name = self.factors[operand, axis] = f"factor{operand}_{axis}"
            self.out.line(f"{name} = tl.load({place.address(operand)}{mask})")
        return self.factors[operand, axis]

    def multiplied(self, left: str, right: str, factor: DType, total: str, dtype: DType) -> str:
        """The product of two tiles of `factor`, added to a total if there is one."""
        precision = self.precision if factor is dtypes.float32 else EXACT
        options = f'input_precision="{precision}", out_dtype={vocabulary.triton(dtype)}'
        return f"tl.dot({left}, {right}, {total}{', ' if total else ''}{options})"

    def as_factor(self, name: str, known: DType, wanted: DType) -> str:
        """A tile in the type that it is multiplied in."""
        return name if known is wanted else f"{name}.to({vocabulary.triton(wanted)})"

    def dot(self, step: Dot) -> None:
        """Write a product over a short axis, for the tile."""
        own, walked = (self.spec.operands[o].dtype for o in (step.own, step.walked))
        # 16-bit factors are multiplied as they are; all others in the product's type.
        factor = own if own is walked and own.compute is step.dtype else step.dtype
        left = self.as_factor(self.factor(step.own, step.axis, self.spec.own), own, factor)
        right = self.factor(step.walked, step.axis, self.spec.walked)
        right = f"tl.trans({self.as_factor(right, walked, factor)})"
        self.main.name(step.out, self.multiplied(left, right, factor, "", step.dtype), (0, 1), step.dtype)

    # Loops

    def walk(self, steps: Sequence[BlockStep]) -> None:
        """Write one loop over the walked axis."""
        kept, self.terms = dict(self.factors), {}
        for step in steps:
            if isinstance(step, Reduce | Total):
                self.start(step)
        self.out.open(f"for start in range(0, {self.use(f'n{self.spec.walked}')}, {WALKED}):")
        self.out.line(f"along = start + tl.arange(0, {WALKED})")
        self.index(self.spec.walked, "along", "[None, :]")
        self.out.line("down = along[:, None]")
        if self.is_cut(self.spec.walked):
            self.out.line(f"inside_down = down < {self.use(f'n{self.spec.walked}')}")
        for step in steps:
            self.inside(step)
        self.out.close()
        self.factors = kept

    def start(self, step: Reduce | Total) -> None:
        """Write the total of nothing."""
        nothing, shape = 0, f"({OWN}, 1)"
        if isinstance(step, Reduce):
            nothing = identity(step.combine, step.dtype.arithmetic)
        else:
            shape = f"({OWN}, {self.block[step.axis]})"
        total = vocabulary.literal(nothing, step.dtype.arithmetic, shape)
        self.out.line(f"total_{step.out} = {total}")

    def inside(self, step: BlockStep) -> None:
        """Write what a step does at every element."""
        match step:
            case Dot():
                self.dot(step)
            case Total():
                self.add_product(step)
            case Reduce():
                self.add(step)
            case Call(function="random_bits") if (counter := self.quads(step)) is not None:
                self.random(step, *counter)
            case _:
                self.main.compute(step)

    def add(self, step: Reduce) -> None:
        """Write the addition of a tile to the totals of its rows."""
        total, online = f"total_{step.out}", self.loops.online.get(step.out)
        if online is not None:
            value = self.term(step.value, online)
            self.out.line(f"{total} = {total} * scale_{online.most.out}")
        else:
            value = self.spread(step.value)
        dtype, nothing = step.dtype.arithmetic, identity(step.combine, step.dtype.arithmetic)
        value = self.covered(value, vocabulary.number(nothing, dtype))
        reduced = vocabulary.reduced(value, 1, step.combine, step.dtype)
        dominated = any(found.most is step for found in self.loops.online.values())
        if dominated:
            self.out.line(f"before_{step.out} = {total}")
        combined = vocabulary.call(COMBINE[step.combine], [total, reduced], [step.dtype] * 2, step.dtype)
        self.out.line(f"{total} = {combined}")
        if dominated:
            # Nothing is subtracted where all is -inf so far: exp of that is 0, and of -inf - -inf it is not.
            self.out.line(f'shift_{step.out} = tl.where({total} == float("-inf"), 0.0, {total})')
            self.out.line(f"scale_{step.out} = libdevice.exp(before_{step.out} - shift_{step.out})")

    def add_product(self, step: Total) -> None:
        """Write the addition of a tile's product to a total."""
        total, online = f"total_{step.out}", self.loops.online.get(step.out)
        known = self.spec.operands[step.operand].dtype
        half = known is step.factor and known.compute is step.dtype
        factor = known if half else step.dtype
        if online is not None:
            value = self.term(step.value, online)
            self.out.line(f"{total} = {total} * scale_{online.most.out}")
        else:
            value = self.spread(step.value)
        value = self.as_factor(self.covered(value, "0.0"), step.dtype, factor)
        other = self.as_factor(self.factor(step.operand, step.axis, self.spec.walked), known, factor)
        self.out.line(f"{total} = {self.multiplied(value, other, factor, total, step.dtype)}")

    def covered(self, value: str, nothing: str) -> str:
        """A tile, but what changes nothing outside the walked axis."""
        mask = self.main.mask.get(1)
        return f"tl.where({mask}, {value}, {nothing})" if mask else value

    def spread(self, value: str) -> str:
        """A value as a whole tile."""
        whole = self.main.varies[value] == {0, 1}
        return value if whole else f"tl.broadcast_to({value}, ({OWN}, {WALKED}))"

    def term(self, name: str, online: Running) -> str:
        """The name of a value with exp(x - the maximum so far) in place of exp(x - max x), and without what
        the finished sum is multiplied by.
        """
        if name in self.terms:
            return self.terms[name]
        step = self.spec.named[name]
        assert isinstance(step, Call)
        most = online.most
        if step is online.base:
            text = f"libdevice.exp({most.value} - shift_{most.out})"
        else:
            linear = next(x for x in step.inputs if self.loops.is_linear(x))
            if step not in online.steps:
                return self.term(linear, online)
            inputs = [self.term(x, online) if x == linear else x for x in step.inputs]
            kinds = [step.dtype if x == linear else self.main.dtype[x] for x in step.inputs]
            text = vocabulary.call(step.function, inputs, kinds, step.dtype)
        self.out.line(f"term_{name} = {text}")
        self.terms[name] = f"term_{name}"
        return self.terms[name]

    # Between loops

    def once(self, step: BlockStep) -> None:
        """Write a step that is done once for the program's block."""
        if isinstance(step, Reduce | Total):
            self.finish(step)
            return
        assert not isinstance(step, Dot), "a product over a short axis belongs to a tile"
        if isinstance(step, Store):
            axes = self.spec.along(step.operand) | self.spec.varies[step.value]
        else:
            axes = self.spec.varies[step.out]
        end = next((a for a in self.depths if a in axes), None)
        (self.main if end is None else self.ends[end]).compute(step)

    def finish(self, step: Reduce | Total) -> None:
        """Write the value of a total."""
        total, online = f"total_{step.out}", self.loops.online.get(step.out)
        if online is not None:
            most = f"total_{online.most.out}"
            self.out.line(f'{total} = tl.where({most} == float("-inf"), float("nan"), {total})')
            for call in online.rest:
                inputs = [total if self.loops.is_linear(x) else x for x in call.inputs]
                kinds = [self.main.dtype.get(x, call.dtype) for x in call.inputs]
                text = vocabulary.call(call.function, inputs, kinds, call.dtype)
                self.out.line(f"{total} = {text}")
        text = total
        if isinstance(step, Reduce) and step.dtype.compute:
            text = vocabulary.cast(text, step.dtype.compute, step.dtype)
        steps = self.ends[step.axis] if isinstance(step, Total) else self.main
        steps.name(step.out, text, (0, 1) if isinstance(step, Total) else (0,), step.dtype)

    # Random bits, four at a time

    def quads(self, step: Call) -> tuple[Index, int] | None:
        """The counter of random bits and the axis along which it counts, where blocks of four begin as its
        strides say; that the first one does is looked at by the kernel.
        """
        counter = self.spec.named[step.inputs[2]]
        if not isinstance(counter, Index):
            return None
        strides, spec = self.work.strides[counter.operand], self.spec
        for lane in (spec.walked, spec.own):
            if strides[lane] == 1 and not any(s % 4 for a, s in enumerate(strides) if a != lane):
                return counter, lane
        return None

    def random(self, step: Call, counter: Index, lane: int) -> None:
        """Write random bits, each block of four computed once."""
        spec, seed, offset = self.spec, *step.inputs[:2]
        address = self.main.address(counter.operand)
        if lane == spec.walked:
            own, shape, form = f"i{spec.own}", f"({OWN}, {WALKED})", "{}"
            numbers, first = f"tl.arange(0, {WALKED} // 4)", "start"
            names = {f"i{spec.walked}": "quad", f"i{spec.own}": own}
        else:
            shape, form = f"({WALKED}, {OWN})", "tl.trans({})"
            numbers, first = f"tl.arange(0, {OWN} // 4)", "first"
            names = {f"i{spec.walked}": "down", f"i{spec.own}": "quad"}
        address = re.sub(r"\bi\d+\b", lambda found: names.get(found[0], found[0]), address)
        with self.out.block(f"if p{counter.operand} % 4 == 0:"):
            self.out.line(f"quad = ({first} + {numbers} * 4)[None, :]")
            text = form.format(f"tl.reshape(random_quads({seed}, {offset}, {address}), {shape})")
            self.main.name(step.out, text, (0, 1), step.dtype)
        with self.out.block("else:"):
            self.main.compute(step)
