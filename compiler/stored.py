"""Plans on disk: a request seen by an earlier process is neither rewritten nor scheduled again.

A file holds the optimised graph and its plan as flat tables, under a digest of the request and of all code
that makes plans. Knows nothing of addresses or machine code; the environment variable TRACEFUSE_PLANS=0 turns
it off.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler.ir import Apply, Const, Graph, Input, Value
from compiler.lower import Buffer, Kernel, Place
from compiler.ops import TABLE
from compiler.plan import Plan, Request
from compiler.types import TensorType
from kernels import cache as disk
from kernels.cpu.engine import compiler_digest
from kernels.cpu.target import fingerprint

# Smaller requests are planned about as fast as they are found (a node costs 0.2 ms to plan, a file 0.3 ms to
# read), and driven functions make many of them.
_FEWEST_NODES = 50
# Larger constants are not worth a second copy on the disk.
_LARGEST_CONSTANT = 1 << 16


def planned(request: Request, make: Callable[[Request], tuple[Request, Plan]]) -> tuple[Request, Plan]:
    """`make(request)`, an optimised request and its plan, or what an earlier process made of it."""
    key = _key(request)
    if key is None:
        return make(request)
    found = disk.read(f"{key}.plan")
    if found is not None:
        return _unpacked(found)
    made = make(request)
    disk.write(f"{key}.plan", _packed(*made))
    return made


def _key(request: Request) -> str | None:
    """Name of the request's file; None when it is not worth one, or cannot have one."""
    nodes = request.graph.nodes
    if len(nodes) < _FEWEST_NODES or os.environ.get("TRACEFUSE_PLANS") == "0":
        return None
    if not all(isinstance(v, Input | Apply) or _is_small(v) for v in nodes):
        return None
    numbers = {v: i for i, v in enumerate(nodes)}
    digest = hashlib.sha256(_code_digest().encode())
    facts = _Facts()
    # Of version 2: later ones depend on which equal objects are one.
    digest.update(marshal.dumps(facts.rows(nodes, numbers), 2))
    digest.update(repr(facts.tables).encode())
    outputs = [numbers[v] for v in request.graph.outputs]
    writes = [(number, numbers[v]) for number, v in request.writes]
    checks = [numbers[v] for v in request.checks]
    digest.update(repr((outputs, writes, checks, sorted(request.strides.items()), request.there)).encode())
    return f"plan_{digest.hexdigest()[:32]}"


def _is_small(value: Value) -> bool:
    return isinstance(value, Const) and value.data.nbytes <= _LARGEST_CONSTANT


@cache
def _code_digest() -> str:
    """Digest of the sources that decide a plan, and of the machine it is for."""
    root = Path(__file__).parent
    digest = hashlib.sha256(f"{fingerprint()} {compiler_digest()} {np.__version__}".encode())
    # What is in kernels/cpu is in the back end's own digest; other folders of that package plan nothing.
    for path in sorted([*root.rglob("*.py"), *(root.parent / "kernels").glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# Nodes as rows (kind or op, numbers of its facts, ...) that name other nodes by number

_INPUT, _CONST = 0, 1
Row = tuple[Any, ...]
# Shape and dtype of types, lines, and attributes: what thousands of nodes share, each once.
Tables = tuple[list[Any], list[str], list[Any]]


class _Facts:
    """Facts of nodes by number."""

    def __init__(self) -> None:
        self.tables: Tables = ([], [], [])
        self.numbers: tuple[dict[Any, int], ...] = ({}, {}, {})
        # Numbers of lines by identity: nodes hold these, and those of a gradient have one.
        self.lines: dict[int, int] = {}

    def number(self, table: int, key: Any, fact: Any) -> int:
        """The number of a fact, which `key` tells from others of its table."""
        known = self.numbers[table]
        number = known.get(key)
        if number is None:
            number = known[key] = len(known)
            self.tables[table].append(fact)
        return number

    def _line(self, where: Any) -> int:
        # Equal to a line that is no gradient's.
        return self.number(1, where if type(where) is str else (str(where), where.op, where.made), where)

    def rows(self, nodes: Iterable[Value], numbers: Mapping[Value, int]) -> list[Row]:
        """A row of plain numbers, strings and bytes for each node."""
        return [self._row(v, numbers) for v in nodes]

    def _row(self, value: Value, numbers: Mapping[Value, int]) -> Row:
        of = value.type
        kind = of.shape, of.dtype
        made = self.numbers[0].get(kind)
        if made is None:
            made = self.number(0, kind, kind)
        line = self.lines.get(id(value.where))
        if line is None:
            line = self.lines[id(value.where)] = self._line(value.where)
        head = made, line
        if isinstance(value, Apply):
            text = value.attrs_text
            given = self.numbers[2].get(text)
            if given is None:
                given = self.number(2, text, sorted(value.attrs.items()))
            return (value.op.name, made, line, given, *[numbers[x] for x in value.inputs])
        if isinstance(value, Input):
            return _INPUT, *head, value.name
        if isinstance(value, Const):
            return _CONST, *head, value.data.tobytes()
        raise AssertionError(f"no row for a {type(value).__name__}")


def _nodes(rows: Iterable[Row], tables: Tables) -> list[Value]:
    """The nodes of rows."""
    types = [TensorType(shape, dtype) for shape, dtype in tables[0]]
    attributes = [dict(items) for items in tables[2]]
    nodes: list[Value] = []
    for kind, number, line, fact, *inputs in rows:
        made, where = types[number], tables[1][line]
        if kind == _INPUT:
            nodes.append(Input(made, where=where, name=fact))
        elif kind == _CONST:
            data = np.ndarray(made.shape, made.dtype.numpy, fact)
            nodes.append(Const(made, where=where, data=data))
        else:
            given = tuple([nodes[i] for i in inputs])
            nodes.append(Apply(made, where=where, op=TABLE[kind], inputs=given, attrs=attributes[fact]))
    return nodes


class _Buffers:
    """Buffers by number, each after the one it is part of."""

    def __init__(self) -> None:
        self.numbers: dict[Buffer, int] = {}
        self.rows: list[tuple[Any, ...]] = []

    def number(self, buffer: Buffer | None) -> int:
        if buffer is None:
            return -1
        if buffer not in self.numbers:
            row = buffer.type.shape, buffer.type.dtype, buffer.name, self.number(buffer.whole)
            self.numbers[buffer] = len(self.rows)
            self.rows.append(row)
        return self.numbers[buffer]


def _packed(request: Request, plan: Plan) -> bytes:
    graph, buffers = request.graph, _Buffers()
    # A kernel may name nodes that the optimised graph no longer reaches.
    reached = dict.fromkeys(graph.nodes)
    others = {x for k in plan.kernels for x in k.nodes if x not in reached}
    nodes = graph.nodes
    if others:
        nodes = Graph(graph.inputs, (*graph.outputs, *sorted(others, key=lambda v: v.serial))).nodes
    numbers = {v: i for i, v in enumerate(nodes)}
    specs = {k.spec.digest + k.spec.name: k.spec for k in plan.kernels}
    spec_numbers = {name: i for i, name in enumerate(specs)}
    kernels = [
        (
            spec_numbers[k.spec.digest + k.spec.name],
            k.extents,
            [(buffers.number(p.buffer), p.offset, p.strides, p.index_stride) for p in k.places],
            [numbers[x] for x in k.nodes],
            k.parts,
            k.serial,
        )
        for k in plan.kernels
    ]
    facts = _Facts()
    table = (
        facts.rows(nodes, numbers),
        facts.tables,
        len(graph.inputs),
        [numbers[v] for v in graph.outputs],
        [(number, numbers[v]) for number, v in request.writes],
        [numbers[v] for v in request.checks],
        dict(request.strides),
        list(specs.values()),
        kernels,
        plan.levels,
        [[buffers.number(b) for b in group] for group in (plan.inputs, plan.outputs, plan.checks)],
        [(buffers.number(b), numbers[c]) for b, c in plan.constants.items()],
        [(buffers.number(b), offset) for b, offset in plan.arena.items()],
        plan.arena_bytes,
        None
        if plan.chained is None
        else (
            plan.chained.levels,
            [(buffers.number(b), offset) for b, offset in plan.chained.arena.items()],
            plan.chained.arena_bytes,
            plan.chained.chains,
        ),
        buffers.rows,
    )
    return pickle.dumps(table, protocol=pickle.HIGHEST_PROTOCOL)


def _unpacked(content: bytes) -> tuple[Request, Plan]:
    (rows, tables, count, outputs, writes, checks, strides, specs, kernels, levels, groups, constants, arena,
     size, chained, buffer_rows) = pickle.loads(content)  # fmt: skip
    nodes = _nodes(rows, tables)
    buffers: list[Any] = []
    for shape, dtype, name, whole in buffer_rows:
        buffers.append(Buffer(TensorType(shape, dtype), name, buffers[whole] if whole >= 0 else None))
    buffers.append(None)  # number -1
    graph = Graph(tuple(nodes[:count]), tuple([nodes[i] for i in outputs]))  # type: ignore[arg-type]
    request = Request(
        graph, tuple([(n, nodes[i]) for n, i in writes]), tuple([nodes[i] for i in checks]), strides
    )
    made = [
        Kernel(
            specs[spec],
            extents,
            tuple([Place(buffers[b], offset, steps, index) for b, offset, steps, index in places]),
            tuple([nodes[i] for i in members]),  # type: ignore[arg-type]
            parts,
            serial,
        )
        for spec, extents, places, members, parts, serial in kernels
    ]
    inputs, returned, flags = ([buffers[i] for i in group] for group in groups)
    plan = Plan(
        made,
        levels,
        inputs,
        returned,
        flags,
        {buffers[b]: nodes[i] for b, i in constants},  # type: ignore[misc]
        {buffers[b]: offset for b, offset in arena},
        size,
    )
    if chained is not None:
        levels, arena, size, chains = chained
        places = {buffers[b]: offset for b, offset in arena}
        plan.chained = replace(plan, levels=levels, arena=places, arena_bytes=size, chains=chains)
    return request, plan
