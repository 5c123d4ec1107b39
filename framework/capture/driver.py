"""Driven calls: the function's Python runs, and the tensor work between reads of values is compiled.

Only data is deferred: gradients, histories, versions and attributes change at once, as in an eager call. Ops
become nodes that are shared by equal applications, so a call that does what an earlier one did meets the same
nodes, and the program of a stretch of work is found by the identity of what it computes.
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from compiler.ir import Graph, Input, Value
from compiler.ops.arithmetic import add
from compiler.ops.compare import cast
from compiler.ops.movement import expand, to_write_through
from compiler.ops.op import Movement, Op
from compiler.ops.reduction import any as any_
from compiler.where import user_line
from framework.access import over
from framework.capture.book import Book, StretchProgram, apart, same_bits
from framework.capture.calls import Recording, library_call
from framework.capture.placing import fill, located
from framework.capture.regions import Outcome, backward, exact_key, optimizer_step
from framework.capture.stretch import Stretch, is_on_gpu, meets_a_gpu, step_aside
from framework.deferred import Deferred, known
from framework.state import ambient, structure
from framework.storage import Storage, root_of
from framework.tensor import Tensor, write
from kernels import dtypes, memory
from kernels.gpu import arrays

Array = np.ndarray[Any, Any]
# Number and node of the input whose memory is written (the node says how it lies), and its new value.
Write = tuple[int, Input, Value]
_new, _ref = object.__new__, weakref.ref
_by_serial = operator.attrgetter("node.serial")

# Ops deferred at most: a function that loops over a whole data set between two reads is cut here.
MOST_DEFERRED = 5_000
# Nodes computed apart for a check, at most; where there are more, the stretch ends.
MOST_GLANCED = 24


class Driver:
    """One driven call in progress: stands where a Tracer stands in a recording."""

    # Whether Python's effects on tensors (gradients, histories, attributes) happen for real.
    drives = True

    def __init__(self, book: Book, function: Any) -> None:
        self.book, self.nodes = book, book.nodes
        self.function = function
        self.stretch = Stretch(self)
        self.outcome: Outcome | None = None
        self.recording: Recording | None = None
        # How many of our own stretches of Python are being run, and whether a flush waits for their end.
        self.depth, self.owed = 0, False
        self.finished = False
        # Whether memory was written to past its version, which histories know their values by.
        self.unversioned = False
        # Held while values are computed, which another thread may ask for.
        self.lock, self.thread = threading.RLock(), threading.get_ident()

    # Ops

    def apply(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Tensor:
        """The tensor of an op's result, without history."""
        if meets_a_gpu(self, inputs):
            values = [x._data if isinstance(x, Tensor) else known(x) for x in inputs]
            return over(op.compute(*values, **attrs))
        # Not amid an op: what it has looked at so far would be of a stretch that is over.
        self.cut()
        if isinstance(op, Movement):
            source = inputs[0]._data
            if source is not None:
                moved = op.compute(source, **attrs)
                # A reshape that copies is deferred: its source may have a value that is not in memory yet.
                if moved is source or root_of(moved) is root_of(source):
                    return over(moved)
        return self.tensor(self.defer(op, inputs, attrs))

    def cut(self) -> None:
        """End a stretch that is long enough."""
        if len(self.stretch.values) + self.stretch.inside > MOST_DEFERRED:
            self.flush()

    call = library_call

    def defer(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> Deferred:
        """The value of an op on tensors, deferred values, arrays and numbers."""
        if is_on_gpu(inputs):
            return op.compute(*[self._array(x) for x in inputs], **attrs)  # type: ignore[return-value]
        if op.check is not None:
            self._check(op, inputs, attrs)
        stretch = self.stretch
        operands: list[Any] = []
        numbers = False
        for x in inputs:
            kind = type(x)
            if kind is Deferred:
                operands.append(x.node if x.stretch is stretch else self._node(x))
            elif kind is Tensor and x._deferred is not None and self.outcome is None:  # the usual case
                operands.append(x._deferred.node)
            elif kind is float or kind is int or kind is bool:
                operands.append((kind, x.hex() if kind is float else x))
                numbers = True
            elif kind is np.ndarray and not x.ndim and not x.flags.writeable:  # a number that has its dtype
                operands.append((x.dtype, x.tobytes()))
                numbers = True
            else:
                operands.append(self._node(x))
        key = (op, exact_key(attrs), *operands) if attrs else (op, *operands)
        node = self.nodes.get(key)
        if node is None:
            node = self._make(op, inputs, operands, attrs, key, numbers)
            stretch = self.stretch
        made = _new(Deferred)
        made.node, made.stretch, made.array = node, stretch, None
        stretch.values.append(_ref(made))
        return made

    def _make(
        self,
        op: Op,
        inputs: tuple[Any, ...],
        operands: list[Any],
        attrs: Mapping[str, Any],
        key: Any,
        numbers: bool,
    ) -> Value:
        """A node that was not met before; a number that keeps changing becomes an input."""
        stretch = self.stretch
        nodes = [x if isinstance(given, tuple) else given for x, given in zip(inputs, operands, strict=True)]
        if numbers:
            typed = op.typed(tuple(nodes))
            place = (op, exact_key(attrs), *(x[0] if isinstance(x, tuple) else x for x in operands))
            # Those of the first stretch are constants, 0.5 * x and 0.7 * x alike; another one later varies.
            # With a second constant a loop with a loss scale and a clip norm
            # (tests/framework/test_capture_styles.py) made 31 programs in place of 18.
            if self.book.numbers.setdefault(place, stretch.serial) != stretch.serial:
                nodes = [self._lifted(x, t) for x, t in zip(nodes, typed, strict=True)]
                exact = (x if isinstance(x, Value) else (x.dtype, x.tobytes()) for x in nodes)
                key = (op, exact_key(attrs), "lifted", *exact)
                node = self.nodes.get(key)
                if node is not None:
                    return node
        return self.nodes.setdefault(key, op.trace(*nodes, **attrs))

    def _lifted(self, number: Any, typed: Any) -> Any:
        """A number as a program input of the dtype it takes here; itself where that is not exact."""
        if isinstance(number, np.ndarray):
            number = number.item()
        if isinstance(number, Value | bool) or abs(number) >= 2**53:
            return number if isinstance(number, Value) else typed
        kind = np.int64 if isinstance(number, int) and typed.dtype.kind in "iu" else np.float64
        given = self._adopt(np.array(number, kind))
        return self.defer(cast, (given,), {"dtype": dtypes.of_numpy(typed.dtype)}).node

    def _check(self, op: Op, inputs: tuple[Any, ...], attrs: Mapping[str, Any]) -> None:
        """Raise what the op raises on bad input, at its own line: Python goes on after it otherwise."""
        assert op.check is not None, "asked of ops with a check"
        failed = op.check.failed(*op.typed(tuple([self.seen(x) for x in inputs])), **attrs)
        if type(failed) is Deferred:
            failed = self.defer(any_, (failed,), {"axes": tuple(range(failed.ndim))})
            if self.recording is not None:
                self.recording.checks.append(failed.node)
            failed = self._glance(failed)
        elif self.recording is not None and failed is not None:
            self.recording.check(op, inputs, attrs)
        if failed is not None and failed.any():
            raise op.check.error(*op.typed(tuple([self._array(x) for x in inputs])), **attrs)

    def _glance(self, value: Deferred) -> Array:
        """The array of a value; computed apart from the stretch if that is little work."""
        program = self.book.programs.get(((value.node,), ()))  # there is one from an earlier call, usually
        if program is None and len(Graph((), (value.node,)).nodes) > MOST_GLANCED:
            return known(value)
        value.array = self._run_apart(value)
        return value.array

    def _run_apart(self, value: Deferred) -> Array:
        """The array of a value of the present stretch, which goes on."""
        program, used = self._found(value.stretch, (value.node,), ())
        return program.run([value.stretch.inputs[number][1] for number in used])[0]

    def computed_apart(self, value: Deferred) -> Array:
        """The array of a value for another thread, which must not end a stretch of ours."""
        with self.lock:
            return self._run_apart(value) if value.array is None else value.array

    def holds(self, node: Value) -> bool:
        """Whether a bool of the present stretch is true."""
        return bool(self._glance(self.value(node)))

    def seen(self, x: Any) -> Any:
        """An operand as an array, where that is known."""
        value = self.read(x) if isinstance(x, Tensor) else x
        return value.array if type(value) is Deferred and value.array is not None else value

    def _array(self, x: Any) -> Any:
        return self.concrete(x) if isinstance(x, Tensor) else known(x)

    def _node(self, x: Any) -> Value:
        """The node of a tensor, an array or a value of an earlier stretch."""
        if isinstance(x, Tensor):
            return self.read(x).node
        if isinstance(x, np.ndarray):
            return self._found_in(x).node
        if x.stretch is self.stretch:
            return x.node
        return self._adopt(known(x)).node

    def _adopt(self, array: Array) -> Deferred:
        """The present value of an array's memory."""
        stretch = self.stretch
        value = stretch.memory.get(id(array))
        if self.outcome is not None:
            self.outcome.valid = False  # an array that is no tensor's may hold anything next time
        if value is None:
            number = stretch.numbers[id(array)] = len(stretch.inputs)
            node = self.book.input(number, array)
            stretch.inputs.append((node, array))
            value = stretch.memory[id(array)] = _new(Deferred)
            value.node, value.stretch, value.array = node, stretch, array
        return value

    def node_in(self, t: Tensor) -> Value:
        """The node of a tensor's value now, where no outcome is being recorded."""
        data = t._data
        if data is None or t._base is not None or (t._memory is not None and t._memory.exposed):
            return self.read(t).node
        value = self.stretch.memory.get(id(data))
        return self._adopt(data).node if value is None else value.node

    def _found_in(self, array: Array) -> Deferred:
        """The present value of memory that others may write to without our knowing."""
        stretch = self.stretch
        if id(array) in stretch.written:  # our own Python runs, and writes when it is done
            return stretch.memory[id(array)]
        value = stretch.found.get(id(array))
        if value is None or not same_bits(value.array, array):
            value = stretch.found[id(array)] = self._adopt(array.copy(order="K"))
        return value

    def _present(self, t: Tensor) -> Deferred:
        """The present value of the memory of `t`, no view."""
        data = t._data
        assert data is not None, "a tensor of its own memory has it"
        if t._memory is not None and t._memory.exposed:
            return self._found_in(data)
        return self.stretch.memory.get(id(data)) or self._adopt(data)

    def tensor(self, value: Deferred) -> Tensor:
        """A tensor of a value that nobody else has."""
        t = _new(Tensor)
        t._memory = _new(Storage)
        t._deferred = value
        t._traced = value.node.type
        self.stretch.tensors.append(_ref(t))
        if self.outcome is not None:
            self.outcome.made[id(t)] = t
        return t

    # What a Tracer is asked

    def read(self, t: Tensor) -> Deferred:
        """The value of a tensor now."""
        if meets_a_gpu(self, (t,)):
            return t._data  # type: ignore[return-value]
        if self.outcome is not None:
            return self._noted(t)
        if t._base is None:
            if t._data is not None:
                return self._present(t)
            assert t._deferred is not None, "a tensor without memory is deferred"
            return t._deferred
        root, chain = located(t)
        if root is t:
            return self._present(t)
        value = self.read(root)
        for op, attrs in chain:
            value = self.defer(op, (value,), attrs)
        return value

    def _noted(self, t: Tensor) -> Deferred:
        """`read` while an outcome is recorded."""
        outcome, self.outcome = self.outcome, None
        assert outcome is not None, "asked while recording"
        try:
            value = self.read(t)
        finally:
            self.outcome = outcome
        outcome.read(t, value)
        return value

    def wrap(self, data: Any) -> Tensor:
        """A new tensor of a value, or over an array."""
        if type(data) is Deferred:
            if data.stretch is self.stretch:
                return self.tensor(self.own(data))
            data = known(data)
        return over(data)

    def value(self, node: Value) -> Deferred:
        """The value of a node of this stretch, in memory of its own."""
        made, stretch = _new(Deferred), self.stretch
        made.node, made.stretch, made.array = node, stretch, None
        stretch.values.append(_ref(made))
        return made

    def own(self, value: Deferred) -> Deferred:
        """The same value in memory of its own."""
        return self.value(value.node if value.stretch is self.stretch else self._adopt(known(value)).node)

    def share(self, t: Tensor) -> Tensor:
        """Another tensor of the same memory; the caller links it to `t`."""
        made = object.__new__(Tensor)
        if t._data is not None:
            made._data = t._data
        else:
            made._traced = t._traced
            self.stretch.tensors.append(_ref(made))
        return made

    def part(self, t: Tensor) -> None:
        """`t` is about to be no view any more: give it a value of its own."""
        t._deferred = self.own(self.read(t))

    def write(self, t: Tensor, data: Any) -> None:
        """Overwrite `t`: its memory has a new value from here on, seen by every view."""
        if meets_a_gpu(self, (t, data)):
            write(t, known(data))
            return
        root, chain = located(t)
        if root._storage is not t._storage:
            # Through `.data`, which no version tells of: what was saved of it is memory, and changes too.
            self.unversioned = True
            if root._data is None:
                self.flush()
                root, chain = located(t)
        new = data if type(data) is Deferred else self._adopt(np.asarray(data))
        if new.stretch is not self.stretch:
            new = self._adopt(known(new))
        stages = [self.read(root)]
        for op, attrs in (chain := to_write_through(chain, stages[0].shape)):
            stages.append(self.defer(op, (stages[-1],), attrs))
        if new.dtype is not stages[-1].dtype:
            new = self.defer(cast, (new,), {"dtype": stages[-1].dtype})
        if new.shape != stages[-1].shape:
            new = self.defer(expand, (new,), {"shape": stages[-1].shape})
        for (op, attrs), base in zip(reversed(chain), reversed(stages[:-1]), strict=True):
            new = op.unview(base, new, **attrs)
        self.store(root, self.own(new), t)

    def store(self, root: Tensor, value: Deferred, through: Tensor | None = None) -> None:
        """Give the memory of `root`, no view, a new value; it was written `through` a view."""
        t = root if through is None else through
        t._storage.writes += 1
        self._depends()
        if self.outcome is not None:
            self.outcome.write(root, value.node)
        if root._data is None:
            root._deferred = value
            return
        stretch, array = self.stretch, root._data
        if id(array) not in stretch.numbers:  # its value was read before a flush
            self._adopt(array)
        stretch.written[id(array)] = stretch.numbers[id(array)]
        stretch.memory[id(array)] = value
        # Others may look at this memory without our knowing; not while our own Python runs, if it is no view.
        if not memory.is_own(array):
            self.flush()
        elif root._storage.exposed or t._storage.exposed:
            self.owed = True
            self.settle()

    def overwrite(self, t: Tensor, value: Deferred) -> None:
        """`store` in memory that nobody views unknown to us, for a part of ours that is not run."""
        array, stretch, storage = t._data, self.stretch, t._storage
        if array is None:
            self.store(t, value)
            return
        storage.writes += 1
        place = id(array)
        if place not in stretch.numbers:
            self._adopt(array)
        stretch.written[place] = stretch.numbers[place]
        stretch.memory[place] = value
        if storage.exposed:
            self.owed = True

    def settle(self) -> None:
        """Carry out what others wait for, unless an optimizer or a backward pass is at work."""
        if self.owed and not self.depth:
            self.owed = False
            self.flush()

    def version(self, t: Tensor) -> int:
        """The version of a tensor's memory."""
        return t._storage.version

    def grad(self, t: Tensor) -> Tensor | None:
        """The gradient."""
        return t._grad

    def set_grad(self, t: Tensor, gradient: Tensor | None) -> None:
        """Assign `.grad`."""
        self._depends()
        if self.outcome is not None:
            if gradient is None or gradient._deferred is None:
                self.outcome.valid = False
            else:
                self.outcome.effects.append(("gradient", t, gradient._deferred.node))
        if gradient is not t._grad:
            t._grad = gradient
            structure.gradients += 1

    def number(self, read: Callable[[], float]) -> Value:
        """The node of a number that changes from call to call, where no outcome is being recorded."""
        return self._adopt(np.array(read(), np.float64)).node

    def scalar(self, read: Callable[[], float]) -> Tensor:
        """A 0-d float64 tensor of a number that changes from call to call."""
        t = over(np.array(read(), np.float64))
        outcome, self.outcome = self.outcome, None
        node = self.read(t).node
        if outcome is not None:
            outcome.scalar(t, read, node)
            self.outcome = outcome
        return t

    def stream(self, generator: Any) -> tuple[Deferred, Any]:
        """Seed and offset of the next random stream."""
        self._depends()
        if self.outcome is not None:
            self.outcome.valid = False
        draws = self.stretch.draws.get(id(generator))
        if draws is None or draws[2] > generator.offset or known(draws[0]) != generator.seed_value:
            seed = self._adopt(np.array(generator.seed_value, np.int64))
            draws = seed, self._adopt(np.array(generator.offset, np.int64)), generator.offset
            self.stretch.draws[id(generator)] = draws
        seed, offset, first = draws
        ahead = generator.offset - first
        generator.offset += 1
        return seed, self.defer(add, (offset, ahead), {}) if ahead else offset

    def guard(self, read: Callable[[], Any]) -> Any:
        """The value of `read()`: Python asks again at each call."""
        value = read()
        self._depends()
        if self.outcome is not None:
            self.outcome.guards.append((read, value))
        return value

    def _depends(self) -> None:
        """Note that a library call did or asked for more than its result says."""
        if self.recording is not None:
            self.recording.valid = False

    def touch(self, thing: Any) -> None:
        """Python runs each time: nothing to note."""

    def created(self, undo: Callable[[], Any]) -> None:
        """State made on first use is real."""
        self._depends()
        if self.outcome is not None:
            self.outcome.valid = False

    def optimizer_step(self, optimizer: Any, body: Callable[[], Any]) -> None:
        """Run an optimizer's update. A loop over steps is cut between them, so that its stretches repeat."""
        if meets_a_gpu(self, [p for group in optimizer.param_groups for p in group["params"]]):
            return body()
        if optimizer in self.stretch.stepped:
            self.flush()
        self.stretch.stepped.add(optimizer)
        optimizer_step(self, optimizer, body)

    def backward(
        self, roots: list[Tensor], gradients: list[Any], keep: bool, body: Callable[[], Any]
    ) -> None:
        """Run a backward pass."""
        if arrays.Known.engine is not None:  # it may lead to tensors there
            step_aside(self)
        if self.unversioned or ambient.tracer is None:
            body()
        else:
            backward(self, roots, gradients, keep, body)

    def concrete(self, t: Tensor) -> Array:
        """The array of `t`, computed now."""
        self._depends()
        if self.stretch.values or self.stretch.written:
            self.flush()
        assert t._data is not None, "a flush computes every tensor"
        return t._data

    # Computing

    def finish(self) -> None:
        """Compute what is left, at the end of the call."""
        self.finished = True
        self.flush()

    def flush(self) -> None:
        """Compute what was deferred and is still referred to, and carry out the writes."""
        with self.lock:
            stretch = self.stretch
            for call in stretch.calls:
                if (node := call()) is not None and node.call.stretch is not None:
                    node.look_inside()
            self.stretch = Stretch(self)
            stretch.open = False
            # The present value of written memory is that memory.
            for array in [a for _, a in stretch.inputs if id(a) in stretch.written]:
                stretch.memory[id(array)].array = array
            live = [v for r in stretch.values if (v := r()) is not None and v.array is None]
            # In an order that does not depend on which Python was run.
            live.sort(key=_by_serial)
            writes = [
                (number, stretch.inputs[number][0], stretch.memory[at].node)
                for at, number in stretch.written.items()
            ]
            program = self._compute_or_keep(stretch, live, writes) if live or writes else None
            for reference in stretch.tensors:
                t = reference()
                if t is not None and t._data is None:
                    fill(t)
            if program is not None and program.executable is not None:
                program.executable.let_through()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Run something else in between, with everything computed."""
        self.flush()
        ambient.tracer = None
        try:
            yield
        finally:
            ambient.tracer = self

    def _compute_or_keep(self, stretch: Stretch, live: list[Deferred], writes: list[Write]) -> StretchProgram:
        """`_compute`; a stretch that was interrupted and only makes values is still to be computed."""
        try:
            return self._compute(stretch, live, writes)
        except BaseException:
            if not writes:
                self.stretch, stretch.open = stretch, True
            raise

    def _compute(self, stretch: Stretch, live: list[Deferred], writes: list[Write]) -> StretchProgram:
        program, used = self._found(stretch, tuple([v.node for v in live]), tuple(writes))
        arrays = [stretch.inputs[number][1] for number in used]
        if writes:
            arrays = apart(arrays, [stretch.inputs[number][1] for number, _, _ in writes])
        outputs = program.run(arrays)
        for value, array in zip(live, outputs, strict=True):
            value.array = array
        return program

    def _found(
        self, stretch: Stretch, nodes: tuple[Value, ...], writes: tuple[Write, ...]
    ) -> tuple[StretchProgram, list[int]]:
        found = self.book.programs.get((nodes, writes))
        return self._program(stretch, nodes, writes) if found is None else found

    def _program(
        self, stretch: Stretch, nodes: tuple[Value, ...], writes: tuple[Write, ...]
    ) -> tuple[StretchProgram, list[int]]:
        book = self.book
        outputs = (*nodes, *(value for _, _, value in writes))
        reached = {v for v in Graph((), outputs).nodes if isinstance(v, Input)}
        targets = {number for number, _, _ in writes}
        used = [i for i, (node, _) in enumerate(stretch.inputs) if node in reached or i in targets]
        inputs = tuple(stretch.inputs[i][0] for i in used)
        graph = Graph(inputs, outputs)
        placed = tuple((used.index(number), value) for number, _, value in writes)
        strides = {i: book.strides[node] for i, node in enumerate(inputs)}
        where = "the end" if self.finished else user_line()
        lower = book.deserves_a_program((nodes, writes))
        program = StretchProgram(graph, placed, strides, where, lower)
        if lower:
            book.programs[nodes, writes] = program, used
        return program, used
