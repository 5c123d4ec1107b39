"""`f.compare(*args)`: a compiled function against eager, node by node, kernel by kernel, and as a whole.

The call is made twice, eagerly and compiled, from one state, which is put back: nothing that tensors hold is
different afterwards. Of a driven function the Python runs once, with what it does beside tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.compare import HOST, Difference, Outcome, Place, compare
from compiler.gpu.probe import OnMachine
from compiler.interpret import evaluate
from compiler.plan import Request
from compiler.tolerance import Apart, apart
from framework.capture.backward import Derivative
from framework.capture.book import StretchProgram
from framework.capture.driver import Driver, Stretch, Write
from framework.capture.tree import flatten
from framework.capture.variant import Variant
from framework.deferred import Deferred
from framework.inspect.state import Snapshot
from framework.state import ambient
from framework.tensor import Tensor, concrete
from kernels.gpu import arrays

if TYPE_CHECKING:
    from framework.capture.compile import CompiledFunction

Array = np.ndarray[Any, Any]
# Two runs of the same ops may be apart by so much: functions in eager code have ways of their own.
WHOLE = 1e-4


@dataclass(frozen=True)
class Comparison:
    """What `compare` found of the function `name`: how much was looked at, and the first difference.

    Prints as a sentence; `agrees` says whether there is none.
    """

    name: str
    nodes: int
    kernels: int
    difference: Difference | None
    notes: tuple[str, ...] = field(default=())

    @property
    def agrees(self) -> bool:
        """Whether the compiled function does what the eager one does."""
        return self.difference is None

    def __str__(self) -> str:
        looked_at = f"{self.nodes} nodes in {self.kernels} kernels"
        if self.difference is None:
            text = (
                f"{self.name} agrees with eager: {looked_at}, each kernel on its own and the call as a whole"
            )
        else:
            text = f"{self.name} differs from eager ({looked_at} looked at)\n  {self.difference}"
        return "\n".join([text, *(f"  {note}" for note in self.notes)])

    __repr__ = __str__


def compare_call(
    function: CompiledFunction[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    relative: float | None = None,
) -> Comparison:
    """Compare a call of a compiled function with the eager call; `relative` differences are no fault."""
    name = getattr(function.function, "__name__", type(function.function).__name__)
    with function.lock:
        variant, leaves, made = function.variant_for(args, kwargs)
        if variant is None and function.on_gpu:
            raise RuntimeError(f"{name} runs op by op on a GPU: there is no program to compare")
        if variant is None:
            return _Driven(function, name, relative).run(args, kwargs)
        try:
            return _Replayed(function, name, variant, leaves, relative).run(args, kwargs)
        finally:
            for undo in reversed(variant.undo if made else ()):
                undo()


def place_of(variant: Variant) -> Place:
    """Where the kernels of a call are run alone: where its program runs."""
    if variant.device is None:
        return HOST
    return OnMachine(arrays.machine(variant.device))


class _Tally:
    """Outcomes added up, with the first difference among them."""

    def __init__(self, relative: float | None) -> None:
        self.relative = relative
        self.nodes = self.kernels = 0
        self.difference: Difference | None = None

    def add(self, outcome: Outcome) -> None:
        """Count what was compared."""
        self.nodes += outcome.nodes
        self.kernels += outcome.kernels
        self.difference = self.difference or outcome.difference


class _Replayed:
    """A call that a program stands for."""

    def __init__(
        self,
        function: CompiledFunction[..., Any],
        name: str,
        variant: Variant,
        leaves: list[Any],
        relative: float | None,
    ) -> None:
        self.function, self.name, self.variant, self.leaves = function, name, variant, leaves
        self.tally = _Tally(relative)
        self.place = place_of(variant)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Comparison:
        """Look at the program, then at its gradients, then at the call."""
        variant, tally = self.variant, self.tally
        state = Snapshot(self.tensors(), [g for g, _ in variant.draws])
        calls = variant.calls
        try:
            inputs = [np.array(arrays.get(x)) for x in self.inputs()]
            tally.add(compare(variant.executable.recorded, inputs, tally.relative, self.place))
            if variant.backward is not None and tally.difference is None:
                tally.add(self.gradients(variant.backward, inputs))
            state.restore()
            if tally.difference is None:
                tally.difference = self.whole(state, args, kwargs)
        finally:
            state.restore()
            variant.calls = calls
        return Comparison(self.name, tally.nodes, tally.kernels, tally.difference)

    def inputs(self) -> list[Array]:
        """What the program would run on: the memory itself, one array for each input."""
        variant = self.variant
        if variant.lifted is not None:
            variant.lifted.load(self.leaves)
        variant.load_numbers()
        leaves = variant.with_gradients(self.leaves)
        given = variant.executable.bound | {i: leaves[p]._data for i, p in variant.arguments}
        return [given[i] for i in range(len(given))]

    def tensors(self) -> list[Tensor]:
        """Every tensor that the call can reach."""
        variant = self.variant
        leaves = [x for x in self.leaves if isinstance(x, Tensor)]
        held = [t for t in variant.current if t is not None]
        graded = [slot.leaf for slot in variant.gradients if slot.leaf is not None]
        return [*leaves, *held, *graded, *[leaf for leaf, _ in variant.gradients_read]]

    def gradients(self, backward: Any, inputs: list[Array]) -> Outcome:
        """The program of the results' gradients, for ones that come in."""
        program: Derivative = backward.program
        outputs = evaluate(self.variant.executable.recorded.graph, inputs)
        seeds = [
            np.ones(v.shape, v.dtype.numpy) for v in program.graph.inputs[: len(self.variant.root_kinds)]
        ]
        kept = [outputs[number] for number in self.variant.kept[: backward.read]]
        sources = [inputs[i] for i in backward.sources[: backward.direct]]
        request = Request(program.graph, strides=program.strides)
        return compare(request, [*seeds, *kept, *sources], self.tally.relative, self.place)

    def whole(self, state: Snapshot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Difference | None:
        """The call as its caller sees it: what it returns, and the state it leaves.

        The program's ops are run one by one in it. Kernels were looked at before, and where a gradient is 0
        but for rounding, an optimizer makes much of that.
        """
        eager = self.outcome(state, self.function.function(*args, **kwargs))
        state.restore()
        assert self.variant.recheck() is None, "the state is what it was"
        with _interpreted(self.variant):
            replayed = self.outcome(state, self.variant.replay(self.leaves))
        for (what, one), (_, two) in zip(eager, replayed, strict=False):
            found = _differ(one, two)
            if found is not None:
                kind = "" if one is None else f"{np.asarray(one).dtype}{list(np.shape(one))}"
                return Difference(f"the recording: {what}", "the call", kind, "", found)
        return None

    def outcome(self, state: Snapshot, result: Any) -> list[tuple[str, Any]]:
        """A call's results, and the state after it."""
        leaves: list[Any] = []
        flatten(result, leaves)
        results = [
            (f"result {number}", np.array(arrays.get(concrete(x))) if isinstance(x, Tensor) else x)
            for number, x in enumerate(leaves)
            if isinstance(x, Tensor | int | float)
        ]
        return [*results, *state.values()]


def _differ(eager: Any, compiled: Any) -> Apart | None:
    """Where two parts of two whole runs are too far apart."""
    if eager is None or compiled is None:
        return None if eager is compiled else Apart((), eager, compiled, 1)
    one, two = np.asarray(eager), np.asarray(compiled)
    if one.dtype != two.dtype or one.dtype.kind not in "fV":
        return None if np.array_equal(one, two) else apart(one, two.astype(one.dtype), one, WHOLE)
    size = float(np.max(np.abs(one.astype(np.float64)), initial=0.0, where=np.isfinite(one)))
    return apart(one, two, one, WHOLE, WHOLE * size)


@contextmanager
def _interpreted(variant: Variant) -> Iterator[None]:
    """Let replays of a variant run the recorded ops one by one in place of the program."""
    executable = variant.executable
    recorded = executable.recorded

    def run(given: Sequence[tuple[int, Array]], outputs: Sequence[Array]) -> int:
        known = executable.bound | dict(given)
        inputs = [np.array(arrays.get(known[i])) for i in range(len(recorded.graph.inputs))]
        found = evaluate(recorded.graph, inputs)
        targets = [*outputs, *(known[number] for number, _ in recorded.writes)]
        for target, value in zip(targets, found, strict=False):
            arrays.overwrite(target, value)
        return 0

    with variant.lock:
        executable.run = run
        try:
            yield
        finally:
            del executable.run


class _Watching(Driver):
    """Drives a call; keeps what each stretch of work starts from, and what it writes over."""

    def __init__(self, book: Any, function: Any) -> None:
        super().__init__(book, function)
        self.stretches: list[tuple[StretchProgram, list[Array]]] = []
        self.written: dict[int, tuple[Array, Array]] = {}
        self.gradients: dict[int, tuple[Tensor, Tensor | None]] = {}
        self.streams: dict[int, tuple[Any, int]] = {}
        self.undo: list[Any] = []

    def _compute(self, stretch: Stretch, live: list[Deferred], writes: list[Write]) -> StretchProgram:
        program, used = self._found(stretch, tuple([v.node for v in live]), tuple(writes))
        self.stretches.append((program, [stretch.inputs[number][1].copy(order="K") for number in used]))
        for number, _, _ in writes:
            array = stretch.inputs[number][1]
            self.written.setdefault(id(array), (array, array.copy()))
        return super()._compute(stretch, live, writes)

    def set_grad(self, t: Tensor, gradient: Tensor | None) -> None:
        """As the driver's, with the gradient that was there kept."""
        self.gradients.setdefault(id(t), (t, t._grad))
        super().set_grad(t, gradient)

    def stream(self, generator: Any) -> tuple[Deferred, Any]:
        """As the driver's, with the state that was there kept."""
        self.streams.setdefault(id(generator), (generator, generator.offset))
        return super().stream(generator)

    def created(self, undo: Any) -> None:
        """State made on first use goes again."""
        self.undo.append(undo)
        super().created(undo)

    def restore(self) -> None:
        """Put tensors back as they were before the call."""
        for array, content in self.written.values():
            np.copyto(array, content)
        for t, gradient in self.gradients.values():
            t._grad = gradient
        for generator, offset in self.streams.values():
            generator.offset = offset
        for undo in reversed(self.undo):
            undo()


class _Driven:
    """A call whose Python runs, with programs for the stretches of work in it."""

    def __init__(self, function: CompiledFunction[..., Any], name: str, relative: float | None) -> None:
        self.function, self.name = function, name
        self.tally = _Tally(relative)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Comparison:
        """Drive the call once, and compare each stretch on what it started from."""
        driver = _Watching(self.function.book, self.function)
        ambient.tracer = driver
        try:
            # Held until the end: what nobody refers to is not computed.
            result = self.function.function(*args, **kwargs)
        finally:
            ambient.tracer = None
            driver.finish()
            driver.restore()
        del result
        done: set[int] = set()
        for program, inputs in driver.stretches:
            if program.executable is not None and id(program) not in done:
                done.add(id(program))
                self.tally.add(compare(program.executable.recorded, inputs, self.tally.relative))
        notes = ("it is driven: its Python ran once, and what it did beside tensors is done",)
        tally = self.tally
        return Comparison(self.name, tally.nodes, tally.kernels, tally.difference, notes)
